# SPDX-License-Identifier: Apache-2.0
"""gmm.job.suspend_process() with real processes on the fake driver, which fails on demand."""
import ctypes
import os
import pathlib
import select
import signal
import subprocess
import sys
import threading

import pytest

import gmm
from gmm import job as jobs

MIB = 1 << 20
CONTEXT = 256 * MIB  # tests/support/fake_cuda/ledger.h
FAKE_NVML = pathlib.Path(gmm.__file__).parents[3] / "tests" / "support" / "fake_nvml"

#: It holds memory of gmm, and does what it is told line by line.
HOLDER = """
import sys
import gmm
size = int(sys.argv[1])
with gmm.Context("cuda") as context:
    tag = context.tag("weights", gmm.Contents.HOST)
    buffer = context.alloc(size, gmm.Kind.VMM, tag=tag)
    buffer.fill(7)
    print("ready", flush=True)
    for line in sys.stdin:
        if line == "pause\\n":
            context.pause(tag)
        elif line == "resume\\n":
            context.resume(tag)
        elif line == "suspend\\n":
            from gmm import job
            context.pause(tag)
            suspended = job.suspend_process()
            print(job.process_state().name, sum(suspended.bytes.values()), flush=True)
            job.resume_process(suspended)
            context.resume(tag)
        end = bytearray(16)
        try:
            buffer.copy_to(end, offset=size - 16)
            print("seven" if end == b"\\7" * 16 else "other", flush=True)
        except gmm.PausedError:
            print("PAUSED", flush=True)
    context.resume(tag)
    buffer.free()
"""


def is_fake():
    try:
        return hasattr(ctypes.CDLL("libcuda.so.1"), "fake_cuda_live")
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not is_fake(), reason="the fake driver is not in reach; tests/gpu/checkpoint_check.py "
                                                      "does this with a real one")


class Holder:
    """A process; its answers are lines."""

    def __init__(self, size):
        self._process = subprocess.Popen([sys.executable, "-c", HOLDER, str(size)], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True, bufsize=1)
        self.pid = self._process.pid
        assert self.answer() == "ready"

    def ask(self, words):
        print(words, file=self._process.stdin, flush=True)

    def answer(self, seconds=60.0):
        """Its next line; None: it said nothing in this time."""
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            return None
        return self._process.stdout.readline().strip()

    def end(self):
        self._process.stdin.close()
        assert self._process.wait(60) == 0

    def kill(self):
        self._process.kill()
        self._process.wait()


@pytest.fixture(autouse=True)
def ledger(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_LEDGER", str(tmp_path))
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "1")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{FAKE_NVML}:{os.environ.get('LD_LIBRARY_PATH', '')}")


@pytest.fixture
def holders():
    made = []

    def make(size=64 * MIB):
        made.append(Holder(size))
        return made[-1]

    yield make
    for each in made:
        each.kill()


def test_a_process_goes_and_comes_back(holders):
    holder = holders()
    assert jobs.process_state(holder.pid) == jobs.ProcessState.RUNNING
    suspended = jobs.suspend_process(holder.pid)
    assert suspended.pids == (holder.pid,)
    (whole,) = suspended.bytes.values()
    assert whole >= 64 * MIB + CONTEXT
    assert jobs.process_state(holder.pid) == jobs.ProcessState.CHECKPOINTED
    assert not jobs.suspend_process(holder.pid).bytes  # it is there already
    holder.ask("read")
    assert holder.answer(0.2) is None  # its calls wait
    jobs.resume_process(suspended)
    assert holder.answer() == "seven"
    assert jobs.process_state(holder.pid) == jobs.ProcessState.RUNNING
    jobs.resume_process(suspended)  # nothing to do
    # What gmm has paused need not be saved by the driver.
    holder.ask("pause")
    assert holder.answer() == "PAUSED"
    suspended = jobs.suspend_process(holder.pid)
    assert CONTEXT <= sum(suspended.bytes.values()) <= whole - 64 * MIB
    jobs.resume_process(holder.pid)
    holder.ask("resume")
    assert holder.answer() == "seven"
    holder.end()


def test_a_process_suspends_itself(holders):
    holder = holders()
    holder.ask("suspend")
    state, went = holder.answer().split()
    assert state == "CHECKPOINTED"
    assert CONTEXT <= int(went) < CONTEXT + 64 * MIB
    assert holder.answer() == "seven"
    holder.end()


def test_a_failure_brings_all_back(holders, monkeypatch):
    pair = holders(), holders()
    monkeypatch.setenv("FAKE_CUDA_FAIL", "cuCheckpointProcessCheckpoint:2:801")
    with pytest.raises(jobs.CheckpointError, match="CUDA_ERROR_NOT_SUPPORTED.*all run as before") as caught:
        jobs.suspend_process(pair[0].pid, pair[1].pid)
    assert type(caught.value) is jobs.CheckpointError
    assert (caught.value.pid, caught.value.step, caught.value.code) == (pair[1].pid, "checkpoint", 801)
    assert caught.value.state == jobs.ProcessState.RUNNING
    monkeypatch.delenv("FAKE_CUDA_FAIL")
    for each in pair:
        each.ask("read")
        assert each.answer() == "seven"
    suspended = jobs.suspend_process(*(each.pid for each in pair))
    assert [jobs.process_state(each.pid).name for each in pair] == ["CHECKPOINTED"] * 2
    jobs.resume_process(suspended)
    for each in pair:
        each.end()


def test_work_that_does_not_end(holders, monkeypatch):
    pair = holders(), holders()
    monkeypatch.setenv("FAKE_CUDA_FAIL", "cuCheckpointProcessLock:2:600")
    with pytest.raises(gmm.NotReadyError, match=f"lock of process {pair[1].pid} .*did not end in time"):
        jobs.suspend_process(pair[0].pid, pair[1].pid)
    assert [jobs.process_state(each.pid).name for each in pair] == ["RUNNING"] * 2


