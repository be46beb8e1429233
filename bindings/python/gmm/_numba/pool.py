# SPDX-License-Identifier: Apache-2.0
"""gmm's memory for one context of Numba."""
import contextlib
import ctypes
import threading
import weakref

from numba.cuda.core import config
from numba.cuda.cudadrv import driver as numba_driver
from numba.cuda.cudadrv.driver import CudaAPIError, binding, driver

from gmm import _default
from gmm import _native as native
from gmm._core.enums import Kind, State
from gmm._core.errors import ERRORS, Error
from gmm._numba.frees import Frees

#: gmm's errors, and the codes that Numba's users catch for them.
_CODES = (
    (MemoryError, binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY),
    (ERRORS["OverlapError"], binding.CUresult.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
)
# By gmm context: for each device the driver's number of the primary context that has the memory.
_primary = weakref.WeakKeyDictionary()
_dead = []  # contexts whose memory a device reset took; they are never closed, because their driver objects are gone
_lock = threading.Lock()


def api_error(error):
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
            context = _default.context() if wanted is None else wanted
            if context.info.backend_name != "cuda":
                raise RuntimeError(
                    f"Numba needs CUDA memory, but {'the default gmm context' if wanted is None else repr(wanted)} has "
                    f"the {context.info.backend_name} backend: "
                    "unset GMM_BACKEND, or name another context by gmm.numba.use(context)")
            if _primary.setdefault(context, {}).setdefault(device, number) == number:
                return context
            if wanted is not None:
                raise RuntimeError(
                    f"cuda.close() has reset CUDA device {device} and taken the memory of {wanted!r}: "
                    "open a new gmm.Context and give it to gmm.numba.use(), "
                    "or let Numba use the default context")
            _dead.append(context)
            _default.forget(context)
        raise RuntimeError(f"CUDA device {device} is being reset while Numba allocates")


_numba_memory_size = numba_driver.device_memory_size


def device_memory_size(devmem):
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


class Pool:
    """gmm's memory for one Numba context. The first use opens it, because a manager's constructor must not use CUDA."""

    def __init__(self, context, wanted, dedicated, numba_queue):
        self._numba = context
        self._wanted = wanted
        self._dedicated = dedicated
        self._opening = threading.Lock()
        self.context = None
        self.device = None
        self._stream = None
        self._limit = None
        self._reset_is_deferred = False
        self.frees = Frees(None if context is None else context.handle, numba_queue)

    @property
    def is_open(self):
        """Whether gmm's memory is in use."""
        return self._stream is not None and not self.context.closed

    def open(self):
        """The gmm context, with CUDA initialised."""
        if self.is_open:
            return self.context
        with self._opening:
            if not self.is_open:
                device = getattr(self._numba.device, "id", self._numba.device)
                self.device = int(device)
                context = _living(self._wanted, self.device, self._numba.handle)
                # A stream of its own, on which nothing runs. A wait for it waits for a block's former users only: see
                # alloc().
                self.context = context
                self._limit = int(driver.cuMemGetInfo()[1] * config.CUDA_DEALLOCS_RATIO)
                self._stream = context.stream(self.device)
                numba_driver.device_memory_size = device_memory_size
        return self.context

    def alloc(self, size, kind):
        """A buffer that every stream may use at once, like memory of cuMemAlloc().

        When memory is short, the call waits for deferred releases.
        """
        context = self.open()
        self.frees.collect(limit=self._limit)
        try:
            try:
                return self._alloc(context, size, kind)
            except MemoryError:
                self.frees.collect(wait=True)
                return self._alloc(context, size, kind)
        except Error as error:
            raise api_error(error) from error

    def _alloc(self, context, size, kind):
        buffer = context.alloc(size, kind, device=self.device, stream=self._stream, dedicated=self._dedicated)
        # The block may be one that another library freed on its own stream. Then its work comes first; usually there is
        # none.
        native.gmm_stream_synchronize(context, self._stream)
        return buffer

    def pin(self, pointer, size):
        """Page-locks memory of the caller."""
        context = self.open()
        try:
            return context.pin((ctypes.c_ubyte * size).from_address(pointer), device=self.device)
        except ERRORS["InvalidKindError"] as error:  # the driver or gmm has page-locked it
            raise CudaAPIError(binding.CUresult.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, str(error)) from error
        except Error as error:
            raise api_error(error) from error

    @property
    def can_share_managed(self):
        """Whether host and device may use managed memory at the same time, whatever it is attached to."""
        return bool(self.open().device_info(self.device).capabilities & native.GMM_DEVICE_CAN_CONCURRENT_MANAGED)

    @property
    def cached_bytes(self):
        """Free device memory that gmm holds."""
        if not self.is_open:
            return 0
        return sum(self.context.stats(device=self.device, kind=kind).cached_bytes for kind in (Kind.DEVICE, Kind.VMM))

    @contextlib.contextmanager
    def defer(self):
        """Defers releases from gmm to the driver until the outermost block ends, and then does all that was deferred.

        Inside of it the caller disables Numba's queue, and so the releases to gmm.
        """
        try:
            with self.open().defer():
                yield
        finally:
            if self._reset_is_deferred:
                self.reset()
            self.frees.collect()

    def reset(self):
        """Releases what Numba has dropped, and returns free memory to the driver.

        Inside defer() the end of the block does.
        """
        if self.context is None or self.context.closed:
            return
        self._reset_is_deferred = self.frees.deferred
        if self._reset_is_deferred:
            return
        self.frees.collect(wait=True, last=True)
        # The next use opens another stream. cuda.close() now resets the device, which must find no stream of gmm.
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        self.context.trim(device=self.device)
