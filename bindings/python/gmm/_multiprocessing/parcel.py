# SPDX-License-Identifier: Apache-2.0
"""A parcel travels in the place of memory, which the receiver opens over the same memory."""
from __future__ import annotations

import threading
from typing import NamedTuple

from gmm import _default
from gmm._context import Context
from gmm._core.enums import State
from gmm._core.errors import ERRORS
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
        infos = [context.device_info(device) for device in range(context.info.device_count)]
        for info in infos:
            if info.device == self.device and info.uuid == self.uuid:
                return self.device
        return next((info.device for info in infos if info.uuid == self.uuid), 0)

    def open(self, function, known=None):
        """The object in this process: the one that was sent from here, else `known`, else the function's.

        function(context, parcel, device) makes it. The sender is told that it has arrived.
        """
        if self.sender == transit.name:  # unless it has arrived before
            own = transit.arrived(self.receipt)
            if own is not None:
                return own
        try:
            if known is not None:
                return known
            context = receiving_context(self.backend)
            return function(context, self, self.device_in(context))
        finally:
            transit.acknowledge(self.sender, self.receipt)


def import_buffer(context, parcel, device):
    """The function for memory, which it maps as a Buffer."""
    return context.ipc_import(parcel.handle, nbytes=parcel.nbytes, device=device)


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
