# SPDX-License-Identifier: Apache-2.0
"""Several processes pause and resume as one, and whole processes leave the GPU.

    with gmm.job.paused("weights", "optimizer"):    # on all ranks of torch.distributed, in the same order, or on none
        ...                                         # the GPUs are free for others
    loss = step()

Each rank starts its pause and lets it be held: all contents are copied, and nothing has changed. One all-reduce tells
whether every rank has come so far. Then all commit, or all undo and the call raises. A rank that dies, stops or is late
before that ends the others' pauses within `hold` seconds: the all-reduce fails or comes too late, and everything is as
before.

A pause leaves contexts, communicators, graphs and workspaces of libraries on the GPU. suspend_process() takes a whole
process off it, by the driver's checkpoint, and resume_process() brings it back:

    gmm.context().pause()                           # gmm copies its tags faster than the driver does
    suspended = gmm.job.suspend_process()           # this process, or those with the given numbers
    ...                                             # no call of CUDA or gmm here: it would wait
    gmm.job.resume_process(suspended)
    gmm.context().resume()
"""
from __future__ import annotations

import collections
import contextlib
import errno
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Callable, NamedTuple

from gmm import _checkpoint
from gmm._checkpoint import ProcessState
from gmm._core.errors import ERRORS, Error
from gmm._core.ticket import Pausing, Scope
from gmm._default import context as default_context

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gmm._core.typing import ContentsLike, Context, TagLike

    Reduce = Callable[[int], int]

__all__ = ["CheckpointError", "ProcessState", "ProcessStuckError", "Suspended", "pause", "paused", "process_state",
           "resume", "resume_process", "suspend_process"]

_DRIVER = "libcuda.so.1"
_UNDO_SECONDS = 30.0
_STUCK = 2, 304  # of a restore without memory, and of each after it (cuda-checkpoint#44)
_LOCK_LATE = 600  # CUDA_ERROR_NOT_READY

ProcessState.__module__ = __name__  # its public place


# Ranks that pause as one.


def _reduce_minimum(value):
    """The least value of all ranks, over the default group of torch.distributed."""
    import torch
    from torch import distributed

    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    least = torch.tensor([value], dtype=torch.int32, device=device)
    distributed.all_reduce(least, distributed.ReduceOp.MIN)
    return int(least.item())


def _together(start, context, tags, reduce, hold, **options):
    """Starts an operation, which is held, and carries it out if all ranks come so far. Returns its bytes."""
    failure = ticket = None
    try:
        ticket = start(default_context() if context is None else context, *tags, hold=hold, **options)
        if not ticket.wait_held(hold):
            raise ERRORS["NotReadyError"](f"this rank has not come to its hold in {hold} s")
    except Error as error:
        failure = error
    try:
        agreed = reduce(0 if failure else 1) == 1  # every rank comes here, also one that has failed
        if agreed:
            ticket.commit()
    finally:
        if ticket is not None:
            ticket.cancel()  # without effect on what is committed
            ticket.wait()
    if failure is not None:
        raise failure
    if not agreed:
        raise ERRORS["CancelledError"]("another rank failed, so no rank has changed; its own error tells why")
    return ticket.result()


def pause(*tags: TagLike, context: Context | None = None, reduce: Reduce = _reduce_minimum, hold: float = 60.0,
          force: bool = False, contents: ContentsLike | None = None) -> int:
    """Pauses the tags on all ranks, or on none. Returns the bytes that this rank released. No tags: all tags.

    reduce(value) returns the least value of all ranks; the default uses torch.distributed. hold: seconds until a pause
    that no rank decided is undone. No thread or kernel may use the memory during the call. A rank whose own part fails
    raises that failure, the others CancelledError.
    """
    return _together(Pausing.pause_async, context, tags, reduce, hold, force=force, contents=contents, no_writes=True)


def resume(*tags: TagLike, context: Context | None = None, reduce: Reduce = _reduce_minimum, hold: float = 60.0,
           retain: bool = False) -> int:
    """Resumes the tags on all ranks, or on none: a rank that cannot have its pages lets all stay paused."""
    return _together(Pausing.resume_async, context, tags, reduce, hold, retain=retain)


def paused(*tags: TagLike, context: Context | None = None, reduce: Reduce = _reduce_minimum, hold: float = 60.0,
           force: bool = False, contents: ContentsLike | None = None) -> AbstractContextManager[int]:
    """Pauses for the time of a with block, which gets the bytes that this rank released."""
    same = {"context": context, "reduce": reduce, "hold": hold}
    return Scope(lambda: pause(*tags, force=force, contents=contents, **same), (), lambda: resume(*tags, **same), ())


