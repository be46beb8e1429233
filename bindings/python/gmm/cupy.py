# SPDX-License-Identifier: Apache-2.0
"""CuPy over gmm: its arrays and its page-locked memory come from gmm's pool, which other libraries share.

    import cupy
    import gmm.cupy

    gmm.cupy.use()                     # from here on; with gmm.cupy.use(): ... for a while
    array = cupy.zeros(1 << 20)
    array.data.mem._owner              # the gmm.Buffer that it lies in

Arrays that were made before, and those that live on after undo(), stay good: each keeps its own memory. Memory is taken and given back in the order of CuPy's
current stream at the allocation, as CuPy's own pool has it: who uses an array on a second stream orders the two, or says gmm.Buffer.record_use().
"""
# pylint: disable=import-outside-toplevel # CuPy is imported at the first use only
import gc
import sys
import threading

from gmm._core.enums import STREAM_LEGACY, STREAM_PER_THREAD, Kind
from gmm._core.errors import Error
from gmm._default import context as _default_context

__all__ = ["Use", "allocator", "pinned_allocator", "use"]

_ARRAY_KINDS = (Kind.DEVICE, Kind.VMM, Kind.MANAGED)
_TOO_MUCH = (MemoryError, OverflowError)  # no room, and more than there can be


def _context_for_cupy(context):
    context = _default_context() if context is None else context
    if context.info.backend_name != "cuda":
        raise RuntimeError(f"cannot put CuPy over the {context.info.backend_name} backend of gmm: its memory is not CUDA memory; "
                           "open a context of the cuda backend, for which a driver and a device must answer")
    return context


def _tag(context, tag):
    """0 is the thread's current tag at each allocation. A name that is new makes a tag."""
    return 0 if tag is None else context.tag(tag) if isinstance(tag, str) else tag


def _out_of_memory(context, device, size, error):
    """What CuPy's users catch; the cause has gmm's words."""
    from cupy.cuda.memory import OutOfMemoryError

    return OutOfMemoryError(size, context.stats(device=device).live_bytes if isinstance(error, Error) else -1)


class _PerThread:
    """Memory of the thread's own default stream. Another thread cannot name that stream; the legacy one runs behind it."""

    __slots__ = ("buffer", "thread")

    def __init__(self, buffer):
        self.buffer = buffer
        self.thread = threading.get_ident()

    def __del__(self):
        if threading.get_ident() != self.thread and not sys.is_finalizing() and not self.buffer.closed:
            self.buffer.free(STREAM_LEGACY)


def _keep(context, kept, stream):
    """Keeps a stream of CuPy until gmm has been told that it goes. CuPy destroys a stream with the last reference to it, but memory that was freed on it is
    put behind it later. A stream that only this keeps, and that is done, is let go when another one comes."""
    from cupy.cuda.runtime import CUDARuntimeError

    for handle in list(kept):
        if sys.getrefcount(kept[handle]) > 2:  # the dict's and the argument's
            continue
        try:
            if kept[handle].done:
                context.forget_stream(handle)
                del kept[handle]
        except (Error, CUDARuntimeError):
            continue  # it stays, as it may still be used
    kept[stream.ptr] = stream


def _allocator(context, kind, tag):
    from cupy.cuda import Stream, get_current_stream
    from cupy.cuda.device import get_device_id
    from cupy.cuda.memory import MemoryPointer, UnownedMemory

    alloc = context.alloc
    kept = context.__dict__.setdefault("_streams_of_cupy", {})  # as long as the context has memory of them, also after undo()

    def malloc(size):
        device = get_device_id()
        if not size:
            return MemoryPointer(UnownedMemory(0, 0, None, device), 0)
        stream = get_current_stream(device)
        handle = stream.ptr
        try:
            buffer = alloc(size, kind, device=device, tag=tag, stream=handle)
        except _TOO_MUCH:
            gc.collect()  # arrays in cycles; CuPy's pool does the same
            try:
                buffer = alloc(size, kind, device=device, tag=tag, stream=handle)
            except _TOO_MUCH as error:
                raise _out_of_memory(context, device, size, error) from error
        owner = buffer
        if handle > STREAM_PER_THREAD:
            if handle not in kept and isinstance(stream, Stream):
                _keep(context, kept, stream)
            owner = (buffer, stream)
        elif handle == STREAM_PER_THREAD:
            owner = _PerThread(buffer)
        return MemoryPointer(UnownedMemory(buffer.address, size, owner, device), 0)

    return malloc


