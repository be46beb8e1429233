# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver's own tests, with gmm under that name.

tests/bindings/python tests gmm.memory_saver on a fake of PyTorch, and test_torch_pauses.py on a GPU.
"""
import os
import pathlib
import shutil
import subprocess
import sys

import conftest
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
#: PyPI has no tests of it: TMS_SOURCE=REPOSITORY tests/gpu/pack.sh brings them.
SOURCE = ROOT / ".gpu" / "torch_memory_saver" / "test"
#: A file that cannot be loaded: it is about a script of upstream's releases, not about the package.
LEFT_OUT = "test_merge_cuda_wheels.py"
#: The end of examples/cpu_backup.py. The step that it leaves out reaches into _impl._mem_pools, and asks the CUDA
#: runtime of upstream's library about the address of a backup.
IN_PUBLIC = """

def _assert_cpu_backup_released_on_allocation_free(**arguments):
    pass
"""

#: examples/__init__.py, which upstream has not. The examples sleep for people who watch the memory: seconds,
#: many times.
BRIEFLY = """
import time

_sleep = time.sleep
time.sleep = lambda seconds: _sleep(min(seconds, 0.05))
"""


def test_upstreams_own_tests(tmp_path):
    """Without a GPU only those that need none. They compare the device's free memory."""
    if not SOURCE.is_dir():
        pytest.skip("torch_memory_saver's repository is not here: TMS_SOURCE=REPOSITORY tests/gpu/pack.sh brings it")
    tests = tmp_path / "test"
    shutil.copytree(SOURCE, tests)
    (tests / LEFT_OUT).unlink(missing_ok=True)
    with open(tests / "examples" / "cpu_backup.py", "a", encoding="utf-8") as file:
        file.write(IN_PUBLIC)
    (tests / "examples" / "__init__.py").write_text(BRIEFLY)
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(tests), environment.get("PYTHONPATH")]))
    chosen = [tests] if conftest.GPU else [tests / name for name in ("test_configure_subprocess.py", "test_utils.py")]
    done = subprocess.run([sys.executable, "-m", "gmm.memory_saver", "--folder", tmp_path / "named", "run", "--",
                           sys.executable, ROOT / "tests" / "bindings" / "python" / "run.py", f"--rootdir={tests}",
                           *chosen], env=environment, cwd=tests, capture_output=True, text=True, timeout=250,
                          check=False)
    passed = [line for line in done.stdout.splitlines() if line.startswith("ok ") and "# SKIP" not in line]
    assert done.returncode == 0 and len(passed) >= 10, done.stdout[-6000:] + done.stderr[-3000:]
