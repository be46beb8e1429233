# SPDX-License-Identifier: Apache-2.0
"""Compiles extension.cpp and native_allocator.cpp against the headers in PyTorch's package, without importing PyTorch.

The first use takes seconds. Later processes find the result in $GMM_TORCH_CACHE or ~/.cache/gmm, under a name with
PyTorch's version. Of several processes that start at once, one compiles and the others wait for it. A failure is kept
too, so that it is not repeated in each process.
"""
import collections
import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
HEADERS = ("native.h", "native_ledger.hpp", "native_pools.hpp")
SOURCES = {"extension": (), "native_allocator": HEADERS}  # the file, and the headers beside it that it includes
LIBRARIES = {"extension": ("c10",), "native_allocator": ("c10", "c10_cuda")}
CXX20 = (2, 12)  # PyTorch's headers need -std=c++20 since this version

Installed = collections.namedtuple("Installed", "package version cuda cxx11_abi")  # a PyTorch: its folder and build


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


@contextlib.contextmanager
def _locked(path):
    """Holds a lock of all processes. A file system without locks has none: then each process compiles for itself."""
    with open(path, "w", encoding="utf-8") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _text_of(source):
    return [(FOLDER / name).read_text(encoding="utf-8") for name in (source + ".cpp", *SOURCES[source])]


def command(source, installed):
    """The compiler's call for a file, without its output and its libraries."""
    arguments = [f"-std={standard(installed.version)}", "-O2", "-shared", "-fPIC", "-fvisibility=default",
                 f"-D_GLIBCXX_USE_CXX11_ABI={int(installed.cxx11_abi)}", f"-I{FOLDER}",
                 *(f"-I{folder}" for folder in includes(installed.package))]
    if source == "native_allocator":
        arguments.append(f"-isystem{_cuda_include(installed)}")
    return [*_compiler(source), *arguments]


def build(source, installed):
    """The path of a compiled file, which this compiles when it is missing. RuntimeError when it cannot."""
    # The same version in another folder is another build.
    inputs = repr((_text_of(source), tuple(installed)))
    key = hashlib.sha256(inputs.encode()).hexdigest()[:16]
    target = _cache() / f"torch-{installed.version}-{source}-{key}.so"
    if target.is_file():
        return target
    words = command(source, installed)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_suffix(".lock")):
        if not target.is_file():  # another process may have compiled it meanwhile
            _compile(source, installed, words, target)
    return target


def _compile(source, installed, words, target):
    # A compiler that was replaced is asked again.
    where = pathlib.Path(shutil.which(words[0]) or words[0])
    stamp = repr((words, where.stat().st_mtime if where.is_file() else 0))
    failed = target.with_suffix(".failed")
    text = failed.read_text(encoding="utf-8") if failed.is_file() else ""
    if text.startswith(stamp + "\n"):
        raise RuntimeError(text[len(stamp) + 1:])
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = pathlib.Path(folder) / "extension.so"
        words = [*words, "-o", str(made), str(FOLDER / (source + ".cpp")), f"-L{installed.package / 'lib'}",
                 *(f"-l{name}" for name in LIBRARIES[source])]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        except OSError as error:
            raise RuntimeError(f"gmm.torch: {source}.cpp was not compiled: {words[0]}: {error}") from error
        if done.returncode != 0:
            reason = (f"gmm.torch: {source}.cpp did not compile against PyTorch "
                      f"{installed.version}:\n{shlex.join(words)}\n{done.stderr[-3000:]}")
            with contextlib.suppress(OSError):
                failed.write_text(f"{stamp}\n{reason}", encoding="utf-8")
            raise RuntimeError(reason)
        made.replace(target)
