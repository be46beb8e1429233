# SPDX-License-Identifier: Apache-2.0
"""How other packages take a buffer or an array without a copy: DLPack, the CUDA Array Interface and SYCL's."""
from gmm import _native as native
from gmm._core.enums import Kind, PointerFlags, State
from gmm._core.stream import as_stream

CPU, CUDA, CUDA_HOST, CUDA_MANAGED, ONE_API = 1, 2, 3, 13, 14  # DLDeviceType of dlpack.h
FLAG_READ_ONLY, FLAG_IS_COPIED = 1, 2
HOST_DEVICE = (CPU, 0)
PAUSED = (State.PAUSED, State.PARTLY_PAUSED)


def methods_of(written):
    """The namespace of a class and of its bases, for native.extend().

    A Python base would make every C object larger.
    """
    namespace = {}
    for base in reversed(written.__mro__[:-1]):
        namespace.update(vars(base))
    for name in ("__dict__", "__weakref__", "__module__", "__doc__", "__slots__", "__qualname__"):
        namespace.pop(name, None)
    return namespace


def dlpack_devices(memory):
    """The DLPack devices that a buffer or an array can be offered as; the one that most consumers take comes first.

    Page-locked memory is CPU memory too, and managed memory is CUDA memory too. Few consumers know the device types of
    their own.
    """
    if memory.buffer is None:
        return _foreign_devices(memory._foreign_device)
    backend = memory.context.info.backend_name
    info = memory.info
    if backend == "host":
        if info.state == State.ACTIVE and not info.flags & PointerFlags.HOST_ACCESSIBLE:
            raise BufferError("the CPU cannot read this memory, as the context is strict: copy it to memory of "
                              "Kind.HOST")
        return [HOST_DEVICE]
    if backend == "sycl":
        here = (ONE_API, max(info.device, 0))
        return [here] if info.kind in (Kind.DEVICE, Kind.VMM) else [here, HOST_DEVICE]
    here = (CUDA, max(info.device, 0))
    if info.kind == Kind.HOST:
        return [HOST_DEVICE, (CUDA_HOST, 0), here]
    if info.kind == Kind.MANAGED:
        return [here, (CUDA_MANAGED, 0), HOST_DEVICE]
    return [here]


def _foreign_devices(device):
    """The device that another package named, and the devices that it implies."""
    if device[0] == CUDA_HOST:
        return [device, HOST_DEVICE]
    if device[0] == CUDA_MANAGED:
        return [device, (CUDA, 0), HOST_DEVICE]
    return [device]


def stream_handle(stream):
    """A stream of gmm as a number of CUDA's protocols, where 1 is the default stream."""
    return (stream if isinstance(stream, int) else stream.handle) or 1


