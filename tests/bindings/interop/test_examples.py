# SPDX-License-Identifier: Apache-2.0
"""The examples with other libraries, each with the Python of its environment in .deps/.

An example that prints "skipped: ..." and ends with 0 is skipped. So is one whose environment is missing.
"""
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
#: By the environment that has their libraries. The tour needs none, and is a test of its own.
EXAMPLES = {"python/one_pool.py": "interop", "python/sycl_shared_buffer.py": "sycl",
            "python/torch_larger_than_quota.py": "torch", "communicator/reduce.py": "torch",
            "elastic/two_models.py": "torch"}


@pytest.mark.parametrize("example, environment", EXAMPLES.items(), ids=EXAMPLES)
def test_example(example, environment):
    folder = ROOT / ".deps" / environment
    if not (folder / "ready").exists():
        pytest.skip(f"no environment .deps/{folder.name}")
    done = subprocess.run([folder / "bin" / "python", ROOT / "examples" / example], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
                          env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines, done.stdout
    print(f"# {lines[-1]}")
    if lines[-1].startswith("skipped: "):
        pytest.skip(lines[-1].removeprefix("skipped: "))
