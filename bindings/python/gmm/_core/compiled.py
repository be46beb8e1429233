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
import platform
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


def loaded(name):
    """The path of a library that this process has loaded, by its file name or the start of it. None: it has not."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = (line[line.find("/"):].rstrip("\n") for line in maps)
        return next((path for path in paths if os.path.basename(path).startswith(name)), None)


def cuda_headers(site, version=None):
    """The compiler's arguments for the headers of CUDA's runtime. RuntimeError when they are missing.

    site: the folder of Python's packages, which may bring them. version: the major one that is preferred, as text.
    """
    named = [pathlib.Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    prefix, local = pathlib.Path(sys.prefix), pathlib.Path("/usr/local")
    folders = [home / "include" for home in (
        *named, *sorted(site.glob("nvidia/cu*"), reverse=True), prefix, *sorted(prefix.glob("targets/*")),
        local / "cuda", *sorted(local.glob("cuda-*")), pathlib.Path("/usr"), site / "triton/backends/nvidia")]
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


def shared_library(sources, name, version, arguments, libraries=(), *, key, folder=None):
    """The path of a shared library that the first of `sources` makes. RuntimeError when it cannot be compiled.

    sources: the file to compile, then the headers beside it. name, version: of the other package, for gmm's module of
    that name. arguments: a function that gives those of the compiler. libraries: arguments behind the source. key:
    tells two builds of one version apart. folder: the cache; None: cache().
    """
    texts = [source.read_text(encoding="utf-8") for source in (*sources, *sorted(INCLUDE.glob("gmm/*.h")))]
    digest = hashlib.sha256(repr((texts, key, version, platform.machine())).encode()).hexdigest()[:16]
    target = (cache() if folder is None else folder) / f"{name}-{version}-{digest}.so"
    if target.is_file():
        return target
    command = shlex.split(os.environ.get("CXX", "")) or [*filter(shutil.which, ("c++", "g++", "clang++"))][:1]
    if not command:
        raise RuntimeError(f"gmm.{name} needs a C++ compiler once, and none was found; install g++ or clang++, "
                           "or name one in CXX")
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.with_suffix(".lock"), "w", encoding="utf-8") as lock, \
            tempfile.TemporaryDirectory(dir=target.parent) as folder:
        with contextlib.suppress(OSError):  # where the file system has no locks, each process compiles for itself
            fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_file():  # another process has compiled it
            return target
        made = pathlib.Path(folder, "made.so")
        # A linked file names libgmm by its soname, and finds it loaded. Some systems have only libstdc++.a for the
        # linker. A second copy of it, inside of what is compiled, is not initialized as the loaded one is: streams
        # crash in it, and exceptions do not reach their handlers.
        words = [*command, "-O2", "-shared", "-fPIC", f"-I{INCLUDE}", *arguments(), "-o", str(made), str(sources[0]),
                 *libraries, loaded("libgmm.so"), loaded("libstdc++.so.6") or "-l:libstdc++.so.6"]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        except OSError as error:
            raise RuntimeError(f"gmm.{name}: {sources[0].name} was not compiled: {words[0]}: {error}") from error
        if done.returncode != 0:
            raise RuntimeError(f"gmm.{name}: {sources[0].name} did not compile against {name} {version}:\n"
                               f"{shlex.join(words)}\n{done.stderr[-3000:]}")
        made.replace(target)  # atomic, for processes that do not look at the lock
        os.unlink(lock.name)  # a process that waits for it has it open, and a later one finds the result
    return target
