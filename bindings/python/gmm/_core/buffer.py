# SPDX-License-Identifier: Apache-2.0
"""gmm.Buffer and gmm.Pin: blocks of memory as objects."""
import ctypes
import os

from gmm import _native as native
from gmm._core.enums import FdType, State
from gmm._core.errors import ERRORS
from gmm._core.interchange import Interchange, methods_of
from gmm._core.stream import as_stream, stream_number
from gmm._native import Buffer

ALLOCATED, IMPORTED, PINNED = 0, 1, 2  # native.h: MemoryOrigin


def _is_plain_array(other, writable=False):
    """Whether a copy takes the array by its address. Every other object goes through the buffer protocol."""
    if not isinstance(other, native.Array) or other.buffer is None:
        return False
    return other.contiguous and not (writable and other.readonly)


def not_pickled(memory):
    return TypeError(
        f"a gmm.{type(memory).__name__} cannot be pickled or copied here, "
        "because its bytes lie in this process's memory; "
        "send it through multiprocessing (an argument of Process, Queue.put(), Connection.send()), "
        "pass the handle of ipc_export() to another process, or take bytes() of it for a copy of the contents")


class _Methods(Interchange):
    """The methods of gmm.Buffer that are written in Python; native/buffer.c allocates and frees."""

    @property
    def buffer(self):
        """The buffer itself: arrays have this attribute too."""
        return self

    @property
    def info(self):
        """What the library knows about the block now: PointerInfo."""
        return self.context.query(self)

    @property
    def kind(self):
        """The kind of memory."""
        return self.info.kind

    @property
    def device(self):
        """The device that the block belongs to; HOST for memory that was moved to the host."""
        return self.info.device

    @property
    def tag(self):
        """The number of the block's tag."""
        return self.info.tag

    @property
    def state(self):
        """State.ACTIVE, State.PAUSED and so on; State.FREE once the buffer is closed."""
        return State.FREE if self.closed else self.info.state

    def _range(self, offset, size):
        if offset < 0 or offset > self.nbytes or (size is not None and (size < 0 or size > self.nbytes - offset)):
            raise ERRORS["InvalidSizeError"](
                f"{'the rest' if size is None else size} bytes at offset {offset} reach past the buffer's "
                f"{self.nbytes} bytes",
                code=native.GMM_ERROR_INVALID_SIZE, name="GMM_ERROR_INVALID_SIZE")
        return self.address + offset, self.nbytes - offset if size is None else size

    def _queue(self, function, arguments, stream):
        """Queues an operation; when the caller names no stream, waits for it."""
        queue_on = self.stream if stream is None else as_stream(stream)
        function(self.context, *arguments, queue_on)
        if stream is None:
            native.gmm_stream_synchronize(self.context, queue_on)

    def copy_from(self, source, *, offset=0, stream=None):
        """Copies a whole buffer, a contiguous array or any object with the buffer protocol into this buffer, at offset.

        Without a stream the call waits for the copy. With a stream it only queues a copy between buffers of gmm. A copy
        from an object of Python always waits, because nothing else holds that object until the copy is done.
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
        """Copies this buffer, from offset on, into a whole buffer, a contiguous array or any writable object.

        The object must have the buffer protocol. The call waits as copy_from() does.
        """
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
        """Sets every byte to a value. Without a stream the call waits for it."""
        address, size = self._range(offset, size)
        self._queue(native.gmm_fill, (address, value, size), stream)

    def __bytes__(self):
        copied = bytearray(self.nbytes)
        self.copy_to(copied)
        return bytes(copied)

    def record_use(self, stream):
        """Notes that a stream uses the block too: free() defers the release until the work queued there is done."""
        native.gmm_record_use(self.context, self, as_stream(stream))

    def set_name(self, name):
        """Names the block for snapshots and for the report of leaks, until it is freed. None: it has no name."""
        native.gmm_name(self.context, self, name)

    def advise(self, advice, location=0, *, offset=0, size=None):
        """Gives a hint about managed memory. location: a device, or gmm.HOST."""
        address, size = self._range(offset, size)
        if size:  # the library takes 0 for the rest of the block
            native.gmm_advise(self.context, address, size, advice, location)

    def prefetch(self, location, *, offset=0, size=None, stream=None):
        """Queues the migration of managed memory to a device or gmm.HOST. Never waits."""
        address, size = self._range(offset, size)
        if size:
            queue_on = self.stream if stream is None else as_stream(stream)
            native.gmm_prefetch(self.context, address, size, location, queue_on)

    def move(self, location, *, stream=None, non_blocking=False):
        """Moves the block to a device or gmm.HOST and leaves its address as it is. Returns the buffer."""
        desc = native.gmm_move_desc()
        desc.flags = native.GMM_MOVE_NON_BLOCKING if non_blocking else 0
        desc.stream = stream_number(self.stream if stream is None else as_stream(stream))
        native.gmm_move(self.context, self, location, desc)
        return self

    def resume(self, *, offset=0, size=None):
        """Resumes this block, or a part of it, and what shares pages of the driver with it. Returns the bytes taken.

        The rest of its tag stays paused.
        """
        return self.context.resume_range(*self._range(offset, size))

    def wait_ready(self, timeout=None, *, offset=0, size=None):
        """Waits until another caller's resume has made the block, or a part of it, usable. False after timeout seconds.

        The call starts no resume.
        """
        return self.context.wait_ready(*self._range(offset, size), timeout)

    def backup(self, *, offset=0, size=None, into=None):
        """The kept contents of the paused block, or of a part of it, as bytes. The block stays paused.

        into: a writable object with the buffer protocol, which receives the bytes instead; its length is the size.
        """
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
        """The kept contents of the paused block, or of a part of it, as a read-only memoryview.

        Nothing is copied where the contents lie in one piece. The view is valid until the memory is resumed, freed or
        discarded; reading through it afterwards is a fault.
        """
        address, size = self._range(offset, size)
        kept = (ctypes.c_ubyte * size).from_address(native.gmm_backup_map(self.context, address, size)[1])
        kept._buffer = self  # the view refers to the buffer, so that the buffer is not freed before it
        return memoryview(kept).cast("B").toreadonly()

    def ipc_export(self, *, offset=0):
        """A handle for another process of the same user, as bytes: see Context.ipc_import().

        The handle holds no reference: the memory goes when the buffer is freed.
        """
        return native.gmm_ipc_export(self.context, self._range(offset, None)[0])[1]

    def ipc_export_fd(self, *, offset=0, type=FdType.DEFAULT):
        """(file descriptor, offset, size) of the driver's allocation that the block lies in.

        Context.import_fd(), Vulkan and users of dma-buf take the descriptor.
        The caller closes the descriptor. The memory lives at least as long as the descriptor is open.
        """
        info = native.gmm_ipc_fd_info()
        info.fd = -1
        try:
            native.gmm_ipc_export_fd(self.context, self._range(offset, None)[0], type, info)
            return info.fd, info.offset, info.size
        except BaseException:  # Ctrl-C, too
            if info.fd >= 0:
                os.close(info.fd)
            raise

    def ipc_export_legacy(self, *, offset=0):
        """(handle, offset, size): the driver's own handle (cudaIpcMemHandle_t), for libraries that take no other.

        offset and size say where the memory lies in the driver's allocation. Only DEVICE memory whose info.ipc_routes
        has IpcRoute.LEGACY has such a handle. The buffer must live until the other process has closed the handle.
        """
        info = native.gmm_ipc_legacy_info()
        native.gmm_ipc_export_legacy(self.context, self._range(offset, None)[0], info)
        return info.bytes, info.offset, info.size

    def __reduce_ex__(self, protocol):
        raise not_pickled(self)  # multiprocessing's pickler asks _multiprocessing/reducers.py instead

    def _describe(self):
        if self.closed:
            return f"<gmm.{type(self).__name__} of {self.nbytes} bytes, closed>"
        info = self.info
        kind = getattr(info.kind, "name", info.kind)
        state = getattr(info.state, "name", info.state)
        where = f"at 0x{self.address:x}, {kind} of device {info.device}"
        return f"<gmm.{type(self).__name__} of {self.nbytes} bytes {where}, {state}>"


native.extend(Buffer, methods_of(_Methods))


class Pin(native.Memory):
    """Memory of the caller that is page-locked until close(). Context.pin() makes it."""

    __slots__ = ("device_pointer",)

    @property
    def object(self):
        """The object whose memory is page-locked; None once the pin is closed."""
        source = self._source  # another thread may close the pin
        return None if source is None else source.object

    def close(self):
        """Unlocks the memory. A second call does nothing."""
        self._give_back(None)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __reduce_ex__(self, protocol):
        raise TypeError("a gmm.Pin cannot be pickled or copied: it stands for the memory of an object of this process; "
                        "send that object, or a gmm.Buffer of kind HOST")

    def __repr__(self):
        return "<gmm.Pin closed>" if self.closed else f"<gmm.Pin of {self.nbytes} bytes at 0x{self.address:x}>"
