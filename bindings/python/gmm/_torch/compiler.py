# SPDX-License-Identifier: Apache-2.0
"""Compiles extension.cpp and native_allocator.cpp against the headers in PyTorch's package, without importing PyTorch.

The result is kept in $GMM_TORCH_CACHE or ~/.cache/gmm.
"""
import collections
import os
import pathlib
import re

from gmm._core import compiled

FOLDER = pathlib.Path(__file__).resolve().parent
HEADERS = ("guarded.hpp", "native.h", "native_ledger.hpp", "native_pools.hpp")
# The files, each with the headers beside it that it includes.
SOURCES = {"extension": ("guarded.hpp",), "native_allocator": HEADERS}
LIBRARIES = {"extension": ("c10",), "native_allocator": ("c10", "c10_cuda")}
CXX20 = (2, 12)  # PyTorch's headers need -std=c++20 since this version

Installed = collections.namedtuple("Installed", "package version cuda cxx11_abi")  # a PyTorch: its folder and build


def standard(version):
    """The C++ standard that the headers of a version of PyTorch need, for example "c++17"."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return "c++20" if numbers is not None and tuple(map(int, numbers.groups())) >= CXX20 else "c++17"


def includes(package):
    """The folders of PyTorch's headers in its package."""
    return [package / "include", package / "include" / "torch" / "csrc" / "api" / "include"]


def _cuda_include(installed):
    """The folder of cuda_runtime_api.h, of PyTorch's version of CUDA if there is one."""
    wanted = installed.cuda.partition(".")[0]
    named = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [pathlib.Path(home) / "include" for home in named if home]
    site = installed.package.parent
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


def arguments(source, installed):
    """The compiler's arguments for a file."""
    words = [f"-std={standard(installed.version)}", "-fvisibility=default",
             f"-D_GLIBCXX_USE_CXX11_ABI={int(installed.cxx11_abi)}", f"-I{FOLDER}",
             *(f"-I{folder}" for folder in includes(installed.package))]
    if source == "native_allocator":
        words.append(f"-isystem{_cuda_include(installed)}")
    return words


def libraries(source, installed):
    """The linker's arguments for a file."""
    return [f"-L{installed.package / 'lib'}", *(f"-l{name}" for name in LIBRARIES[source])]


def build(source, installed):
    """The path of a compiled file, which this compiles when it is missing. RuntimeError when it cannot."""
    files = [FOLDER / name for name in (source + ".cpp", *SOURCES[source])]
    return compiled.shared_library(files, f"torch-{source}", installed.version, arguments(source, installed),
                                   libraries(source, installed), purpose="gmm.torch",
                                   folder=compiled.cache("GMM_TORCH_CACHE"))
