# SPDX-License-Identifier: Apache-2.0
"""extension.cpp and native_allocator.cpp: what PyTorch has in C++ only.

The first use compiles them against the headers in PyTorch's package, which takes seconds. Later processes find the
result in $GMM_TORCH_CACHE or ~/.cache/gmm, under a name with PyTorch's version. Of several processes that start at
once, one compiles and the others wait for it. A failure is kept too, so that it is not repeated in each process.
"""
import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile

import torch

FOLDER = pathlib.Path(__file__).resolve().parent
HEADERS = ("native.h", "native_ledger.hpp", "native_pools.hpp")
SOURCES = {"extension": (), "native_allocator": HEADERS}  # the file, and the headers beside it that it includes
LIBRARIES = {"extension": ("c10",), "native_allocator": ("c10", "c10_cuda")}
CXX20 = (2, 12)  # PyTorch's headers need -std=c++20 since this version

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


def _compiler(source):
    named = os.environ.get("CXX")
    if named:
        return shlex.split(named)
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise RuntimeError("gmm.torch: a C++ compiler is needed once for each version of PyTorch, to compile "
                       f"{source}.cpp, and none was found; install g++ or clang++, or name one in CXX")


def _cache():
    named = os.environ.get("GMM_TORCH_CACHE")
    if named:
        return pathlib.Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (pathlib.Path(base) if base else pathlib.Path.home() / ".cache") / "gmm"


def standard(version):
    """The C++ standard that the headers of a version of PyTorch need, for example "c++17"."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return "c++20" if numbers is not None and tuple(map(int, numbers.groups())) >= CXX20 else "c++17"


def includes(package):
    """The folders of PyTorch's headers in its package."""
    return [package / "include", package / "include" / "torch" / "csrc" / "api" / "include"]


def _cuda_include(package):
    """The folder of cuda_runtime_api.h, of PyTorch's version of CUDA if there is one."""
    wanted = (torch.version.cuda or "").partition(".")[0]
    folders = [pathlib.Path(os.environ[name]) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    site = package.parent
    folders += sorted(site.glob("nvidia/cu*/include"), reverse=True)
    folders += [pathlib.Path("/usr/local/cuda/include"), *sorted(pathlib.Path("/usr/local").glob("cuda-*/include"))]
    folders += [pathlib.Path("/usr/include"), site / "triton" / "backends" / "nvidia" / "include"]
    found = []
    for folder in folders:
        header = folder / "cuda_runtime_api.h"
        if header.is_file() and (folder / "crt" / "host_defines.h").is_file():
            version = re.search(r"define\s+CUDART_VERSION\s+(\d+)", header.read_text(errors="replace"))
            if version is not None and str(int(version.group(1)) // 1000) == wanted:
                return folder
            found.append(folder)
    if found:
        return found[0]
    raise RuntimeError("gmm.torch: PyTorch's headers need cuda_runtime_api.h, and none was found; install the package "
                       f"nvidia-cuda-runtime{'-cu12' if wanted == '12' else ''}, or set CUDA_HOME")


@contextlib.contextmanager
def _locked(path):
    """Holds a lock of all processes. A file system without locks has none: then each process compiles for itself."""
    with open(path, "w", encoding="utf-8") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _text_of(source):
    return [(FOLDER / name).read_text(encoding="utf-8") for name in (source + ".cpp", *SOURCES[source])]


def build(source="extension"):
    """The path of a compiled file, which this compiles when it is missing. RuntimeError when it cannot."""
    package = pathlib.Path(torch.__file__).resolve().parent
    arguments = [f"-std={standard(torch.__version__)}", "-O2", "-shared", "-fPIC", "-fvisibility=default",
                 f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    # The same version in another folder is another build.
    inputs = repr((_text_of(source), arguments, torch.__version__, str(package)))
    key = hashlib.sha256(inputs.encode()).hexdigest()[:16]
    target = _cache() / f"torch-{torch.__version__}-{source}-{key}.so"
    if target.is_file():
        return target
    compiler = _compiler(source)
    command = [*compiler, *arguments, f"-I{FOLDER}", *(f"-I{folder}" for folder in includes(package))]
    if source == "native_allocator":
        command.append(f"-isystem{_cuda_include(package)}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_suffix(".lock")):
        if not target.is_file():  # another process may have compiled it meanwhile
            _compile(source, command, [f"-L{package / 'lib'}", *(f"-l{name}" for name in LIBRARIES[source])], target)
    return target


def _compile(source, command, libraries, target):
    # A compiler that was replaced is asked again.
    where = pathlib.Path(shutil.which(command[0]) or command[0])
    stamp = repr((command, where.stat().st_mtime if where.is_file() else 0))
    failed = target.with_suffix(".failed")
    text = failed.read_text(encoding="utf-8") if failed.is_file() else ""
    if text.startswith(stamp + "\n"):
        raise RuntimeError(text[len(stamp) + 1:])
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = pathlib.Path(folder) / "extension.so"
        command = [*command, "-o", str(made), str(FOLDER / (source + ".cpp")), *libraries]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise RuntimeError(f"gmm.torch: {source}.cpp was not compiled: {command[0]}: {error}") from error
        if done.returncode != 0:
            reason = (f"gmm.torch: {source}.cpp did not compile against PyTorch "
                      f"{torch.__version__}:\n{shlex.join(command)}\n{done.stderr[-3000:]}")
            with contextlib.suppress(OSError):
                failed.write_text(f"{stamp}\n{reason}", encoding="utf-8")
            raise RuntimeError(reason)
        made.replace(target)


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
