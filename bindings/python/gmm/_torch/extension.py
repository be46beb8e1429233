# SPDX-License-Identifier: Apache-2.0
"""The part that PyTorch has no C interface for: extension.cpp, compiled against the headers in PyTorch's own package when it is needed first.

It takes seconds and is kept for the next process, in $GMM_TORCH_CACHE or ~/.cache/gmm, under a name that says the version of PyTorch.
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
    raise RuntimeError("gmm.torch: managed CPU tensors need a C++ compiler once for each version of PyTorch, to compile "
                       f"{SOURCE.name}, and there is none; install g++ or clang++, or name one in CXX")


def _cache():
    named = os.environ.get("GMM_TORCH_CACHE")
    if named:
        return pathlib.Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (pathlib.Path(base) if base else pathlib.Path.home() / ".cache") / "gmm"


def build():
    """The path of the compiled extension; compiles it when there is none yet. RuntimeError says what is missing."""
    package = pathlib.Path(torch.__file__).resolve().parent
    arguments = ["-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=default", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    # Other paths of the same version are other builds.
    key = hashlib.sha256(repr((SOURCE.read_text(encoding="utf-8"), arguments, torch.__version__, str(package))).encode()).hexdigest()[:16]
    target = _cache() / f"torch-{torch.__version__}-{key}.so"
    if target.is_file():
        return target
    compiler = _compiler()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = pathlib.Path(folder) / "extension.so"
        command = [*compiler, *arguments, f"-I{package / 'include'}", "-o", str(made), str(SOURCE), f"-L{package / 'lib'}", "-lc10"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"gmm.torch: {SOURCE.name} did not compile against PyTorch {torch.__version__}:\n{shlex.join(command)}\n{done.stderr[-3000:]}")
        made.replace(target)  # whole or not at all, also with several processes at once
    return target


class Extension:
    """The extension, given the functions of libgmm_torch.so."""

    def __init__(self, library):
        # The calls keep the GIL: what they change must not be seen half done. Those that may call the driver leave it.
        path = str(build())
        self._quick, self._slow = ctypes.PyDLL(path), ctypes.CDLL(path)
        for cdll in (self._quick, self._slow):
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(cdll, name)
                function.restype = result
                function.argtypes = arguments
        libgmm = ctypes.cast(library.cdll.gmm_last_error_message, _pointer).value  # of the libgmm that it is linked to
        self._functions = _Functions(
            **{name: library.address("gmm_torch_" + name) for name in ("host_alloc", "host_free", "block", "dealloc", "get_managed")}, message=libgmm)
        self._start = self._quick.gmm_torch_extension_start
        self.throw_memory = ctypes.cast(self._quick.gmm_torch_extension_throw, _pointer).value

    def _check(self, result, what, error=RuntimeError):
        if result != 0:
            message = self._quick.gmm_torch_extension_error().decode(errors="replace")
            raise error(f"gmm.torch: {what}: {message}")

    def take_cpu_tensors(self):
        """From here on the memory of new CPU tensors is managed while the library says so."""
        self._check(self._start(ctypes.byref(self._functions)), "the allocator of CPU tensors")

    def assign(self, storage, nbytes, device, kind, stream):
        """Puts new memory into an empty storage. device: -1 for the host; kind: 0 for the host's ordinary memory."""
        self.take_cpu_tensors()
        self._check(self._slow.gmm_torch_extension_assign(storage._cdata, nbytes, device, kind, stream), f"{nbytes} bytes", torch.OutOfMemoryError)

    def shared(self, storage):
        """A number that all storages over one memory have in common; 0 for a storage that shares its memory with none."""
        return self._quick.gmm_torch_extension_shared(storage._cdata)

    def share(self, storage):
        """Makes its memory one that others can share: shared() of it."""
        self._check(self._quick.gmm_torch_extension_share(storage._cdata), "sharing of memory")
        return self.shared(storage)

    def join(self, storage, source, device):
        """Makes an empty storage one over the memory of a shared one. device: -1 for the host."""
        self._check(self._quick.gmm_torch_extension_join(storage._cdata, source._cdata, device), "sharing of memory")

    def users(self, storage):
        """How many storages share the memory; 0: it is not shared."""
        return self._quick.gmm_torch_extension_users(storage._cdata)

    def share_version(self, tensor, source):
        """Autograd's checks for writes see those into either tensor."""
        self._quick.gmm_torch_extension_share_version(tensor._cdata, source._cdata)


@functools.lru_cache(maxsize=None)
def load(library):
    """The Extension for a library."""
    return Extension(library)