class _PinnedMemory:
    """What a PinnedMemoryPointer points to."""

    __slots__ = ("ptr", "size", "buffer")

    def __init__(self, size, buffer):
        self.ptr = 0 if buffer is None else buffer.address
        self.size = size
        self.buffer = buffer


def _pinned_allocator(context, tag):
    from cupy.cuda.pinned_memory import PinnedMemoryPointer

    # A heap of its own: CuPy's users write to page-locked memory as soon as they have it, so a block must not come back that another library
    # freed on a stream with a copy still under way. All of it is on one stream, so that no event is ever needed.
    heap = context.heap(Kind.HOST, tag=tag)

    def malloc(size):
        if not size:
            return PinnedMemoryPointer(_PinnedMemory(0, None), 0)
        try:
            buffer = heap.alloc(size)
        except _TOO_MUCH:
            gc.collect()
            try:
                buffer = heap.alloc(size)
            except _TOO_MUCH as error:
                raise _out_of_memory(context, None, size, error) from error
        return PinnedMemoryPointer(_PinnedMemory(size, buffer), 0)

    return malloc


def allocator(kind=Kind.DEVICE, *, tag=None, context=None):
    """A function for cupy.cuda.set_allocator(), or for cupy.cuda.using_allocator(), which counts for one thread only. kind, tag, context: see use()."""
    if kind not in _ARRAY_KINDS:
        raise ValueError(f"CuPy's arrays cannot lie in memory of kind {kind!r}; there are DEVICE, VMM and MANAGED")
    context = _context_for_cupy(context)
    return _allocator(context, Kind(kind), _tag(context, tag))


def pinned_allocator(*, tag=None, context=None):
    """A function for cupy.cuda.set_pinned_memory_allocator(). The tag None: the thread's current tag now, for all of it."""
    context = _context_for_cupy(context)
    return _pinned_allocator(context, _tag(context, tag))


_lock = threading.Lock()
_pinned = []  # uses with page-locked memory, the newest last: CuPy does not tell which allocator is set


class Use:
    """CuPy allocates from gmm until undo(), or until the end of the with block."""

    def __init__(self, kind, pinned, tag, context):
        import cupy

        self._cupy = cupy
        self.context = _context_for_cupy(context)
        self.allocator = allocator(kind, tag=tag, context=self.context)
        self.pinned_allocator = pinned_allocator(tag=tag, context=self.context) if pinned else None
        self._previous = self._cupy.cuda.get_allocator()
        self._cupy.cuda.set_allocator(self.allocator)
        if pinned:
            with _lock:
                _pinned.append(self)
                self._cupy.cuda.set_pinned_memory_allocator(self.pinned_allocator)

    def undo(self):
        """Gives CuPy the allocator back that it had; of page-locked memory that of an enclosing use(), or CuPy's own pool. Where somebody has set another one for
        arrays since, that one stays. Twice does nothing."""
        previous, self._previous = self._previous, None
        if previous is None:
            return
        try:
            if self._cupy.cuda.get_allocator() is self.allocator:
                self._cupy.cuda.set_allocator(previous)
        except BaseException:
            self._previous = previous
            raise
        with _lock:
            if self in _pinned:
                newest = _pinned[-1] is self
                _pinned.remove(self)
                if newest:
                    below = _pinned[-1].pinned_allocator if _pinned else self._cupy.get_default_pinned_memory_pool().malloc
                    self._cupy.cuda.set_pinned_memory_allocator(below)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.undo()


def use(kind=Kind.DEVICE, *, pinned=True, tag=None, context=None):
    """Makes CuPy allocate from gmm, on every device and in every thread, until undo() of what it returns, or in its with block.

    kind: DEVICE, VMM (can be paused by its tag) or MANAGED memory. pinned: page-locked host memory, too. tag: a Tag, its number or its name, which is made
    where it is new; None: the thread's current tag. context: None: the default context, which other libraries share. It must stay open as long as arrays live.
    A failure is cupy.cuda.memory.OutOfMemoryError, with gmm's error as its cause.
    """
    return Use(kind, pinned, tag, context)
