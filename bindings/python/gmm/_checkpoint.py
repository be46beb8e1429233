# SPDX-License-Identifier: Apache-2.0
"""The driver's checkpoint of processes, in a short process of its own: gmm._suspend starts it by its file's name.

A process cannot take part in its own checkpoint, as its calls of CUDA wait, and a call for a process that shares memory
with a locked one may never return (cuda-checkpoint#30). Whoever asked can end this process then.

Usage: _checkpoint.py DRIVER VERB MILLISECONDS NEEDS PID...      VERB: state, suspend, resume

MILLISECONDS are for all locks. NEEDS has the bytes that a resume needs of each device, by UUID, as JSON. Each step is a
line of JSON: before it {"pid", "step"}, after it the same with "code", "name" and "seconds". The last line has "end",
and the driver's word on each process in "states". Where nobody reads the lines any more, a suspend is undone: who
asked has died, and nobody knows that the processes are away.

Nothing but the standard library is imported. NVML is asked here, too, as the driver saves no process's use of it.
"""
import ctypes
import json
import sys
import time

RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
_FIRST_VERSION = 12080
_NOT_AVAILABLE = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE
_INSUFFICIENT_SIZE = 7  # NVML_ERROR_INSUFFICIENT_SIZE


class _LockArgs(ctypes.Structure):
    _fields_ = [("timeout_ms", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", ctypes.c_uint64 * 7)]


class Refused(Exception):
    """A step failed; its line has been written."""


class Unheard(Exception):
    """Nobody reads the lines."""


def tell(**line):
    """False: nobody reads. No exception, as an undoing goes on then."""
    try:
        print(json.dumps(line), flush=True)
    except OSError:
        return False
    return True


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
        """One step of one process: whether its lines were read. Raises Refused."""
        tell(pid=pid, step=name.lower())
        begin = time.monotonic()
        code = self._functions[name](pid, None if argument is None else ctypes.addressof(argument))
        heard = tell(pid=pid, step=name.lower(), code=code, name=self.name(code), seconds=time.monotonic() - begin)
        if code:
            raise Refused
        return heard


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Process(ctypes.Structure):
    """nvmlProcessInfo_v2_t, which nvmlDeviceGetComputeRunningProcesses_v3() fills."""
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gpu_instance", ctypes.c_uint),
                ("compute_instance", ctypes.c_uint)]


def _devices():
    """NVML and its devices by UUID; none where there is no NVML."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None, {}
    count, found = ctypes.c_uint(), {}
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return nvml, {}
    for index in range(count.value):
        device, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96)
        if not (nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) or
                nvml.nvmlDeviceGetUUID(device, uuid, len(uuid))):
            found[uuid.value.decode()] = device
    return nvml, found


def memory():
    """NVML's free and used bytes of each device, by UUID; empty where there is no NVML."""
    nvml, devices = _devices()
    found = {}
    for uuid, device in devices.items():
        bytes_ = _Memory()
        if not nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(bytes_)):
            found[uuid] = bytes_
    return found


def _processes(nvml, device):
    """NVML's processes of a device; None: it does not tell."""
    look = getattr(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", None)
    room, code = 64, _INSUFFICIENT_SIZE
    while look and code == _INSUFFICIENT_SIZE and room < 1 << 20:
        count, rows = ctypes.c_uint(room), (_Process * room)()
        code = look(device, ctypes.byref(count), rows)
        if not code:
            return rows[:count.value]
        room = max(2 * room, count.value)
    return None


class Held:
    """What the processes hold of each device, by UUID, as NVML tells of each process.

    The device's free bytes are no measure of that: other processes allocate and free while these go.
    """

    def __init__(self, pids):
        self._pids = pids
        self._before = memory()
        self._sums, self._vague = {}, set()  # vague: NVML does not tell of all the processes there
        self.look()

    def look(self):
        """Takes the larger of what they hold now and what they held: they allocate until they are locked."""
        nvml, devices = _devices()
        seen = set()
        for uuid, device in devices.items():
            rows = _processes(nvml, device)
            mine = [row for row in rows or () if row.pid in self._pids]
            seen.update(row.pid for row in mine)
            if rows is None or any(row.used == _NOT_AVAILABLE for row in mine):
                self._vague.add(uuid)
            known = sum(row.used for row in mine if row.used != _NOT_AVAILABLE)
            self._sums[uuid] = max(known, self._sums.get(uuid, 0))
        if not seen.issuperset(self._pids):  # NVML counts processes as the host does, this may be a container
            self._vague.update(devices)

    def went(self):
        """After they went: the bytes that they need to come back. Where NVML is vague, the device's are better."""
        after, found = memory(), {}
        for uuid in self._before:
            count = self._sums.get(uuid, 0)
            if uuid in self._vague and uuid in after:
                count = max(count, self._before[uuid].used - after[uuid].used)
            if count > 0:
                found[uuid] = count
        return found


def lacking(driver, pids, needs):
    """What to tell where a device has less room than the processes had on it; None: it has enough."""
    if not needs or all(driver.state(pid) != CHECKPOINTED for pid in pids):
        return None
    for uuid, bytes_ in memory().items():
        if bytes_.free < needs.get(uuid, 0):
            return {"end": "memory", "uuid": uuid, "free": bytes_.free, "need": needs[uuid]}
    return None


def suspend(driver, pids, milliseconds):
    """All are locked before one is checkpointed: collectives and shared memory tie them together. Returns the bytes
    that they need to come back."""
    deadline = time.monotonic() + milliseconds / 1000
    states = {pid: driver.state(pid) for pid in pids}
    going = [pid for pid in pids if states[pid] != CHECKPOINTED]
    if not going:
        return {}
    held = Held(going)
    try:
        for pid in going:
            if states[pid] != LOCKED:  # a process without CUDA: the driver says so
                left = max(1, round((deadline - time.monotonic()) * 1000))
                if not driver.step("Lock", pid, _LockArgs(timeout_ms=left)):
                    raise Unheard
        held.look()
        for pid in going:
            if not driver.step("Checkpoint", pid):
                raise Unheard
    except BaseException as error:  # whatever it is, nobody else knows what to undo
        resume(driver, going, [pid for pid in going if states[pid] == LOCKED])
        if isinstance(error, Refused):
            return {}
        raise
    return held.went()


def resume(driver, pids, stay_locked=()):
    """All are restored before one runs. A failure of one does not keep the others: its line has been written.

    The driver is asked where each process is, as a step may have been interrupted. What is no process of CUDA, or has
    died, stays as it is.
    """
    for step, state in (("Restore", CHECKPOINTED), ("Unlock", LOCKED)):
        for pid in pids:
            if driver.state(pid) == state and not (step == "Unlock" and pid in stay_locked):
                try:
                    driver.step(step, pid)
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
        went = suspend(driver, pids, int(milliseconds))
    elif verb == "resume":
        lack = lacking(driver, pids, json.loads(needs))
        if lack:
            return tell(**lack)
        resume(driver, pids)
    return tell(end="done", went=went, states={pid: driver.state(pid) for pid in pids})


if __name__ == "__main__":
    main()
