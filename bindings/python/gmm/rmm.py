# SPDX-License-Identifier: Apache-2.0
"""RMM over gmm: cuDF, cuML and the other libraries of RAPIDS allocate from gmm's pool.

    import gmm.rmm

    gmm.rmm.use()                                    # every device; `with gmm.rmm.use():` for a block
    mr = gmm.rmm.resource()                          # or by hand: rmm.mr.set_current_device_resource(mr)

The resource allocates and frees on the streams that RMM names. RMM's adaptors (limits, statistics, logging) work over
it as over any other. RMM calls it in C++. The first use compiles the few lines of C++ for that against librmm's
headers, in some seconds, into $XDG_CACHE_HOME/gmm or ~/.cache/gmm.
"""
# pylint: disable=import-outside-toplevel # RMM is imported at the first use only
from __future__ import annotations

import ctypes
import functools
import importlib.util
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

from gmm._context import Context
from gmm._core import compiled
from gmm._core.enums import Kind
from gmm._core.resource import Undoable, resource_tag
from gmm._core.tag import Tag
from gmm._default import context as _default_context

__all__ = ["Use", "resource", "use"]

_SOURCE = pathlib.Path(__file__).resolve().parent / "_rmm" / "resource.cpp"


def _arguments():
    """The compiler's, with the folder of the headers: in the packages of PyPI, or in the prefix of conda."""
    found = importlib.util.find_spec("librmm")
    packages = [pathlib.Path(folder) for folder in (found and found.submodule_search_locations) or ()]
    folders = [folder / "include" for folder in (*packages, pathlib.Path(sys.prefix))]
    headers = next((folder for folder in folders if (folder / "rmm/version_config.hpp").is_file()), None)
    if headers is None:
        raise RuntimeError("gmm.rmm needs librmm's headers (rmm/version_config.hpp), and found none")
    # librmm brings the CCCL that it was compiled with. The definition is RMM's own, up to 26.4.
    return ("-std=c++20", "-w", "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE", f"-I{headers}",
            f"-I{headers / 'rapids'}", *compiled.cuda_headers(packages[0].parent if packages else folders[-1]))


@functools.lru_cache(maxsize=1)
def _replace():
    """The function of resource.cpp. RuntimeError when it cannot be compiled."""
    import rmm

    library = compiled.loaded("librmm.so")
    if library is None:
        raise RuntimeError("gmm.rmm needs the library librmm.so, which RMM has not loaded")
    path = compiled.shared_library((_SOURCE,), "rmm", rmm.__version__, _arguments, (library,), key=library)
    # PyDLL holds the GIL, as nobody may use the resource during the call.
    function = ctypes.PyDLL(str(path)).gmm_rmm_replace
    size, number, python = ctypes.c_size_t, ctypes.c_uint32, ctypes.py_object
    function.restype = ctypes.c_char_p
    function.argtypes = [python, size, size, python, python, ctypes.c_void_p, number, ctypes.c_int32, number]
    return function


def resource(kind: Kind = Kind.DEVICE, *, device: int = 0, tag: Tag | int | str | None = None,
             context: Context | None = None) -> Any:
    """An rmm.mr.DeviceMemoryResource of one device over gmm.

    kind: DEVICE, VMM (which can be paused by its tag), MANAGED or HOST. tag: a Tag, its number or its name, which is
    made when it is new; None: the thread's current tag at each allocation. context: None: the default context. The
    library's context lives as long as the resource and all copies that RMM has of it, also after its close().
    Want of memory is rmm::out_of_memory with gmm's message in C++, and a MemoryError in Python. RuntimeError without a
    C++ compiler or librmm's headers.
    """
    import rmm

    kind = Kind(kind)
    context = _default_context() if context is None else context
    # A missing device is an error here, before C++ turns it into another one.
    context.device_info(device)
    number, replace = resource_tag(context, tag), _replace()
    allocate, deallocate = _replace, resource  # any two that differ: C++ looks for them, and nobody calls them
    made = rmm.mr.CallbackMemoryResource(allocate, deallocate)
    why = replace(made, object.__basicsize__, rmm.mr.CallbackMemoryResource.__basicsize__, allocate, deallocate,
                  context.handle, kind, device, number)
    if why is not None:
        raise RuntimeError(f"gmm.rmm cannot make a resource: {why.decode()}")
    return made


class Use(Undoable):
    """Makes gmm the memory resource of devices, until undo() or the end of the with block.

    devices: None: all devices of the context. kind, tag, context: see resource(). undo() restores the previous resource
    of each device that still has ours. Memory that was allocated before goes back to our resource.
    """

    def __init__(self, kind: Kind = Kind.DEVICE, *, tag: Tag | int | str | None = None,
                 devices: Iterable[int] | None = None, context: Context | None = None) -> None:
        import rmm

        super().__init__()
        self.context = _default_context() if context is None else context
        devices = range(self.context.info.device_count) if devices is None else devices
        self.resources = {device: resource(kind, device=device, tag=tag, context=self.context) for device in devices}

        def restore(device, before):
            if rmm.mr.get_per_device_resource(device) is self.resources[device]:
                rmm.mr.set_per_device_resource(device, before)

        for device, made in self.resources.items():
            self.callback(restore, device, rmm.mr.get_per_device_resource(device))
            rmm.mr.set_per_device_resource(device, made)


use = Use
