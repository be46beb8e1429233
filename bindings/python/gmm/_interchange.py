# SPDX-License-Identifier: Apache-2.0
"""The protocols by which other packages take a buffer without a copy: DLPack and the CUDA Array Interface."""
from gmm import _native as native
from gmm._enums import Kind, State
from gmm._stream import as_stream

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType of dlpack.h
FLAG_IS_COPIED = 2
HOST_DEVICE = (CPU, 0)


def dlpack_devices(buffer):
    """The DLPack devices that a buffer can be seen as; first the one that most consumers take.

    Page-locked memory is ordinary memory too, and managed memory is device memory too: few consumers know the names of their own.
    """
    if not buffer._on_cuda:
        return [HOST_DEVICE]
    info = buffer.info
    here = (CUDA, max(info.device, 0))
    if info.kind == Kind.HOST:
        return [HOST_DEVICE, (CUDA_HOST, 0), here]
    if info.kind == Kind.MANAGED:
        return [here, (CUDA_MANAGED, 0), HOST_DEVICE]
    return [here]


class Interchange:
    """The protocols' methods, for Buffer."""

    __slots__ = ()

    @property
    def _on_cuda(self):
        return self.context.info.backend_name == "cuda"

    @property
    def __cuda_array_interface__(self):
        """Version 3 of the interface: a vector of bytes. Only on the CUDA backend."""
        if not self._on_cuda:
            raise AttributeError("__cuda_array_interface__: memory of the host backend is not CUDA memory; use the buffer protocol or DLPack")
        stream = self.stream
        handle = stream if isinstance(stream, int) else stream.handle
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 3,
            "strides": None,
            "stream": handle or 1,  # 0 is not allowed; 1 is the default stream
        }

    def __dlpack_device__(self):
        """(device type, device id) of DLPack."""
        return dlpack_devices(self)[0]

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """The buffer as a DLPack capsule: a vector of bytes that keeps the buffer alive and unfreed."""
        if self.state == State.PAUSED:
            raise BufferError("the memory is paused; resume its tag before handing it on")
        devices = dlpack_devices(self)
        device = devices[0] if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
        flags = 0
        source = self
        if device not in devices or copy:
            if copy is False or device not in (HOST_DEVICE, devices[0]):
                raise BufferError(f"this buffer is at DLPack device {devices[0]}, not at {device}; gmm copies to the host only, and only when copy is not False")
            kind = Kind.HOST if device == HOST_DEVICE else self.kind
            source = self.context.alloc(self.nbytes, kind=kind, device=max(self.device, 0), stream=self.stream)
            source.copy_from(self, stream=self.stream)
            flags = FLAG_IS_COPIED
        source._order_for_consumer(device, stream)
        versioned = max_version is not None and max_version[0] >= 1
        return native.dlpack_capsule(source, device[0], device[1], versioned, flags)

    def _order_for_consumer(self, device, stream):
        """What is queued on the buffer's stream comes before what the consumer does."""
        own = self.stream
        if device[0] == CPU:
            if stream is not None and stream != -1:
                raise ValueError(f"a stream ({stream!r}) makes no sense for a DLPack export to the CPU; pass None")
            native.gmm_stream_synchronize(self.context, own)
            return
        if stream == -1:
            return
        if stream == 0:
            raise ValueError("DLPack does not allow stream 0 for CUDA: 1 is the legacy default stream, 2 the thread's own, -1 none")
        theirs = 1 if stream is None else as_stream(stream)
        if theirs == ((own or 1) if isinstance(own, int) else own.handle):
            return
        with self.context.event(max(self.device, 0)) as event:
            event.record(own)
            native.gmm_stream_wait_event(self.context, theirs, event)
