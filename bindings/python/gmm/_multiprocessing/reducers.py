# SPDX-License-Identifier: Apache-2.0
"""Buffers, arrays and events as parcels. Importing this module registers them with multiprocessing's pickler."""
import weakref
from multiprocessing.reduction import ForkingPickler

from gmm import _native as native
from gmm._core.array import Array
from gmm._core.buffer import Buffer
from gmm._core.stream import Event
from gmm._multiprocessing.parcel import export, import_buffer, pack

_sent = weakref.WeakValueDictionary()  # this process's own buffers, by handle


def _reduce_buffer(buffer):
    handle = export(buffer)
    native.gmm_stream_synchronize(buffer.context, buffer.stream)
    _sent[handle] = buffer
    return _rebuild_buffer, (pack(buffer, buffer.context, handle, buffer.nbytes, buffer.device),)


def _rebuild_buffer(parcel):
    known = _sent.get(parcel.handle)  # another process has sent it back
    return parcel.open(import_buffer, None if known is None or known.closed else known)


def _reduce_array(array):
    if not isinstance(array.buffer, Buffer):
        raise TypeError("a gmm.Array over memory of another package, or over pinned memory, "
                        "was sent to another process; "
                        "send copy() of it, or the other package's own object")
    return _rebuild_array, (array.buffer, array.shape, array.dtype, array.strides, array.offset, array.readonly)


def _rebuild_array(buffer, shape, dtype, strides, offset, readonly):
    return Array(buffer, shape, dtype, strides=strides, offset=offset, readonly=readonly)


def _reduce_event(event):
    handle = event._held or event.ipc_export()
    return _rebuild_event, (pack(event, event.context, handle, 0, event.device),)


def _rebuild_event(parcel):
    return parcel.open(lambda context, _parcel, device: context.ipc_import_event(parcel.handle, device=device))


ForkingPickler.register(Buffer, _reduce_buffer)
ForkingPickler.register(Array, _reduce_array)
ForkingPickler.register(Event, _reduce_event)