def test_an_undoing_that_fails_names_its_process(holders, monkeypatch):
    pair = holders(), holders()
    monkeypatch.setenv("FAKE_CUDA_FAIL", "cuCheckpointProcessCheckpoint:2:801,cuCheckpointProcessRestore:1:2")
    with pytest.raises(jobs.ProcessStuckError) as caught:
        jobs.suspend_process(pair[0].pid, pair[1].pid)
    assert (caught.value.pid, caught.value.step, caught.value.code) == (pair[0].pid, "restore", 2)
    monkeypatch.delenv("FAKE_CUDA_FAIL")
    assert jobs.process_state(pair[1].pid) == jobs.ProcessState.RUNNING


def test_no_restore_without_memory(holders, monkeypatch):
    """The driver is not asked while memory is short, as that failure would be for good."""
    monkeypatch.setenv("FAKE_CUDA_MEMORY", str(1 << 30))
    holder = holders(400 * MIB)
    suspended = jobs.suspend_process(holder.pid)
    other = holders(400 * MIB)
    with pytest.raises(gmm.OutOfMemoryError, match="make room first"):
        jobs.resume_process(suspended)
    assert jobs.process_state(holder.pid) == jobs.ProcessState.CHECKPOINTED
    other.end()
    jobs.resume_process(suspended)
    holder.ask("read")
    assert holder.answer() == "seven"


def test_a_restore_that_failed_is_for_good(holders, monkeypatch):
    """cuda-checkpoint#44: told as an exception of its own, now and at each further call."""
    monkeypatch.setenv("FAKE_CUDA_MEMORY", str(1 << 30))
    holder = holders(400 * MIB)
    jobs.suspend_process(holder.pid)
    other = holders(400 * MIB)
    for code in (2, 304):
        with pytest.raises(jobs.ProcessStuckError, match="end it") as caught:
            jobs.resume_process(holder.pid)
        assert (caught.value.step, caught.value.code) == ("restore", code)
        assert caught.value.state == jobs.ProcessState.CHECKPOINTED
        if code == 2:
            other.end()


def test_an_unlock_may_be_asked_for_again(holders, monkeypatch):
    holder = holders()
    suspended = jobs.suspend_process(holder.pid)
    monkeypatch.setenv("FAKE_CUDA_FAIL", "cuCheckpointProcessUnlock:1:999")
    with pytest.raises(jobs.CheckpointError, match="LOCKED; the call may be made again") as caught:
        jobs.resume_process(suspended)
    assert caught.value.state == jobs.ProcessState.LOCKED
    monkeypatch.delenv("FAKE_CUDA_FAIL")
    jobs.resume_process(suspended)
    assert jobs.process_state(holder.pid) == jobs.ProcessState.RUNNING


def test_a_driver_that_does_not_return(holders, monkeypatch):
    """cuda-checkpoint#30: the caller gets its thread back, and the processes theirs."""
    pair = holders(), holders()
    monkeypatch.setenv("FAKE_CUDA_HANG", "cuCheckpointProcessCheckpoint")
    with pytest.raises(gmm.NotReadyError, match=f"in the checkpoint of process {pair[0].pid}; all run as before"):
        jobs.suspend_process(pair[0].pid, pair[1].pid, timeout=2.0)
    assert [jobs.process_state(each.pid).name for each in pair] == ["RUNNING"] * 2
    monkeypatch.setenv("FAKE_CUDA_HANG", "cuCheckpointProcessGetState")
    with pytest.raises(gmm.NotReadyError, match="before its first step"):
        jobs.resume_process(pair[0].pid, timeout=0.5)


def test_a_helper_that_dies_or_is_interrupted(holders, monkeypatch):
    pair = holders(), holders()
    monkeypatch.setenv("FAKE_CUDA_FAIL", "cuCheckpointProcessCheckpoint:2:-11")  # it crashes
    with pytest.raises(jobs.CheckpointError, match=f"in the checkpoint of process {pair[1].pid}.*all run as before"):
        jobs.suspend_process(pair[0].pid, pair[1].pid)
    monkeypatch.delenv("FAKE_CUDA_FAIL")
    monkeypatch.setenv("FAKE_CUDA_HANG", "cuCheckpointProcessCheckpoint")
    timer = threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        jobs.suspend_process(pair[0].pid, pair[1].pid)
    timer.join()
    assert [jobs.process_state(each.pid).name for each in pair] == ["RUNNING"] * 2


def test_without_the_driver(monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_VERSION", "12040")
    with pytest.raises(gmm.NotSupportedError, match=r"cuCheckpointProcessGetState\(\): it needs CUDA 12.8"):
        jobs.suspend_process(os.getpid())
    monkeypatch.setenv("GMM_CUDA_DRIVER", "/no/such/libcuda.so")
    with pytest.raises(gmm.NotSupportedError, match="cannot be opened"):
        jobs.resume_process(os.getpid())


def test_wrong_processes():
    for wrong in (0, -1, True, "1", None, 1.0):
        with pytest.raises(ValueError):
            jobs.suspend_process(wrong)
    child = subprocess.Popen(["sleep", "60"])
    try:
        with pytest.raises(jobs.CheckpointError, match="no process of CUDA") as caught:
            jobs.suspend_process(child.pid)
        assert caught.value.state is None
        with pytest.raises(jobs.CheckpointError, match="it uses no CUDA"):
            jobs.process_state(child.pid)
    finally:
        child.kill()
        child.wait()
    with pytest.raises(ProcessLookupError):
        jobs.suspend_process(child.pid)
