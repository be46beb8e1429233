# SPDX-License-Identifier: Apache-2.0
"""The driver's checkpoint of processes, in a short process of its own: gmm.job starts it by its file's name.

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
import struct
import sys
import time

_NOT_AVAILABLE = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE
_MOST_PROCESSES = 4096
_PROCESS = "IQII"  # nvmlProcessInfo_v2_t begins with the process and its bytes


class ProcessState(enum.IntEnum):
    """The driver's state of a process: CUprocessState."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3


class Refused(Exception):
    """A step failed; `failures` has it."""


failures = []  # (pid, step, CUresult)
_driver = None


def error_name(code):
    text = ctypes.c_char_p()
    _driver.cuGetErrorName(code, ctypes.byref(text))
    return (text.value or b"an unknown code").decode()


def state_of(pid):
    """The CUprocessState, or minus the CUresult of the failure."""
    found = ctypes.c_int()
    return -_driver.cuCheckpointProcessGetState(pid, ctypes.byref(found)) or found.value


def step(name, pid, milliseconds=0):
    """Raises Refused, or OSError after the step if nobody reads."""
    unheard = None
    try:
        print(json.dumps({"pid": pid, "step": name}), flush=True)
    except OSError as error:
        unheard = error
    # Only a lock has arguments: CUcheckpointLockArgs, 64 bytes that begin with the milliseconds.
    lock = (ctypes.c_uint * 16)(milliseconds) if name == "lock" else None
    if code := getattr(_driver, f"cuCheckpointProcess{name.capitalize()}")(pid, lock):
        failures.append((pid, name, code))
        raise Refused
    if unheard:
        raise unheard


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
        device, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96)
        memory = (ctypes.c_ulonglong * 3)()  # nvmlMemory_t: in all, free, used
        if (nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) or
                nvml.nvmlDeviceGetUUID(device, uuid, len(uuid)) or nvml.nvmlDeviceGetMemoryInfo(device, memory)):
            continue
        size, rows = ctypes.c_uint(_MOST_PROCESSES), bytearray(_MOST_PROCESSES * struct.calcsize(_PROCESS))
        look = getattr(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        held = None
        if look and not look(device, ctypes.byref(size), (ctypes.c_char * len(rows)).from_buffer(rows)):
            held = {pid: None if used == _NOT_AVAILABLE else used
                    for pid, used, *_ in [*struct.iter_unpack(_PROCESS, rows)][:size.value] if pid in pids}
        found[uuid.value.decode()] = *memory[1:], held
    return found


def needs_of(pids, before):
    """The bytes of each device that the processes, which have gone, need to come back. before: of devices().

    NVML has the figures of each process. In a container processes have other numbers: there the device's difference is
    the measure, though others allocate and free at the same time.
    """
    after, needs = devices(), {}
    known = {pid for *_memory, held in before.values() for pid in held or ()}
    for uuid, (_free, used, held) in before.items():
        needs[uuid] = sum(count or 0 for count in (held or {}).values())
        if uuid in after and (held is None or None in held.values() or not known.issuperset(pids)):
            needs[uuid] = max(needs[uuid], used - after[uuid][1])
    return {uuid: count for uuid, count in needs.items() if count > 0}


def suspend(pids, milliseconds):
    """All are locked before one is checkpointed: collectives and shared memory tie them together."""
    deadline = time.monotonic() + milliseconds / 1000
    states = {pid: state_of(pid) for pid in pids}
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
            if state_of(pid) == state and not (name == "unlock" and pid in stay_locked):
                with contextlib.suppress(Refused, OSError):
                    step(name, pid)


def lack(pids, needs):
    """The words about a device with less free memory than the processes had on it; None: it has enough."""
    if needs and any(state_of(pid) == ProcessState.CHECKPOINTED for pid in pids):
        for uuid, (free, *_rest) in devices().items():
            if free < needs.get(uuid, 0):
                return (f"the processes had {needs[uuid]} bytes on {uuid}, which has {free} free; make room "
                        "first: a restore that finds none leaves a process stuck (cuda-checkpoint#44)")
    return None


def answer(path, verb, milliseconds, needs, *pids):
    """The last line: `refused`, an error and its words, or all that the verb did and where the processes are now."""
    pids = [int(pid) for pid in pids]
    global _driver  # pylint: disable=global-statement # the process's
    version = ctypes.c_int()
    try:
        _driver = ctypes.CDLL(path)
        _driver.cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError) as error:
        return {"refused": ("NotSupportedError", f"the driver cannot be opened: {error}")}
    if version.value < 12080:
        return {"refused": ("NotSupportedError", "the driver lacks the checkpoint: it needs CUDA 12.8 or newer")}
    if code := _driver.cuInit(0):
        return {"refused": ("NotSupportedError", f"cuInit() answered {code}, {error_name(code)}")}
    went = {}
    if verb == "suspend":
        went = suspend(pids, int(milliseconds))
    elif verb == "resume":
        if words := lack(pids, json.loads(needs)):
            return {"refused": ("OutOfMemoryError", words)}
        resume(pids)
    return {"went": went, "states": [state_of(pid) for pid in pids],
            "failures": [(*failure, error_name(failure[2])) for failure in failures]}


if __name__ == "__main__":
    print(json.dumps(answer(*sys.argv[1:])), flush=True)
