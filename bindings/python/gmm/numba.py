# SPDX-License-Identifier: Apache-2.0
"""gmm under Numba: a plugin for the external memory management (EMM) of Numba's CUDA target.

    NUMBA_CUDA_MEMORY_MANAGER=gmm python program.py

or, before Numba uses the GPU:

    import gmm.numba
    gmm.numba.use()
"""
from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

try:
    from numba import cuda
    from numba.cuda.core import config
    from numba.cuda.cudadrv import driver as numba_driver
    from numba.cuda.cudadrv.driver import (
        AutoFreePointer, CudaAPIError, Device, GetIpcHandleMixin, ManagedMemory, MappedMemory, MemoryPointer,
        PinnedMemory, binding, driver)
except ImportError as error:
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") != "0":
        raise ImportError("gmm.numba plugs gmm into Numba's CUDA target, and Numba's simulator (NUMBA_ENABLE_CUDASIM) "
                          "has no memory managers: unset NUMBA_ENABLE_CUDASIM, or leave gmm.numba out") from error
    raise ImportError(
        f"gmm.numba plugs gmm into Numba's CUDA target, and that cannot be imported here ({error}): "
        "pip install 'numba-cuda[cu13]' (or [cu12])") from error

from gmm import _default
from gmm import _native as native
from gmm._context import Context
from gmm._core.enums import IpcRoute, Kind, State
from gmm._core.errors import ERRORS, Error
from gmm._core.resource import need_cuda

__all__ = ["HostOnlyMemoryManager", "IpcHandle", "MemoryManager", "use"]

#: gmm's errors, and the codes that Numba's users catch for them. InvalidKindError is that of a pin: the driver or gmm
#: has page-locked the memory.
_CODES = ((MemoryError, binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY),
          ((ERRORS["OverlapError"], ERRORS["InvalidKindError"]),
           binding.CUresult.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED))
# By gmm context: for each device the driver's number of the primary context that has the memory.
_primary = weakref.WeakKeyDictionary()
_dead = []  # contexts whose memory a device reset took; they are never closed, because their driver objects are gone
_lock = threading.Lock()


