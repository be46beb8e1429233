# SPDX-License-Identifier: Apache-2.0
"""gmm.job.suspend_process() with real processes, on a GPU and on the fake driver, which fails on demand."""
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest
from checks import refused, until
from conftest import FAKE
from remote import Remote

import gmm
from gmm import _checkpoint
from gmm import job as jobs

MIB = 1 << 20
#: At least: a context on the fake driver takes so much (tests/support/fake_cuda/ledger.h).
CONTEXT = 256 * MIB
FAKE_NVML = pathlib.Path(gmm.__file__).parents[3] / "tests" / "support" / "fake_nvml"

#: Holds memory of gmm.
HOLDER = """
import gmm
from gmm import job
size = {size}
context = gmm.Context("cuda")
tag = context.tag("weights", gmm.Contents.HOST)
buffer = context.alloc(size, gmm.Kind.VMM, tag=tag)
buffer.fill(7)

def is_whole():
    end = bytearray(16)
    buffer.copy_to(end, offset=size - 16)
    return end == b"\\7" * 16

def suspend():
    context.pause(tag)
    suspended = job.suspend_process()
    state = job.process_state().name
    job.resume_process(suspended)
    context.resume(tag)
    return state, sum(suspended.bytes.values())
"""


def has_checkpoint():
    try:
        return jobs.process_state(os.getpid()) is not None
    except jobs.CheckpointError:  # there is a driver with a checkpoint, and this process does not use it
        return True
    except gmm.Error:
        return False


pytestmark = pytest.mark.skipif(not FAKE and not has_checkpoint(), reason="there is no driver of CUDA 12.8")
on_fake = pytest.mark.skipif(not FAKE, reason="the fake driver is not in reach")


@pytest.fixture(autouse=True)
def fake(tmp_path, monkeypatch):
    """fake(FAIL="...", HANG="...") sets FAKE_CUDA_* of the processes that start from now on; None removes it."""
    def set_all(**variables):
        for name, value in variables.items():
            monkeypatch.delenv(f"FAKE_CUDA_{name}", False) if value is None else monkeypatch.setenv(
                f"FAKE_CUDA_{name}", value)

    if FAKE:
        set_all(LEDGER=str(tmp_path / "ledger"), DEVICES="1", MEMORY=str(1 << 30))
        monkeypatch.setenv("LD_LIBRARY_PATH", f"{FAKE_NVML}:{os.environ.get('LD_LIBRARY_PATH', '')}")
    return set_all


@pytest.fixture
def holders():
    made = []

    def make(size=64 * MIB):
        made.append(Remote(HOLDER.format(size=size)))
        return made[-1]

    yield make
    for each in made:
        each.kill()


@pytest.fixture
def pair(holders):
    return holders(), holders()


def suspend(*holders, **options):
    return jobs.suspend_process(*(each.pid for each in holders), **options)


def check_runs(*holders):
    for each in holders:
        assert each("is_whole()")


def states(*holders):
    return [jobs.process_state(each.pid).name for each in holders]


def test_a_process_goes_and_comes_back(holders):
    holder = holders()
    assert states(holder) == ["RUNNING"]
    suspended = suspend(holder)
    assert suspended.pids == (holder.pid,) and states(holder) == ["CHECKPOINTED"]
    (whole,) = suspended.bytes.values()
    assert whole >= 64 * MIB + (CONTEXT if FAKE else 0)
    assert not suspend(holder).bytes  # it is there already
    holder.ask("is_whole()")
    assert not holder.has_answer(0.2)  # its calls wait
    jobs.resume_process(suspended)
    assert holder.answer() and states(holder) == ["RUNNING"]
    jobs.resume_process(suspended)  # nothing to do
    # Memory that gmm has paused need not be saved by the driver.
    holder("context.pause(tag)")
    suspended = suspend(holder)
    assert (CONTEXT if FAKE else 0) <= sum(suspended.bytes.values()) <= whole - 64 * MIB
    jobs.resume_process(holder.pid)
    holder("context.resume(tag)")
    check_runs(holder)
    state, went = holder("suspend()")  # itself
    assert state == "CHECKPOINTED" and holder("is_whole()")
    assert not FAKE or CONTEXT <= went < CONTEXT + 64 * MIB
    holder.end()


LOCKED, AWAY, RUNNING = jobs.ProcessState.LOCKED, jobs.ProcessState.CHECKPOINTED, jobs.ProcessState.RUNNING


