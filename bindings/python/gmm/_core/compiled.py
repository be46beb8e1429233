# SPDX-License-Identifier: Apache-2.0
"""C++ that is compiled on the user's machine, against the headers of gmm and of another package, once for each version
of the other.

That takes seconds. Later processes find the result in a cache, under a name with the version and a hash of all that
went in. Of several processes that start at once, one compiles and the others wait for it.
"""
import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

#: gmm's headers.
INCLUDE = pathlib.Path(__file__).resolve().parents[1] / "_include"


def cache(variable=None):
    """The folder of compiled files: the value of an environment variable, else $XDG_CACHE_HOME/gmm or ~/.cache/gmm."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(os.environ.get(variable or "") or pathlib.Path(base, "gmm"))


def compiler(purpose):
    """The command of a C++ compiler: $CXX, c++, g++ or clang++. RuntimeError when there is none."""
    found = shlex.split(os.environ.get("CXX", "")) or [*filter(shutil.which, ("c++", "g++", "clang++"))][:1]
    if not found:
        raise RuntimeError(f"{purpose} needs a C++ compiler once, and none was found; install g++ or clang++, "
                           "or name one in CXX")
    return found


def loaded(name):
    """The path of a library that this process has loaded, by its file name or the start of it. None: it has not."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = (line[line.find("/"):].rstrip("\n") for line in maps)
        return next((path for path in paths if os.path.basename(path).startswith(name)), None)


def standard_library():
    """The linker's arguments for the C++ library that this process has loaded with the other package.

    Some systems have only libstdc++.a for the linker. A second copy of the library, inside of what is compiled, is not
    initialized as the loaded one is: streams crash in it, and exceptions do not reach their handlers.
    """
    return (loaded("libstdc++.so.6") or "-l:libstdc++.so.6",)


def libgmm():
    """The path of the libgmm of this process. A linked file names it by its soname, and finds it loaded."""
    return loaded("libgmm.so")


def cuda_headers(site, version=None):
    """The compiler's arguments for the headers of CUDA's runtime. RuntimeError when they are missing.

    site: the folder of Python's packages, which may bring them. version: the major one that is preferred, as text.
    """
    named = [pathlib.Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    prefix, local = pathlib.Path(sys.prefix), pathlib.Path("/usr/local")
    homes = [*named, *sorted(site.glob("nvidia/cu*"), reverse=True), prefix, *sorted(prefix.glob("targets/*")),
             local / "cuda", *sorted(local.glob("cuda-*")), pathlib.Path("/usr"), site / "triton/backends/nvidia"]
    folders = [home / "include" for home in homes]
    runtimes = [folder for folder in folders if (folder / "cuda_runtime_api.h").is_file()]
    # Some versions of the package nvidia-cuda-runtime lack this part, which nvidia-cuda-crt or a toolkit brings.
    parts = [folder for folder in folders if (folder / "crt/host_defines.h").is_file()]

    def is_second_choice(folder):
        text = (folder / "cuda_runtime_api.h").read_text(errors="replace")
        found = re.search(r"define\s+CUDART_VERSION\s+(\d+)\d{3}", text)
        return folder not in parts, version is not None and (found is None or found[1] != version)

    if not runtimes or not parts:
        missing = "crt/host_defines.h" if runtimes else "cuda_runtime_api.h"
        raise RuntimeError(f"CUDA's header {missing} is needed once, and none was found; install the package "
                           f"nvidia-cuda-runtime{'-cu12' if version == '12' else ''}, or set CUDA_HOME")
    runtime = min(runtimes, key=is_second_choice)
    return [f"-isystem{folder}" for folder in dict.fromkeys((runtime, runtime if runtime in parts else parts[0]))]


@contextlib.contextmanager
def _locked(path):
    """Holds a lock of all processes. Where the file system has no locks, each process compiles for itself."""
    with open(path, "w", encoding="utf-8") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:  # a process that waits for this file has it open, and a later one finds the result
            with contextlib.suppress(OSError):
                path.unlink()


def shared_library(sources, name, version, arguments, libraries=(), *, purpose, folder=None, key=None):
    """The path of a shared library that the first of `sources` makes. RuntimeError when it cannot be compiled.

    sources: the file to compile, then the headers beside it. name, version: of the other package. arguments: a function
    that gives those of the compiler. libraries: arguments behind the source. purpose: what needs it, for messages.
    folder: the cache; None: cache(). key: tells two builds of one version apart; None: the arguments,
    which name the package's folder.
    """
    texts = [source.read_text(encoding="utf-8") for source in (*sources, *sorted(INCLUDE.glob("gmm/*.h")))]
    libraries = (*libraries, libgmm(), *standard_library())
    inputs = repr((texts, (arguments(), libraries) if key is None else key, version))
    key = hashlib.sha256(inputs.encode()).hexdigest()[:16]
    target = (cache() if folder is None else folder) / f"{name}-{version}-{key}.so"
    if target.is_file():
        return target
    command = compiler(purpose)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_suffix(".lock")):
        if not target.is_file():  # another process may have compiled it
            words = [*command, "-O2", "-shared", "-fPIC", f"-I{INCLUDE}", *arguments()]
            _compile(words, sources[0], libraries, target, f"{purpose}: {sources[0].name}", f"{name} {version}")
    return target


def _compile(words, source, libraries, target, what, package):
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = pathlib.Path(folder) / "made.so"
        words = [*words, "-o", str(made), str(source), *libraries]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        except OSError as error:
            raise RuntimeError(f"{what} was not compiled: {words[0]}: {error}") from error
        if done.returncode != 0:
            raise RuntimeError(f"{what} did not compile against {package}:\n{shlex.join(words)}\n{done.stderr[-3000:]}")
        made.replace(target)  # atomic, for processes that do not look at the lock
