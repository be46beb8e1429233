# SPDX-License-Identifier: Apache-2.0
"""gmm.Watcher: the program hears before memory loses its pages, when contents are back, and when a budget shrinks."""
from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING

from gmm import _native as native
from gmm._core.enums import WatchEvent, tag_number
from gmm._core.info import WatchInfo
from gmm._core.stream import _Closing

if TYPE_CHECKING:
    from gmm._core.typing import Address, Context, OnWatch, TagLike


class Watcher(_Closing, native.Handle):
    """A watch of memory or of a budget, until close() or the end of its with block. Context.watch() makes it."""

    __slots__ = ()

    def __init__(self, context: Context, tag: TagLike | None = None, *, memory: Address | None = None,
                 size: int | None = None, prepare: OnWatch = None, losing: OnWatch = None, restored: OnWatch = None,
                 failed: OnWatch = None, budget: OnWatch = None, below: int = 0, device: int = 0,
                 order: int = 0, name: str | None = None) -> None:
        functions = {WatchEvent.PREPARE: prepare, WatchEvent.LOSING: losing, WatchEvent.RESTORED: restored,
                     WatchEvent.FAILED: failed, WatchEvent.BUDGET: budget}
        functions = {event: function for event, function in functions.items() if function is not None}
        for event, function in functions.items():
            if not callable(function):
                raise TypeError(f"{event.name.lower()} is called with a WatchInfo, but got {type(function).__name__}")
        if not functions:
            raise TypeError("a watcher hears nothing without prepare, losing, restored, failed or budget")
        hears_of_memory = any(event != WatchEvent.BUDGET for event in functions)
        if hears_of_memory and (tag is None) == (memory is None):
            raise TypeError("a watcher watches a tag or memory: pass one of the two")
        if memory is not None and size is None:
            around = context.query(memory)
            size = around.base + around.size - (memory if isinstance(memory, int) else memory.address)

        def call(data):
            info = WatchInfo.unpack(data)
            return functions[info.event](info)

        self._held = call
        options = {"events": functools.reduce(operator.or_, functions), "device": device, "address": memory,
                   "tag": 0 if tag is None else tag_number(context, tag), "size": size, "budget_bytes": below,
                   "order": order, "name": name, "callback": self}
        self._open(native.HANDLE_WATCHER, context, native.gmm_watch, context, options)

    def __repr__(self):
        return "<gmm.Watcher closed>" if self.closed else "<gmm.Watcher>"