@on_fake
@pytest.mark.parametrize("fail, error, words, at, left", [
    ("Checkpoint:2:801", jobs.CheckpointError, "CUDA_ERROR_NOT_SUPPORTED.*all run as before", (1, "checkpoint", 801),
     (RUNNING, RUNNING)),
    ("Lock:2:600", gmm.NotReadyError, "lock of process .*did not end in time", None, (RUNNING, RUNNING)),
    # Not all run as before then, so it is no NotReadyError, after which a program would just try again.
    ("Lock:2:600,cuCheckpointProcessUnlock:1:999", jobs.CheckpointError, "where the others are", (1, "lock", 600),
     (LOCKED, RUNNING)),
    ("Checkpoint:2:801,cuCheckpointProcessRestore:1:2", jobs.ProcessStuckError, "end it", (0, "restore", 2),
     (AWAY, RUNNING)),
    ("Checkpoint:2:-11", jobs.CheckpointError, "in the checkpoint of process .*all run as before", None,  # it crashes
     (RUNNING, RUNNING)),
], ids=["checkpoint", "late", "late and stuck", "stuck", "crash"])
def test_a_suspend_that_fails(pair, fake, fail, error, words, at, left):
    fake(FAIL=f"cuCheckpointProcess{fail}")
    failure = refused(error, lambda: suspend(*pair), match=words)
    assert type(failure) is error
    if at is not None:
        assert (failure.pid, failure.step, failure.code) == (pair[at[0]].pid, *at[1:])
    fake(FAIL=None)
    assert states(*pair) == [state.name for state in left]
    if AWAY not in left:
        jobs.resume_process(*(each.pid for each in pair))
        check_runs(*pair)


@on_fake
@pytest.mark.parametrize("step, left", [("Restore", "CHECKPOINTED"), ("Unlock", "LOCKED")])
def test_a_resume_goes_on_past_a_failure(pair, fake, step, left):
    suspended = suspend(*pair)
    fake(FAIL=f"cuCheckpointProcess{step}:1:999")
    failure = refused(jobs.CheckpointError, lambda: jobs.resume_process(suspended),
                      match=f"{left}; the call may be made again")
    assert (failure.pid, failure.step, failure.state.name) == (pair[0].pid, step.lower(), left)
    fake(FAIL=None)
    assert states(*pair) == [left, "RUNNING"]
    jobs.resume_process(suspended)
    assert states(*pair) == ["RUNNING"] * 2


def test_no_restore_without_memory(holders):
    """The driver is not asked while memory is short, as that failure would be for good."""
    holder, size = holders(400 * MIB), 400 * MIB
    suspended = suspend(holder)
    if not FAKE:
        with gmm.Context("cuda") as context:
            # This context goes before the other process's comes, and is as large. The suspended one wants 400 MiB more.
            size = (context.device_info(0).free_memory - 512 * MIB) // (2 * MIB) * (2 * MIB)
    other = holders(size)
    refused(gmm.OutOfMemoryError, lambda: jobs.resume_process(suspended), match="make room first")
    assert states(holder) == ["CHECKPOINTED"]
    if FAKE:  # cuda-checkpoint#44: an exception of its own, now and at each further call
        for code in (2, 304):
            failure = refused(jobs.ProcessStuckError, lambda: jobs.resume_process(holder.pid), match="end it")
            assert (failure.step, failure.code) == ("restore", code)
        return
    other.end()

    def comes_back():
        with contextlib.suppress(gmm.OutOfMemoryError):  # memory comes back a moment after a process's end
            jobs.resume_process(suspended)
            return True

    until(comes_back)
    check_runs(holder)


@pytest.mark.parametrize("held, needs", [
    ({7: 300, 8: 50}, 350), ({7: 300, 8: None}, 300), ({7: 300}, 300), ({7: 100}, 200), (None, 200)])
def test_the_room_does_not_depend_on_other_processes(monkeypatch, held, needs):
    """Another process that allocates while two go makes the device's difference, here 200, smaller."""
    monkeypatch.setattr(_checkpoint, "devices", lambda: {"GPU-1": (300, 700, {})})
    assert _checkpoint.needs_of([7, 8], {"GPU-1": (100, 900, held), "GPU-2": (100, 900, {})}) == {"GPU-1": needs}


