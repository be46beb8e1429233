# SPDX-License-Identifier: Apache-2.0
"""gmm under Numba: an EMM plugin (External Memory Management) for Numba's CUDA target.

    NUMBA_CUDA_MEMORY_MANAGER=gmm.numba python program.py

or, before Numba touches the GPU:

    import gmm.numba
    gmm.numba.use()
"""
import contextlib
import os
import weakref

try:
    from numba import cuda
    from numba.cuda.cudadrv.driver import AutoFreePointer, GetIpcHandleMixin, ManagedMemory, MappedMemory, PinnedMemory, binding, driver

    from gmm._numba.ipc import IpcHandle
    from gmm._numba.pool import Pool
except ImportError as error:
    raise ImportError(
        f"gmm.numba plugs gmm into Numba's CUDA target, and that cannot be imported here ({error}): pip install 'numba-cuda[cu13]' (or [cu12])") from error

from gmm._core.enums import IpcRoute, Kind, State

__all__ = ["HostOnlyMemoryManager", "IpcHandle", "MemoryManager", "use"]


class _DriverMemory:
    """Memory that gmm has no kind for, from the driver itself."""

    __slots__ = ("_free", "nbytes", "pointer")

    def __init__(self, pointer, nbytes, free):
        self.pointer = pointer
        self.nbytes = nbytes
        self._free = free

    def close(self):
        self._free(self.pointer)


def _pooling(pool):
    """GMM_NUMBA_POOL of the environment, unless the class says otherwise."""
    if pool is not None:
        return pool
    said = os.environ.get("GMM_NUMBA_POOL", "1")
    if said not in ("0", "1"):
        raise ValueError(f"GMM_NUMBA_POOL is {said!r}: 1 takes Numba's memory from gmm's pool, 0 gives each array a driver allocation of its own")
    return said == "1"


class _DeviceMemory(GetIpcHandleMixin):
    """Device memory from gmm, for both managers."""

    #: The gmm.Context to allocate from; None: the process's default one.
    gmm_context = None
    #: Whether arrays share driver allocations; None: as GMM_NUMBA_POOL says, which is 1 by itself.
    pool = None
    #: The kind of device memory: Kind.VMM can be paused, Kind.DEVICE has the driver's legacy IPC.
    kind = Kind.DEVICE

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.pool = _pooling(self.pool)
        self._pool = Pool(self.context, self.gmm_context, not self.pool)

    def _finalizer(self, key, block):
        allocations, frees = self.allocations, self._pool.frees

        def finalize():
            allocations.pop(key, None)
            frees.add(block)

        return finalize

    def _keep(self, key, memory):
        """Numba's arrays refer to memory weakly: what reset() shall end, lives here."""
        self.allocations[key] = memory
        return memory.own()

    def memalloc(self, size):
        """Device memory from gmm's pool, for the current tag."""
        block = self._pool.alloc(size, self.kind)
        address = block.address
        return self._keep(address, AutoFreePointer(
            weakref.proxy(self.context), binding.CUdeviceptr(address), size, finalizer=self._finalizer(address, block)))

    def get_ipc_handle(self, memory):
        """A handle for memory of Numba, of gmm or of anybody else, inside of an allocation too.

        It is the driver's legacy handle with an offset where the driver has one, else a gmm.numba.IpcHandle.
        """
        address = memory.device_pointer_value
        context = self._pool.open()
        info = context.query(address)
        if info.state not in (State.UNKNOWN, State.IMPORTED) and not info.ipc_routes & IpcRoute.LEGACY:
            return IpcHandle(memory, context.ipc_export(address), memory.size, self.context.device.get_device_identity())
        return super().get_ipc_handle(memory)

    def get_memory_info(self):
        """What the driver has free and what gmm holds free, and the device's memory."""
        free, total = driver.cuMemGetInfo()
        return cuda.MemoryInfo(free=min(free + self._pool.cached_bytes, total), total=total)

    @property
    def interface_version(self):
        """Of the EMM plugin interface."""
        return 1