# Processes that leave the GPU.


class CheckpointError(RuntimeError):
    """The driver refused a step of a process.

    pid: the process. step: "lock", "checkpoint", "restore" or "unlock"; "state" where the driver was only asked for the
    state. code: its CUresult. state: the ProcessState of the process now; None: the driver does not tell.
    """

    def __init__(self, message: str, pid: int = 0, step: str = "", code: int = 0,
                 state: ProcessState | None = None) -> None:
        super().__init__(message)
        self.pid, self.step, self.code, self.state = pid, step, code, state


class ProcessStuckError(CheckpointError):
    """The driver could not restore a process, and drivers up to 580 never can after that (cuda-checkpoint#44).

    Its calls of CUDA wait for ever. End the process: its memory on the device was given back, its contents are lost.
    """


class Suspended(NamedTuple):
    """The result of suspend_process().

    bytes: the memory of each device that the processes held, by UUID, as NVML has it of each process. Where it does not
    know that, by how much the device's memory in use fell. Empty: there is no NVML, or all were away before.
    """

    pids: tuple[int, ...]
    bytes: dict[str, int]
    seconds: float


def _check_pids(pids):
    if not pids:
        return (os.getpid(),)
    for pid in pids:
        if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
            raise ValueError(f"{pid!r} is no number of a process")
    return tuple(dict.fromkeys(pids))


def _is_dead(pid):
    """Whether no process has the number, or one that has ended and that its parent has not waited for."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except ProcessLookupError:
        return True
    except (OSError, IndexError):  # another user's: the driver says what that one may
        return False


def _check_alive(verb, pids, rest=""):
    dead = [pid for pid in pids if _is_dead(pid)]
    if dead:
        words = f"process {dead[0]} is" if len(dead) == 1 else f"processes {', '.join(map(str, dead))} are"
        raise ProcessLookupError(errno.ESRCH, f"{verb}: {words} dead{rest}")


def _parse(out):
    """The helper's lines: the steps that it began, and its last one, None if it was ended before."""
    lines = [json.loads(line) for line in out.splitlines() if line.endswith("}")]
    return [line for line in lines if "step" in line], next((line for line in lines if "step" not in line), None)


def _failure(verb, pids, end):
    """The exception for the last line of a helper that did its work; None: all went well."""
    if "refused" in end:
        error, words = end["refused"]
        return ERRORS[error](f"{verb}: {words}")
    states, failures = dict(zip(pids, end["states"])), end["failures"]

    def made(kind, words, rest, pid, step, code):
        state = ProcessState(states[pid]) if states[pid] >= 0 else None
        name = "no process of CUDA" if state is None else state.name
        return kind(f"{verb}: {words}; it is {name}; {rest}", pid, step, code, state)

    if failures:
        # The failure that a program must act on is that of an undoing.
        stuck = next((each for each in failures if states[each[0]] == ProcessState.FAILED or
                      (each[1] == "restore" and each[2] in _STUCK)), None)
        pid, step, code, name = stuck or failures[0]
        words = f"the {step} of process {pid} failed: {name} ({code})"
        if step == "lock" and code == _LOCK_LATE and len(failures) == 1 and not stuck:
            return ERRORS["NotReadyError"](f"{verb}: {words}; its work did not end in time")
        rest = "drivers up to 580 cannot bring it back after that: end it" if stuck else \
            "the call may be made again" if verb == "resume" else "all run as before" if len(failures) == 1 else \
            "process_state() tells where the others are, resume_process() brings them back"
        return made(ProcessStuckError if stuck else CheckpointError, words, rest, pid, step, code)
    for pid, state in states.items():
        if verb == "state" and state < 0:
            return made(CheckpointError, f"the driver answered {-state} for process {pid}", "or another user's", pid,
                        "state", -state)
        if verb == "resume" and state == ProcessState.FAILED:
            return made(ProcessStuckError, f"process {pid} stays", "the driver cannot bring it back: end it", pid,
                        "state", 0)
        if verb == "resume" and state != ProcessState.RUNNING and not _is_dead(pid):
            return made(CheckpointError, f"process {pid} stays", "the others were brought back", pid, "state",
                        max(0, -state))
    return None


def _bring_back(verb, begun, timeout):
    """Undoes a suspend whose helper is gone. Returns the words for the message.

    begun: its steps. Processes without a step stay: one that was away before the call may lack the memory to come back.
    """
    if verb == "suspend":
        pids = tuple(dict.fromkeys(line["pid"] for line in begun))
        if not pids:
            return "all are as before"
        with contextlib.suppress(Exception):  # its failure is said by the state
            _run("resume", pids, min(timeout, _UNDO_SECONDS))
            _check_alive("resume", pids)
            return "all run as before"
    return "process_state() tells where the processes are, and resume_process() goes on"


