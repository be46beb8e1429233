# SPDX-License-Identifier: Apache-2.0
"""extension.cpp: what PyTorch has in C++ only. The first use compiles it against the headers in PyTorch's package.

That takes seconds. Later processes find the result in $GMM_TORCH_CACHE or ~/.cache/gmm, under a name with PyTorch's
version.
"""
import ctypes
import functools
import hashlib
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile

import torch

SOURCE = pathlib.Path(__file__).resolve().parent / "extension.cpp"

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


def _compiler():
    named = os.environ.get("CXX")
    if named:
        return shlex.split(named)
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise RuntimeError("gmm.torch: managed CPU tensors need a C++ compiler once for each version of PyTorch, "
                       "to compile "
                       f"{SOURCE.name}, and none was found; install g++ or clang++, or name one in CXX")


def _cache():
    named = os.environ.get("GMM_TORCH_CACHE")
    if named:
        return pathlib.Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (pathlib.Path(base) if base else pathlib.Path.home() / ".cache") / "gmm"


def build():
    """The path of the compiled extension, which this compiles when it is missing. RuntimeError when it cannot."""
    package = pathlib.Path(torch.__file__).resolve().parent
    arguments = ["-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=default",
                 f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    # The same version in another folder is another build.
    inputs = repr((SOURCE.read_text(encoding="utf-8"), arguments, torch.__version__, str(package)))
    key = hashlib.sha256(inputs.encode()).hexdigest()[:16]
    target = _cache() / f"torch-{torch.__version__}-{key}.so"
    if target.is_file():
        return target
    compiler = _compiler()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = pathlib.Path(folder) / "extension.so"
        command = [*compiler, *arguments, f"-I{package / 'include'}", "-o", str(made), str(SOURCE),
                   f"-L{package / 'lib'}", "-lc10"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"gmm.torch: {SOURCE.name} did not compile against PyTorch "
                               f"{torch.__version__}:\n{shlex.join(command)}\n{done.stderr[-3000:]}")
        made.replace(target)  # atomic, for several processes at once
    return target


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
def load(library):
    """The Extension for a library."""
    return Extension(library)
