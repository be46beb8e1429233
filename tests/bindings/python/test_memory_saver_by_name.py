# SPDX-License-Identifier: Apache-2.0
"""gmm under the name torch_memory_saver: the folder, the command, and programs that import the name."""
import os
import pathlib
import subprocess
import sys

import pytest
from drop_in import FAKE_TORCH, PRELUDE, library, run

from gmm._memory_saver import by_name, preload

#: A program that knows nothing of gmm; it starts another one as upstream's README says.
PROGRAM = """
import multiprocessing, os, pathlib, subprocess, sys
import torch
import torch_memory_saver as package
from torch_memory_saver import TorchMemorySaver, configure_subprocess, memory_saver, torch_memory_saver
from torch_memory_saver.hooks.mode_preload import HookUtilModePreload
from torch_memory_saver.testing_utils import empty_cache, get_and_print_gpu_memory, get_device
from torch_memory_saver.utils import change_env, get_binary_path_from_package

assert memory_saver is package.torch_memory_saver is torch_memory_saver and type(torch_memory_saver) is TorchMemorySaver
MIB = 1 << 20

def pause_and_resume():
    with torch_memory_saver.region(tag="weights", enable_cpu_backup=True):
        weights = torch.full((24 * MIB,), 7, dtype=torch.uint8, device=get_device())
    before = get_and_print_gpu_memory("before")
    torch_memory_saver.pause("weights")
    assert before - get_and_print_gpu_memory("paused") >= 24 * MIB
    torch_memory_saver.resume("weights")
    assert weights._bytes() == bytes([7]) * 24 * MIB
"""

SHOW = ("import importlib.metadata, torch_memory_saver; "
        "print(torch_memory_saver.__file__, importlib.metadata.version(\"torch_memory_saver\"))")


@pytest.fixture
def folder(tmp_path):
    library()
    return by_name.make_folder(tmp_path / "folder")


def run_by_name(code, folder, environment=()):
    path = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
    return run(code, prelude=PROGRAM, environment={"PYTHONPATH": os.pathsep.join([str(FAKE_TORCH), path]),
                                                   **dict(environment)})


def test_folder(folder):
    before = {path.name: path.lstat().st_mtime_ns for path in pathlib.Path(folder).iterdir()}
    assert set(by_name.LIBRARIES) | {"torch_memory_saver"} <= set(before)
    assert by_name.make_folder(folder) == folder  # nothing to do
    assert {path.name: path.lstat().st_mtime_ns for path in pathlib.Path(folder).iterdir()} == before
    link = pathlib.Path(folder) / by_name.LIBRARIES[0]
    link.unlink()
    link.symlink_to("/nowhere")
    by_name.make_folder(folder)
    assert link.samefile(preload.find_library())


def test_folder_of_others_is_refused(tmp_path):
    library()
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(RuntimeError, match="other users can write"):
        by_name.make_folder(folder)
    with pytest.raises(RuntimeError, match="--folder"):
        by_name.make_folder(tmp_path / "with blank")
    (tmp_path / "file").touch()
    with pytest.raises(RuntimeError, match="--folder"):
        by_name.make_folder(tmp_path / "file" / "below")


def test_command(tmp_path):
    path = library()
    environment = {**os.environ, "GMM_PRELOAD_LIBRARY": path, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "gmm.memory_saver"]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    shown = subprocess.run(["sh", "-c", f"{said}\n\"$0\" -c '{SHOW}'", sys.executable], env=environment,
                           capture_output=True, text=True, check=True).stdout.split()
    assert shown[0].startswith(str(tmp_path)) and shown[1:] == [by_name.VERSION]
    ran = subprocess.run([*command, "run", "--", sys.executable, "-c", SHOW], env=environment, capture_output=True,
                         text=True, check=True).stdout.split()
    assert ran == shown
    inner = [*command, "run", sys.executable, "-c", "import os; print(os.environ['PYTHONPATH'])"]
    once = subprocess.run([*command, "run", *inner], env=environment, capture_output=True, text=True, check=True).stdout
    assert once.count("torch_memory_saver-") == 1  # the folder is there once
    failed = subprocess.run([*command, "run", "no-such-program"], env=environment, capture_output=True, text=True,
                            check=False)
    assert failed.returncode == 127 and "no-such-program" in failed.stderr
    assert subprocess.run([*command, "run"], env=environment, capture_output=True, check=False).returncode == 2


def test_program_in_hook_mode_torch(folder):
    run_by_name("""
torch_memory_saver.hook_mode = "torch"
pause_and_resume()
from torch_memory_saver.binary_wrapper import BinaryWrapper
from torch_memory_saver.hooks.base import HookUtilBase
util = HookUtilBase.create("torch")
assert util.get_allocator() and BinaryWrapper(util.get_path_binary()).cdll.tms_get_current_tag() == b"default"
assert len({line.split()[-1] for line in open("/proc/self/maps") if "preload" in line}) == 1  # one library, two names
""", folder)


