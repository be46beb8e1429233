# SPDX-License-Identifier: Apache-2.0
"""gmm under the name torch_memory_saver: the folder, the command, and programs that import the name."""
import os
import pathlib
import subprocess
import sys

import pytest
from drop_in import FAKE_TORCH, library, run

from gmm._memory_saver import by_name, preload

#: A program that needs nothing of gmm. It starts another one, as upstream's README says and as slime and miles do it.
PROGRAM = """
import os, pathlib, subprocess, sys
import gmm.memory_saver
import torch
import torch_memory_saver as package
from torch_memory_saver import TorchMemorySaver, configure_subprocess, memory_saver, torch_memory_saver
from torch_memory_saver.hooks.mode_preload import HookUtilModePreload
from torch_memory_saver.testing_utils import empty_cache, get_and_print_gpu_memory, get_device
from torch_memory_saver.utils import change_env, get_binary_path_from_package

assert type(torch_memory_saver) is TorchMemorySaver
for one in (memory_saver, package.torch_memory_saver, gmm.memory_saver.memory_saver,
            gmm.memory_saver.torch_memory_saver):
    assert one is torch_memory_saver
SIZE = 24 << 20

def pause_and_resume(make):
    weights = make(lambda: torch.full((SIZE,), 7, dtype=torch.uint8, device=get_device()))
    before = get_and_print_gpu_memory("before")
    torch_memory_saver.pause()
    assert before - get_and_print_gpu_memory("paused") >= SIZE
    torch_memory_saver.resume()
    assert weights.content() == bytes([7]) * SIZE

def in_region(make):
    with torch_memory_saver.region(tag="weights", enable_cpu_backup=True):
        return make()
"""

SHOW = ("import importlib.metadata, torch_memory_saver; "
        "print(torch_memory_saver.__file__, importlib.metadata.version(\"torch_memory_saver\"))")


@pytest.fixture
def folder(tmp_path):
    library()
    return by_name.make_folder(tmp_path / "folder")


@pytest.fixture
def program(folder):
    """program(code): runs PROGRAM and the code, with the folder on Python's path."""
    path = os.pathsep.join([str(FAKE_TORCH), folder, os.environ.get("PYTHONPATH", "")])
    return lambda code: run(code, prelude=PROGRAM, environment={"PYTHONPATH": path})


def test_folder(folder):
    def times():
        return {path.name: path.lstat().st_mtime_ns for path in pathlib.Path(folder).iterdir()}

    before = times()
    assert set(by_name.LIBRARIES) | {"torch_memory_saver"} <= set(before)
    assert by_name.make_folder(folder) == folder and times() == before  # nothing to do
    link = pathlib.Path(folder) / by_name.LIBRARIES[0]
    link.unlink()
    link.symlink_to("/nowhere")
    by_name.make_folder(folder)
    assert link.samefile(preload.find_library())


def test_folder_of_others_is_refused(tmp_path):
    library()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "file").touch()
    for name, message in (("open", "other users can write"), ("with blank", "--folder"), ("file/below", "--folder")):
        with pytest.raises(RuntimeError, match=message):
            by_name.make_folder(tmp_path / name)


def test_command(tmp_path):
    environment = {**os.environ, "GMM_PRELOAD_LIBRARY": library(), "XDG_CACHE_HOME": str(tmp_path)}

    def command(*words, program=(sys.executable, "-m", "gmm.memory_saver")):
        return subprocess.run([*program, *words], env=environment, capture_output=True, text=True, check=False)

    said = command().stdout
    shown = command(f"{said}\n\"$0\" -c '{SHOW}'", sys.executable, program=("sh", "-c")).stdout.split()
    assert shown[0].startswith(str(tmp_path)) and shown[1:] == [by_name.VERSION]
    assert command("run", "--", sys.executable, "-c", SHOW).stdout.split() == shown
    once = command("run", sys.executable, "-m", "gmm.memory_saver", "run", "printenv", "PYTHONPATH").stdout
    assert once.count("torch_memory_saver-") == 1  # the folder is there once
    failed = command("run", "no-such-program")
    assert failed.returncode == 127 and "no-such-program" in failed.stderr and command("run").returncode == 2


def test_program_in_hook_mode_torch(program):
    program("""
torch_memory_saver.hook_mode = "torch"
pause_and_resume(in_region)
from torch_memory_saver.binary_wrapper import BinaryWrapper
path = get_binary_path_from_package("torch_memory_saver_hook_mode_torch")
assert BinaryWrapper(str(path)).cdll.tms_get_current_tag() == b"default"
assert len({line.split()[-1] for line in open("/proc/self/maps") if "preload" in line}) == 1  # one library, two names
""")


def test_program_spawns_others(program):
    assert "child done" in program(f"""
with configure_subprocess():
    assert os.environ["LD_PRELOAD"] == str(get_binary_path_from_package("torch_memory_saver_hook_mode_preload"))
    subprocess.run([sys.executable, "-c", {PROGRAM!r} + '''
assert HookUtilModePreload().get_path_binary() == os.environ["LD_PRELOAD"]
pause_and_resume(in_region)
print("child done")
'''], check=True)
assert "LD_PRELOAD" not in os.environ
""")


def test_program_builds_the_path_itself(program):
    """The libraries beside the package, and what they can do by the text inside."""
    assert program(f"""
for name in {by_name.LIBRARIES[:3]!r}:
    path = os.path.join(os.path.dirname(os.path.dirname(package.__file__)), name)
    assert os.path.exists(path) and b"TMS_INIT_ENABLE_DISK_BACKUP" in pathlib.Path(path).read_bytes()
    environment = dict(os.environ, LD_PRELOAD=path, TMS_INIT_ENABLE="1", TMS_INIT_ENABLE_CPU_BACKUP="1",
                       TMS_RETAIN_CPU_BACKUP="1")
    subprocess.run([sys.executable, "-c", {PROGRAM!r} + '''
pause_and_resume(lambda make: make())
assert torch_memory_saver.retain_cpu_backup is True
with torch_memory_saver.disable():
    apart = torch.full((SIZE,), 2, dtype=torch.uint8, device="cuda")
torch_memory_saver.pause()
assert apart.content() == bytes([2]) * SIZE
print("child done")
'''], env=environment, check=True)
""").count("child done") == 3
