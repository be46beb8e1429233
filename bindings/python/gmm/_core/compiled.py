# SPDX-License-Identifier: Apache-2.0
"""C++ that is compiled on the user's machine, against the headers of another package, once for each version of it.

That takes seconds. Later processes find the result in a cache, under a name with the version and a hash of all that
went in.
"""
import hashlib
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile


def cache(variable=None):
    """The folder of what was compiled: what an environment variable names, $XDG_CACHE_HOME/gmm, or ~/.cache/gmm."""
    named = os.environ.get(variable) if variable else None
    if named:
        return pathlib.Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (pathlib.Path(base) if base else pathlib.Path.home() / ".cache") / "gmm"


def compiler(purpose):
    """The command of a C++ compiler: $CXX, c++, g++ or clang++. RuntimeError when there is none."""
    named = os.environ.get("CXX")
    if named:
        return shlex.split(named)
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise RuntimeError(f"{purpose} needs a C++ compiler once, and none was found; install g++ or clang++, "
                       "or name one in CXX")


def shared_library(sources, name, version, arguments, libraries=(), *, purpose, folder=None):
    """The path of a shared library that the first of `sources` makes. RuntimeError when it cannot be compiled.

    sources: the file to compile, then the headers beside it. name, version: of the other package. arguments: of the
    compiler; they name the package's folder, as the same version in another folder is another build. libraries:
    arguments behind the source. purpose: what needs it, for messages. folder: the cache; None: cache().
    """
    texts = [source.read_text(encoding="utf-8") for source in sources]
    inputs = repr((texts, arguments, libraries, version))
    key = hashlib.sha256(inputs.encode()).hexdigest()[:16]
    target = (cache() if folder is None else folder) / f"{name}-{version}-{key}.so"
    if target.is_file():
        return target
    command = compiler(purpose)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        made = pathlib.Path(work) / "made.so"
        command = [*command, "-O2", "-shared", "-fPIC", *arguments, "-o", str(made), str(sources[0]), *libraries]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{purpose}: {sources[0].name} did not compile against {name} {version}:\n"
                               f"{shlex.join(command)}\n{done.stderr[-3000:]}")
        made.replace(target)  # atomic, for several processes at once
    return target
