# SPDX-License-Identifier: Apache-2.0
"""gmm.Buffer, gmm.Pin and gmm.Heap: blocks of memory as objects, and allocation with one kind, device and tag."""
from __future__ import annotations

import os
from typing import Any

from gmm import _native as native
from gmm._core.array import Array, Located, host_view, over
from gmm._core.enums import Advice, FdType, State
from gmm._core.errors import ERRORS
from gmm._core.stream import as_stream, stream_number
from gmm._core.values import IpcFdInfo, LegacyHandle, move_desc


class Buffer(Located, native.Memory):
    """A block of memory of a context.

    close(), the end of a with block, or the end of the last reference frees it. While a memoryview, an array of another
    package or a DLPack tensor views it, a free raises BufferError.

    Where the host reaches the memory (HOST and MANAGED memory, and every kind on the host backend) it has the buffer
    protocol: memoryview(buffer) and numpy.frombuffer(buffer) see the same bytes. They do not wait for streams. Every
    other protocol is that of Array(buffer), a vector of bytes.
    """

    __slots__ = ()

    @property
    def buffer(self) -> Buffer:
        """The buffer itself: arrays have this attribute too."""
        return self

    @property
    def tag(self) -> int:
        """The number of the block's tag."""
        return self.info.tag

    @property
    def state(self) -> State:
        """State.ACTIVE, State.PAUSED and so on; State.FREE once the buffer is closed."""
        return State.FREE if self.closed else self.info.state

    def _range(self, offset, size):
        if offset < 0 or offset > self.nbytes or (size is not None and (size < 0 or size > self.nbytes - offset)):
            raise ERRORS["InvalidSizeError"](
                f"{'the rest' if size is None else size} bytes at offset {offset} reach past the buffer's "
                f"{self.nbytes} bytes")
        return self.address + offset, self.nbytes - offset if size is None else size

    def fill(self, value: int, *, offset: int = 0, size: int | None = None, stream: Any = None) -> None:
        """Sets every byte to a value. Without a stream the call waits for it."""
        address, size = self._range(offset, size)
        self._queue(native.gmm_fill, (address, value, size), stream)

    def record_use(self, stream: Any) -> None:
        """Notes that a stream uses the block too: free() defers the release until the work queued there is done."""
        native.gmm_record_use(self.context, self, stream)

    def set_name(self, name: str | None) -> None:
        """Names the block for snapshots and for the report of leaks, until it is freed. None: it has no name."""
        native.gmm_name(self.context, self, name)

    def advise(self, advice: Advice, location: int = 0, *, offset: int = 0, size: int | None = None) -> None:
        """Gives a hint about managed memory. location: a device, or gmm.HOST."""
        address, size = self._range(offset, size)
        if size:  # the library takes 0 for the rest of the block
            native.gmm_advise(self.context, address, size, advice, location)

    def prefetch(self, location: int, *, offset: int = 0, size: int | None = None, stream: Any = None) -> None:
        """Queues the migration of managed memory to a device or gmm.HOST. Never waits."""
        address, size = self._range(offset, size)
        if size:
            queue_on = self.stream if stream is None else as_stream(stream)
            native.gmm_prefetch(self.context, address, size, location, queue_on)

    def move(self, location: int, *, stream: Any = None, non_blocking: bool = False) -> Buffer:
        """Moves the block to a device or gmm.HOST and leaves its address as it is. Returns the buffer."""
        native.gmm_move(self.context, self, location, move_desc(
            non_blocking=non_blocking, stream=stream_number(self.stream if stream is None else as_stream(stream))))
        return self

    def resume(self, *, offset: int = 0, size: int | None = None) -> int:
        """Resumes this block, or a part of it, and what shares pages of the driver with it. Returns the bytes taken.

        The rest of its tag stays paused.
        """
        return self.context.resume_range(*self._range(offset, size))

    def wait_ready(self, timeout: float | None = None, *, offset: int = 0, size: int | None = None) -> bool:
        """Waits until another caller's resume has made the block, or a part of it, usable. False after timeout seconds.

        The call starts no resume.
        """
        return self.context.wait_ready(*self._range(offset, size), timeout)

    def backup(self, *, offset: int = 0, size: int | None = None, into: Any = None) -> Any:
        """The kept contents of the paused block, or of a part of it, as bytes. The block stays paused.

        into: a writable object with the buffer protocol, which receives the bytes instead; its length is the size.
        """
        if into is None:
            address, size = self._range(offset, size)
            copied = bytearray(size)
            self.backup(offset=offset, into=copied)
            return bytes(copied)
        with host_view(into, writable=True) as view:
            address, size = self._range(offset, view.nbytes)
            native.gmm_backup_read(self.context, address, size, native.view_address(view))
        return into

    def backup_view(self, *, offset: int = 0, size: int | None = None) -> memoryview:
        """The kept contents of the paused block, or of a part of it, as a read-only memoryview.

        Nothing is copied where the contents lie in one piece. The view is valid until the memory is resumed, freed or
        discarded; reading through it afterwards is a fault.
        """
        address, size = self._range(offset, size)
        kept = native.gmm_backup_map(self.context, address, size)[1]
        return memoryview(over(self, kept, size, None, "uint8", True))  # it refers to the buffer, which lives on

    def ipc_export(self, *, offset: int = 0) -> bytes:
        """A handle for another process of the same user, as bytes: see Context.ipc_import().

        The handle holds no reference: the memory goes when the buffer is freed.
        """
        return native.gmm_ipc_export(self.context, self._range(offset, None)[0])[1]

    def ipc_export_fd(self, *, offset: int = 0, type: FdType = FdType.DEFAULT) -> tuple[int, int, int]:
        """(file descriptor, offset, size) of the driver's allocation that the block lies in.

        Context.import_fd(), Vulkan and users of dma-buf take the descriptor. The caller closes it. The memory lives at
        least as long as it is open.
        """
        arguments, made = (self.context, self._range(offset, None)[0], type), []
        try:
            # extend() calls the function in C: no handler of a signal runs before the list has the descriptor.
            made.extend(map(native.gmm_ipc_export_fd, *zip(arguments)))
            info = IpcFdInfo.unpack(made[0][1])
            return info.fd, info.offset, info.size
        except BaseException:  # Ctrl-C, too
            if made:
                os.close(IpcFdInfo.unpack(made[0][1]).fd)
            raise

    def ipc_export_legacy(self, *, offset: int = 0) -> tuple[bytes, int, int]:
        """(handle, offset, size): the driver's own handle (cudaIpcMemHandle_t), for libraries that take no other.

        offset and size say where the memory lies in the driver's allocation. Only DEVICE memory whose info.ipc_routes
        has IpcRoute.LEGACY has such a handle. The buffer must live until the other process has closed the handle.
        """
        info = LegacyHandle.unpack(native.gmm_ipc_export_legacy(self.context, self._range(offset, None)[0])[1])
        return info.bytes, info.offset, info.size

    __cuda_array_interface__ = property(lambda self: Array(self).__cuda_array_interface__)
    __sycl_usm_array_interface__ = property(lambda self: Array(self).__sycl_usm_array_interface__)

    def __dlpack_device__(self) -> tuple[int, int]:
        return Array(self).__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return Array(self).__dlpack__(**options)

    def __repr__(self) -> str:
        if self.closed:
            return f"<gmm.{type(self).__name__} of {self.nbytes} bytes, closed>"
        info = self.info
        kind = getattr(info.kind, "name", info.kind)
        state = getattr(info.state, "name", info.state)
        where = f"at 0x{self.address:x}, {kind} of device {info.device}"
        return f"<gmm.{type(self).__name__} of {self.nbytes} bytes {where}, {state}>"


class Pin(native.Memory):
    """Memory of the caller that is page-locked until close(). Context.pin() makes it."""

    __slots__ = ("device_pointer",)

    @property
    def object(self) -> Any:
        """The object whose memory is page-locked; None once the pin is closed."""
        view = self._held  # another thread may close the pin
        return None if view is None else view.obj

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a gmm.Pin cannot be pickled or copied: it stands for the memory of an object of this process; "
                        "send that object, or a gmm.Buffer of kind HOST")

    def __repr__(self) -> str:
        return "<gmm.Pin closed>" if self.closed else f"<gmm.Pin of {self.nbytes} bytes at 0x{self.address:x}>"


class Heap(native.Handle):
    """A heap with a fixed kind, device and tag: the fastest way to allocate. Context.heap() makes it."""

    __slots__ = ("kind", "device")

    alloc = native.heap_alloc

    def reserve(self, size: int) -> None:
        """Makes the heap hold at least so many bytes from now on, all of them touched; 0 ends it."""
        native.gmm_heap_reserve(self, size)

    def __repr__(self):
        return "<gmm.Heap closed>" if self.closed else f"<gmm.Heap of {self.kind.name} memory of device {self.device}>"
