# SPDX-License-Identifier: Apache-2.0
"""Whole processes leave the GPU by the driver's checkpoint: the part of gmm.job that speaks of processes."""
from __future__ import annotations

import collections
import contextlib
import errno
import json
import os
import subprocess
import sys
import time
from typing import NamedTuple

from gmm import _checkpoint
from gmm._checkpoint import ProcessState
from gmm._core import errors

_DRIVER = "libcuda.so.1"
_UNDO_SECONDS = 30.0


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


def _check_alive(verb, pids, rest=""):
    dead = [pid for pid in pids if _checkpoint.is_dead(pid)]
    if dead:
        words = f"process {dead[0]} is" if len(dead) == 1 else f"processes {', '.join(map(str, dead))} are"
        raise ProcessLookupError(errno.ESRCH, f"{verb}: {words} dead{rest}")


def _parse(out):
    """The helper's lines: the steps that it began, and its last one, None if it was ended before."""
    lines = [json.loads(line) for line in out.splitlines() if line.endswith("}")]
    return [line for line in lines if "step" in line], next((line for line in lines if "end" in line), None)


def _bring_back(verb, out, timeout):
    """Undoes a suspend whose helper is gone. Returns the words for the message.

    out: its output. Processes without a step stay: one that was away before the call may lack the memory to come back.
    """
    if verb == "suspend":
        pids = tuple(dict.fromkeys(line["pid"] for line in _parse(out)[0]))
        if not pids:
            return "all are as before"
        with contextlib.suppress(Exception):  # its failure is said by the state
            _run("resume", pids, min(timeout, _UNDO_SECONDS))
            _check_alive("resume", pids)
            return "all run as before"
    return "process_state() tells where the processes are, and resume_process() goes on"


def _run(verb, pids, timeout, needs=(), heard=None):
    """Runs the helper and raises its failure. Returns its last line.

    heard: a list that receives what it wrote, also at an interrupt.
    """
    heard = [] if heard is None else heard
    if not sys.executable:
        raise errors.NotSupportedError(f"{verb}: sys.executable names no Python to run the driver's calls")
    # The locks end before the helper is given up, so that it brings the others back.
    command = [sys.executable, "-I", "-S", _checkpoint.__file__, os.environ.get("GMM_CUDA_DRIVER") or _DRIVER, verb,
               str(max(1, round(timeout * 750))), json.dumps(dict(needs)), *map(str, pids)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, start_new_session=True)  # a terminal's Ctrl-C is for this process alone
    late = False
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        late = True
        process.kill()
        out, err = process.communicate()
    except BaseException:  # an interrupt
        process.kill()
        heard.append(process.communicate()[0])
        raise
    heard.append(out)
    begun, end = _parse(out)
    if end is None:
        where = f"in the {begun[-1]['step']} of process {begun[-1]['pid']}" if begun else "before its first step"
        rest = _bring_back(verb, out, timeout)
        if late:
            raise errors.NotReadyError(f"{verb}: the driver did not answer within {timeout} s, {where}; {rest}")
        raise CheckpointError(f"{verb}: the process that called the driver ended with {process.returncode}, {where}: "
                              f"{err.strip()[-300:] or 'no words'}; {rest}")
    if end["end"] == "failed":
        text, (pid, step, code, state) = f"{verb}: {end['text']}", end["at"]
        if end["error"] in errors.ERRORS:
            raise errors.ERRORS[end["error"]](text)
        kind = ProcessStuckError if end["error"] == "ProcessStuckError" else CheckpointError
        raise kind(text, pid, step, code, None if state is None else ProcessState(state))
    return end


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
    begin, heard = time.monotonic(), []
    try:
        end = _run("suspend", pids, timeout, heard=heard)
        return Suspended(pids, end["went"], time.monotonic() - begin)
    except (errors.Error, CheckpointError):
        raise
    except BaseException:  # an interrupt, perhaps when they were away: nobody would have what brings them back
        _bring_back("suspend", "".join(heard), timeout)
        raise


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
    alive = tuple(pid for pid in numbers if not _checkpoint.is_dead(pid))
    if not alive:
        _check_alive("resume", numbers)
    _run("resume", alive, timeout, needs)
    _check_alive("resume", numbers, "; all others run")