def _api_error(error):
    """A failure of gmm as the error that Numba's users expect. The caller makes gmm's exception its cause."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return CudaAPIError(code, str(error))
    if isinstance(error, ERRORS["DriverError"]) and error.native_code > 0:
        with contextlib.suppress(ValueError):  # these bindings do not know the number
            return CudaAPIError(binding.CUresult(error.native_code), str(error))
    return error


def _living(wanted, device, handle):
    """The gmm context to allocate from, which is not one whose memory cuda.close() took by resetting the device."""
    number = int(driver.cuCtxGetId(handle))  # a primary context's successor may have its address
    with _lock:
        for _ in range(2):
            context = need_cuda(_default.context() if wanted is None else wanted, "Numba")
            if _primary.setdefault(context, {}).setdefault(device, number) == number:
                return context
            if wanted is not None:
                raise RuntimeError(
                    f"cuda.close() has reset CUDA device {device} and taken the memory of {wanted!r}: open a new "
                    "gmm.Context and give it to gmm.numba.use(), or let Numba use the default context")
            _dead.append(context)
            _default.forget(context)
        raise RuntimeError(f"CUDA device {device} is being reset while Numba allocates")


#: A batch closes when it has so many bytes, or more blocks than Numba's own queue takes (NUMBA_CUDA_DEALLOCS_COUNT).
_BATCH_BYTES = 32 << 20
#: The driver's version that has cuCtxRecordEvent(). With an older one, closing a batch waits for the context, as
#: cuMemFree() does.
_RECORDS_CONTEXTS = (12, 5)

_ending = threading.Event()
atexit.register(_ending.set)


def _capturing(code):
    """Whether a call failed because a graph is being captured. The blocks wait until the capture ends."""
    result = binding.CUresult
    return result.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED <= code <= result.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD


#: Blocks that Numba dropped before an event of the context was recorded; None when their work is done.
_Batch = collections.namedtuple("_Batch", "event blocks nbytes")


class _Frees:
    """Deferred release of memory that Numba has dropped, of one CUDA context. A block has nbytes and close().

    Numba names no stream when it drops an array: the finalizer runs when the last reference goes, while kernels on any
    stream may still use the memory. Programs rely on cuMemFree(), which waits for all of them. Here a block returns to
    the pool once the work is done that was queued in the CUDA context when Numba dropped it. Nothing waits for that:
    blocks gather in in-flight batches, each behind one event of the whole context. Later allocations and frees ask
    which events have passed. numba_queue: Numba's queue of memory of its own, which defer_cleanup() disables.
    """

    def __init__(self, handle, numba_queue):
        self._handle = handle  # of the CUDA context
        self._numba_queue = numba_queue
        self._process = os.getpid()
        self._dropped = collections.deque()
        self._dropped_bytes = 0  # approximate: finalizers add without a lock
        self._batches = collections.deque()
        self._batched_bytes = 0
        self._events = []  # passed events, for later batches
        self._records = None  # whether the driver records events of a context; None: not known yet
        self._lock = threading.Lock()

    def add(self, block):
        """Takes a block from a finalizer, which may run on any thread, and inside a method of this class too."""
        if _ending.is_set() or os.getpid() != self._process:
            return  # the end of the process frees memory; a child has none of it
        self._dropped.append(block)
        self._dropped_bytes += block.nbytes
        if self._is_full:
            self.collect()

    @property
    def _is_full(self):
        return len(self._dropped) > config.CUDA_DEALLOCS_COUNT or self._dropped_bytes >= _BATCH_BYTES

    @property
    def deferred(self):
        """Inside defer_cleanup()."""
        return self._numba_queue.is_disabled

    def __len__(self):
        return len(self._dropped) + sum(len(batch.blocks) for batch in tuple(self._batches))

    def collect(self, wait=False, limit=None, last=False):
        """Releases the blocks that the GPU has finished with.

        It waits only when `wait` is set, or while more than `limit` bytes are in flight. last: destroys all events of
        the CUDA context too.
        """
        if not wait and (self.deferred or not (self._batches or self._is_full)):
            return
        # A wait could deadlock: a finalizer may run on the thread that holds the lock.
        if not self._lock.acquire(blocking=wait):
            return
        with contextlib.ExitStack() as stack:
            stack.callback(self._lock.release)
            driver.cuCtxPushCurrent(self._handle)  # a finalizer's thread may be in another context or in none
            stack.callback(driver.cuCtxPopCurrent)
            if wait or self._is_full:
                self._close_batch()
            while self._batches:
                batch = self._batches[0]
                over = limit is not None and self._batched_bytes > limit
                if not self._passed(batch.event, wait or over):
                    break
                self._batches.popleft()
                self._batched_bytes -= batch.nbytes
                if batch.event is not None:
                    self._events.append(batch.event)
                with contextlib.ExitStack() as ends:  # closes all blocks, also when one of them fails
                    for block in batch.blocks:
                        ends.callback(block.close)
            while last and self._events:
                driver.cuEventDestroy(self._events.pop())

    def _close_batch(self):
        blocks = []
        self._dropped_bytes = 0
        while self._dropped:
            blocks.append(self._dropped.popleft())
        if not blocks:
            return
        try:
            event = self._record()
        except BaseException as error:
            self._dropped.extendleft(reversed(blocks))
            self._dropped_bytes = sum(block.nbytes for block in blocks)
            if isinstance(error, CudaAPIError) and _capturing(error.code):
                return
            raise
        batch = _Batch(event, blocks, sum(block.nbytes for block in blocks))
        self._batched_bytes += batch.nbytes
        self._batches.append(batch)

    def _record(self):
        """An event behind the work queued in the context; None when that work is done."""
        if self._records is None:
            self._records = hasattr(binding, "cuCtxRecordEvent") and driver.get_version() >= _RECORDS_CONTEXTS
        if self._records:
            event = self._events.pop() if self._events else driver.cuEventCreate(
                binding.CUevent_flags.CU_EVENT_DISABLE_TIMING.value)
            try:
                driver.cuCtxRecordEvent(self._handle, event)
                return event
            except CudaAPIError as error:
                self._events.append(event)
                if _capturing(error.code):
                    raise
                self._records = False  # any other error shows again in the wait below
        driver.cuCtxSynchronize()
        return None

    def _passed(self, event, wait):
        if event is None:
            return True
        if wait:
            driver.cuEventSynchronize(event)
            return True
        (result,) = binding.cuEventQuery(event)  # Numba's wrapper would log each "not ready"
        if result == binding.CUresult.CUDA_SUCCESS:
            return True
        if result == binding.CUresult.CUDA_ERROR_NOT_READY or _capturing(result):
            return False
        raise CudaAPIError(result, f"Call to cuEventQuery results in {result.name}")


class IpcHandle(cuda.IpcHandle):
    """Numba's interface of a handle over gmm's handle, for VMM and page-locked memory.

    The driver's legacy IPC does not take such memory. Programs open, close and send it like every handle of Numba. The
    exporting process must live until the handle is opened.
    """

    def open_direct(self, context):
        """Maps the memory for the context; close() of Numba's class closes the gmm.Buffer."""
        if self._impl is not None:
            raise ValueError("IpcHandle is already opened")
        if self.base is not None:
            raise ValueError("opening IpcHandle from original process")
        importer = need_cuda(_default.context(), "the handle")
        self._impl = importer.ipc_import(self.handle, device=int(context.device.id))
        return MemoryPointer(weakref.proxy(context), binding.CUdeviceptr(self._impl.address), self.size)

    def open_staged(self, context):
        """Copies the memory to the context's device, which cannot reach it."""
        self._sentry_source_info()
        with cuda.gpus[int(Device.from_identity(self.source_info).id)]:
            source = self.open_direct(cuda.current_context())
        copied = context.memalloc(self.size)  # the copy goes through the host
        try:
            numba_driver.device_to_device(copied, source, self.size)
        finally:
            self._impl.close()
        return copied

    def __reduce__(self):
        return (type(self), (None, self.handle, self.size, self.source_info, self.offset))


