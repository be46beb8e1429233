# SPDX-License-Identifier: Apache-2.0
"""libgmm_torch.so.1 by ctypes: the functions that PyTorch calls, over gmm's default context."""
import atexit
import ctypes
import os
import pathlib
import threading

from gmm import _default
from gmm import _native as native
from gmm._core.errors import make_exception

NAME = "libgmm_torch.so.1"
HOST = -1  # GMM_DEVICE_HOST

_i32, _u32, _u64 = ctypes.c_int32, ctypes.c_uint32, ctypes.c_uint64
_size, _pointer = ctypes.c_ssize_t, ctypes.c_void_p
_REFERENCE = ctypes.POINTER
_SIGNATURES = {
    "gmm_torch_attach": (_i32, [_pointer]),
    "gmm_torch_forget": (None, []),
    "gmm_torch_end": (None, []),
    "gmm_torch_set_errors": (None, [_pointer, _pointer]),
    "gmm_torch_set_kind": (None, [_u32]),
    "gmm_torch_set_managed": (None, [_i32]),
    "gmm_torch_get_managed": (_i32, []),
    "gmm_torch_alloc": (_pointer, [_size, ctypes.c_int, _pointer]),
    "gmm_torch_dealloc": (None, [_pointer, _size, ctypes.c_int, _pointer]),
    "gmm_torch_calls": (None, [_REFERENCE(_u64)]),
    "gmm_torch_slot": (_i32, [_u32, _u32, _REFERENCE(_pointer), _REFERENCE(_pointer)]),
    "gmm_torch_route": (_i32, [_u64, _u64, _i32]),
    "gmm_torch_unroute": (None, [_u64, _u64]),
    "gmm_torch_host_start": (_i32, [_i32]),
    "gmm_torch_host_alloc": (_pointer, [_u64]),
    "gmm_torch_host_free": (None, [_pointer]),
    "gmm_torch_host_collect": (_u64, [_i32]),
    "gmm_torch_record": (_i32, [_pointer, _i32, _pointer]),
    "gmm_torch_native_functions": (_pointer, []),
    "gmm_torch_move": (_i32, [_pointer, _u64, _i32, _i32, _pointer]),
}
CALLS = ("init", "reset", "memory_fraction", "base_alloc", "record_stream", "begin_pool", "end_pool", "release_pool")


class Library:
    """The library, attached to gmm's default context."""

    def __init__(self):
        self.path = str(pathlib.Path(__file__).resolve().parents[1] / NAME)
        if not os.path.isfile(self.path):
            raise RuntimeError(f"gmm.torch: {self.path} is missing; build or install the package with its libraries")
        self.cdll = ctypes.CDLL(self.path)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self.cdll, name)
            function.restype = result
            function.argtypes = arguments
        self.context = _default.context()
        result = self.cdll.gmm_torch_attach(self.context.handle)
        if result == native.GMM_ERROR_BUSY:
            raise RuntimeError("gmm.torch: PyTorch uses memory of an earlier default context, which was closed; "
                               "leave gmm.context() open while PyTorch uses it")
        self.check(result)
        atexit.register(self.cdll.gmm_torch_end)

    def check(self, result):
        """Raises the gmm.Error of a result below 0. Returns any other result."""
        if result < 0:
            name = native.gmm_result_name(result)
            message = native.gmm_last_error_message() or native.gmm_result_text(result)
            raise make_exception(result, name, message, 0, False)
        return result

    def address(self, name):
        """The address of a function, as PyTorch takes it."""
        return ctypes.cast(getattr(self.cdll, name), ctypes.c_void_p).value

    def calls(self):
        """The number of calls of each hook."""
        counts = (_u64 * len(CALLS))()
        self.cdll.gmm_torch_calls(counts)
        return dict(zip(CALLS, counts))

    def slot(self, tag, kind):
        """(slot, address of its alloc, address of its free) of a tag and kind."""
        allocate, deallocate = _pointer(), _pointer()
        slot = self.cdll.gmm_torch_slot(tag, kind, ctypes.byref(allocate), ctypes.byref(deallocate))
        if slot < 0:
            raise RuntimeError("gmm.torch.pool(): 64 pairs of tag and kind have pools already, which is the maximum; "
                               "use one of those tags")
        return slot, allocate.value, deallocate.value


_lock = threading.Lock()
_library = None


def load():
    """The Library of this process; it opens gmm's default context."""
    global _library  # pylint: disable=global-statement
    if _library is None:
        with _lock:
            if _library is None:
                _library = Library()
    return _library


def loaded():
    """The Library once load() has made it, else None."""
    return _library


def _forget_after_fork():
    """Memory and context are the parent's. New tensors of the child are ordinary ones."""
    global _library, _lock  # pylint: disable=global-statement
    _lock = threading.Lock()
    if _library is not None:
        _library.cdll.gmm_torch_forget()
        _library = None


os.register_at_fork(after_in_child=_forget_after_fork)