@on_fake
@pytest.mark.parametrize("name, value", [("BLIND", "1"), ("FAIL", "DeviceGetComputeRunningProcesses_v3:3")])
def test_where_nvml_does_not_know_of_processes(pair, monkeypatch, name, value):
    monkeypatch.setenv(f"FAKE_NVML_{name}", value)
    suspended = suspend(*pair)
    assert sum(suspended.bytes.values()) >= 2 * (64 * MIB + CONTEXT)
    jobs.resume_process(suspended)
    assert states(*pair) == ["RUNNING"] * 2


@on_fake
@pytest.mark.parametrize("way", ["interrupt", "timeout"])
def test_a_driver_that_does_not_return(pair, fake, way):
    """cuda-checkpoint#30. A process that was away before stays: there may be no room for it now."""
    first, sessions = suspend(pair[0]), []

    def interrupt():
        children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        sessions.extend(os.getsid(int(child)) == int(child) for child in children)
        os.kill(os.getpid(), signal.SIGINT)

    fake(HANG="cuCheckpointProcessCheckpoint")
    if way == "interrupt":
        threading.Timer(0.7, interrupt).start()
    with pytest.raises(KeyboardInterrupt if way == "interrupt" else gmm.NotReadyError,
                       match=None if way == "interrupt" else f"in the checkpoint of process {pair[1].pid}; all run"):
        suspend(*pair, timeout=60.0 if way == "interrupt" else 2.0)
    assert states(*pair) == ["CHECKPOINTED", "RUNNING"]
    assert way == "timeout" or any(sessions)  # a terminal's Ctrl-C does not reach the helper
    jobs.resume_process(first)
    fake(HANG="cuCheckpointProcessGetState")
    refused(gmm.NotReadyError, lambda: jobs.resume_process(pair[0].pid, timeout=0.5), match="before its first step")


@on_fake
def test_an_interrupt_when_they_are_away(pair, monkeypatch):
    """Nobody gets the Suspended that brings them back."""
    def interrupt(*_):
        assert states(*pair) == ["CHECKPOINTED"] * 2
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("gmm.job.Suspended", interrupt)
        refused(KeyboardInterrupt, lambda: suspend(*pair))
    assert states(*pair) == ["RUNNING"] * 2


@on_fake
def test_a_helper_without_its_caller_undoes_its_work(holders):
    """Nobody reads its lines, as after the death of the process that started it."""
    holder = holders()
    helper = subprocess.Popen([sys.executable, "-I", "-S", _checkpoint.__file__, "libcuda.so.1", "suspend", "60000",
                               "{}", str(holder.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    helper.stdout.close()
    words = helper.communicate()[1]
    assert helper.returncode != 0 and "BrokenPipeError" in words, words
    assert states(holder) == ["RUNNING"]


def test_a_dead_process_does_not_keep_the_others(holders):
    """Nobody has waited for one of the dead."""
    dead, zombie, other = holders(), holders(), holders()
    suspended = suspend(dead, zombie, other)
    dead.kill()
    os.kill(zombie.pid, signal.SIGKILL)
    until(lambda: ") Z " in pathlib.Path(f"/proc/{zombie.pid}/stat").read_text())
    refused(ProcessLookupError, *[lambda: jobs.resume_process(suspended)] * 2,
            match=f"{dead.pid}, {zombie.pid} are dead; all others run")
    refused(ProcessLookupError, lambda: suspend(dead, other))
    check_runs(other)


def test_wrong_processes(holders, fake):
    for wrong in (0, -1, True, "1", None, 1.0):
        refused(ValueError, lambda: jobs.suspend_process(wrong))
    holder, child = holders(), subprocess.Popen(["sleep", "60"])
    try:
        alone, both = child.pid, (child.pid, holder.pid)
        failure = refused(jobs.CheckpointError, lambda: jobs.suspend_process(*both[::-1]), match="no process of CUDA")
        assert failure.state is None and states(holder) == ["RUNNING"]
        suspend(holder)
        failure = refused(jobs.CheckpointError, lambda: jobs.resume_process(*both), match="no process of CUDA")
        assert (failure.pid, failure.step) == (alone, "state") and states(holder) == ["RUNNING"]
        refused(jobs.CheckpointError, lambda: jobs.process_state(alone), match="it is no process of CUDA")
    finally:
        child.kill()
        child.wait()


@on_fake
def test_without_the_driver(fake, monkeypatch):
    fake(VERSION="12040")
    refused(gmm.NotSupportedError, jobs.suspend_process, match="the checkpoint: it needs CUDA 12.8")
    monkeypatch.setenv("GMM_CUDA_DRIVER", "/no/such/libcuda.so")
    refused(gmm.NotSupportedError, jobs.resume_process, match="cannot be opened")