class MemoryManager(_DeviceMemory, cuda.BaseCUDAMemoryManager):
    """All of Numba's memory from gmm: device, mapped, pinned and managed; pinning of the caller's memory; IPC."""

    def __init__(self, *args, **kwargs):
        self.allocations = {}
        super().__init__(*args, **kwargs)

    def initialize(self):
        """Nothing: gmm opens at the first allocation."""

    def memhostalloc(self, size, mapped=False, portable=False, wc=False):
        """Page-locked memory. gmm's is mapped and portable always; write-combined memory comes from the driver."""
        if wc:
            flags = binding.CU_MEMHOSTALLOC_WRITECOMBINED
            flags |= binding.CU_MEMHOSTALLOC_DEVICEMAP if mapped else 0
            flags |= binding.CU_MEMHOSTALLOC_PORTABLE if portable else 0
            block = _DriverMemory(self._pool.retry(lambda: driver.cuMemHostAlloc(size, flags)), size, driver.cuMemFreeHost)
            address = int(block.pointer)
        else:
            block = self._pool.alloc(size, Kind.HOST)
            address = block.address
        finalizer = self._finalizer(address, block)
        if mapped:
            return self._keep(address, MappedMemory(weakref.proxy(self.context), address, size, finalizer=finalizer))
        return PinnedMemory(weakref.proxy(self.context), address, size, finalizer=finalizer)

    def mempin(self, owner, pointer, size, mapped=False):
        """Page-locks memory of the caller. Pinning what is pinned nests. It ends at once, inside defer_cleanup() too, so that it can be pinned again."""
        allocations = self.allocations
        pin = self._pool.pin(pointer, size)
        # Nested pins have one address, and each ends by itself.
        key = (pointer, id(pin))

        def finalizer():
            allocations.pop(key, None)
            pin.close()

        if mapped:
            return self._keep(key, MappedMemory(weakref.proxy(self.context), pointer, size, owner=owner, finalizer=finalizer))
        return PinnedMemory(weakref.proxy(self.context), pointer, size, owner=owner, finalizer=finalizer)

    def memallocmanaged(self, size, attach_global=True):
        """Managed memory. Where it is attached matters only on devices that share it with the host by turns: there the driver gives what is attached to the host."""
        if attach_global or self._pool.can_share_managed:
            block = self._pool.alloc(size, Kind.MANAGED)
            address = block.address
        else:
            flags = binding.CUmemAttach_flags.CU_MEM_ATTACH_HOST.value
            pointer = self._pool.retry(lambda: driver.cuMemAllocManaged(size, flags))
            block = _DriverMemory(pointer, size, driver.cuMemFree)
            address = int(pointer)
        return self._keep(address, ManagedMemory(
            weakref.proxy(self.context), binding.CUdeviceptr(address), size, finalizer=self._finalizer(address, block)))

    def reset(self):
        """Ends all memory that Numba has in this context, arrays that live included, as Numba's own manager does, and gives it back to the driver."""
        self.allocations.clear()
        self._pool.reset()

    @contextlib.contextmanager
    def defer_cleanup(self):
        """Nothing expensive is done on behalf of a free: no event, no memory back to gmm, no trim, no call that frees memory of the driver. It nests,
        and what was put off is done when the outermost block ends, by an exception too. Only an allocation that would fail otherwise waits and frees."""
        with self._pool.defer():
            yield


class HostOnlyMemoryManager(_DeviceMemory, cuda.HostOnlyCUDAMemoryManager):
    """Device memory from gmm; host and managed memory stays with Numba, as in HostOnlyCUDAMemoryManager."""

    def initialize(self):
        """Tells Numba's queue of host memory how large it may grow, as Numba's own manager does."""
        if not self.deallocations.memory_capacity:
            self.deallocations.memory_capacity = driver.cuMemGetInfo()[1]

    def reset(self):
        """Ends all memory that Numba has in this context, arrays that live included."""
        super().reset()
        self._pool.reset()

    @contextlib.contextmanager
    def defer_cleanup(self):
        """As MemoryManager.defer_cleanup(), and Numba's queue of host memory rests too."""
        with super().defer_cleanup(), self._pool.defer():
            yield


_numba_memory_manager = MemoryManager


def use(context=None, *, host_only=False, pool=None, kind=Kind.DEVICE):
    """Makes Numba allocate from gmm, in this process: to be called before Numba touches the GPU. Returns the manager's class.

    context: the gmm.Context; None: the process's default one. host_only: leaves host and managed memory to Numba. pool: False gives each array a
    driver allocation of its own; None: as GMM_NUMBA_POOL says. kind: Kind.VMM makes device memory pausable.
    """
    if any(device.primary_context is not None for device in driver.list_devices()):
        raise RuntimeError("Numba has started CUDA with another memory manager already: call gmm.numba.use() before the first use of the GPU, or after cuda.close()")
    base = HostOnlyMemoryManager if host_only else MemoryManager
    manager = type(base.__name__, (base,), {"__doc__": base.__doc__, "gmm_context": context, "pool": pool, "kind": Kind(kind)})
    cuda.set_memory_manager(manager)
    return manager
