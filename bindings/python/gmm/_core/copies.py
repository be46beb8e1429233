# SPDX-License-Identifier: Apache-2.0
"""The common part of buffers and arrays; copies between gmm's memory and any object, in the order of a stream."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gmm import _native as native
from gmm._core.enums import Kind
from gmm._core.stream import as_stream

if TYPE_CHECKING:
    from gmm._core.typing import PointerInfo


class Located:
    """Memory at an address, which the library describes."""

    __slots__ = ()

    @property
    def info(self) -> PointerInfo:
        """The library's description of the memory at its first byte now: PointerInfo."""
        return self.context.query(self)

    @property
    def kind(self) -> Kind:
        """The kind of memory; Kind.UNSPECIFIED for ordinary host memory of another package."""
        return self.info.kind

    @property
    def device(self) -> int:
        """The device that the memory belongs to; HOST for memory that was moved to the host."""
        return self.info.device

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles nothing: multiprocessing's pickler asks _multiprocessing/parcel.py instead."""
        raise TypeError(
            f"a gmm.{type(self).__name__} cannot be pickled or copied here, because its bytes lie in this process's "
            "memory; send it through multiprocessing (an argument of Process, Queue.put(), Connection.send()), pass "
            "the handle of ipc_export() to another process, or take bytes() of it for a copy of the contents")


def host_view(obj, writable=False):
    """A memoryview of an object's memory, whose elements lie one after another. It keeps the memory in its place."""
    view = memoryview(obj)
    if writable and view.readonly:
        raise BufferError(f"the memory of a {type(obj).__name__} is read-only")
    if not view.c_contiguous:
        raise BufferError("the elements do not lie one after another")
    return view


def queue(memory, function, arguments, stream, context=None):
    """Queues an operation; when the caller names no stream, waits for it."""
    context = context or memory.context
    queue_on = memory.stream if stream is None else as_stream(stream)
    function(context, *arguments, queue_on)
    if stream is None:
        native.gmm_stream_synchronize(context, queue_on)


def copy(memory, other, stream, place, *, writes_other):
    """Copies to another object or from it. place(nbytes): the address in `memory`, or an exception.

    Nothing holds an object of Python until a queued copy is done, so a copy from or to one always waits.
    """
    context, view, address, is_ours = memory.context, None, other, False
    if isinstance(other, (native.View, native.Memory)):
        is_ours = getattr(other, "buffer", other) is not None
        if memory.buffer is None and is_ours:
            context = other.context
        nbytes = other.nbytes
    else:
        view = host_view(other, writes_other)
        address, nbytes = native.view_address(view), view.nbytes
    try:
        for side, writes in ((memory, not writes_other), (other, writes_other)):
            if isinstance(side, native.View):
                side._usable_by(context, writes=writes)
        here = place(nbytes)
        if nbytes:
            ends = (address, here) if writes_other else (here, address)
            queue(memory, native.gmm_copy, (*ends, nbytes), stream, context)
            if stream is not None and not is_ours:
                native.gmm_stream_synchronize(context, stream)
    finally:
        if view is not None:
            view.release()
