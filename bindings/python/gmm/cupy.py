# SPDX-License-Identifier: Apache-2.0
"""CuPy over gmm: its arrays and its page-locked memory come from gmm's pool, which other libraries share.

    import cupy
    import gmm.cupy

    gmm.cupy.use()                     # for the rest of the process; `with gmm.cupy.use():` for a block
    array = cupy.zeros(1 << 20)
    array.data.mem._owner              # the gmm.Buffer of the array, or a tuple that begins with it

Arrays from before use() and arrays that outlive undo() stay valid, because each holds its own memory. As with CuPy's
own pool, memory is allocated and freed in the order of CuPy's current stream at the allocation. A program that uses an
array on a second stream orders the two streams, or calls gmm.Buffer.record_use().
"""
# pylint: disable=import-outside-toplevel # CuPy is imported at the first use only
from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from gmm._context import Context
from gmm._core.enums import STREAM_PER_THREAD, Kind
from gmm._core.errors import Error
from gmm._core.resource import Undoable, need_cuda, resource_tag
from gmm._core.tag import Tag
from gmm._default import context as _default_context

__all__ = ["Use", "allocator", "pinned_allocator", "use"]

_ARRAY_KINDS = (Kind.DEVICE, Kind.VMM, Kind.MANAGED)
_TOO_MUCH = (MemoryError, OverflowError)  # too little memory, and a size beyond any address space


def _context_for_cupy(context):
    return need_cuda(_default_context() if context is None else context, "CuPy")


def _want(error, context, device, size):
    """CuPy's error for gmm's. By then gmm has collected garbage, as CuPy's own pool does."""
    from cupy.cuda.memory import OutOfMemoryError

    return OutOfMemoryError(size, context.stats(device=device).live_bytes if isinstance(error, Error) else -1)


def _hold(context, held, stream):
    """Holds a stream of CuPy until gmm has forgotten it.

    CuPy destroys a stream with its last reference, but gmm still orders memory behind it that was freed there. A stream
    that only `held` refers to, and whose work is done, is dropped when another one comes.
    """
    from cupy.cuda.runtime import CUDARuntimeError

    for handle in list(held):
        if sys.getrefcount(held[handle]) > 2:  # the dict's and the argument's
            continue
        try:
            if held[handle].done:
                context.forget_stream(handle)
                del held[handle]
        except (Error, CUDARuntimeError):
            continue  # it may still be in use
    held[stream.ptr] = stream


def allocator(kind: Kind = Kind.DEVICE, *, tag: Tag | int | str | None = None,
              context: Context | None = None) -> Callable[[int], Any]:
    """A function for cupy.cuda.set_allocator(), or for cupy.cuda.using_allocator(), which affects one thread.

    kind, tag, context: see use().
    """
    from cupy.cuda import Stream, get_current_stream
    from cupy.cuda.device import get_device_id
    from cupy.cuda.memory import MemoryPointer, UnownedMemory

    if kind not in _ARRAY_KINDS:
        raise ValueError(f"CuPy's arrays cannot lie in memory of kind {kind!r}; use DEVICE, VMM or MANAGED")
    context = _context_for_cupy(context)
    alloc, kind, tag = context.alloc, Kind(kind), resource_tag(context, tag)
    # As long as the context has memory of these streams, also after undo().
    held = context.__dict__.setdefault("_streams_of_cupy", {})

    def malloc(size):
        device = get_device_id()
        if not size:
            return MemoryPointer(UnownedMemory(0, 0, None, device), 0)
        stream = get_current_stream(device)
        handle = stream.ptr
        try:
            buffer = alloc(size, kind, device=device, tag=tag, stream=handle)
        except _TOO_MUCH as error:
            raise _want(error, context, device, size) from error
        owner = buffer
        if handle > STREAM_PER_THREAD:
            if handle not in held and isinstance(stream, Stream):
                _hold(context, held, stream)
            owner = (buffer, stream)
        return MemoryPointer(UnownedMemory(buffer.address, size, owner, device), 0)

    return malloc


def pinned_allocator(*, tag: Tag | int | str | None = None, context: Context | None = None) -> Callable[[int], Any]:
    """A function for cupy.cuda.set_pinned_memory_allocator().

    The tag None: the current tag of the calling thread, for all memory.
    """
    from cupy.cuda.pinned_memory import PinnedMemoryPointer

    context = _context_for_cupy(context)
    # A heap of its own: CuPy's users write to page-locked memory at once. A block that another library freed on a
    # stream could still be the source of a copy. All blocks of this heap are on one stream, so that it needs no event.
    heap = context.heap(Kind.HOST, tag=resource_tag(context, tag))

    def malloc(size):
        if not size:
            return PinnedMemoryPointer(types.SimpleNamespace(ptr=0, size=0), 0)
        try:
            buffer = heap.alloc(size)
        except _TOO_MUCH as error:
            raise _want(error, context, None, size) from error
        return PinnedMemoryPointer(types.SimpleNamespace(ptr=buffer.address, size=size, buffer=buffer), 0)

    return malloc


_lock = threading.Lock()
_pinned = []  # uses with page-locked memory, the newest last, because CuPy does not tell which allocator is set


class Use(Undoable):
    """Makes CuPy allocate from gmm until undo(), or until the end of the with block, on every device and thread.

    kind: DEVICE, VMM (which can be paused by its tag) or MANAGED. pinned: page-locked host memory too. tag: a Tag, its
    number or its name, which is made when it is new; None: the thread's current tag. context: None: the default
    context. It must stay open as long as arrays live. A lack of memory is cupy.cuda.memory.OutOfMemoryError, with gmm's
    error as its cause. undo() restores CuPy's previous allocator, unless the program has set another one since. For
    page-locked memory it restores the allocator of an enclosing use(), else CuPy's own pool.
    """

    def __init__(self, kind: Kind = Kind.DEVICE, *, pinned: bool = True, tag: Tag | int | str | None = None,
                 context: Context | None = None) -> None:
        import cupy

        super().__init__()
        self._cupy = cupy
        self.context = _context_for_cupy(context)
        self.allocator = allocator(kind, tag=tag, context=self.context)
        self.pinned_allocator = pinned_allocator(tag=tag, context=self.context) if pinned else None
        if pinned:
            with _lock:
                _pinned.append(self)
                self.callback(self._restore_pinned)
                cupy.cuda.set_pinned_memory_allocator(self.pinned_allocator)
        self.callback(self._restore, cupy.cuda.get_allocator())
        cupy.cuda.set_allocator(self.allocator)

    def _restore(self, previous):
        if self._cupy.cuda.get_allocator() is self.allocator:
            self._cupy.cuda.set_allocator(previous)

    def _restore_pinned(self):
        with _lock:
            _pinned.remove(self)
            below = _pinned[-1].pinned_allocator if _pinned else self._cupy.get_default_pinned_memory_pool().malloc
            self._cupy.cuda.set_pinned_memory_allocator(below)


use = Use
