# SPDX-License-Identifier: Apache-2.0
"""The driver's checkpoint of processes, in a short process of its own: gmm._suspend starts it by its file's name.

A process cannot take part in its own checkpoint, as its calls of CUDA wait, and a call for a process that shares memory
with a locked one may never return (cuda-checkpoint#30). Whoever asked can end this process then.

Usage: _checkpoint.py DRIVER VERB MILLISECONDS NEEDS PID...      VERB: state, suspend, resume

MILLISECONDS are for all locks. NEEDS has the bytes that a resume needs of each device, by UUID, as JSON. Each step is a
line of JSON: before it {"pid", "step"}, after it the same with "code", "name" and "seconds". The last line has "end",
and the driver's word on each process in "states". Nothing but the standard library is imported. NVML is asked here,
too, as the driver saves no process's use of it.
"""
import ctypes
import json
import sys
import time

RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
_FIRST_VERSION = 12080


class _LockArgs(ctypes.Structure):
    _fields_ = [("timeout_ms", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", ctypes.c_uint64 * 7)]


class Refused(Exception):
    """A step failed; its line has been written."""


def tell(**line):
    print(json.dumps(line), flush=True)


class Driver:
    """The calls, looked up as the driver wants it."""

    def __init__(self, path):
        self._library = ctypes.CDLL(path)
        look_up = getattr(self._library, "cuGetProcAddress_v2", None) or self._library.cuGetProcAddress
        self._functions = {}
        for step in ("GetState", "Lock", "Checkpoint", "Restore", "Unlock"):
            address, status = ctypes.c_void_p(), ctypes.c_int()
            name = f"cuCheckpointProcess{step}"
            code = look_up(name.encode(), ctypes.byref(address), ctypes.c_int(_FIRST_VERSION), ctypes.c_uint64(0),
                           ctypes.byref(status))
            if code or not address.value:
                raise LookupError(name)
            self._functions[step] = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(address.value)

    def init(self):
        return self._library.cuInit(0)

    def name(self, code):
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(text))
        return (text.value or b"an unknown code").decode()

    def state(self, pid):
        """The state, or minus the code of the failure."""
        state = ctypes.c_int(-1)
        code = self._functions["GetState"](pid, ctypes.addressof(state))
        return -code if code else state.value

    def step(self, name, pid, argument=None):
        """One step of one process. Raises Refused."""
        tell(pid=pid, step=name.lower())
        begin = time.monotonic()
        code = self._functions[name](pid, None if argument is None else ctypes.addressof(argument))
        tell(pid=pid, step=name.lower(), code=code, name=self.name(code), seconds=time.monotonic() - begin)
        if code:
            raise Refused


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def memory():
    """NVML's free and used bytes of each device, by UUID; empty where there is no NVML."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return {}
    count, found = ctypes.c_uint(), {}
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return {}
    for index in range(count.value):
        device, uuid, bytes_ = ctypes.c_void_p(), ctypes.create_string_buffer(96), _Memory()
        if not (nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) or
                nvml.nvmlDeviceGetUUID(device, uuid, len(uuid)) or
                nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(bytes_))):
            found[uuid.value.decode()] = bytes_
    return found


def lacking(driver, pids, needs):
    """What to tell where a device has less room than the processes had on it; None: it has enough."""
    if not needs or all(driver.state(pid) in (RUNNING, LOCKED) for pid in pids):
        return None
    for uuid, bytes_ in memory().items():
        if bytes_.free < needs.get(uuid, 0):
            return {"end": "memory", "uuid": uuid, "free": bytes_.free, "need": needs[uuid]}
    return None


def suspend(driver, pids, milliseconds):
    """All are locked before one is checkpointed: collectives and shared memory tie them together."""
    locked, away = [], []
    deadline = time.monotonic() + milliseconds / 1000
    try:
        states = {pid: driver.state(pid) for pid in pids}
        for pid in pids:
            if states[pid] not in (LOCKED, CHECKPOINTED):  # a process without CUDA: the driver says so
                left = max(1, round((deadline - time.monotonic()) * 1000))
                driver.step("Lock", pid, _LockArgs(timeout_ms=left))
                locked.append(pid)
        for pid in pids:
            if states[pid] != CHECKPOINTED:
                driver.step("Checkpoint", pid)
                away.append(pid)
    except Refused:
        for pid in away:
            try:
                driver.step("Restore", pid)
            except Refused:
                locked = [other for other in locked if other != pid]
        for pid in locked:
            try:
                driver.step("Unlock", pid)
            except Refused:
                pass


def resume(driver, pids):
    """All are restored before one runs."""
    try:
        for pid in pids:
            if driver.state(pid) not in (RUNNING, LOCKED):
                driver.step("Restore", pid)
        for pid in pids:
            if driver.state(pid) != RUNNING:
                driver.step("Unlock", pid)
    except Refused:
        pass


def main():
    path, verb, milliseconds, needs, *pids = sys.argv[1:]
    pids = [int(pid) for pid in pids]
    try:
        driver = Driver(path)
    except OSError as error:
        return tell(end="missing", text=f"the driver cannot be opened: {error}")
    except (LookupError, AttributeError) as error:
        return tell(end="missing", text=f"the driver lacks {error.args[0]}(): it needs CUDA 12.8 or newer")
    code = driver.init()
    if code:
        return tell(end="missing", text=f"cuInit() answered {code}, {driver.name(code)}")
    went = {}
    if verb == "suspend":
        before = memory()
        suspend(driver, pids, int(milliseconds))
        after = memory()
        went = {uuid: before[uuid].used - after[uuid].used for uuid in before if uuid in after}
        went = {uuid: count for uuid, count in went.items() if count > 0}
    elif verb == "resume":
        lack = lacking(driver, pids, json.loads(needs))
        if lack:
            return tell(**lack)
        resume(driver, pids)
    return tell(end="done", went=went, states={pid: driver.state(pid) for pid in pids})


if __name__ == "__main__":
    main()
