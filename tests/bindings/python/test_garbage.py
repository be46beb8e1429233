# SPDX-License-Identifier: Apache-2.0
"""Garbage that is collected inside callbacks, in a process of its own for each backend."""
import pathlib
import subprocess
import sys

import pytest
from conftest import BACKENDS


@pytest.mark.parametrize("backend", BACKENDS)
def test_garbage_in_callbacks(backend):
    program = pathlib.Path(__file__).parent / "garbage.py"
    done = subprocess.run([sys.executable, "-X", "dev", str(program), backend], capture_output=True, text=True,
                          timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "all\n", ""), done.stdout + done.stderr
