# SPDX-License-Identifier: Apache-2.0
"""Buffers, arrays and events travel as parcels, which the receiver opens over the same memory.

Importing this module registers them with multiprocessing's pickler.
"""
from __future__ import annotations

import functools
import threading
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import NamedTuple

from gmm import _default
from gmm import _native as native
from gmm._context import Context
from gmm._core.array import Array
from gmm._core.buffer import Buffer
from gmm._core.enums import State
from gmm._core.errors import ERRORS
from gmm._core.stream import Event
from gmm._multiprocessing import transit

_lock = threading.Lock()
_chosen = None
_others = {}  # by backend: contexts opened here, for memory of another backend than the default context's


def use_context(context: Context | None) -> None:
    """Sets the context that receives memory of its backend.

    None: the default context, or a context that gmm opens where the default one has another backend.
    """
    global _chosen
    if context is not None and not isinstance(context, Context):
        raise TypeError(f"expected a gmm.Context or None, got {type(context).__name__}")
    _chosen = context


def receiving_context(backend):
    """The context that imports memory of a backend, which is named."""
    with _lock:
        if _chosen is not None and not _chosen.closed and _chosen.info.backend_name == backend:
            return _chosen
        try:
            default = _default.context()
        except ERRORS["NoBackendError"]:
            default = None  # for example CUDA in a forked child, which may still map memory of the host backend
        if default is not None and default.info.backend_name == backend:
            return default
        other = _others.get(backend)
        if other is None or other.closed:
            other = _others[backend] = Context(backend)
        return other


class Parcel(NamedTuple):
    """The pickled form: a handle, facts that the handle does not say, and the address for the receipt."""

    handle: bytes
    nbytes: int
    backend: str
    device: int
    uuid: bytes
    sender: bytes
    receipt: bytes

    def device_in(self, context):
        """The device of this process that is the sender's: two processes may number their devices differently."""
        same = [device for device in range(context.info.device_count) if context.device_info(device).uuid == self.uuid]
        return self.device if self.device in same else next(iter(same), 0)

    def open(self, function, known=None):
        """The object in this process: the one that was sent from here, else `known`, else the function's.

        function(context, device) makes it. The sender is told that it has arrived.
        """
        if self.sender == transit.name:  # unless it has arrived before
            own = transit.arrived(self.receipt)
            if own is not None:
                return own
        try:
            if known is not None:
                return known
            context = receiving_context(self.backend)
            return function(context, self.device_in(context))
        finally:
            transit.acknowledge(self.sender, self.receipt)

    def import_buffer(self, context, device):
        """The function for memory, which it maps as a Buffer."""
        return context.ipc_import(self.handle, nbytes=self.nbytes, device=device)


def pack(thing, context, handle, nbytes, device):
    """The parcel of an object whose memory the handle names. This process refers to the object until it has arrived."""
    device = max(device, 0)  # page-locked memory belongs to no device
    backend, uuid = context.info.backend_name, context.device_info(device).uuid
    return Parcel(handle, nbytes, backend, device, uuid, *transit.send(thing))


def export(buffer):
    """The handle of a buffer; for an imported buffer the handle that it was imported by."""
    if buffer.state != State.IMPORTED:
        return buffer.ipc_export()
    if buffer._held is None:
        raise ERRORS["NotSupportedError"](
            "a buffer of Context.import_fd() was sent to another process; gmm cannot pass it on: "
            "send the descriptor, with multiprocessing.reduction.DupFd(fd)")
    return buffer._held


_sent = weakref.WeakValueDictionary()  # this process's own buffers, by handle


def _reduce_buffer(buffer):
    handle = export(buffer)
    native.gmm_stream_synchronize(buffer.context, buffer.stream)
    _sent[handle] = buffer
    return _rebuild_buffer, (pack(buffer, buffer.context, handle, buffer.nbytes, buffer.device),)


def _rebuild_buffer(parcel):
    known = _sent.get(parcel.handle)  # another process has sent it back
    return parcel.open(parcel.import_buffer, None if known is None or known.closed else known)


def _reduce_array(array):
    if not isinstance(array.buffer, Buffer):
        raise TypeError("a gmm.Array over memory of another package, or over pinned memory, was sent to another "
                        "process; send copy() of it, or the other package's own object")
    view = functools.partial(Array, strides=array.strides, offset=array.offset, readonly=array.readonly)
    return view, (array.buffer, array.shape, array.dtype)


def _reduce_event(event):
    handle = event._held or event.ipc_export()
    return _rebuild_event, (pack(event, event.context, handle, 0, event.device),)


def _rebuild_event(parcel):
    return parcel.open(lambda context, device: context.ipc_import_event(parcel.handle, device=device))


ForkingPickler.register(Buffer, _reduce_buffer)
ForkingPickler.register(Array, _reduce_array)
ForkingPickler.register(Event, _reduce_event)
