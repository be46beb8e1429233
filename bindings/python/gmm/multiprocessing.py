# SPDX-License-Identifier: Apache-2.0
"""Buffers and arrays sent through multiprocessing: no copy, the receiver gets a Buffer or an Array over the same memory.

    import multiprocessing

    def work(queue):
        buffer = queue.get()                      # a gmm.Buffer over the sender's memory
        buffer.fill(7)

    queue = multiprocessing.get_context("spawn").Queue()
    queue.put(gmm.alloc(1 << 20, gmm.Kind.HOST))  # or as an argument of Process, through a Pipe, a Pool, an executor

It is on as soon as gmm is imported; pickling by any other way is a TypeError. DEVICE, VMM and HOST memory can be sent, MANAGED memory cannot.

Who keeps the memory: the sender keeps a reference from the moment a buffer is pickled until the receiver has imported it, so it may
forget the buffer at once. From then on either side keeps it: it is given back when the sender has freed it and the last receiver has closed it. What the
sender frees by itself (free(), close(), the end of a with block, of the context or of the process) before it arrived is gone: the receiver gets IPCPeerGoneError.
wait_until_received() waits for that; a process that multiprocessing started does so at its end, for 5 seconds at most. An object whose receiver
died stays until discard() or the end of the context; so does one whose receiver could not tell the sender, which is a RuntimeWarning there.

Contents: the stream of the buffer is waited for when it is pickled. Work on other streams is the sender's to finish.

Events of Context.event(ipc=True) are sent in the same way; a receiver's stream waits for what the sender recorded last.

CUDA does not work in a child after fork: take the start method "spawn" or "forkserver" there.

A process that unpickles what it has sent itself gets the very same object. A receiver may send a buffer on as long as the first sender has not freed it.

enable_torch() does the same for PyTorch tensors over gmm's memory in torch.multiprocessing; importing gmm.torch calls it.
"""
import threading
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import NamedTuple

from gmm import _default, _transit
from gmm import _native as native
from gmm._array import Array
from gmm._buffer import Buffer
from gmm._context import Context
from gmm._enums import State
from gmm._errors import ERRORS
from gmm._ipc import import_block
from gmm._stream import Event

__all__ = ["discard", "enable_torch", "in_transit", "use_context", "wait_until_received"]

_lock = threading.Lock()
_chosen = None
_others = {}  # contexts opened here, by backend: for memory of a backend that is not the default context's
_sent = weakref.WeakValueDictionary()  # this process's own buffers, by handle


def in_transit():
    """How many objects this process has sent that have not arrived yet."""
    return len(_transit.transit.objects)


def wait_until_received(timeout=None):
    """Waits until everything that was sent has arrived; False after so many seconds. A queue must have pickled it: see Queue.join_thread()."""
    return _transit.transit.wait(timeout)


def discard():
    """Lets go what was sent and has not arrived, for example as its receiver died. Returns how many objects there were."""
    return _transit.transit.discard()


def use_context(context):
    """Sets the context that receives memory of its backend. None: the default context, or one opened here when that is of another backend."""
    global _chosen
    if context is not None and not isinstance(context, Context):
        raise TypeError(f"expected a gmm.Context or None, got {type(context).__name__}")
    _chosen = context


def enable_torch():
    """Lets torch.multiprocessing send PyTorch tensors over gmm's memory without a copy. Imports PyTorch. A second call does nothing.

    For programs that make their tensors of gmm's memory by DLPack: whoever imports gmm.torch has it already, and so has who has received such a tensor.
    """
    from gmm import _torch_multiprocessing

    _torch_multiprocessing.enable()


def receiving_context(backend):
    """The context for memory of a backend, by its name."""
    with _lock:
        if _chosen is not None and not _chosen.closed and _chosen.info.backend_name == backend:
            return _chosen
        default = _default.context()
        if default.info.backend_name == backend:
            return default
        other = _others.get(backend)
        if other is None or other.closed:
            other = _others[backend] = Context(backend)
        return other


def _device_of(context, number, uuid):
    """The device of this process that is the sender's: devices may be numbered differently in each."""
    infos = [context.device_info(device) for device in range(context.info.device_count)]
    for info in infos:
        if info.device == number and info.uuid == uuid:
            return number
    return next((info.device for info in infos if info.uuid == uuid), 0)


class Parcel(NamedTuple):
    """What is pickled: a handle, what it cannot say, and where the receipt goes."""

    handle: bytes
    nbytes: int
    backend: str
    device: int
    uuid: bytes
    sender: bytes
    receipt: bytes

    def own(self):
        """In the sending process: the object itself, and nothing is imported. None: it is not (or not any more) on its way from here."""
        return _transit.transit.arrived(self.receipt) if self.sender == _transit.transit.name else None

    def open(self):
        """Imports the memory as a Buffer, and tells the sender."""
        try:
            context = receiving_context(self.backend)
            return import_block(context, self.handle, nbytes=self.nbytes, device=_device_of(context, self.device, self.uuid))
        finally:
            self.acknowledge()

    def acknowledge(self):
        """Tells the sender that the object has arrived."""
        _transit.acknowledge(self.sender, self.receipt)


def pack(thing, context, handle, nbytes, device):
    """The parcel of an object whose memory the handle stands for; the object is kept until it has arrived."""
    device = max(device, 0)  # page-locked memory is of no device
    return Parcel(handle, nbytes, context.info.backend_name, device, context.device_info(device).uuid, *_transit.transit.send(thing))


def export(buffer):
    """The handle of a buffer; of an imported one the handle that it came by."""
    if buffer.state != State.IMPORTED:
        return buffer.ipc_export()
    if buffer._source is None:
        raise ERRORS["NotSupportedError"](
            "a buffer of Context.import_fd() was sent to another process; gmm cannot hand it on: send the descriptor, with multiprocessing.reduction.DupFd(fd)",
            code=native.GMM_ERROR_NOT_SUPPORTED, name="GMM_ERROR_NOT_SUPPORTED")
    return buffer._source


def _reduce_buffer(buffer):
    handle = export(buffer)
    native.gmm_stream_synchronize(buffer.context, buffer.stream)
    _sent[handle] = buffer
    return _rebuild_buffer, (pack(buffer, buffer.context, handle, buffer.nbytes, buffer.device),)


def _rebuild_buffer(parcel):
    own = parcel.own()
    if own is not None:
        return own
    known = _sent.get(parcel.handle)
    if known is not None and not known.closed:  # came back by way of others
        parcel.acknowledge()
        return known
    return parcel.open()


def _reduce_array(array):
    if not isinstance(array.buffer, Buffer):
        raise TypeError("a gmm.Array over memory of another package, or pinned memory, was sent to another process; send copy() of it, or the other package's own object")
    return _rebuild_array, (array.buffer, array.shape, array.dtype, array.strides, array.offset, array.readonly)


def _rebuild_array(buffer, shape, dtype, strides, offset, readonly):
    return Array(buffer, shape, dtype, strides=strides, offset=offset, readonly=readonly)


def _reduce_event(event):
    handle = event._imported or event.ipc_export()
    return _rebuild_event, (pack(event, event.context, handle, 0, event.device),)


def _rebuild_event(parcel):
    own = parcel.own()
    if own is not None:
        return own
    try:
        context = receiving_context(parcel.backend)
        return context.ipc_import_event(parcel.handle, device=_device_of(context, parcel.device, parcel.uuid))
    finally:
        parcel.acknowledge()


ForkingPickler.register(Buffer, _reduce_buffer)
ForkingPickler.register(Array, _reduce_array)
ForkingPickler.register(Event, _reduce_event)
