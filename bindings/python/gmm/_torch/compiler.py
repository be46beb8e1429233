# SPDX-License-Identifier: Apache-2.0
"""Compiles gmm_torch.cpp against the headers in PyTorch's package, without importing PyTorch.

The result is kept in $GMM_TORCH_CACHE or ~/.cache/gmm. Its name has the version of PyTorch and a hash of the sources,
and no path: a file that one machine has compiled serves another one with the same PyTorch.
"""
from __future__ import annotations

import argparse
import collections
import pathlib
import platform

from gmm._core import compiled

FOLDER = pathlib.Path(__file__).resolve().parent
SOURCES = [FOLDER / "gmm_torch.cpp", *sorted(FOLDER.glob("*.hpp"))]

Installed = collections.namedtuple("Installed", "package version cuda cxx11_abi")  # a PyTorch: its folder and build


def installed() -> Installed:
    """The PyTorch of this process."""
    import torch  # pylint: disable=import-outside-toplevel # everything else here does without

    return Installed(pathlib.Path(torch.__file__).resolve().parent, torch.__version__, torch.version.cuda or "",
                     bool(torch.compiled_with_cxx11_abi()))


def arguments(torch: Installed) -> list[str]:
    """The compiler's arguments."""
    include = torch.package / "include"
    words = ["-std=c++20", "-fvisibility=default",
             f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.cxx11_abi)}", f"-I{FOLDER}", f"-I{include}",
             f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}"]
    if not torch.cuda:
        return words
    return [*words, "-DGMM_TORCH_CUDA", *compiled.cuda_headers(torch.package.parent, torch.cuda.partition(".")[0])]


def libraries(torch: Installed) -> list[str]:
    """The linker's arguments."""
    return [f"-L{torch.package / 'lib'}", "-lc10", *(["-lc10_cuda"] if torch.cuda else ())]


def build(torch: Installed, folder: pathlib.Path | None = None) -> pathlib.Path:
    """The path of the compiled file, which this compiles when it is missing. RuntimeError when it cannot."""
    try:
        return compiled.shared_library(
            SOURCES, "torch", torch.version, lambda: arguments(torch), libraries(torch), purpose="gmm.torch",
            folder=folder or compiled.cache("GMM_TORCH_CACHE"), key=(torch.cuda, torch.cxx11_abi, platform.machine()))
    except RuntimeError as error:
        raise RuntimeError(f"{error}\nOr run `python -m gmm.torch build FOLDER` on a machine that has a C++ compiler "
                           f"and PyTorch {torch.version}, bring FOLDER here, and name it in GMM_TORCH_CACHE") from error


def main(words: list[str] | None = None) -> None:
    """python -m gmm.torch"""
    parser = argparse.ArgumentParser(prog="python -m gmm.torch", description="The C++ of gmm.torch.")
    actions = parser.add_subparsers(dest="action", required=True)
    action = actions.add_parser("build", help="compile the C++ for the installed PyTorch ahead of its first use")
    action.add_argument("folder", nargs="?", type=pathlib.Path, metavar="FOLDER",
                        help="where the file goes; other machines with the same PyTorch name it in GMM_TORCH_CACHE. "
                             "Default: GMM_TORCH_CACHE, else ~/.cache/gmm")
    folder = parser.parse_args(words).folder
    try:
        print(build(installed(), folder))
    except RuntimeError as error:
        parser.exit(1, f"{error}\n")
