# SPDX-License-Identifier: Apache-2.0
"""gmm_torch.cpp: compiled against the headers in PyTorch's package, and called by ctypes, over gmm's default context.

The compiled file is kept in $GMM_TORCH_CACHE or ~/.cache/gmm. Its name has the version of PyTorch and a hash of the
sources, and no path: a file that one machine has compiled serves another one with the same PyTorch.
"""
from __future__ import annotations

import argparse
import atexit
import ctypes
import os
import pathlib
import threading

from gmm import _default
from gmm import _native as native
from gmm._core import compiled
from gmm._core.errors import check

FOLDER = pathlib.Path(__file__).resolve().parent
SOURCES = [FOLDER / "gmm_torch.cpp", *sorted(FOLDER.glob("*.hpp"))]


def build(folder: pathlib.Path | None = None) -> pathlib.Path:
    """The path of the compiled file, which this compiles when it is missing. RuntimeError when it cannot."""
    import torch  # pylint: disable=import-outside-toplevel # importing this module does without

    package, cuda = pathlib.Path(torch.__file__).resolve().parent, torch.version.cuda
    abi = torch.compiled_with_cxx11_abi()
    include = package / "include"

    def arguments():
        words = ["-std=c++20", "-fvisibility=default", f"-D_GLIBCXX_USE_CXX11_ABI={int(abi)}", f"-I{FOLDER}",
                 f"-I{include}", f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}"]
        if cuda:
            words += ["-DGMM_TORCH_CUDA", *compiled.cuda_headers(package.parent, cuda.partition(".")[0])]
        return words

    try:
        return compiled.shared_library(
            SOURCES, "torch", torch.__version__, arguments,
            [f"-L{package / 'lib'}", "-lc10", *(["-lc10_cuda"] if cuda else ())], key=(cuda, abi),
            folder=folder or compiled.cache("GMM_TORCH_CACHE"))
    except RuntimeError as error:
        raise RuntimeError(f"{error}\nOr run `python -m gmm.torch build FOLDER` on a machine that has a C++ compiler "
                           f"and PyTorch {torch.__version__}, bring FOLDER here, and name it in GMM_TORCH_CACHE"
                           ) from error


HOST = -1  # GMM_DEVICE_HOST
HOST_TAG = "torch-cpu"  # memory.hpp: of CPU tensors in managed memory

_i32, _u32, _u64, _pointer = ctypes.c_int32, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
# Storages and tensors are pointers to C++ objects, which Python knows as _cdata.
_SIGNATURES = {
    "error": (ctypes.c_char_p, []),
    "attach": (_i32, [_pointer]),
    "forget": (None, []),
    "end": (None, []),
    "set_kind": (None, [_u32]),
    "set_managed": (None, [_i32]),
    "slot": (_pointer, [_u32, _u32]),
    "host_start": (_i32, [_i32]),
    "host_collect": (_u64, [_i32]),
    "record": (_i32, [_pointer, _i32, _pointer]),
    "move": (_i32, [_pointer, _u64, _i32, _i32, _pointer]),
    "take_cpu_tensors": (_i32, []),
    "assign": (_i32, [_pointer, _u64, _i32, _u32, _pointer]),
    "join": (_i32, [_pointer, _pointer, _i32]),
    "users": (ctypes.c_int64, [_pointer]),
    "share_version": (None, [_pointer, _pointer]),
    "install": (_i32, [_i32, _i32]),
}
#: Calls that hold the GIL, so that no thread sees half a change. The others may call the driver, and release it.
_QUICK = ("error", "take_cpu_tensors", "join", "users", "share_version")


class Library:
    """The functions gmm_torch_NAME() as attributes, over gmm's default context."""

    check = staticmethod(check)  # of a gmm_result

    def __init__(self):
        path = str(build())
        try:
            self.cdll, held = ctypes.CDLL(path), ctypes.PyDLL(path)
        except OSError as error:
            raise RuntimeError(f"gmm.torch: gmm_torch.cpp was compiled and did not load: {error}") from error
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(held if name in _QUICK else self.cdll, "gmm_torch_" + name, None)
            if function is not None:  # a PyTorch without CUDA has no install()
                function.restype, function.argtypes = result, arguments
                setattr(self, name, function)
        self.context = _default.context()
        result = self.attach(self.context.handle)
        if result == native.GMM_ERROR_BUSY:
            raise RuntimeError("gmm.torch: PyTorch uses memory of an earlier default context, which was closed; "
                               "leave gmm.context() open while PyTorch uses it")
        check(result)
        atexit.register(self.end)

    def must(self, result, what="", error=RuntimeError):
        """Raises an error with the words of C++ unless the result is 0."""
        if result != 0:
            raise error(what + self.error().decode(errors="replace"))


lock = threading.RLock()  # also around work of the package that is done once, and that may take seconds
_library = None


def load():
    """The Library of this process; it opens gmm's default context. RuntimeError: it cannot be compiled or loaded."""
    global _library  # pylint: disable=global-statement
    if _library is None:
        with lock:
            if _library is None:
                _library = Library()
    return _library


def loaded():
    """The Library once load() has made it, else None."""
    return _library


def main(words: list[str] | None = None) -> None:
    """python -m gmm.torch"""
    parser = argparse.ArgumentParser(prog="python -m gmm.torch", description=(
        "Compiles the C++ of gmm.torch for the installed PyTorch ahead of its first use."))
    parser.add_argument("action", choices=["build"])
    parser.add_argument("folder", nargs="?", type=pathlib.Path, metavar="FOLDER",
                        help="where the file goes; other machines with the same PyTorch name it in GMM_TORCH_CACHE. "
                             "Default: GMM_TORCH_CACHE, else ~/.cache/gmm")
    folder = parser.parse_args(words).folder
    try:
        print(build(folder))
    except RuntimeError as error:
        parser.exit(1, f"{error}\n")


def _forget_after_fork():
    """Memory and context are the parent's. New tensors of the child are ordinary ones."""
    global _library, lock  # pylint: disable=global-statement
    lock = threading.RLock()  # another thread of the parent may have held it
    if _library is not None:
        _library.forget()
        _library = None


os.register_at_fork(after_in_child=_forget_after_fork)