class _LegacyIpcHandle(cuda.IpcHandle):
    """The driver's legacy handle of newer cuda-bindings, whose bytes Numba's class does not find when it is sent."""

    @classmethod
    def _received(cls, content, *fields):
        handle = binding.CUipcMemHandle()
        ctypes.memmove(handle.getPtr(), content, len(content))
        return cls(None, handle, *fields)

    def __reduce__(self):
        content = ctypes.string_at(self.handle.getPtr(), 64)  # CU_IPC_HANDLE_SIZE
        return (self._received, (content, self.size, self.source_info, self.offset))


_numba_memory_size = numba_driver.device_memory_size


def _device_memory_size(devmem):
    """The size of an array's own block.

    Numba's function asks the driver for the size of the whole allocation. In a pool that has many arrays, and a program
    that fills so many bytes from the start of one would overwrite the others.
    """
    if getattr(devmem, "_cuda_memsize_", None) is None:
        address = numba_driver.device_pointer(devmem)
        for context in tuple(_primary):
            if context.closed:
                continue
            info = context.query(address)
            if info.state == State.ACTIVE:
                devmem._cuda_memsize_ = info.size
                break
    return _numba_memory_size(devmem)


class HostOnlyMemoryManager(GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):
    """Supplies device memory. Host and managed memory is Numba's own, by HostOnlyCUDAMemoryManager."""

    #: The gmm.Context to allocate from; None: the default context.
    gmm_context: ClassVar[Context | None] = None
    #: Whether arrays share driver allocations; None: GMM_NUMBA_POOL, whose default is 1.
    pool: bool | None = None
    #: The kind of device memory: VMM can be paused, DEVICE has the driver's legacy IPC.
    kind: ClassVar[Kind] = Kind.DEVICE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.pool is None:
            said = os.environ.get("GMM_NUMBA_POOL", "1")
            if said not in ("0", "1"):
                raise ValueError(f"GMM_NUMBA_POOL is {said!r}: 1 takes Numba's memory from gmm's pool, "
                                 "0 gives each array a driver allocation of its own")
            self.pool = said == "1"
        self._opening = threading.Lock()
        self._gmm = self._device = self._stream = self._limit = None  # _open() sets them
        self._reset_is_deferred = False
        self._frees = _Frees(None if self.context is None else self.context.handle, self.deallocations)

    @property
    def _is_open(self):
        return self._stream is not None and not self._gmm.closed

    def _open(self):
        """The gmm context, with CUDA initialised. The first use opens it, because a constructor must not use CUDA."""
        if self._is_open:
            return self._gmm
        with self._opening:
            if not self._is_open:
                self._device = int(getattr(self.context.device, "id", self.context.device))
                self._gmm = _living(self.gmm_context, self._device, self.context.handle)
                self._limit = int(driver.cuMemGetInfo()[1] * config.CUDA_DEALLOCS_RATIO)
                # A stream of its own, on which nothing runs. A wait for it waits for a block's former users only: see
                # _take().
                self._stream = self._gmm.stream(self._device)
                numba_driver.device_memory_size = _device_memory_size
        return self._gmm

    def initialize(self) -> None:
        """Sets the capacity of Numba's queue of freed memory, as Numba's own manager does."""
        if not self.deallocations.memory_capacity:
            self.deallocations.memory_capacity = driver.cuMemGetInfo()[1]

    def _memory(self, kind, pointer, size, key, drop, **options):
        """Memory of Numba's class `kind`. It is held until it is freed or reset() ends it: arrays only have weak
        references. drop(): ends it.
        """
        allocations = self.allocations

        def finalize():
            allocations.pop(key, None)
            drop()

        memory = kind(weakref.proxy(self.context), pointer, size, finalizer=finalize, **options)
        if kind is PinnedMemory:
            return memory
        allocations[key] = memory
        return memory.own()

    def _take(self, size, kind):
        """A block that every stream may use at once, like memory of cuMemAlloc()."""
        block = self._gmm.alloc(size, kind, device=self._device, stream=self._stream, dedicated=not self.pool)
        # The block may be one that another library freed on its own stream. Then its work comes first; usually there is
        # none.
        native.gmm_stream_synchronize(self._gmm, self._stream)
        return block

    def _allocate(self, numba_kind, size, kind):
        """Memory of gmm. When it is short, the call waits for deferred releases."""
        self._open()
        frees = self._frees
        frees.collect(limit=self._limit)
        try:
            try:
                block = self._take(size, kind)
            except MemoryError:
                frees.collect(wait=True)
                block = self._take(size, kind)
        except Error as error:
            raise _api_error(error) from error
        address = block.address
        pointer = address if kind == Kind.HOST else binding.CUdeviceptr(address)
        return self._memory(numba_kind, pointer, size, address, lambda: frees.add(block))

    def _attempt_allocation(self, allocator):
        """Memory of the driver itself. When it is short, the call waits for deferred releases and tries again."""
        try:
            return super()._attempt_allocation(allocator)
        except CudaAPIError as error:
            if error.code != binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
                raise
        self._frees.collect(wait=True)
        return allocator()

    def memalloc(self, size: int) -> Any:
        """Device memory from gmm's pool, of the current tag."""
        return self._allocate(AutoFreePointer, size, self.kind)

    def get_ipc_handle(self, memory: Any) -> Any:
        """A handle for memory of Numba, of gmm or of another library. The address may lie inside an allocation.

        It is the driver's legacy handle with an offset, or a gmm.numba.IpcHandle where the driver has none.
        """
        address = memory.device_pointer_value
        context = self._open()
        info = context.query(address)
        if info.state not in (State.UNKNOWN, State.IMPORTED) and not info.ipc_routes & IpcRoute.LEGACY:
            identity = self.context.device.get_device_identity()
            return IpcHandle(memory, context.ipc_export(address), memory.size, identity)
        legacy = super().get_ipc_handle(memory)
        if hasattr(legacy.handle, "reserved"):  # Numba's class can send it
            return legacy
        return _LegacyIpcHandle(memory, legacy.handle, legacy.size, legacy.source_info, legacy.offset)

    def get_memory_info(self) -> Any:
        """The free memory of the driver and of gmm, and the device's total memory."""
        free, total = driver.cuMemGetInfo()
        if self._is_open:
            free += sum(self._gmm.stats(device=self._device, kind=kind).cached_bytes
                        for kind in (Kind.DEVICE, Kind.VMM))
        return cuda.MemoryInfo(free=min(free, total), total=total)

    def reset(self) -> None:
        """Frees all memory that Numba has in this context, live arrays included, and returns it to the driver.

        Numba's own manager does the same. Inside defer_cleanup() the end of the block returns it to the driver.
        """
        super().reset()
        self._return_memory()

    def _return_memory(self):
        if self._gmm is None or self._gmm.closed:
            return
        self._reset_is_deferred = self._frees.deferred
        if self._reset_is_deferred:
            return
        self._frees.collect(wait=True, last=True)
        # The next use opens another stream. cuda.close() now resets the device, which must find no stream of gmm.
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        self._gmm.trim(device=self._device)

    @contextlib.contextmanager
    def defer_cleanup(self) -> Iterator[None]:
        """In its with block a free records no event, returns nothing to gmm, and gmm returns nothing to the driver.

        Blocks nest. The end of the outermost block, also by an exception, does the deferred work. Only an allocation
        that would fail otherwise does it earlier. The same goes for Numba's queue of memory of its own.
        """
        try:
            with self._open().defer(), super().defer_cleanup():
                yield
        finally:
            if self._reset_is_deferred:
                self._return_memory()
            self._frees.collect()

    @property
    def interface_version(self) -> int:
        """The version of the EMM plugin interface."""
        return 1


