# SPDX-License-Identifier: Apache-2.0
"""Numba's own driver tests give the same with its memory manager and with gmm's.

On the fake driver, those that launch no kernel.
"""
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import conftest
import pytest

# Numba itself is for other processes: it reads its settings when it is imported.
if importlib.util.find_spec("numba_cuda") is None:
    pytest.skip("numba-cuda is not installed", allow_module_level=True)

CLASSES = [
    "cudadrv.test_context_stack.TestContextAPI",
    "cudadrv.test_context_stack.TestContextStack",
    "cudadrv.test_context_stack.TestContextLeak",
    "cudadrv.test_context_stack.Test3rdPartyContext",
    "cudadrv.test_cuda_array_slicing",
    "cudadrv.test_cuda_auto_context",
    "cudadrv.test_cuda_devicerecord",
    "cudadrv.test_cuda_memory",
    "cudadrv.test_cuda_ndarray.TestCudaNDArray",
    "cudadrv.test_deallocations",
    "cudadrv.test_emm_plugins",
    "cudadrv.test_events",
    "cudadrv.test_host_alloc",
    "cudadrv.test_managed_alloc.TestManagedAlloc",
    "cudadrv.test_pinned",
    "cudadrv.test_reset_device",
    "cudadrv.test_select_device",
    "cudadrv.test_streams",
    "cudapy.test_cuda_array_interface",
    # Not TestIpcStaged: it closes memory while a copy from it is queued, and the fake driver does not wait where nobody
    # promises it.
    "cudapy.test_ipc.TestIpcMemory",
]
if conftest.GPU:
    CLASSES = ["cudadrv", "cudapy.test_ipc", "cudapy.test_cuda_array_interface"]
#: These skip themselves under any plugin: they look into Numba's own queue.
OWN = {f"test_deallocations.TestDeallocation.test_{name}" for name in (
    "defer_cleanup", "exception", "max_pending_bytes", "max_pending_count", "nested_defer_cleanup")} | {
        "test_cuda_array_interface.TestCudaArrayInterface.test_ownership"}
#: Passes the bytes of a handle on without its offset, which only the start of the driver's allocation survives.
WITHOUT_OFFSET = "test_ipc.TestIpcMemory.test_ipc_handle"
#: Modules that Numba's tests import and do not use here, and row_stack, which the newest NumPy lacks.
PRELUDE = """if True:
    import sys
    from unittest.mock import MagicMock
    try:
        import filecheck
    except ImportError:
        for name in ("filecheck", "filecheck.matcher", "filecheck.finput", "filecheck.options", "filecheck.parser"):
            sys.modules[name] = MagicMock(name=name)
    import numpy
    if not hasattr(numpy, "row_stack"):
        numpy.row_stack = numpy.vstack
"""
#: Children have 4 seconds in Numba's tests, which a machine with much to do exceeds with any manager.
PROGRAM = """if True:
    import runpy
    from numba.cuda.tests.cudapy import test_ipc
    test_ipc.FUTURE_TIMEOUT = 60
    runpy.run_module("numba.runtests", run_name="__main__")
"""
OUTCOME = re.compile(r"^ *test_\w+ \([\w.]*?(test_[\w.]+)\).* \.\.\. (ok|FAIL|ERROR|skipped)", re.MULTILINE)
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA_", "GMM_NUMBA_"))}
#: Numba's test of managed memory fills half of the device's.
ENVIRONMENT["FAKE_CUDA_MEMORY"] = str(1 << 30)


def start(folder, classes, **settings):
    """The suite in a process of its own, whose children need the prelude too."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(PRELUDE)
    environment = {**ENVIRONMENT, **settings,
                   "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [ENVIRONMENT.get("PYTHONPATH")])])}
    with open(folder / "log", "w") as log:
        names = [f"numba.cuda.tests.{name}" for name in classes]
        return subprocess.Popen([sys.executable, "-c", PROGRAM, "-v", *names], cwd=folder, env=environment, stdout=log,
                                stderr=subprocess.STDOUT)


def outcomes(folder, process):
    """Each test's outcome; a test of which one part fails has failed."""
    process.wait(timeout=200)
    log = pathlib.Path(folder / "log").read_text()
    found = {}
    for name, outcome in OUTCOME.findall(log):
        if found.get(name) not in ("FAIL", "ERROR"):
            found[name] = outcome
    assert re.search(r"^Ran \d+ tests", log, re.MULTILINE), log[-3000:]
    assert "Exception ignored" not in log, log
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    if subprocess.run([sys.executable, "-c", "from numba import cuda; assert cuda.is_available()"], env=ENVIRONMENT,
                      capture_output=True, timeout=300).returncode:
        pytest.skip("neither a GPU nor the fake driver")
    base = tmp_path_factory.mktemp("numba")
    settings = {
        "builtin": {},
        "plugin": {"NUMBA_CUDA_MEMORY_MANAGER": "gmm.numba"},
        "dedicated": {"NUMBA_CUDA_MEMORY_MANAGER": "gmm", "GMM_NUMBA_POOL": "0"},
    }
    # On a GPU all of them take too long a third time.
    only = {"dedicated": ["cudapy.test_ipc"]} if conftest.GPU else {}
    running = {name: start(base / name, only.get(name, CLASSES), **settings[name]) for name in settings}
    return {name: outcomes(base / name, process) for name, process in running.items()}


def differences(results, name):
    builtin, plugin = results["builtin"], results[name]
    tests = plugin.keys() if conftest.GPU and name == "dedicated" else builtin.keys() | plugin.keys()
    outcomes = {test: (builtin.get(test), plugin.get(test)) for test in tests}
    return {test: (before, after) for test, (before, after) in outcomes.items() if before != after}


def test_enough_ran(results):
    assert sum(outcome == "ok" for outcome in results["builtin"].values()) >= 130, results["builtin"]


def test_pooled(results):
    different = differences(results, "plugin")
    assert {test for test, (_, outcome) in different.items() if outcome == "skipped"} == OWN
    assert different.keys() - OWN <= {WITHOUT_OFFSET}


def test_not_pooled(results):
    after = {test: outcome for test, (_, outcome) in differences(results, "dedicated").items()}
    assert after == ({} if conftest.GPU else dict.fromkeys(OWN, "skipped"))


def test_ipc_passes(results):
    for test in ("test_ipc_handle_serialization", "test_ipc_array"):
        assert results["plugin"][f"test_ipc.TestIpcMemory.{test}"] == "ok"
