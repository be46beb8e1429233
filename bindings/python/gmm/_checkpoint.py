# SPDX-License-Identifier: Apache-2.0
"""The driver's checkpoint of processes, in a short process of its own: gmm._suspend starts it by its file's name.

A process cannot take part in its own checkpoint, as its calls of CUDA wait, and a call for a process that shares memory
with a locked one may never return (cuda-checkpoint#30). The caller can end this process then.

Usage: _checkpoint.py DRIVER VERB MILLISECONDS NEEDS PID...      VERB: state, suspend, resume

MILLISECONDS are for all locks. NEEDS has the bytes that a resume needs of each device, by UUID, as JSON. It prints a
line of JSON before each step, with its process, and one at the end. When nobody reads them any more, it
undoes a suspend: the caller has died, and nobody knows that the processes are away.

It imports nothing of gmm. It also asks NVML, as the driver saves no process's use of that.
"""
import contextlib
import ctypes
import enum
import json
import os
import sys
import time

_NOT_AVAILABLE = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE
_MOST_PROCESSES = 4096
_STUCK = 2, 304  # of a restore without memory, and of each after it (cuda-checkpoint#44)
_LOCK_LATE = 600  # CUDA_ERROR_NOT_READY


class ProcessState(enum.IntEnum):
    """The driver's state of a process: CUprocessState."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3


class Refused(Exception):
    """A step failed; `failures` has it."""


failures = []
_driver = None


def is_dead(pid):
    """Whether no process has the number, or one that has ended and that its parent has not waited for."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except ProcessLookupError:
        return True
    except (OSError, IndexError):  # another user's: the driver says what that one may
        return False


class _Driver:
    """The driver's calls, of version 12.8. LookupError: it lacks one."""

    def __init__(self, path):
        self._library, self._calls = ctypes.CDLL(path), {}
        look_up = getattr(self._library, "cuGetProcAddress_v2", None)
        for name in ("GetState", "Lock", "Checkpoint", "Restore", "Unlock"):
            found, full = ctypes.c_void_p(), f"cuCheckpointProcess{name}"
            if not look_up or look_up(full.encode(), ctypes.byref(found), 12080, ctypes.c_uint64(0), None) or not found:
                raise LookupError(full)
            self._calls[name] = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(found.value)

    def init(self):
        return self._library.cuInit(0)

    def name(self, code):
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(text))
        return (text.value or b"an unknown code").decode()

    def state(self, pid):
        """The CUprocessState, or minus the CUresult of the failure."""
        found = ctypes.c_int()
        return -self._calls["GetState"](pid, ctypes.addressof(found)) or found.value

    def step(self, name, pid, milliseconds):
        """A CUresult. Only a lock has arguments: CUcheckpointLockArgs, 64 bytes that begin with the milliseconds."""
        lock = (ctypes.c_uint * 16)(milliseconds)
        return self._calls[name.capitalize()](pid, ctypes.addressof(lock) if name == "lock" else None)


def step(name, pid, milliseconds=0):
    """Raises Refused, or OSError after the step if nobody reads."""
    unheard = None
    try:
        print(json.dumps({"pid": pid, "step": name}), flush=True)
    except OSError as error:
        unheard = error
    code = _driver.step(name, pid, milliseconds)
    if code:
        failures.append({"pid": pid, "step": name, "code": code, "name": _driver.name(code)})
        raise Refused
    if unheard:
        raise unheard


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Process(ctypes.Structure):
    """nvmlProcessInfo_v2_t, which nvmlDeviceGetComputeRunningProcesses_v3() fills."""
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gpu_instance", ctypes.c_uint),
                ("compute_instance", ctypes.c_uint)]