def _run(verb, pids, timeout, needs=(), result=lambda end: end):
    """Runs the helper and raises its failure. Returns the result of its last line; an interrupt undoes a suspend."""
    if not sys.executable:
        raise ERRORS["NotSupportedError"](f"{verb}: sys.executable names no Python to run the driver's calls")
    # The locks end before the helper is given up, so that it brings the others back.
    command = [sys.executable, "-I", "-S", _checkpoint.__file__, os.environ.get("GMM_CUDA_DRIVER") or _DRIVER, verb,
               str(max(1, round(timeout * 750))), json.dumps(dict(needs)), *map(str, pids)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, start_new_session=True)  # a terminal's Ctrl-C is for this process alone
    late = False
    try:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            late = True
            process.kill()
            out, err = process.communicate()
        begun, end = _parse(out)
        failure = end and _failure(verb, pids, end)
        if end and not failure:
            return result(end)
    except BaseException:  # an interrupt, perhaps when they were away: nobody would have what brings them back
        process.kill()
        _bring_back(verb, _parse(process.communicate()[0])[0], timeout)
        raise
    if failure:
        raise failure
    where = f"in the {begun[-1]['step']} of process {begun[-1]['pid']}" if begun else "before its first step"
    rest = _bring_back(verb, begun, timeout)
    if late:
        raise ERRORS["NotReadyError"](f"{verb}: the driver did not answer within {timeout} s, {where}; {rest}")
    raise CheckpointError(f"{verb}: the process that called the driver ended with {process.returncode}, {where}: "
                          f"{err.strip()[-300:] or 'no words'}; {rest}")


def process_state(pid: int | None = None) -> ProcessState:
    """Where a process is in a checkpoint: ProcessState. None: this process."""
    pids = _check_pids(() if pid is None else (pid,))
    _check_alive("state", pids)
    return ProcessState(_run("state", pids, 60.0)["states"][0])


def suspend_process(*pids: int, timeout: float = 300.0) -> Suspended:
    """Takes whole processes off the GPU by the driver's checkpoint: Suspended. No pids: this process.

    It takes what a pause leaves: contexts, communicators, graphs, workspaces. Pause gmm's tags in the processes first:
    gmm copies much faster than the driver does, and what is paused need not be copied. From then on each call of CUDA
    in these processes waits, on all threads, until resume_process(); gmm's calls too, and frees by the garbage
    collector.

    All processes are locked before one is checkpointed. Processes that share memory or communicate by NCCL go in one
    call. If one fails, the others are brought back, and all run as before; also if the calling process is killed before
    all are away. timeout: seconds of the whole; a driver that does not return, as it does for a process whose peer is
    locked, is given up then.

    Raises NotSupportedError (no driver of CUDA 12.8), ProcessLookupError, NotReadyError (the work of a process did not
    end in time), CheckpointError, and ProcessStuckError (a failure whose undoing failed). The driver refuses what it
    cannot save, for example memory that is shared by IPC handles, and MANAGED memory on some systems.
    """
    pids = _check_pids(pids)
    _check_alive("suspend", pids)
    begin = time.monotonic()
    return _run("suspend", pids, timeout, result=lambda end: Suspended(pids, end["went"], time.monotonic() - begin))


def resume_process(*pids: int | Suspended, timeout: float = 300.0) -> None:
    """Brings processes back that suspend_process() took off the GPU. No pids: this process.

    pids: numbers, or the Suspended of suspend_process(). With the latter the devices are asked first whether they have
    the room, and OutOfMemoryError changes nothing. Without this, a restore that lacks memory fails for good. All
    processes are restored before one runs. A running process stays as it is, so a call that failed may be made again.

    A process that fails or has died does not keep the others away: they are brought back first. ProcessLookupError
    names the dead ones then, and all others run. The room that is asked for counts the dead ones, too.

    Raises OutOfMemoryError, ProcessStuckError, CheckpointError, NotReadyError, NotSupportedError, ProcessLookupError.
    """
    needs, numbers = collections.Counter(), []
    for each in pids:
        if isinstance(each, Suspended):
            numbers += each.pids
            needs.update(each.bytes)
        else:
            numbers.append(each)
    numbers = _check_pids(tuple(numbers))
    alive = tuple(pid for pid in numbers if not _is_dead(pid))
    if not alive:
        _check_alive("resume", numbers)
    _run("resume", alive, timeout, needs)
    _check_alive("resume", numbers, "; all others run")
