# SPDX-License-Identifier: Apache-2.0
"""gmm's pool under a context of Numba: the gmm context that has it, the sizes of its blocks, and its errors."""
import contextlib
import threading
import weakref

from numba.cuda.cudadrv import driver as numba_driver
from numba.cuda.cudadrv.driver import CudaAPIError, binding, driver

from gmm import _default
from gmm._core.enums import State
from gmm._core.errors import ERRORS

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


def living(wanted, device, handle):
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
