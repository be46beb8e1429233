# SPDX-License-Identifier: Apache-2.0
"""gmm.job.suspend_process() with real processes, on the fake driver, which fails on demand, and on a GPU."""
import ctypes
import fcntl
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

import gmm
from gmm import job as jobs

MIB = 1 << 20
#: At least: a context on the fake driver takes so much (tests/support/fake_cuda/ledger.h).
CONTEXT = 256 * MIB
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


#: It suspends the processes with the given numbers.
ORCHESTRATOR = """
import sys
from gmm import job
job.suspend_process(*map(int, sys.argv[1:]), timeout=120.0)
"""


def is_fake():
    try:
        return hasattr(ctypes.CDLL("libcuda.so.1"), "fake_cuda_live")
    except OSError:
        return False


def has_checkpoint():
    try:
        return jobs.process_state(os.getpid()) is not None
    except jobs.CheckpointError:  # there is a driver with a checkpoint, and this process does not use it
        return True
    except gmm.Error:
        return False


pytestmark = pytest.mark.skipif(not is_fake() and not has_checkpoint(), reason="there is no driver of CUDA 12.8")
on_fake = pytest.mark.skipif(not is_fake(), reason="the fake driver is not in reach")


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
    if not is_fake():
        return
    monkeypatch.setenv("FAKE_CUDA_LEDGER", str(tmp_path / "ledger"))
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


class HeldHelper:
    """The process that calls the driver, held up after its first step: its lines no longer fit in the pipe."""

    def __init__(self, pid, page=4096):
        self.out, into = os.pipe()
        fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, page)
        first = len(json.dumps({"pid": pid, "step": "lock"})) + 1
        os.write(into, b"\n" * (page - first - 8))
        helper = pathlib.Path(gmm.__file__).with_name("_checkpoint.py")
        self.process = subprocess.Popen([sys.executable, "-I", "-S", str(helper), "libcuda.so.1", "suspend", "60000",
                                         "{}", str(pid)], stdout=into)
        os.close(into)
        wait_for(lambda: jobs.process_state(pid) == jobs.ProcessState.LOCKED)

    def go_on(self):
        """Its last line."""
        with os.fdopen(self.out) as lines:
            last = json.loads(lines.read().splitlines()[-1])
        assert self.process.wait(60) == 0
        return last

    def die_alone(self):
        """Nobody reads any more, as after the death of who started it."""
        os.close(self.out)
        assert self.process.wait(60) != 0


