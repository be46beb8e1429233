# SPDX-License-Identifier: Apache-2.0
"""Blocks of memory as objects."""
import ctypes

from gmm import _native as native
from gmm._core.enums import FdType, State
from gmm._core.errors import ERRORS
from gmm._core.interchange import Interchange, methods_of
from gmm._core.stream import as_stream, stream_number
from gmm._native import Buffer

ALLOCATED, IMPORTED, PINNED = 0, 1, 2  # native.h: MemoryOrigin


def _is_plain_array(other, writable=False):
    """An array of gmm's memory goes by its address, wherever that is; others go by the buffer protocol."""
    return isinstance(other, native.Array) and other.buffer is not None and other.contiguous and not (writable and other.readonly)


def not_pickled(memory):
    return TypeError(
        f"a gmm.{type(memory).__name__} cannot be pickled or copied here, as its bytes lie in this process's memory; send it through multiprocessing (an argument of "
        "Process, Queue.put(), Connection.send()), pass the handle of ipc_export() to another process, or take bytes() of it for a copy of the contents")


class _Methods(Interchange):
    """What of gmm.Buffer is written in Python; native/buffer.c has its life."""

    @property
    def buffer(self):
        """The buffer itself: arrays have an attribute of this name too."""
        return self

    @property
    def info(self):
        """All that the library knows about the block: PointerInfo, as it is now."""
        return self.context.query(self)

    @property
    def kind(self):
        """The kind of memory."""
        return self.info.kind

    @property
    def device(self):
        """The device that it belongs to; HOST for memory that was moved to the host."""
        return self.info.device

    @property
    def tag(self):
        """The number of its tag."""
        return self.info.tag

    @property
    def state(self):
        """State.ACTIVE, State.PAUSED and so on; State.FREE once it was closed."""
        return State.FREE if self.closed else self.info.state

    def _range(self, offset, size):
        if offset < 0 or offset > self.nbytes or (size is not None and (size < 0 or size > self.nbytes - offset)):
            raise ERRORS["InvalidSizeError"](
                f"{'the rest' if size is None else size} bytes at offset {offset} reach past the buffer's {self.nbytes} bytes",
                code=native.GMM_ERROR_INVALID_SIZE, name="GMM_ERROR_INVALID_SIZE")
        return self.address + offset, self.nbytes - offset if size is None else size

    def _queue(self, function, arguments, stream):
        """Runs a queued operation; without a stream of the caller's it waits for it."""
        queue_on = self.stream if stream is None else as_stream(stream)
        function(self.context, *arguments, queue_on)
        if stream is None:
            native.gmm_stream_synchronize(self.context, queue_on)

    def copy_from(self, source, *, offset=0, stream=None):
        """Copies a whole buffer, a contiguous array or any object with the buffer protocol into this one, from offset on.

        Without a stream it waits until the bytes are there. With one it only queues the copy between buffers of gmm; a copy from an
        object of Python waits all the same, as nobody else would keep that object.
        """
        if isinstance(source, native.Memory) or _is_plain_array(source):
            address, size = self._range(offset, source.nbytes)
            self._queue(native.gmm_copy, (address, source, size), stream)
            return
        view = native.HostView(source)
        try:
            address, size = self._range(offset, view.nbytes)
            self._queue(native.gmm_copy, (address, view.address, size), stream)
            if stream is not None:
                native.gmm_stream_synchronize(self.context, as_stream(stream))
        finally:
            view.release()

    def copy_to(self, destination, *, offset=0, stream=None):
        """Fills a whole buffer, a contiguous array or any writable object with the buffer protocol from this one, from offset on. Waits as copy_from()."""
        if isinstance(destination, native.Memory) or _is_plain_array(destination, writable=True):
            address, size = self._range(offset, destination.nbytes)
            self._queue(native.gmm_copy, (destination, address, size), stream)
            return
        view = native.HostView(destination, writable=True)
        try:
            address, size = self._range(offset, view.nbytes)
            self._queue(native.gmm_copy, (view.address, address, size), stream)
            if stream is not None:
                native.gmm_stream_synchronize(self.context, as_stream(stream))
        finally:
            view.release()

    def fill(self, value, *, offset=0, size=None, stream=None):
        """Sets every byte to a value. Without a stream it waits until that is done."""
        address, size = self._range(offset, size)
        self._queue(native.gmm_fill, (address, value, size), stream)

    def __bytes__(self):
        copied = bytearray(self.nbytes)
        self.copy_to(copied)
        return bytes(copied)

    def record_use(self, stream):
        """Says that a stream uses the block too: after free() it is not given out again before what that stream had queued."""
        native.gmm_record_use(self.context, self, as_stream(stream))

    def advise(self, advice, location=0, *, offset=0, size=None):
        """Gives a hint about managed memory. location: a device, or gmm.HOST."""
        address, size = self._range(offset, size)
        if size:  # 0 would mean the rest of the block
            native.gmm_advise(self.context, address, size, advice, location)

    def prefetch(self, location, *, offset=0, size=None, stream=None):
        """Queues the migration of managed memory to a device or gmm.HOST; does not wait."""
        address, size = self._range(offset, size)
        if size:
            native.gmm_prefetch(self.context, address, size, location, self.stream if stream is None else as_stream(stream))

    def move(self, location, *, stream=None, non_blocking=False):
        """Moves the block to a device or gmm.HOST; its address stays. Returns the buffer."""
        desc = native.gmm_move_desc()
        desc.flags = native.GMM_MOVE_NON_BLOCKING if non_blocking else 0
        desc.stream = stream_number(self.stream if stream is None else as_stream(stream))
        native.gmm_move(self.context, self, location, desc)
        return self

    def resume(self, *, offset=0, size=None):
        """Resumes this block (or a part of it), and what shares pages of the driver with it; the rest of its tag stays paused. Returns the bytes taken."""
        return self.context.resume_range(*self._range(offset, size))

    def wait_ready(self, timeout=None, *, offset=0, size=None):
        """Waits until a resume by somebody else has made the block (or a part of it) usable; starts none. False after so many seconds."""
        return self.context.wait_ready(*self._range(offset, size), timeout)

    def backup(self, *, offset=0, size=None, into=None):
        """The kept contents of the paused block (or a part of it), which stays paused: as bytes, or written into a writable object with the buffer
        protocol, which also says the size."""
        if into is None:
            address, size = self._range(offset, size)
            copied = bytearray(size)
            self.backup(offset=offset, into=copied)
            return bytes(copied)
        view = native.HostView(into, writable=True)
        try:
            address, size = self._range(offset, view.nbytes)
            native.gmm_backup_read(self.context, address, size, view.address)
        finally:
            view.release()
        return into

    def backup_view(self, *, offset=0, size=None):
        """The kept contents of the paused block (or a part of it) as a memoryview to read, without a copy where they lie in one piece. The view is
        good until the memory is resumed, freed or discarded; looking through it afterwards is a fault."""
        address, size = self._range(offset, size)
        kept = (ctypes.c_ubyte * size).from_address(native.gmm_backup_map(self.context, address, size)[1])
        kept._buffer = self  # a forgotten buffer is not freed while its view lives
        return memoryview(kept).cast("B").toreadonly()

    def ipc_export(self, *, offset=0):
        """A handle for another process of the same user, as bytes: see Context.ipc_import(). It keeps nothing alive."""
        return native.gmm_ipc_export(self.context, self._range(offset, None)[0])[1]

    def ipc_export_fd(self, *, offset=0, type=FdType.DEFAULT):
        """(file descriptor, offset, size) of the driver's allocation that the block lies in: for Context.import_fd(), Vulkan, dma-buf. The caller
        closes the descriptor, which keeps the memory alive."""
        return native.gmm_ipc_export_fd(self.context, self._range(offset, None)[0], type)[1:]

    def ipc_export_legacy(self, *, offset=0):
        """(handle, offset, size): the driver's own handle of 64 bytes (cudaIpcMemHandle_t) for libraries that take no other, and where the memory lies in the
        driver's allocation. DEVICE memory whose info.ipc_routes has IpcRoute.LEGACY. The buffer must live until the other side has closed it."""
        return native.gmm_ipc_export_legacy(self.context, self._range(offset, None)[0])[1:]

    def __reduce_ex__(self, protocol):
        raise not_pickled(self)  # multiprocessing's pickler does not ask here: multiprocessing.py

    def _describe(self):
        if self.closed:
            return f"<gmm.{type(self).__name__} of {self.nbytes} bytes, closed>"
        info = self.info
        kind = getattr(info.kind, "name", info.kind)
        state = getattr(info.state, "name", info.state)
        return f"<gmm.{type(self).__name__} of {self.nbytes} bytes at 0x{self.address:x}, {kind} of device {info.device}, {state}>"


native.extend(Buffer, methods_of(_Methods))


class Pin(native.Memory):
    """Memory of the caller that is page-locked until close(). Made by Context.pin()."""

    __slots__ = ("device_pointer",)

    @property
    def object(self):
        """The object whose memory it is; None once it was closed."""
        return None if self._source is None else self._source.object

    def close(self):
        """Takes the pin back. Closing twice does nothing."""
        self._give_back(None)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __reduce_ex__(self, protocol):
        raise TypeError("a gmm.Pin cannot be pickled or copied: it stands for the memory of an object of this process; send that object, or a gmm.Buffer of kind HOST")

    def __repr__(self):
        return "<gmm.Pin closed>" if self.closed else f"<gmm.Pin of {self.nbytes} bytes at 0x{self.address:x}>"
