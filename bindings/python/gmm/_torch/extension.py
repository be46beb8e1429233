# SPDX-License-Identifier: Apache-2.0
"""extension.cpp and native_allocator.cpp, compiled by compiler.py: what PyTorch has in C++ only."""
import ctypes
import functools
import pathlib

import torch

from gmm._torch import compiler

_i32, _i64, _u32, _u64, _pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p


class _Functions(ctypes.Structure):
    _fields_ = [(name, _pointer) for name in ("host_alloc", "host_free", "block", "dealloc", "message", "get_managed")]


_SIGNATURES = {
    "gmm_torch_extension_start": (_i32, [ctypes.POINTER(_Functions)]),
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


def build(source="extension"):
    """The path of a compiled file, which this compiles when it is missing. RuntimeError when it cannot."""
    package = pathlib.Path(torch.__file__).resolve().parent
    return compiler.build(source, compiler.Installed(package, torch.__version__, torch.version.cuda or "",
                                                     bool(torch.compiled_with_cxx11_abi())))


class Native:
    """The compiled native_allocator.cpp."""

    def __init__(self, library):
        # The GIL is released: the calls may wait for the device.
        self.cdll = ctypes.CDLL(str(build("native_allocator")))
        for name, (result, arguments) in _NATIVE_SIGNATURES.items():
            function = getattr(self.cdll, name)
            function.restype = result
            function.argtypes = arguments
        self._functions = library.cdll.gmm_torch_native_functions()

    def install(self, device_count, on_cuda=True):
        """Makes gmm PyTorch's allocator. RuntimeError: PyTorch's own has memory, or cannot be replaced."""
        if self.cdll.gmm_torch_native_install(self._functions, device_count, int(on_cuda)) != 0:
            raise RuntimeError(self.cdll.gmm_torch_native_error().decode(errors="replace"))


class Extension:
    """The extension, which gets the functions of libgmm_torch.so.1."""

    def __init__(self, library):
        # _quick holds the GIL, so that no thread sees half a change. _slow releases it for calls of the driver.
        path = str(build())
        self._quick, self._slow = ctypes.PyDLL(path), ctypes.CDLL(path)
        for cdll in (self._quick, self._slow):
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(cdll, name)
                function.restype = result
                function.argtypes = arguments
        # Of the libgmm that the library is linked to.
        libgmm = ctypes.cast(library.cdll.gmm_last_error_message, _pointer).value
        self._functions = _Functions(
            **{name: library.address("gmm_torch_" + name) for name, _ in _Functions._fields_ if name != "message"},
            message=libgmm)
        self._start = self._quick.gmm_torch_extension_start
        self.throw_memory = ctypes.cast(self._quick.gmm_torch_extension_throw, _pointer).value

    def _check(self, result, what, error=RuntimeError):
        if result != 0:
            message = self._quick.gmm_torch_extension_error().decode(errors="replace")
            raise error(f"gmm.torch: {what}: {message}")

    def take_cpu_tensors(self):
        """Replaces the allocator of CPU tensors: it allocates managed memory while the library says so."""
        self._check(self._start(ctypes.byref(self._functions)), "the allocator of CPU tensors")

    def assign(self, storage, nbytes, device, kind, stream):
        """Puts new memory into an empty storage. device: -1: the host; kind: 0: ordinary host memory."""
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
def native(library):
    """The Native for a library. RuntimeError: it cannot be compiled or loaded."""
    try:
        return Native(library)
    except OSError as error:
        raise RuntimeError(f"gmm.torch: native_allocator.cpp was compiled and did not load: {error}") from error


@functools.lru_cache(maxsize=None)
def load(library):
    """The Extension for a library."""
    return Extension(library)