def wait_for(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def children(pid):
    return [int(each) for each in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def states(*holders):
    return [jobs.process_state(each.pid).name for each in holders]


def test_a_process_goes_and_comes_back(holders):
    holder = holders()
    assert jobs.process_state(holder.pid) == jobs.ProcessState.RUNNING
    suspended = jobs.suspend_process(holder.pid)
    assert suspended.pids == (holder.pid,)
    (whole,) = suspended.bytes.values()
    assert whole >= 64 * MIB + (CONTEXT if is_fake() else 0)
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
    assert (CONTEXT if is_fake() else 0) <= sum(suspended.bytes.values()) <= whole - 64 * MIB
    jobs.resume_process(holder.pid)
    holder.ask("resume")
    assert holder.answer() == "seven"
    holder.end()


def test_a_process_suspends_itself(holders):
    holder = holders()
    holder.ask("suspend")
    state, went = holder.answer().split()
    assert state == "CHECKPOINTED"
    assert not is_fake() or CONTEXT <= int(went) < CONTEXT + 64 * MIB
    assert holder.answer() == "seven"
    holder.end()


@on_fake
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


@on_fake
def test_work_that_does_not_end(holders, monkeypatch):
    pair = holders(), holders()
    monkeypatch.setenv("FAKE_CUDA_FAIL", "cuCheckpointProcessLock:2:600")
    with pytest.raises(gmm.NotReadyError, match=f"lock of process {pair[1].pid} .*did not end in time"):
        jobs.suspend_process(pair[0].pid, pair[1].pid)
    assert [jobs.process_state(each.pid).name for each in pair] == ["RUNNING"] * 2


@on_fake
def test_a_late_lock_whose_undoing_fails(holders, monkeypatch):
    """Not all run as before then, so it is no NotReadyError, after which a program would just try again."""
    pair = holders(), holders()
    monkeypatch.setenv("FAKE_CUDA_FAIL", "cuCheckpointProcessLock:2:600,cuCheckpointProcessUnlock:1:999")
    with pytest.raises(jobs.CheckpointError, match="where the others are") as caught:
        jobs.suspend_process(pair[0].pid, pair[1].pid)
    assert (caught.value.pid, caught.value.step, caught.value.code) == (pair[1].pid, "lock", 600)
    monkeypatch.delenv("FAKE_CUDA_FAIL")
    assert states(*pair) == ["LOCKED", "RUNNING"]
    jobs.resume_process(*(each.pid for each in pair))
    assert states(*pair) == ["RUNNING"] * 2


@on_fake
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
    holder, size = holders(400 * MIB), 400 * MIB
    suspended = jobs.suspend_process(holder.pid)
    if not is_fake():
        with gmm.Context("cuda") as context:
            # This context goes before the other process's comes, and is as large. The suspended one wants 400 MiB more.
            size = (context.device_info(0).free_memory - 512 * MIB) // (2 * MIB) * (2 * MIB)
    other = holders(size)
    with pytest.raises(gmm.OutOfMemoryError, match="make room first"):
        jobs.resume_process(suspended)
    assert jobs.process_state(holder.pid) == jobs.ProcessState.CHECKPOINTED
    other.end()
    for _ in range(50):  # the memory of a process comes back a moment after its end
        try:
            jobs.resume_process(suspended)
            break
        except gmm.OutOfMemoryError:
            time.sleep(0.1)
    holder.ask("read")
    assert holder.answer() == "seven"


@on_fake
def test_the_room_does_not_depend_on_other_processes(holders, monkeypatch):
    """Another process that allocates while one goes makes the device's difference smaller."""
    monkeypatch.setenv("FAKE_CUDA_MEMORY", str(1 << 30))
    holder = holders(300 * MIB)
    helper = HeldHelper(holder.pid)
    others = [holders(100 * MIB)]
    went = helper.go_on()["went"]
    assert sum(went.values()) >= 300 * MIB + CONTEXT
    others.append(holders(100 * MIB))
    suspended = jobs.Suspended((holder.pid,), went, 0.0)
    with pytest.raises(gmm.OutOfMemoryError, match="make room first"):
        jobs.resume_process(suspended)
    others[1].end()
    jobs.resume_process(suspended)
    holder.ask("read")
    assert holder.answer() == "seven"


@on_fake
@pytest.mark.parametrize("name, value", [("BLIND", "1"), ("FAIL", "DeviceGetComputeRunningProcesses_v3:3")])
def test_where_nvml_does_not_tell_of_processes(holders, monkeypatch, name, value):
    monkeypatch.setenv(f"FAKE_NVML_{name}", value)
    pair = holders(), holders()
    suspended = jobs.suspend_process(*(each.pid for each in pair))
    assert sum(suspended.bytes.values()) >= 2 * (64 * MIB + CONTEXT)
    jobs.resume_process(suspended)
    assert states(*pair) == ["RUNNING"] * 2


@on_fake
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


@on_fake
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


@on_fake
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


@on_fake
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


@on_fake
def test_an_interrupt_when_they_are_away(holders, monkeypatch):
    """Nobody gets the Suspended that brings them back."""
    pair = holders(), holders()

    def interrupt(_verb, _answer):
        assert states(*pair) == ["CHECKPOINTED"] * 2
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("gmm._suspend._raise_failure", interrupt)
        with pytest.raises(KeyboardInterrupt):
            jobs.suspend_process(pair[0].pid, pair[1].pid)
    assert states(*pair) == ["RUNNING"] * 2


@on_fake
@pytest.mark.parametrize("way", ["interrupt", "timeout"])
def test_who_was_away_before_stays_away(holders, monkeypatch, way):
    """There may be no room for it now, and a restore without room is for good."""
    pair = holders(), holders()
    first = jobs.suspend_process(pair[0].pid)
    monkeypatch.setenv("FAKE_CUDA_HANG", "cuCheckpointProcessCheckpoint")
    if way == "interrupt":
        timer = threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
    with pytest.raises(KeyboardInterrupt if way == "interrupt" else gmm.NotReadyError):
        jobs.suspend_process(pair[0].pid, pair[1].pid, timeout=2.0)
    assert states(*pair) == ["CHECKPOINTED", "RUNNING"]
    jobs.resume_process(first)


@on_fake
def test_nobody_reads_the_lines_any_more(holders):
    holder = holders()
    HeldHelper(holder.pid).die_alone()
    assert states(holder) == ["RUNNING"]


@on_fake
def test_an_orchestrator_that_is_killed(holders, monkeypatch):
    """Its helper is alone then, and whatever ends it undoes what it did."""
    pair = holders(), holders()
    with monkeypatch.context() as patch:
        patch.setenv("FAKE_CUDA_HANG", "cuCheckpointProcessCheckpoint")
        orchestrator = subprocess.Popen([sys.executable, "-c", ORCHESTRATOR, *(str(each.pid) for each in pair)])
    wait_for(lambda: states(*pair) == ["LOCKED"] * 2)
    (helper,) = children(orchestrator.pid)
    assert os.getsid(helper) == helper  # a terminal's Ctrl-C does not reach it
    orchestrator.kill()
    orchestrator.wait()
    assert states(*pair) == ["LOCKED"] * 2
    os.kill(helper, signal.SIGINT)
    wait_for(lambda: states(*pair) == ["RUNNING"] * 2)


@on_fake
def test_one_without_cuda_does_not_keep_the_others(holders, monkeypatch):
    holder = holders()
    child = subprocess.Popen(["sleep", "60"])
    try:
        with monkeypatch.context() as patch:
            patch.setenv("FAKE_CUDA_FAIL", "cuCheckpointProcessLock:2:-11")  # the helper crashes
            with pytest.raises(jobs.CheckpointError, match=f"in the lock of process {child.pid}"):
                jobs.suspend_process(holder.pid, child.pid)
        assert states(holder) == ["RUNNING"]
        jobs.suspend_process(holder.pid)
        with pytest.raises(jobs.CheckpointError, match="no process of CUDA") as caught:
            jobs.resume_process(child.pid, holder.pid)
        assert (caught.value.pid, caught.value.step, caught.value.state) == (child.pid, "state", None)
        assert states(holder) == ["RUNNING"]
    finally:
        child.kill()
        child.wait()


@on_fake
@pytest.mark.parametrize("step, left", [("Restore", "CHECKPOINTED"), ("Unlock", "LOCKED")])
def test_a_resume_goes_on_past_a_failure(holders, monkeypatch, step, left):
    pair = holders(), holders()
    suspended = jobs.suspend_process(*(each.pid for each in pair))
    with monkeypatch.context() as patch:
        patch.setenv("FAKE_CUDA_FAIL", f"cuCheckpointProcess{step}:1:999")
        with pytest.raises(jobs.CheckpointError, match=f"{left}; the call may be made again") as caught:
            jobs.resume_process(suspended)
    assert (caught.value.pid, caught.value.step) == (pair[0].pid, step.lower())
    assert states(*pair) == [left, "RUNNING"]
    jobs.resume_process(suspended)
    assert states(*pair) == ["RUNNING"] * 2


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_one_that_is_killed_does_not_keep_the_others(holders, is_waited_for):
    three = [holders() for _ in range(3)]
    suspended = jobs.suspend_process(*(each.pid for each in three))
    if is_waited_for:
        three[0].kill()
    else:
        os.kill(three[0].pid, signal.SIGKILL)
        wait_for(lambda: ") Z " in pathlib.Path(f"/proc/{three[0].pid}/stat").read_text())
    for _ in range(2):
        with pytest.raises(ProcessLookupError, match=f"process {three[0].pid} is dead; all others run"):
            jobs.resume_process(suspended)
        assert states(*three[1:]) == ["RUNNING"] * 2
    with pytest.raises(ProcessLookupError):
        jobs.suspend_process(three[0].pid, three[1].pid)
    for each in three[1:]:
        each.ask("read")
        assert each.answer() == "seven"
        each.end()


@on_fake
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
