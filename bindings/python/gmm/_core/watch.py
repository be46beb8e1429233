# SPDX-License-Identifier: Apache-2.0
"""gmm.Watcher: the program hears before memory loses its pages, when contents are back, and when a budget shrinks."""
from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING

from gmm import _native as native
from gmm._core.enums import WatchEvent, tag_number
from gmm._core.values import WatchInfo

if TYPE_CHECKING:
    from gmm._core.typing import Address, Context, OnWatch, TagLike


class Watcher(native.Handle):
    """A watch of memory or of a budget, until close() or the end of its with block. Context.watch() makes it."""

    __slots__ = ()

    def __repr__(self):
        return "<gmm.Watcher closed>" if self.closed else "<gmm.Watcher>"


def watch(self: Context, tag: TagLike | None = None, *, memory: Address | None = None, size: int | None = None,
          prepare: OnWatch = None, losing: OnWatch = None, restored: OnWatch = None, failed: OnWatch = None,
          budget: OnWatch = None, below: int = 0, device: int = 0, order: int = 0, name: str | None = None) -> Watcher:
    """Watches a tag's VMM memory, or a range of it, until the Watcher is closed or its with block ends.

        with context.watch("weights", losing=cache.forget, restored=cache.renew):
            context.pause("weights")

    memory: a buffer or an address, in place of a tag. size: bytes from there; None: the rest of the block. The
    operation calls these functions with a WatchInfo on its own thread, and waits for them. They must not block:
    - prepare: the memory is about to lose its pages. False or an exception ends the operation with BusyError.
    - losing: the devices are idle, and the pages go after it has returned.
    - restored: the memory has pages and contents again.
    - failed: the operation ended without effect.
    - budget: the memory that is left for this process on `device` has fallen below `below` bytes. A thread of the
      library calls it.
    prepare and losing are called in ascending `order` of the watchers, restored and failed in descending order. The
    functions may not allocate, and except for budget not pause, resume or move. Their exceptions go to
    sys.unraisablehook.
    """
    functions = {WatchEvent.PREPARE: prepare, WatchEvent.LOSING: losing, WatchEvent.RESTORED: restored,
                 WatchEvent.FAILED: failed, WatchEvent.BUDGET: budget}
    functions = {event: function for event, function in functions.items() if function is not None}
    for event, function in functions.items():
        if not callable(function):
            raise TypeError(f"{event.name.lower()} is called with a WatchInfo, but got {type(function).__name__}")
    if not functions:
        raise TypeError("a watcher hears nothing without prepare, losing, restored, failed or budget")
    if functions.keys() != {WatchEvent.BUDGET} and (tag is None) == (memory is None):
        raise TypeError("a watcher watches a tag or memory: pass one of the two")
    if memory is not None and size is None:
        around = self.query(memory)
        size = around.base + around.size - (memory if isinstance(memory, int) else memory.address)

    def call(data):
        info = WatchInfo.unpack(data)
        return functions[info.event](info)

    made = Watcher()
    made._held = call
    made._open("watcher", self, native.gmm_watch, self, {
        "events": functools.reduce(operator.or_, functions), "device": device, "address": memory,
        "tag": tag_number(self, tag), "size": size, "budget_bytes": below, "order": order,
        "name": name, "callback": made})
    return made