def test_program_spawns_others(folder):
    out = run_by_name(f"""
with configure_subprocess():
    assert os.environ["LD_PRELOAD"] == str(get_binary_path_from_package("torch_memory_saver_hook_mode_preload"))
    subprocess.run([sys.executable, "-c", {PROGRAM!r} + '''
assert HookUtilModePreload().get_path_binary() == os.environ["LD_PRELOAD"]
pause_and_resume()
print("child done")
'''], check=True)
assert "LD_PRELOAD" not in os.environ
""", folder)
    assert "child done" in out


@pytest.mark.parametrize("name", by_name.LIBRARIES[:3])
def test_program_builds_the_path_itself(folder, name):
    """As slime and miles do it: the library beside the package, and what it can do by the text inside."""
    out = run_by_name(f"""
path = os.path.join(os.path.dirname(os.path.dirname(package.__file__)), {name!r})
assert os.path.exists(path) and b"TMS_INIT_ENABLE_DISK_BACKUP" in pathlib.Path(path).read_bytes()
environment = dict(os.environ, LD_PRELOAD=path, TMS_INIT_ENABLE="1", TMS_INIT_ENABLE_CPU_BACKUP="1")
subprocess.run([sys.executable, "-c", {PROGRAM!r} + '''
made = torch.full((24 * MIB,), 5, dtype=torch.uint8, device="cuda")
before = get_and_print_gpu_memory("before")
torch_memory_saver.pause()
assert before - get_and_print_gpu_memory("paused") >= 24 * MIB
with torch_memory_saver.disable():
    pass
torch_memory_saver.resume()
assert made._bytes() == bytes([5]) * 24 * MIB
print("child done")
'''], env=environment, check=True)
""", folder)
    assert "child done" in out


def test_region_belongs_to_its_thread():
    """Under LD_PRELOAD alone, as a program sets it by hand."""
    run("""
from gmm.memory_saver import torch_memory_saver as saver
made = []
with saver.region(tag="mine"):
    mine = full(8, 1)
    thread = threading.Thread(target=lambda: made.append(full(8, 2)))
    thread.start(); thread.join()
before = used()
saver.pause()
assert before - used() == 8 and holds(made[0], 2), before - used()
saver.resume()
""", environment={"LD_PRELOAD": library()}, prelude=PRELUDE)


#: The two forms of the package that can take a hook mode: without a function for it, and with one.
REAL = {
    "released": """
class HookUtilBase:
    @staticmethod
    def create(hook_mode):
        return {"preload": None, "torch": None}[hook_mode]
""",
    "development": """
modes = {}
def register_hook_mode(name, factory, *, uses_preload=True):
    modes[name] = factory, uses_preload
""",
}


@pytest.mark.parametrize("form", REAL)
def test_hook_mode_of_the_real_package(tmp_path, form):
    package = tmp_path / "real_saver"
    (package / "hooks").mkdir(parents=True)
    (package / "__init__.py").write_text("from .hooks.base import *\n" if form == "development" else "")
    (package / "hooks" / "__init__.py").touch()
    (package / "hooks" / "base.py").write_text(REAL[form])
    run(f"""
sys.path.insert(0, {str(tmp_path)!r})
import real_saver
from gmm.memory_saver import add_hook_mode
add_hook_mode(real_saver)
if {form == "development"}:
    factory, uses_preload = real_saver.modes["gmm"]
    assert not uses_preload
    with factory().region(tag="a", enable_cpu_backup=False):
        assert full(2, 1)
else:
    import real_saver.hooks.base as base
    assert base.HookUtilBase.create("torch") is None
    util = base.HookUtilBase.create("gmm")
    import ctypes
    saver = ctypes.CDLL(util.get_path_binary())
    saver.tms_set_interesting_region(True)
    with torch.cuda.use_mem_pool(torch.cuda.MemPool(util.get_allocator())):
        tensor = full(8, 3)
    before = used()
    assert saver.tms_pause(None) == 0 and before - used() == 8
    assert saver.tms_resume(None) == 0
    tensor.fill_(1)
    raises(KeyError, base.HookUtilBase.create, "other")
""")


def test_hook_mode_of_upstreams_wheel():
    """The Python of the real package, with gmm's library under it."""
    wheels = sorted((FAKE_TORCH.parents[3] / ".gpu" / "wheels").glob("torch_memory_saver-*.whl"))
    if not wheels:
        pytest.skip("torch_memory_saver's wheel is not here: tests/gpu/pack.sh brings it")
    run(f"""
sys.path.insert(0, {str(wheels[-1])!r})
import torch_memory_saver
from gmm.memory_saver import add_hook_mode
assert ".whl" in torch_memory_saver.__file__
add_hook_mode(torch_memory_saver)
saver = torch_memory_saver.torch_memory_saver
saver.hook_mode = "gmm"
with saver.region(tag="a", enable_cpu_backup=True):
    kept = full(8, 3)
before = used()
saver.pause("a")
assert before - used() == 8
saver.resume("a")
assert holds(kept, 3)
""")
