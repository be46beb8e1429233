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

# Not TestIpcStaged on the fake driver: it closes memory while a copy from it is queued, and the fake driver does not
# wait where nobody promises it.
CLASSES = ["cudadrv", "cudapy.test_cuda_array_interface",
           "cudapy.test_ipc" if conftest.GPU else "cudapy.test_ipc.TestIpcMemory"]
#: These skip themselves under any plugin: they look into Numba's own queue.
OWN = {f"test_deallocations.TestDeallocation.test_{name}" for name in (
    "defer_cleanup", "exception", "max_pending_bytes", "max_pending_count", "nested_defer_cleanup")} | {
        "test_cuda_array_interface.TestCudaArrayInterface.test_ownership"}
#: Passes the bytes of a handle on without its offset, which only the start of the driver's allocation survives.
WITHOUT_OFFSET = "test_ipc.TestIpcMemory.test_ipc_handle"
#: Numba's own handle of newer cuda-bindings cannot be sent. The second test also looks for a field that they lack.
SENT = ("test_ipc.TestIpcMemory.test_ipc_array", "test_ipc.TestIpcMemory.test_ipc_handle_serialization")
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
    assert "Exception ignored" not in log or folder.name == "builtin", log
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    if subprocess.run([sys.executable, "-c", "from numba import cuda; assert cuda.is_available()"], env=ENVIRONMENT,
                      capture_output=True, timeout=300).returncode:
        pytest.skip("neither a GPU nor the fake driver")
    base = tmp_path_factory.mktemp("numba")
    suites = {
        "builtin": (CLASSES, {}),
        "plugin": (CLASSES, {"NUMBA_CUDA_MEMORY_MANAGER": "gmm.numba"}),
        "dedicated": (CLASSES[-1:], {"NUMBA_CUDA_MEMORY_MANAGER": "gmm", "GMM_NUMBA_POOL": "0"}),
    }
    running = {name: start(base / name, classes, **settings) for name, (classes, settings) in suites.items()}
    return {name: outcomes(base / name, process) for name, process in running.items()}


def test_pooled(results):
    builtin, plugin = results["builtin"], results["plugin"]
    assert sum(outcome == "ok" for outcome in builtin.values()) >= 130, builtin
    different = {test: plugin.get(test) for test in builtin.keys() | plugin.keys()
                 if builtin.get(test) != plugin.get(test) and test not in SENT}
    assert {test for test, outcome in different.items() if outcome == "skipped"} == OWN
    assert different.keys() - OWN <= {WITHOUT_OFFSET}, different
    assert plugin[SENT[0]] == "ok" and plugin[SENT[1]] in ("ok", builtin[SENT[1]])


def test_not_pooled(results):
    """Handles without an offset work too."""
    assert WITHOUT_OFFSET in results["dedicated"]
    for test, outcome in results["dedicated"].items():
        assert outcome == results["builtin"][test] or (test == SENT[0] and outcome == "ok"), test
