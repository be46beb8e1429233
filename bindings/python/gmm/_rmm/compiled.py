# SPDX-License-Identifier: Apache-2.0
"""resource.cpp: a CallbackMemoryResource of RMM whose callbacks are C++. The first use compiles it against librmm."""
import ctypes
import functools
import importlib.util
import os
import pathlib
import sys

from gmm import _native as native
from gmm._core import compiled

_FOLDER = pathlib.Path(__file__).resolve().parent
_SOURCES = (_FOLDER / "resource.cpp", _FOLDER / "resource.h")
_PURPOSE = "gmm.rmm: a resource that RMM calls without Python"
_CAPSULE = b"gmm.memory_resource"


class Unavailable(Exception):
    """Why RMM's C++ cannot call gmm here without Python."""


def _folders_of(package):
    found = importlib.util.find_spec(package)
    return [pathlib.Path(folder) for folder in (found and found.submodule_search_locations) or ()]


def _first(paths, file):
    return next((path for path in paths if (path / file).is_file()), None)


def _needed(folder, file, what):
    if folder is None:
        raise RuntimeError(f"{_PURPOSE} needs {what} ({file}), and found none")
    return folder


def _library():
    """The librmm that RMM's own modules have loaded."""
    path = compiled.loaded("librmm.so")
    if path is None:
        raise RuntimeError(f"{_PURPOSE} needs the library librmm.so, which RMM has not loaded")
    return path


def _arguments():
    """Where the headers lie: in the packages of PyPI, or in the prefix of conda."""
    prefixes = [pathlib.Path(sys.prefix) / "include"]
    librmm = "rmm/version_config.hpp"
    headers = _needed(_first([folder / "include" for folder in _folders_of("librmm")] + prefixes, librmm), librmm,
                      "librmm's headers")
    named = [pathlib.Path(os.environ[name]) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    wheels = [folder / name / "include" for folder in _folders_of("nvidia")
              for name in ("cu13", "cuda_runtime")]
    conda = pathlib.Path(sys.prefix) / "targets"
    targets = [path / "include" for path in sorted(conda.iterdir())] if conda.is_dir() else []
    places = [*wheels, *prefixes, *targets, *named, pathlib.Path("/usr/local/cuda/include")]
    runtime = "cuda_runtime_api.h"
    cuda = [_needed(_first(places, runtime), runtime, "the headers of the CUDA runtime")]
    # The package nvidia-cuda-runtime lacks this part, which nvidia-cuda-crt or a toolkit brings.
    more = _first(places, "crt/host_defines.h")
    cuda += [more] if more not in (None, *cuda) else []
    # librmm brings the CCCL that it was compiled with. The definition is RMM's own, up to 26.4.
    return ("-std=c++20", "-w", "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE", f"-I{headers}",
            f"-I{headers / 'rapids'}", *(word for folder in cuda for word in ("-isystem", str(folder))))


def _load():
    """The function of resource.cpp. RuntimeError or OSError when it cannot be had."""
    import rmm

    path = compiled.shared_library(_SOURCES, "rmm", rmm.__version__, _arguments, (_library(),), purpose=_PURPOSE)
    # PyDLL holds the GIL, as nobody may use the resource during the call.
    function = ctypes.PyDLL(str(path)).gmm_rmm_replace
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    function.restype = ctypes.c_char_p
    function.argtypes = [ctypes.py_object, size, size, ctypes.py_object, ctypes.py_object, pointer]
    return function


@functools.lru_cache(maxsize=1)
def _loaded():
    """The function of resource.cpp, or the reason why there is none. One attempt a process."""
    try:
        return _load(), None
    except (RuntimeError, OSError) as error:
        return None, f"{error}"


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _unused(*_arguments):
    raise AssertionError("gmm's C++ stands in the place of this callback")


def resource(context, kind, device, tag):
    """A CallbackMemoryResource, which C++ calls without Python.

    Unavailable when there can be none here.
    """
    import rmm

    replace, reason = _loaded()
    if replace is None:
        raise Unavailable(reason)
    capsule = native.memory_resource(context, kind, device, tag)  # resource.cpp takes a reference of its own
    allocate, deallocate = _unused, resource  # any two that differ: they are looked for behind the C++ object
    made = rmm.mr.CallbackMemoryResource(allocate, deallocate)
    why = replace(made, object.__basicsize__, rmm.mr.CallbackMemoryResource.__basicsize__, allocate, deallocate,
                  _pointer_of(capsule, _CAPSULE))
    if why is not None:
        raise Unavailable(f"{_PURPOSE}: {why.decode()}")
    return made