def devices(pids=()):
    """By UUID: NVML's free and used bytes of each device, and the bytes of each of the processes there, None where NVML
    does not know. Empty where there is no NVML."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return {}
    count, found = ctypes.c_uint(), {}
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return {}
    for index in range(count.value):
        device, uuid, memory = ctypes.c_void_p(), ctypes.create_string_buffer(96), _Memory()
        if (nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) or
                nvml.nvmlDeviceGetUUID(device, uuid, len(uuid)) or
                nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))):
            continue
        size, rows = ctypes.c_uint(_MOST_PROCESSES), (_Process * _MOST_PROCESSES)()
        look = getattr(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        held = None
        if look and not look(device, ctypes.byref(size), rows):
            held = {row.pid: None if row.used == _NOT_AVAILABLE else row.used
                    for row in rows[:size.value] if row.pid in pids}
        found[uuid.value.decode()] = memory, held
    return found


def needs_of(pids, before):
    """The bytes of each device that the processes, which have gone, need to come back. before: of devices().

    NVML has the figures of each process. In a container processes have other numbers: there the device's difference is
    the measure, though others allocate and free at the same time.
    """
    after, needs = devices(), {}
    known = {pid for _memory, held in before.values() for pid in held or ()}
    for uuid, (memory, held) in before.items():
        needs[uuid] = sum(count or 0 for count in (held or {}).values())
        if uuid in after and (held is None or None in held.values() or not known.issuperset(pids)):
            needs[uuid] = max(needs[uuid], memory.used - after[uuid][0].used)
    return {uuid: count for uuid, count in needs.items() if count > 0}


def suspend(pids, milliseconds):
    """All are locked before one is checkpointed: collectives and shared memory tie them together."""
    deadline = time.monotonic() + milliseconds / 1000
    states = {pid: _driver.state(pid) for pid in pids}
    going = [pid for pid in pids if states[pid] != ProcessState.CHECKPOINTED]
    if not going:
        return {}
    try:
        for pid in going:
            if states[pid] != ProcessState.LOCKED:  # a process without CUDA: the driver says so
                step("lock", pid, max(1, round((deadline - time.monotonic()) * 1000)))
        before = devices(going)  # they allocate until they are locked
        for pid in going:
            step("checkpoint", pid)
    except BaseException as error:  # nobody else knows what to undo
        resume(going, [pid for pid in going if states[pid] == ProcessState.LOCKED])
        if isinstance(error, Refused):
            return {}
        raise
    return needs_of(going, before)


def resume(pids, stay_locked=()):
    """All are restored before one runs. A failure of one does not keep the others.

    The driver is asked where each process is, as a step may have been interrupted. A process that does not use CUDA, or
    has died, stays as it is.
    """
    for name, state in (("restore", ProcessState.CHECKPOINTED), ("unlock", ProcessState.LOCKED)):
        for pid in pids:
            if _driver.state(pid) == state and not (name == "unlock" and pid in stay_locked):
                with contextlib.suppress(Refused, OSError):
                    step(name, pid)


def failed(error, text, pid=0, step="", code=0, state=-1):  # pylint: disable=too-many-arguments
    """The last line of a verb that failed. state: the process's, or minus a CUresult."""
    return {"end": "failed", "error": error, "text": text, "at": [pid, step, code, state if state >= 0 else None]}


def lack(pids, needs):
    """The failure where a device has less free memory than the processes had on it; None: it has enough."""
    if needs and any(_driver.state(pid) == ProcessState.CHECKPOINTED for pid in pids):
        for uuid, (memory, _held) in devices().items():
            if memory.free < needs.get(uuid, 0):
                return failed("OutOfMemoryError", f"the processes had {needs[uuid]} bytes on {uuid}, which has "
                              f"{memory.free} free; make room first: a restore that finds none leaves a process stuck "
                              "(cuda-checkpoint#44)")
    return None


def failure(verb, states):
    """The failure of a verb; None: there is none."""
    def name(state):
        return ProcessState(state).name if state >= 0 else "no process of CUDA"

    if failures:
        # The failure that a program must act on is that of an undoing.
        stuck = next((each for each in failures if states[each["pid"]] == ProcessState.FAILED or
                      (each["step"] == "restore" and each["code"] in _STUCK)), None)
        first = stuck or failures[0]
        place = first["pid"], first["step"], first["code"], states[first["pid"]]
        words = f"the {first['step']} of process {first['pid']} failed: {first['name']} ({first['code']})"
        if stuck:
            return failed("ProcessStuckError", f"{words}; drivers up to 580 cannot bring it back after that: end it",
                          *place)
        if first["step"] == "lock" and first["code"] == _LOCK_LATE and len(failures) == 1:
            return failed("NotReadyError", f"{words}; its work did not end in time")
        rest = "the call may be made again" if verb == "resume" else "all run as before" if len(failures) == 1 else \
            "process_state() tells where the others are, resume_process() brings them back"
        return failed("CheckpointError", f"{words}; it is {name(states[first['pid']])}; {rest}", *place)
    for pid, state in states.items():
        code = max(0, -state)
        if verb == "state" and code:
            return failed("CheckpointError", f"the driver answered {code} for process {pid}: it uses no CUDA, or "
                          "belongs to another user", pid, "state", code)
        if verb == "resume" and state == ProcessState.FAILED:
            return failed("ProcessStuckError", f"process {pid} is FAILED; the driver cannot bring it back: end it", pid,
                          "state", 0, state)
        if verb == "resume" and state != ProcessState.RUNNING and not is_dead(pid):
            return failed("CheckpointError", f"process {pid} is {name(state)} ({code}); the others were brought back",
                          pid, "state", code, state)
    return None


def answer(path, verb, milliseconds, needs, *pids):
    pids = [int(pid) for pid in pids]
    global _driver  # pylint: disable=global-statement # the process's
    try:
        _driver = _Driver(path)
    except OSError as error:
        return failed("NotSupportedError", f"the driver cannot be opened: {error}")
    except LookupError as error:
        return failed("NotSupportedError", f"the driver lacks {error.args[0]}(): it needs CUDA 12.8 or newer")
    if code := _driver.init():
        return failed("NotSupportedError", f"cuInit() answered {code}, {_driver.name(code)}")
    went = {}
    if verb == "suspend":
        went = suspend(pids, int(milliseconds))
    elif verb == "resume":
        if short := lack(pids, json.loads(needs)):
            return short
        resume(pids)
    states = {pid: _driver.state(pid) for pid in pids}
    return failure(verb, states) or {"end": "done", "went": went, "states": list(states.values())}


if __name__ == "__main__":
    print(json.dumps(answer(*sys.argv[1:])), flush=True)
