# SPDX-License-Identifier: Apache-2.0
"""resource.cpp: a CallbackMemoryResource of RMM whose callbacks are C++. The first use compiles it against librmm."""
import ctypes
import functools
import importlib.util
import pathlib
import sys

from gmm._core import compiled

_SOURCE = pathlib.Path(__file__).resolve().parent / "resource.cpp"
_PURPOSE = "gmm.rmm: a resource that RMM calls without Python"


class Unavailable(Exception):
    """Why RMM's C++ cannot call gmm here without Python."""


def _arguments():
    """Where the headers lie: in the packages of PyPI, or in the prefix of conda."""
    found = importlib.util.find_spec("librmm")
    packages = [pathlib.Path(folder) for folder in (found and found.submodule_search_locations) or ()]
    folders = [folder / "include" for folder in (*packages, pathlib.Path(sys.prefix))]
    headers = next((folder for folder in folders if (folder / "rmm/version_config.hpp").is_file()), None)
    if headers is None:
        raise RuntimeError(f"{_PURPOSE} needs librmm's headers (rmm/version_config.hpp), and found none")
    # librmm brings the CCCL that it was compiled with. The definition is RMM's own, up to 26.4.
    return ("-std=c++20", "-w", "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE", f"-I{headers}",
            f"-I{headers / 'rapids'}", *compiled.cuda_headers(packages[0].parent if packages else folders[-1]))


def _load():
    import rmm

    library = compiled.loaded("librmm.so")
    if library is None:
        raise RuntimeError(f"{_PURPOSE} needs the library librmm.so, which RMM has not loaded")
    path = compiled.shared_library((_SOURCE,), "rmm", rmm.__version__, _arguments, (library,), purpose=_PURPOSE)
    # PyDLL holds the GIL, as nobody may use the resource during the call.
    function = ctypes.PyDLL(str(path)).gmm_rmm_replace
    size, number, python = ctypes.c_size_t, ctypes.c_uint32, ctypes.py_object
    function.restype = ctypes.c_char_p
    function.argtypes = [python, size, size, python, python, ctypes.c_void_p, number, ctypes.c_int32, number]
    return function


@functools.lru_cache(maxsize=1)
def _loaded():
    """The function of resource.cpp, or the reason why there is none. One attempt a process."""
    try:
        return _load(), None
    except (RuntimeError, OSError) as error:
        return None, f"{error}"


def _unused(*_arguments):
    raise AssertionError("gmm's C++ stands in the place of this callback")


def resource(context, kind, device, tag):
    """A CallbackMemoryResource, which C++ calls without Python. It holds gmm's context, also after its close().

    Unavailable when there can be none here.
    """
    import rmm

    replace, reason = _loaded()
    if replace is None:
        raise Unavailable(reason)
    allocate, deallocate = _unused, resource  # any two that differ: they are looked for behind the C++ object
    made = rmm.mr.CallbackMemoryResource(allocate, deallocate)
    why = replace(made, object.__basicsize__, rmm.mr.CallbackMemoryResource.__basicsize__, allocate, deallocate,
                  context.handle, kind, device, tag)
    if why is not None:
        raise Unavailable(f"{_PURPOSE}: {why.decode()}")
    return made
