# SPDX-License-Identifier: Apache-2.0
"""RMM over gmm: cuDF, cuML and the other libraries of RAPIDS allocate from gmm's pool.

    import gmm.rmm

    gmm.rmm.use()                                    # every device; `with gmm.rmm.use():` for a block
    mr = gmm.rmm.resource()                          # or by hand: rmm.mr.set_current_device_resource(mr)

The resource allocates and frees on the streams that RMM names. RMM's adaptors (limits, statistics, logging) work over
it as over any other. RMM calls it in C++. The first use compiles the few lines of C++ for that against librmm's
headers, in some seconds, into $XDG_CACHE_HOME/gmm or ~/.cache/gmm. Where that fails, a warning says why, and RMM calls
Python.
"""
# pylint: disable=import-outside-toplevel # RMM is imported at the first use only
from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable
from typing import Any

from gmm._context import Context
from gmm._core.enums import Kind
from gmm._core.resource import Undoable, resource_tag
from gmm._core.tag import Tag
from gmm._default import context as _default_context
from gmm._rmm import callbacks, compiled

__all__ = ["Use", "resource", "use"]

_KINDS = (Kind.DEVICE, Kind.VMM, Kind.MANAGED, Kind.HOST)


def resource(kind: Kind = Kind.DEVICE, *, device: int = 0, tag: Tag | int | str | None = None,
             context: Context | None = None) -> Any:
    """An rmm.mr.DeviceMemoryResource of one device over gmm.

    kind: DEVICE, VMM (which can be paused by its tag), MANAGED or HOST. tag: a Tag, its number or its name, which is
    made when it is new; None: the thread's current tag at each allocation. context: None: the default context. The
    library's context lives as long as the resource and all copies that RMM has of it, also after its close().
    Want of memory is rmm::out_of_memory with gmm's message in C++, and a MemoryError in Python.
    """
    if kind not in _KINDS:
        raise ValueError(f"RMM cannot use memory of kind {kind!r}; "
                         f"use one of {', '.join(known.name for known in _KINDS)}")
    kind = Kind(kind)
    context = _default_context() if context is None else context
    # A missing device is an error here, before C++ turns it into another one.
    context.device_info(device)
    number = resource_tag(context, tag)
    try:
        return compiled.resource(context, kind, device, number)
    except compiled.Unavailable as error:
        _say_why(str(error))
    return callbacks.resource(context, kind, device, number)


@functools.lru_cache(maxsize=1)
def _say_why(reason):
    warnings.warn(f"{reason}\nSo RMM calls Python for each allocation, which is right but slow.", RuntimeWarning,
                  stacklevel=4)


class Use(Undoable):
    """RMM allocates from gmm until undo(), or until the end of the with block."""

    def __init__(self, kind: Kind, tag: Tag | int | str | None, devices: Iterable[int] | None,
                 context: Context | None) -> None:
        import rmm

        self._rmm = rmm
        self.context = _default_context() if context is None else context
        devices = range(self.context.info.device_count) if devices is None else devices
        self.resources = {device: resource(kind, device=device, tag=tag, context=self.context) for device in devices}
        self._previous = {device: rmm.mr.get_per_device_resource(device) for device in self.resources}
        for device, made in self.resources.items():
            rmm.mr.set_per_device_resource(device, made)

    def undo(self) -> None:
        """Restores the previous resource of each device that still has ours. A second call does nothing.

        Memory that was allocated before goes back to our resource.
        """
        previous, self._previous = self._previous, {}
        for device, before in previous.items():
            if self._rmm.mr.get_per_device_resource(device) is self.resources[device]:
                self._rmm.mr.set_per_device_resource(device, before)


def use(kind: Kind = Kind.DEVICE, *, tag: Tag | int | str | None = None, devices: Iterable[int] | None = None,
        context: Context | None = None) -> Use:
    """Makes gmm the memory resource of devices, until undo() of the result or the end of its with block.

    devices: None: all devices of the context. kind, tag, context: see resource().
    """
    return Use(kind, tag, devices, context)
