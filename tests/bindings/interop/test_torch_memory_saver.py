# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver's own tests, as far as they need no GPU, with gmm under that name and PyTorch."""
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")
ROOT = pathlib.Path(__file__).resolve().parents[3]
#: Where its repository may lie: PyPI has no tests of it. test_memory_saver_by_name.py runs more of them on a fake.
SOURCES = (ROOT / ".deps" / "torch_memory_saver", ROOT / ".gpu" / "torch_memory_saver")


def test_upstream():
    sources = [source for source in SOURCES if source.is_dir()]
    if not sources:
        pytest.skip("torch_memory_saver's repository is not here: TMS_SOURCE=REPOSITORY tests/gpu/pack.sh brings it")
    done = subprocess.run([sys.executable, ROOT / "tests" / "gpu" / "memory_saver_upstream.py", "--without-gpu",
                           sources[0]], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = [line for line in done.stdout.splitlines() if line.startswith("ok ") and "# SKIP" not in line]
    assert len(passed) >= 10, done.stdout