class Interchange:
    """The protocols' methods, for Buffer and Array."""

    __slots__ = ()

    @property
    def _on_cuda(self):
        """Whether a CUDA program may use the address."""
        return any(kind in (CUDA, CUDA_MANAGED, CUDA_HOST) for kind, _ in dlpack_devices(self))

    def _layout(self):
        if isinstance(self, native.Array):
            return self.shape, self.dtype, None if self.contiguous else self.strides
        return (self.nbytes,), "|u1", None

    @property
    def __cuda_array_interface__(self):
        """Version 3 of the interface: the array, or the buffer as a vector of bytes. Only of memory that CUDA knows."""
        if not self._on_cuda:
            raise AttributeError("__cuda_array_interface__: this is not CUDA memory; use the buffer protocol or DLPack")
        shape, typestr, strides = self._layout()
        if typestr[0] not in "<|":
            raise AttributeError(f"__cuda_array_interface__: it has no name for {typestr}; use DLPack, "
                                 "or view() another type")
        return {
            "shape": shape,
            "typestr": typestr,
            "data": (self.address, self._is_readonly),
            "version": 3,
            "strides": strides,
            "stream": None if self.buffer is None and self._foreign_stream is None else stream_handle(self.stream),
        }

    @property
    def __sycl_usm_array_interface__(self):
        """Version 1 of the interface: the array, or the buffer as a vector of bytes. Only on the SYCL backend."""
        if self.buffer is None or self.context.info.backend_name != "sycl":
            raise AttributeError("__sycl_usm_array_interface__: this memory is not of gmm's SYCL backend")
        shape, typestr, strides = self._layout()
        if typestr[0] not in "<|" or (strides is not None and any(step % self.itemsize for step in strides)):
            raise AttributeError(f"__sycl_usm_array_interface__: it has no name for {typestr} with strides {strides}")
        native.gmm_stream_synchronize(self.context, self.stream)  # the interface has no streams
        return {
            "shape": shape,
            "typestr": typestr,
            "data": (self.address, self._is_readonly),
            "version": 1,
            "strides": None if strides is None else tuple(step // self.itemsize for step in strides),
            "offset": 0,
            "syclobj": self.context._sycl_queue(max(self.device, 0)),
        }

    @property
    def _is_readonly(self):
        return isinstance(self, native.Array) and self.readonly

    def __dlpack_device__(self):
        """(device type, device id) of DLPack."""
        return dlpack_devices(self)[0]

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """A DLPack capsule of the array, or of the buffer as a vector of bytes. While it lives, free() is refused."""
        if self.buffer is not None and self.info.state in PAUSED:
            raise BufferError("the memory is paused; resume its tag before exporting it")
        devices = dlpack_devices(self)
        device = devices[0] if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
        flags = FLAG_READ_ONLY if self._is_readonly else 0
        source = self
        if device not in devices or copy:
            if copy is False or device not in (HOST_DEVICE, devices[0]):
                raise BufferError(f"this memory is at DLPack device {devices[0]}, not at {device}; "
                                  "gmm copies to the host only, and only when copy is "
                                  "not False")
            source = self._copied(device)
            flags = FLAG_IS_COPIED
        source._order_for_consumer(device, stream)
        return native.dlpack_capsule(source, *device, *tuple(max_version or (0, 0))[:2], flags)

    def _copied(self, device):
        """A copy for a consumer, queued on the memory's own stream."""
        kind = Kind.HOST if device == HOST_DEVICE else self.kind
        if isinstance(self, native.Array):
            return self.copy(kind, stream=self.stream if self.contiguous else None)
        copied = self.context.alloc(self.nbytes, kind, device=max(self.device, 0), stream=self.stream)
        copied.copy_from(self, stream=self.stream)
        return copied

    def _order_for_consumer(self, device, stream):
        """Orders the consumer's work behind what is queued on the memory's own stream."""
        own = self.stream
        unordered = self.buffer is None and self._foreign_stream is None  # nothing is queued on any stream
        if device[0] in (CPU, ONE_API):
            if stream is not None and stream != -1:
                raise ValueError(f"a stream ({stream!r}) cannot order a DLPack export to the CPU or to SYCL; pass None")
            if not unordered:
                native.gmm_stream_synchronize(self._stream_context, own)
            return
        if stream == -1:
            return
        if stream == 0:
            raise ValueError("DLPack does not allow stream 0 for CUDA: 1 is the legacy default stream, "
                             "2 the thread's own, -1 none")
        theirs = 1 if stream is None else as_stream(stream)
        if isinstance(theirs, native.Handle):
            theirs = theirs.handle
        if unordered or theirs == stream_handle(own):
            return
        context = self._stream_context
        with context.event(max(self.device, 0)) as event:
            event.record(own)
            native.gmm_stream_wait_event(context, theirs, event, 0)

    @property
    def _stream_context(self):
        """A context that knows the streams of the memory's device."""
        context = self.context
        if self.buffer is None and context.info.backend_name != "cuda":
            raise BufferError(
                "the memory is ordered on a CUDA stream, "
                f"which a context of the {context.info.backend_name} backend does not know; "
                "open a CUDA context and import with Context.from_dlpack() or Context.asarray()")
        return context
