# SPDX-License-Identifier: Apache-2.0
"""By ctypes: libgmm_torch.so.1 over gmm's default context, and the C++ that is compiled against the installed PyTorch.
"""
import atexit
import ctypes
import functools
import os
import pathlib
import threading

from gmm import _default
from gmm import _native as native
from gmm._core.errors import make_exception
from gmm._torch import compiler

NAME = "libgmm_torch.so.1"
HOST = -1  # GMM_DEVICE_HOST

_i32, _i64, _u32, _u64 = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint64
_pointer = ctypes.c_void_p
_SIGNATURES = {
    "gmm_torch_attach": (_i32, [_pointer]),
    "gmm_torch_forget": (None, []),
    "gmm_torch_end": (None, []),
    "gmm_torch_set_kind": (None, [_u32]),
    "gmm_torch_set_managed": (None, [_i32]),
    "gmm_torch_slot": (_pointer, [_u32, _u32]),
    "gmm_torch_host_start": (_i32, [_i32]),
    "gmm_torch_host_alloc": (_pointer, [_u64]),
    "gmm_torch_host_free": (None, [_pointer]),
    "gmm_torch_host_collect": (_u64, [_i32]),
    "gmm_torch_record": (_i32, [_pointer, _i32, _pointer]),
    "gmm_torch_native_functions": (_pointer, []),
    "gmm_torch_move": (_i32, [_pointer, _u64, _i32, _i32, _pointer]),
}
_EXTENSION_SIGNATURES = {
    "gmm_torch_extension_start": (_i32, [_pointer]),
    "gmm_torch_extension_error": (ctypes.c_char_p, []),
    "gmm_torch_extension_assign": (_i32, [_pointer, _u64, _i32, _u32, _pointer]),
    "gmm_torch_extension_shared": (_u64, [_pointer]),
    "gmm_torch_extension_share": (_i32, [_pointer]),
    "gmm_torch_extension_join": (_i32, [_pointer, _pointer, _i32]),
    "gmm_torch_extension_users": (_i64, [_pointer]),
    "gmm_torch_extension_share_version": (None, [_pointer, _pointer]),
}
_NATIVE_SIGNATURES = {
    "gmm_torch_native_install": (_i32, [_pointer, _i32, _i32]),
    "gmm_torch_native_error": (ctypes.c_char_p, []),
    "gmm_torch_native_malloc": (_i32, [_u64, _i32, _pointer, ctypes.POINTER(_pointer)]),
    "gmm_torch_native_free": (_i32, [_pointer]),
    "gmm_torch_native_record": (_i32, [_i32, _u64]),
}


def _declare(cdll, signatures):
    for name, (result, arguments) in signatures.items():
        function = getattr(cdll, name)
        function.restype = result
        function.argtypes = arguments
    return cdll


class Library:
    """The library, attached to gmm's default context."""

    def __init__(self):
        self.path = str(pathlib.Path(__file__).resolve().parents[1] / NAME)
        if not os.path.isfile(self.path):
            raise RuntimeError(f"gmm.torch: {self.path} is missing; build or install the package with its libraries")
        self.cdll = _declare(ctypes.CDLL(self.path), _SIGNATURES)
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
        """The address of a function."""
        return ctypes.cast(getattr(self.cdll, name), ctypes.c_void_p).value


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


def _compiled(source, library_type):
    path = compiler.build(source, compiler.installed())
    try:
        return library_type(str(path))
    except OSError as error:
        raise RuntimeError(f"gmm.torch: {source}.cpp was compiled and did not load: {error}") from error


class Native:
    """The compiled native_allocator.cpp, PyTorch's allocator of CUDA memory."""

    def __init__(self, library):
        # The GIL is released: the calls may wait for the device.
        self.cdll = _declare(_compiled("native_allocator", ctypes.CDLL), _NATIVE_SIGNATURES)
        self._functions = library.cdll.gmm_torch_native_functions()

    def install(self, device_count, on_cuda=True):
        """Makes gmm PyTorch's allocator. RuntimeError: PyTorch's own has memory, or cannot be replaced."""
        if self.cdll.gmm_torch_native_install(self._functions, device_count, int(on_cuda)) != 0:
            raise RuntimeError(self.cdll.gmm_torch_native_error().decode(errors="replace"))


class Extension:
    """The compiled extension.cpp: the allocator of CPU tensors, and storages over memory that several devices share."""

    def __init__(self, library):
        # _quick holds the GIL, so that no thread sees half a change. _slow releases it for calls of the driver.
        self._quick = _declare(_compiled("extension", ctypes.PyDLL), _EXTENSION_SIGNATURES)
        self._slow = _declare(ctypes.CDLL(self._quick._name), _EXTENSION_SIGNATURES)
        self._functions = library.cdll.gmm_torch_native_functions()

    def _check(self, result, what, error=RuntimeError):
        if result != 0:
            message = self._quick.gmm_torch_extension_error().decode(errors="replace")
            raise error(f"gmm.torch: {what}: {message}")

    def take_cpu_tensors(self):
        """Replaces the allocator of CPU tensors: it allocates managed memory while the library says so."""
        self._check(self._quick.gmm_torch_extension_start(self._functions),
                    "the allocator of CPU tensors")

    def assign(self, storage, nbytes, device, kind, stream):
        """Puts new memory into an empty storage. device: -1: the host; kind: 0: ordinary host memory."""
        import torch  # pylint: disable=import-outside-toplevel

        self.take_cpu_tensors()
        result = self._slow.gmm_torch_extension_assign(storage._cdata, nbytes, device, kind, stream)
        self._check(result, f"{nbytes} bytes", torch.OutOfMemoryError)

    def shared(self, storage):
        """The number that all storages over one memory share; 0 when the storage shares its memory with no other."""
        return self._quick.gmm_torch_extension_shared(storage._cdata)

    def share(self, storage):
        """Makes the memory of a storage shareable. Returns its shared() number."""
        self._check(self._quick.gmm_torch_extension_share(storage._cdata), "sharing of memory")
        return self.shared(storage)

    def join(self, storage, source, device):
        """Puts an empty storage over the memory of a shareable one. device: -1: the host."""
        self._check(self._quick.gmm_torch_extension_join(storage._cdata, source._cdata, device), "sharing of memory")

    def users(self, storage):
        """The number of storages that share the memory; 0: it is not shareable."""
        return self._quick.gmm_torch_extension_users(storage._cdata)

    def share_version(self, tensor, source):
        """Makes a write into either tensor count for both in autograd's checks."""
        self._quick.gmm_torch_extension_share_version(tensor._cdata, source._cdata)


@functools.lru_cache(maxsize=None)
def allocator(library):
    """The Native of a library. RuntimeError: it cannot be compiled or loaded."""
    return Native(library)


@functools.lru_cache(maxsize=None)
def extension(library):
    """The Extension of a library. RuntimeError: it cannot be compiled or loaded."""
    return Extension(library)