class MemoryManager(HostOnlyMemoryManager):
    """Supplies all of Numba's memory: device, mapped, pinned and managed.

    It also pins the caller's memory and has IPC.
    """

    def memhostalloc(self, size: int, mapped: bool = False, portable: bool = False, wc: bool = False) -> Any:
        """Page-locked memory, which gmm always maps and makes portable. Write-combined memory comes from the driver."""
        if wc:
            return super().memhostalloc(size, mapped, portable, wc)
        return self._allocate(MappedMemory if mapped else PinnedMemory, size, Kind.HOST)

    def mempin(self, owner: Any, pointer: int, size: int, mapped: bool = False) -> Any:
        """Page-locks memory of the caller. Pins nest.

        A pin ends at once, inside defer_cleanup() too, so that the memory can be pinned again.
        """
        try:
            pin = self._open().pin((ctypes.c_ubyte * size).from_address(pointer), device=self._device)
        except Error as error:
            raise _api_error(error) from error
        # Nested pins have one address, and each ends separately.
        return self._memory(MappedMemory if mapped else PinnedMemory, pointer, size, (pointer, id(pin)), pin.close,
                            owner=owner)

    def memallocmanaged(self, size: int, attach_global: bool = True) -> Any:
        """Managed memory.

        attach_global: False matters only on a device that cannot use the memory at the same time as the host. There the
        driver allocates it.
        """
        if attach_global or self._open().device_info(
                self._device).capabilities & native.GMM_DEVICE_CAN_CONCURRENT_MANAGED:
            return self._allocate(ManagedMemory, size, Kind.MANAGED)
        return super().memallocmanaged(size, attach_global)


