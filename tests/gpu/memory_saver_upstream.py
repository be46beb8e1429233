# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver's own tests, unchanged, with gmm under that name. Writes TAP.

Usage: memory_saver_upstream.py [--without-gpu] [SOURCE] [pytest's OPTION...]
  SOURCE         a checkout of its repository, or a git directory; default: .gpu/torch_memory_saver, which
                 tests/gpu/pack.sh fills
  --without-gpu  only the tests that need none

Needs PyTorch and pytest, and gmm on PYTHONPATH. Its tests compare the device's free memory, so nothing else may use
the GPU meanwhile.
"""
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
WITHOUT_GPU = ("test_configure_subprocess.py", "test_utils.py")

#: What cannot pass, and why: the start of a test's name, and the reason.
SKIPPED = {
    "test_cpu_backup[": "reaches into _impl._mem_pools and asks the CUDA runtime of upstream's library about the "
                        "address of a backup; test_cpu_backup_in_public is the rest of it",
}

#: A file that cannot be loaded, and why.
LEFT_OUT = {"test_merge_cuda_wheels.py": "about a script of upstream's releases, not about the package"}

CONFTEST = f"""
import pytest

collect_ignore = {list(LEFT_OUT)!r}

def pytest_collection_modifyitems(items):
    for item in items:
        for name, reason in {SKIPPED!r}.items():
            if item.name.startswith(name):
                item.add_marker(pytest.mark.skip(reason=reason))
"""

#: cpu_backup.run() with all of its steps but the one about private members. Files that were left out stand here too.
IN_PUBLIC = '''
import pytest
import test_examples
from examples import cpu_backup


def run(hook_mode):
    cpu_backup._assert_cpu_backup_released_on_allocation_free = lambda **arguments: None
    cpu_backup.run(hook_mode)


@pytest.mark.parametrize("hook_mode", test_examples._HOOK_MODES)
def test_cpu_backup_in_public(hook_mode):
    test_examples._test_core(run, hook_mode=hook_mode)
''' + "".join(f'''

@pytest.mark.skip(reason={reason!r})
def {name[:-len(".py")]}():
    pass
''' for name, reason in LEFT_OUT.items())

#: examples/__init__.py, which upstream has not. The examples sleep for people who watch the memory meanwhile: seconds,
#: many times.
BRIEFLY = """
import time

_sleep = time.sleep
time.sleep = lambda seconds: _sleep(min(seconds, 0.05))
"""


def take_tests(source, folder):
    """Copies the folder of the tests from a checkout or a git directory."""
    if (source / "test").is_dir():
        shutil.copytree(source / "test", folder / "test")
        return
    archive = subprocess.run(["git", "-C", source, "archive", "HEAD", "test"], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")


def main(arguments):
    without_gpu = arguments[:1] == ["--without-gpu"]
    arguments = arguments[without_gpu:]
    source = ROOT / ".gpu" / "torch_memory_saver"
    if arguments and not arguments[0].startswith("-"):
        source = pathlib.Path(arguments.pop(0)).resolve()
    if not source.is_dir():
        print(f"1..0 # SKIP {source} is not there; TMS_SOURCE=REPOSITORY tests/gpu/pack.sh takes it along", flush=True)
        return 77
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        take_tests(source, folder)
        tests = folder / "test"
        (tests / "conftest.py").write_text(CONFTEST)
        (tests / "test_in_public.py").write_text(IN_PUBLIC)
        (tests / "examples" / "__init__.py").write_text(BRIEFLY)
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(tests), environment.get("PYTHONPATH")]))
        chosen = [tests / name for name in WITHOUT_GPU] if without_gpu else [tests]
        command = [sys.executable, "-m", "gmm.memory_saver", "--folder", folder / "named", "run", "--", sys.executable,
                   ROOT / "tests" / "bindings" / "python" / "run.py", f"--rootdir={tests}", *chosen, *arguments]
        return subprocess.run(command, env=environment, cwd=tests, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