_numba_memory_manager = MemoryManager


def use(context: Context | None = None, *, host_only: bool = False, pool: bool | None = None,
        kind: Kind = Kind.DEVICE) -> type[MemoryManager] | type[HostOnlyMemoryManager]:
    """Makes Numba allocate from gmm in this process. Returns the manager's class.

    It must be called before Numba uses the GPU; later calls must have the same arguments, and change nothing. context:
    None: the default context. host_only: leaves host and managed memory to Numba. pool: False gives each array a driver
    allocation of its own; None: GMM_NUMBA_POOL decides. kind: Kind.VMM makes device memory pausable.
    """
    base = HostOnlyMemoryManager if host_only else MemoryManager
    settings = {"gmm_context": context, "pool": pool, "kind": Kind(kind)}
    if any(device.primary_context is not None for device in driver.list_devices()):
        used = numba_driver._memory_manager
        is_ours = issubclass(used, HostOnlyMemoryManager)
        if is_ours and issubclass(used, MemoryManager) != host_only and all(
                getattr(used, name) == value for name, value in settings.items()):
            return used
        whose = "gmm and other arguments" if is_ours else f"{used.__module__}.{used.__name__}"
        raise RuntimeError(f"Numba has started CUDA with {whose} already: "
                           "call gmm.numba.use() before the first use of the GPU, or after cuda.close()")
    manager = type(base.__name__, (base,), {"__doc__": base.__doc__, **settings})
    cuda.set_memory_manager(manager)
    return manager
