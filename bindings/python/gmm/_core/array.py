# SPDX-License-Identifier: Apache-2.0
"""gmm.Array: memory with a shape, an element type and strides, which other packages take without a copy, and theirs.

This module computes layouts and speaks the protocols; native/view.c has the buffer protocol and DLPack's structs. NumPy
converts, prints and parses numbers.
"""
from __future__ import annotations

import ctypes
import functools
import math
import operator
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Sequence

from gmm import _native as native
from gmm._core import sycl
from gmm._core.enums import HOST, Kind, PointerFlags, State, as_kind
from gmm._core.errors import Error
from gmm._core.stream import as_stream, stream_number

if TYPE_CHECKING:
    from gmm._core.typing import Context, KindLike, PointerInfo, Shape, Stream, TagLike

CPU, CUDA, CUDA_HOST, CUDA_MANAGED, ONE_API = 1, 2, 3, 13, 14  # DLDeviceType of dlpack.h
FLAG_READ_ONLY, FLAG_IS_COPIED = 1, 2
HOST_DEVICE = (CPU, 0)
DLPACK_VERSION = (1, 1)
MAX_DIMENSIONS = 64

# Element types.


class Dtype(NamedTuple):
    """An element type. typestr: as NumPy spells it; the name where NumPy has none. format: the struct module's."""

    name: str
    typestr: str
    format: str | None
    itemsize: int
    code: int
    minor_version: int = 0  # of the DLPack 1 that brought the code


_DTYPES = [
    Dtype("bool", "|b1", "?", 1, 6), Dtype("int8", "|i1", "b", 1, 0), Dtype("uint8", "|u1", "B", 1, 1),
    Dtype("int16", "<i2", "h", 2, 0), Dtype("uint16", "<u2", "H", 2, 1),
    Dtype("int32", "<i4", "i", 4, 0), Dtype("uint32", "<u4", "I", 4, 1),
    Dtype("int64", "<i8", "q", 8, 0), Dtype("uint64", "<u8", "Q", 8, 1),
    Dtype("float16", "<f2", "e", 2, 2), Dtype("float32", "<f4", "f", 4, 2), Dtype("float64", "<f8", "d", 8, 2),
    Dtype("complex64", "<c8", "Zf", 8, 5), Dtype("complex128", "<c16", "Zd", 16, 5),
    Dtype("bfloat16", "bfloat16", None, 2, 4),
    *(Dtype(f"float8_{name}", f"float8_{name}", None, 1, code, 1) for code, name in enumerate(
        ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu"), 7))]
_BY_DLPACK = {(dtype.code, 8 * dtype.itemsize, 1): dtype for dtype in _DTYPES}
#: By name, by typestr without its mark of byte order, and by Python's types.
_KNOWN: dict[Any, Dtype] = {key: dtype for dtype in _DTYPES for key in (dtype, dtype.name)}
_KNOWN.update({dtype.typestr[1:]: dtype for dtype in _DTYPES if dtype.typestr[0] in "<|"})
_KNOWN.update({None: _KNOWN["float64"], float: _KNOWN["float64"], int: _KNOWN["int64"], bool: _KNOWN["bool"],
               complex: _KNOWN["complex128"]})
# The letters of the struct module, and those of typestrs for them.
_LETTERS = {"?": "b", **dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BHILQNc", "u"), **dict.fromkeys("efd", "f"),
            "Zf": "c", "Zd": "c"}


@functools.lru_cache(maxsize=500)
def as_dtype(given: Any) -> Dtype:
    """An element type by its name or typestr, or by a type of NumPy, PyTorch, JAX or Python."""
    found = _KNOWN.get(given) or _KNOWN.get(given.lstrip("<=|") if isinstance(given, str) else _dtype_name(given))
    if found is None:
        raise TypeError(f"dtype {given!r} is none that gmm knows; it takes bool, integers, floats and complex numbers "
                        "of this machine's byte order, bfloat16 and the float8 types")
    return found


def _dtype_name(dtype):
    typestr = getattr(dtype, "str", None)  # numpy.dtype
    if isinstance(typestr, str):
        return dtype.name if typestr[1:2] == "V" else typestr.lstrip("<|")
    if type(dtype).__module__ == "torch":
        return str(dtype).removeprefix("torch.")
    numpy = sys.modules.get("numpy")
    return getattr(dtype, "__name__", str(dtype)) if numpy is None else _dtype_name(numpy.dtype(dtype))


def _numpy_dtype(dtype):
    import numpy

    if dtype.format is not None:
        return numpy.dtype(dtype.typestr)
    import ml_dtypes  # which has bfloat16 and the float8 types for NumPy

    return numpy.dtype(getattr(ml_dtypes, dtype.name))


# Layouts.


def as_shape(shape: Any, allow_unknown: bool = False) -> tuple[int, ...]:
    """The numbers of a shape; -1 only where one may be unknown."""
    shape = tuple(map(operator.index, shape)) if hasattr(shape, "__iter__") else (operator.index(shape),)
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"a shape of {len(shape)} dimensions; there are at most {MAX_DIMENSIONS}")
    if shape and min(shape) < (-1 if allow_unknown else 0):
        raise ValueError(f"a shape has no negative dimensions, such as {min(shape)}")
    return shape


def c_layout(shape: tuple[int, ...], itemsize: int) -> tuple[tuple[int, ...], int]:
    """The strides of elements that lie one after another in C's order, and the bytes of all of them."""
    step, strides = itemsize, []
    for length in reversed(shape):
        strides.append(step)
        step *= length or 1
    if step > sys.maxsize:  # also of an array without elements, as its strides would overflow
        raise ValueError("an array of that shape is beyond any address space")
    return tuple(strides[::-1]), 0 if 0 in shape else step


def _dlpack_devices(array):
    """The DLPack devices that an array can be offered as; the one that most consumers take comes first.

    Page-locked memory is CPU memory too, and managed memory is CUDA memory too. Few consumers know the device types of
    their own.
    """
    if array.buffer is None:
        device = array._memory.dlpack_device
        also = {CUDA_HOST: [HOST_DEVICE], CUDA_MANAGED: [(CUDA, 0), HOST_DEVICE]}
        return [device, *also.get(device[0], ())]
    backend, info = array.context.info.backend_name, array.info
    number = max(info.device, 0)
    if backend == "host":
        if info.state == State.ACTIVE and not info.flags & PointerFlags.HOST_ACCESSIBLE:
            raise BufferError("the CPU cannot read this memory, as the context is strict: copy it to memory of "
                              "Kind.HOST")
        return [HOST_DEVICE]
    if backend == "sycl":
        return [(ONE_API, number), *([] if info.kind in (Kind.DEVICE, Kind.VMM) else [HOST_DEVICE])]
    return {Kind.HOST: [HOST_DEVICE, (CUDA_HOST, 0), (CUDA, number)],
            Kind.MANAGED: [(CUDA, number), (CUDA_MANAGED, 0), HOST_DEVICE]}.get(info.kind, [(CUDA, number)])


class External(native.Memory):
    """Another package's memory, which arrays lie over. Its context and stream are for copies and order.

    dlpack_device: (type, id). order: the stream that orders its contents, or None. importer: the gmm.Context that
    imported it; None: the default one.
    """

    __slots__ = ("dlpack_device", "importer", "order")

    @property
    def context(self):
        return native.default_context() if self.importer is None else self.importer

    @property
    def stream(self):
        return self.order or 0


class Located:
    """The common part of buffers and arrays: memory at an address, which the library describes."""

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

    def copy_from(self, source: Any, *, offset: int = 0, stream: Any = None) -> None:
        """Copies a whole buffer, a contiguous array or any object with the buffer protocol into a buffer, at offset.

        An array takes as many bytes as it has. Without a stream the call waits for the copy. With a stream it only
        queues a copy from memory of gmm. A copy from an object of Python always waits, because nothing else holds that
        object until the copy is done.
        """
        self._copy(source, offset, stream, False)

    def copy_to(self, destination: Any, *, offset: int = 0, stream: Any = None) -> None:
        """Copies a buffer, from offset on, or an array into a whole buffer, a contiguous array or any writable object.

        The object must have the buffer protocol. The call waits as copy_from() does.
        """
        self._copy(destination, offset, stream, True)

    def _copy(self, other, offset, stream, writes_other):
        context, view, address, is_ours = self.context, None, other, False
        if isinstance(other, (native.View, native.Memory)):
            is_ours = getattr(other, "buffer", other) is not None
            if self.buffer is None and is_ours:
                context = other.context
            nbytes = other.nbytes
        else:
            view = host_view(other, writes_other)
            address, nbytes = native.view_address(view), view.nbytes
        try:
            for side, writes in ((self, not writes_other), (other, writes_other)):
                if isinstance(side, native.View):
                    side._usable_by(context, writes=writes)
            here, _ = self._range(offset, nbytes)
            if nbytes:
                ends = (address, here) if writes_other else (here, address)
                self._queue(native.gmm_copy, (*ends, nbytes), stream, context)
                if stream is not None and not is_ours:
                    native.gmm_stream_synchronize(context, stream)
        finally:
            if view is not None:
                view.release()

    def _queue(self, function, arguments, stream, context=None):
        """Queues an operation; when the caller names no stream, waits for it."""
        context = context or self.context
        queue_on = self.stream if stream is None else as_stream(stream)
        function(context, *arguments, queue_on)
        if stream is None:
            native.gmm_stream_synchronize(context, queue_on)

    def __bytes__(self) -> bytes:
        """The bytes, those of an array in C's order."""
        copied = bytearray(self.nbytes)
        self.copy_to(copied)
        return bytes(copied)


def host_view(obj, writable=False):
    """A memoryview of an object's memory, whose elements lie one after another. It keeps the memory in its place."""
    view = memoryview(obj)
    if writable and view.readonly:
        raise BufferError(f"the memory of a {type(obj).__name__} is read-only")
    if not view.c_contiguous:
        raise BufferError("the elements do not lie one after another")
    return view


class Array(Located, native.View):
    """Memory with a shape, an element type and strides, which other packages take without a copy. It computes nothing.

    The constructor makes an array over a gmm.Buffer. gmm.empty(), gmm.zeros(), gmm.array(), gmm.from_dlpack() and
    gmm.asarray() make arrays too. shape: None: all of the buffer after the offset. strides and offset: bytes. The array
    holds a reference to the buffer, but the buffer can be freed: then every use of the array raises gmm.ClosedError.
    """

    __slots__ = ()

    def __new__(cls, buffer: Any, shape: Shape | None = None, dtype: Any = "uint8", *,
                strides: Sequence[int] | None = None, offset: int = 0, readonly: bool = False) -> Array:
        if not isinstance(buffer, native.Memory):
            raise TypeError(f"expected a gmm.Buffer, got {type(buffer).__name__}; gmm.asarray() takes other packages'")
        address, dtype, rest = buffer.address, as_dtype(dtype), buffer.nbytes - offset
        if shape is None:
            if not 0 <= rest <= buffer.nbytes or rest % dtype.itemsize:
                raise ValueError(f"the {rest} bytes after offset {offset} are no whole number of elements of "
                                 f"{dtype.name}")
            shape = (rest // dtype.itemsize,)
        shape = as_shape(shape)
        steps, nbytes = c_layout(shape, dtype.itemsize)
        strides = steps if strides is None else tuple(map(operator.index, strides))
        reaches = [(length - 1) * step for length, step in zip(shape, strides)] if nbytes else ()
        low = offset + sum(reach for reach in reaches if reach < 0)
        high = offset + sum(reach for reach in reaches if reach > 0) + (dtype.itemsize if nbytes else 0)
        if low < 0 or high > buffer.nbytes:
            raise ValueError(f"an array of that shape at offset {offset} reaches past the buffer's {buffer.nbytes} "
                             "bytes")
        return _make(buffer, address + offset, shape, strides, dtype, readonly)

    def _sibling(self, shape, strides, *, shift=0, dtype=None):
        """Another array over the same memory."""
        address = self.address + shift
        if 0 in shape:  # strides of an array without elements may lead anywhere
            address, strides = self.address, c_layout(shape, (dtype or self._dtype).itemsize)[0]
        return _make(self._memory, address, shape, strides, dtype or self._dtype, self._readonly)

    # Layout.

    @property
    def dtype(self) -> str:
        """The element type as NumPy's typestr, such as '<f4'; a name where NumPy has none, such as 'bfloat16'."""
        return self._dtype.typestr

    @property
    def dtype_name(self) -> str:
        """The element type by name, such as 'float32'."""
        return self._dtype.name

    @property
    def readonly(self) -> bool:
        """True when the elements must not be written."""
        return bool(self._readonly)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def offset(self) -> int:
        """Bytes from the start of the buffer to the first element."""
        return 0 if self.buffer is None else self.address - self.buffer.address

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without dimensions has no length")
        return self.shape[0]

    def __getitem__(self, key: Any) -> Array:
        """A view by numbers, slices, Ellipsis and None."""
        keys = key if isinstance(key, tuple) else (key,)
        used, ellipses = sum(one is not None and one is not ... for one in keys), sum(one is ... for one in keys)
        if used > self.ndim or ellipses > 1:
            raise IndexError(f"{used} indices and {ellipses} Ellipsis for an array of {self.ndim} dimensions")
        axes, made, shift = list(zip(self.shape, self.strides)), [], 0
        for one in keys if ellipses else (*keys, ...):
            if one is ...:
                made, axes = made + axes[:self.ndim - used], axes[self.ndim - used:]
            elif one is None:
                made.append((1, 0))
            elif isinstance(one, bool):
                raise TypeError("an array takes numbers, slices, Ellipsis and None as indices, not bool")
            else:
                length, step = axes.pop(0)
                taken = range(length)[one]  # IndexError beyond the axis, TypeError for anything else
                if isinstance(taken, int):
                    shift += taken * step
                else:  # with at most one element the step does not matter
                    made.append((len(taken), step * taken.step if len(taken) > 1 else step))
                    shift += taken.start * step if taken else 0
        return self._sibling(as_shape(length for length, _ in made), tuple(step for _, step in made), shift=shift)

    def reshape(self, *shape: Any) -> Array:
        """Another view in another shape, one number of which may be -1. The array must be contiguous."""
        shape = as_shape(shape[0] if len(shape) == 1 else shape, allow_unknown=True)
        if not self.contiguous:
            raise ValueError("only a contiguous array is reshaped without a copy; make one with copy()")
        known = math.prod(length for length in shape if length != -1)
        shape = tuple(self.size // known if length == -1 and known else length for length in shape)
        if -1 in shape or math.prod(shape) != self.size:
            raise ValueError(f"{self.size} elements do not make that shape")
        return self._sibling(shape, c_layout(shape, self.itemsize)[0])

    def transpose(self, *axes: Any) -> Array:
        """Another view with the dimensions in another order, by default the reverse one."""
        if len(axes) == 1 and not hasattr(axes[0], "__index__"):
            axes = axes[0]
        axes = range(self.ndim)[::-1] if not axes else [axis + self.ndim if axis < 0 else axis for axis in axes]
        if sorted(axes) != list(range(self.ndim)):
            raise ValueError(f"the axes must be the numbers from 0 to {self.ndim - 1}, each once")
        return self._sibling(tuple(self.shape[axis] for axis in axes), tuple(self.strides[axis] for axis in axes))

    T = property(transpose, doc="Another view with the dimensions in reverse order.")

    def view(self, dtype: Any) -> Array:
        """Another view of the same bytes as elements of another type."""
        dtype, shape, strides = as_dtype(dtype), self.shape, self.strides
        if dtype.itemsize != self.itemsize:
            if not shape or strides[-1] != self.itemsize:
                raise ValueError("elements of another size need a last dimension whose elements lie one after another")
            row = shape[-1] * self.itemsize
            if row % dtype.itemsize:
                raise ValueError(f"a last dimension of {row} bytes is no whole number of elements of {dtype.name}")
            shape, strides = (*shape[:-1], row // dtype.itemsize), (*strides[:-1], dtype.itemsize)
        return self._sibling(shape, strides, dtype=dtype)

    # Memory.

    @property
    def owner(self) -> Any:
        """The object that holds the memory: the gmm.Buffer, or an object of another package."""
        return self._memory._held if self.buffer is None else self.buffer

    @property
    def context(self) -> Context:
        """The gmm.Context of the memory, which copies and orders streams.

        External memory has the context that imported it, else the default one.
        """
        return self._memory.context

    @property
    def stream(self) -> Stream | int:
        """The stream that the contents are ordered on: a gmm.Stream, or a number."""
        return self._memory.stream

    def free(self, stream: Any = None) -> None:
        """Frees the memory that the elements lie in, for all arrays over it. A second call does nothing.

        External memory is released to its package. BufferError while a view of the memory lives.
        """
        self._memory.free(stream)

    close = free

    def __enter__(self) -> Array:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def _is_ordered(self):
        """Whether work on the contents may be queued on a stream."""
        return self.buffer is not None or self._memory.order is not None

    def _check_backend(self, context):
        """A context of another backend knows neither another package's device memory nor its streams."""
        if self.buffer is None:
            device, backend = self._memory.dlpack_device, context.info.backend_name
            needed = "sycl" if device[0] == ONE_API else "cuda"
            if backend != needed:
                raise BufferError(f"the memory is of DLPack device {device}; a context of the {backend} backend knows "
                                  f"neither it nor its streams: open one of the {needed} backend, and import with its "
                                  "from_dlpack() or asarray()")

    def _settle(self):
        """Waits for the work that is queued on the memory's own stream."""
        if self._is_ordered:
            self._check_backend(self.context)
            native.gmm_stream_synchronize(self.context, self.stream)

    def _usable_by(self, context, *, writes=False):
        """Checks one side of a copy."""
        if not self.contiguous:
            raise ValueError("a copy or fill needs an array whose elements lie one after another; this one has the "
                             f"strides {self.strides}")
        if writes and self.readonly:
            raise ValueError("the array is read-only")
        if self.buffer is None and not self._host_reaches():
            self._check_backend(context)

    def fill(self, value: int, *, stream: Any = None) -> None:
        """Sets every byte to a value. Without a stream the call waits for it."""
        self._usable_by(self.context, writes=True)
        if self.buffer is None and self._memory.dlpack_device[0] == CPU:
            if not 0 <= operator.index(value) <= 255:
                raise ValueError(f"a byte is a number from 0 to 255, not {value}")
            ctypes.memset(self.address, value, self.nbytes)  # a GPU's driver does not fill ordinary memory
        elif self.nbytes:
            self._queue(native.gmm_fill, (self, value, self.nbytes), stream)

    def _range(self, offset, nbytes):
        if offset or nbytes != self.nbytes:
            raise ValueError(f"{nbytes} bytes cannot be copied from or to an array of {self.nbytes} bytes")
        return self.address, nbytes

    def copy(self, kind: Any = None, *, stream: Any = None) -> Array:
        """A new contiguous Array of the same elements in gmm's memory. Without a stream the call waits for the copy.

        kind: None: the same kind. The device is the same.
        """
        elements, info = self._elements(), self.info
        kind = as_kind(kind) or info.kind or Kind.HOST
        queue_on = self.stream if stream is None else stream
        made = self.context.empty(self.shape, self._dtype, kind, device=max(info.device, 0), stream=queue_on)
        made.copy_from(elements, stream=stream)
        return made

    def _elements(self):
        """The elements one after another: the array itself, or bytes."""
        if self.contiguous:
            return self
        if not self._host_reaches():
            raise BufferError("gmm copies no strided array that the host cannot reach; copy it with the library that "
                              "computes with it")
        self._settle()
        return memoryview(self._plain).tobytes()

    # Numbers, which are NumPy's.

    @property
    def _plain(self):
        """The array with an element type that the buffer protocol knows."""
        return self if self._dtype.format else self.view(f"uint{8 * self.itemsize}")

    def numpy(self, *, copy: bool | None = None) -> Any:
        """A NumPy array over the same memory where the host reaches it, else over a copy.

        The call waits for the work queued on the array's stream. copy: False: BufferError where a copy would be needed;
        True: always a copy.
        """
        import numpy

        dtype = _numpy_dtype(self._dtype)
        if self._host_reaches():
            self._settle()
            seen = numpy.asarray(memoryview(self._plain)).view(dtype)
            return seen.copy() if copy else seen
        if copy is False:
            raise BufferError("the host cannot reach this memory, and copy=False")
        made = numpy.empty(self.shape, dtype)
        self.copy_to(made.reshape(-1).view("u1"))
        return made

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """numpy(), for NumPy."""
        try:
            seen = self.numpy(copy=copy)
        except BufferError as error:
            raise ValueError(str(error)) from None  # NumPy expects it where copy=False is not possible
        return seen if dtype is None or seen.dtype == dtype else seen.astype(dtype)

    def tolist(self) -> Any:
        """The elements as nested lists of Python's numbers."""
        return self.numpy().tolist()

    def item(self) -> Any:
        """The element of an array of one element, as a number of Python."""
        return self.numpy().item()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bytes__(self) -> bytes:
        return super().__bytes__() if self.contiguous else self._elements()

    def __str__(self) -> str:
        """The elements; repr() where they cannot be had."""
        try:
            return str(self.numpy())
        except (BufferError, Error, ImportError, MemoryError, TypeError, RuntimeError):
            return repr(self)

    def __repr__(self) -> str:
        what = f"<gmm.Array {self.shape} of {self.dtype_name}"
        if self.closed:
            return f"{what}, closed>"
        return f"{what} at 0x{self.address:x}{', read-only' if self.readonly else ''}>"

    # Protocols.

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the interface. Only of memory that CUDA knows."""
        if not any(kind in (CUDA, CUDA_MANAGED, CUDA_HOST) for kind, _ in _dlpack_devices(self)):
            raise AttributeError("__cuda_array_interface__: this is not CUDA memory; use the buffer protocol or DLPack")
        if self._dtype.format is None:
            raise AttributeError(f"__cuda_array_interface__: it has no name for {self.dtype}; use DLPack, "
                                 "or view() another type")
        return {"shape": self.shape, "typestr": self.dtype, "data": (self.address, self.readonly), "version": 3,
                "strides": None if self.contiguous else self.strides,
                "stream": stream_number(self.stream) or 1 if self._is_ordered else None}

    @property
    def __sycl_usm_array_interface__(self) -> dict[str, Any]:
        """Version 1 of the interface. Only on the SYCL backend."""
        if self.buffer is None or self.context.info.backend_name != "sycl":
            raise AttributeError("__sycl_usm_array_interface__: this memory is not of gmm's SYCL backend")
        if self._dtype.format is None or any(step % self.itemsize for step in self.strides):
            raise AttributeError(f"__sycl_usm_array_interface__: it has no name for {self.dtype} with strides "
                                 f"{self.strides}")
        self._settle()  # the interface has no streams
        strides = None if self.contiguous else tuple(step // self.itemsize for step in self.strides)
        return {"shape": self.shape, "typestr": self.dtype, "data": (self.address, self.readonly), "version": 1,
                "strides": strides, "offset": 0, "syclobj": self.context._sycl_queue(max(self.device, 0))}

    @property
    def __usm_ndarray__(self) -> Any:
        """An array of dpnp's or dpctl's tensors over this memory. While it lives, free() is refused."""
        self._settle()
        return sycl.exported(self)

    @property
    def sycl_queue(self) -> Any:
        """The dpctl.SyclQueue of the tensors that __usm_ndarray__ makes."""
        return sycl.tensor_of(self).sycl_queue

    def __dlpack_device__(self) -> tuple[int, int]:
        """(device type, device id) of DLPack."""
        return _dlpack_devices(self)[0]

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        """A DLPack capsule. While it lives, free() is refused."""
        self._check_active()
        devices = _dlpack_devices(self)
        device = devices[0] if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
        source, flags = self, FLAG_READ_ONLY if self.readonly else 0
        if device not in devices or copy:
            if copy is False or device not in (HOST_DEVICE, devices[0]):
                raise BufferError(f"this memory is at DLPack device {devices[0]}, not at {device}; "
                                  "gmm copies to the host only, and only when copy is not False")
            kind = Kind.HOST if device == HOST_DEVICE else self.kind
            source = self.copy(kind, stream=self.stream if self.contiguous else None)
            flags = FLAG_IS_COPIED
        version, dtype = tuple(max_version or (0, 0))[:2], source._dtype
        if dtype.minor_version and version < (1, dtype.minor_version):
            raise BufferError(f"{dtype.name} needs DLPack 1.{dtype.minor_version}; the consumer understands "
                              f"{'.'.join(map(str, version))}")
        if flags & FLAG_READ_ONLY and version < (1, 0):
            raise BufferError("the array is read-only, which only DLPack 1.0 and newer can say; the consumer asks for "
                              "an older form (no max_version)")
        if any(step % dtype.itemsize for step in source.strides):
            raise BufferError(f"DLPack has strides in elements; {source.strides} bytes are no whole number of "
                              f"{dtype.name}")
        source._order_for_consumer(device, stream)
        return source._capsule(device, dtype.code, dtype.minor_version if version >= (1, 0) else -1, flags)

    def _check_active(self):
        if self.buffer is None or self.info.state not in (State.PAUSED, State.PARTLY_PAUSED):
            return
        reaches = [step * (length - 1) for length, step in zip(self.shape, self.strides)]
        low = self.address + sum(reach for reach in reaches if reach < 0)
        if not self.context.wait_ready(low, sum(map(abs, reaches)) + self.itemsize, 0):
            raise BufferError("the memory is paused; resume its tag before exporting it")

    def _order_for_consumer(self, device, stream):
        """Orders the consumer's work behind the work that is queued on the memory's own stream."""
        if device[0] in (CPU, ONE_API):
            if stream is not None and stream != -1:
                raise ValueError(f"a stream ({stream!r}) cannot order a DLPack export to the CPU or to SYCL; pass None")
            self._settle()
            return
        if stream == -1:
            return
        if stream == 0:
            raise ValueError("DLPack does not allow stream 0 for CUDA: 1 is the legacy default stream, "
                             "2 the thread's own, -1 none")
        theirs = stream_number(as_stream(1 if stream is None else stream))
        if not self._is_ordered or theirs == (stream_number(self.stream) or 1):
            return
        context = self.context
        self._check_backend(context)
        with context.event(max(self.device, 0)) as event:
            event.record(self.stream)
            native.gmm_stream_wait_event(context, theirs, event, 0)


_make = functools.partial(native.View.__new__, Array)  # (memory, address, shape, strides, dtype, readonly)


def empty(self: Context, shape: Shape, dtype: Any = "float64", kind: KindLike = Kind.DEVICE, **options) -> Array:
    """Allocates an Array with undefined elements. The options are those of alloc()."""
    shape, dtype = as_shape(shape), as_dtype(dtype)
    strides, nbytes = c_layout(shape, dtype.itemsize)
    buffer = self.alloc(nbytes or 1, kind, **options)  # an array without elements has an address too
    return _make(buffer, buffer.address, shape, strides, dtype, False)


def zeros(self: Context, shape: Shape, dtype: Any = "float64", kind: KindLike = Kind.DEVICE, **options) -> Array:
    """Allocates an Array whose elements read as zero, filled in the order of the stream: see empty()."""
    return empty(self, shape, dtype, kind, zero=True, **options)


# Memory of other packages.


def over(owner, address, shape, strides, dtype, readonly, device=HOST_DEVICE, stream=None, context=None):
    """An array over external memory. The protocol says that the layout lies inside of it."""
    shape, dtype = as_shape(shape), as_dtype(dtype)
    steps, _ = c_layout(shape, dtype.itemsize)
    memory = External()
    memory.dlpack_device, memory.order, memory.importer = device, stream, context
    memory._is_out_of_reach = device[0] not in (CPU, CUDA_HOST, CUDA_MANAGED)
    memory._held = owner
    memory._open("external memory", None, int, address)
    return _make(memory, address, shape, steps if strides is None else tuple(strides), dtype, readonly)


def _dl_device(device):
    """gmm.HOST, a device's number, or (device type, device id) of DLPack."""
    if device is None or isinstance(device, tuple):
        return device and tuple(map(int, device))
    number = operator.index(device)
    return HOST_DEVICE if number == HOST else (CUDA, number)


def _copy_to_gmm(array, device, context, stream):
    """A copy in gmm's memory: on the host for HOST_DEVICE, else on the memory's device."""
    context = native.default_context() if context is None else context
    at = array.__dlpack_device__()
    if device is None or device == at:
        kind = {CPU: Kind.HOST, CUDA_HOST: Kind.HOST, CUDA_MANAGED: Kind.MANAGED}.get(at[0], Kind.DEVICE)
        number = at[1]
    elif device == HOST_DEVICE:
        kind, number = Kind.HOST, 0
    else:
        kind, number = Kind.DEVICE, device[1]
    if kind != Kind.HOST and context.info.backend_name == "host" and (device is not None or at[0] != CPU):
        raise BufferError(f"memory of DLPack device {device or at} needs a context of that device's backend; "
                          "this one is of the host backend")
    made = context.empty(array.shape, array._dtype, kind, device=number, stream=stream)
    _copy_elements(made, array, stream)
    return made


def _copy_elements(made, array, stream):
    """Copies any array of as many elements, behind the work on its own stream."""
    if array._host_reaches() or array.buffer is None:
        array._settle()
    made.copy_from(array._elements(), stream=stream)


def from_dlpack(obj: Any, *, device: Any = None, copy: bool | None = None, stream: Any = None,
                context: Any = None) -> Array:
    """An Array over an object with __dlpack__(). It copies only where the arguments ask for it or require it.

    device: where the array shall be: None: where the object is, gmm.HOST, a CUDA device's number, or DLPack's (type,
    id). copy: False: BufferError where a copy would be needed; True: a copy in gmm's memory. stream: the stream on
    which the array will be used; None: the default stream. context: allocates copies and orders streams; None: the
    default context. The array holds the object's memory. array.readonly is what the producer declares.
    """
    if not hasattr(obj, "__dlpack__") or not hasattr(obj, "__dlpack_device__"):
        raise TypeError(f"{type(obj).__name__} has no __dlpack__(); gmm.asarray() knows more protocols")
    wanted, at = _dl_device(device), tuple(map(int, obj.__dlpack_device__()))
    on_stream = None
    if at[0] in (CUDA, CUDA_MANAGED):
        on_stream = stream_number(as_stream(stream)) or 1
    elif at[0] not in (CPU, CUDA_HOST, ONE_API):
        raise BufferError(f"gmm does not know memory of DLPack device {at}")
    same = wanted is None or wanted == at or (wanted == HOST_DEVICE and at[0] == CUDA_HOST)
    if at[0] == ONE_API:
        sycl.wait_for_queue(obj)
    capsule = _capsule(obj, on_stream, wanted if not same and at[0] == CUDA_MANAGED else None, copy)
    # -1 requests no order: the array's contents are then ordered on no stream.
    array = _over_tensor(capsule, None if on_stream == -1 else on_stream, context)
    moved = not same and array.__dlpack_device__() != wanted
    if moved and copy is False:
        raise BufferError(f"the memory is at DLPack device {at}, its producer does not offer it at {wanted}, "
                          "and copy=False")
    if copy or moved:
        return _copy_to_gmm(array, wanted, context, None if on_stream == -1 else stream)
    return array


def _capsule(obj, stream, dl_device, copy):
    """A capsule of the newest form that the producer knows."""
    options = {} if stream is None else {"stream": stream}
    newer = {"dl_device": dl_device, "copy": False if copy is False else None}
    newer = {name: value for name, value in newer.items() if value is not None}
    for more in ({"max_version": DLPACK_VERSION, **newer}, {"max_version": DLPACK_VERSION}):
        try:
            return obj.__dlpack__(**options, **more)
        except TypeError:  # DLPack before 1.0, or with some of the arguments only
            pass
    return obj.__dlpack__(**options)


def _over_tensor(capsule, stream, context):
    address, shape, strides, code, readonly, device = native.dlpack_import(capsule)
    dtype = _BY_DLPACK.get(code)
    if dtype is None:
        raise BufferError(f"DLPack's type (code, bits, lanes) = {code} is none that gmm knows")
    shape = memoryview(shape or b"").cast("q").tolist()
    if any(length < 0 for length in shape):
        raise BufferError(f"a DLPack tensor of the shape {shape}")
    if strides is not None:
        strides = [step * dtype.itemsize for step in memoryview(strides).cast("q")]
        if any(abs(step) > sys.maxsize for step in strides):
            raise BufferError("a DLPack tensor whose stride is beyond any address space")
    return over(capsule, address, shape, strides, dtype, readonly, device, stream, context)


def asarray(obj: Any, *, copy: bool | None = None, stream: Any = None, context: Any = None) -> Array:
    """An Array over an object with DLPack, the CUDA Array Interface, SYCL's interface or the buffer protocol.

    Nothing is copied. An Array is returned as it is, and a Buffer as an array of its bytes. copy: True: a copy in gmm's
    memory. stream: the stream on which the array will be used. context: see from_dlpack(). gmm.array() copies objects
    without any of these protocols, such as lists of numbers.
    """
    if isinstance(obj, native.Memory):
        obj = Array(obj)
    if isinstance(obj, Array):
        return _copy_to_gmm(obj, None, context, stream) if copy else obj
    array = refused = None
    if hasattr(obj, "__dlpack__"):
        try:
            return from_dlpack(obj, copy=copy, stream=stream, context=context)
        except BufferError as error:  # an old producer's read-only memory, say: another protocol may offer it
            refused = error
    if hasattr(obj, "__cuda_array_interface__"):
        array = _over_interface(obj, obj.__cuda_array_interface__, CUDA, context)
    elif hasattr(obj, "__sycl_usm_array_interface__"):
        array = _over_interface(obj, obj.__sycl_usm_array_interface__, ONE_API, context)
    else:
        try:
            array = _over_buffer(obj, context)
        except TypeError:
            if hasattr(obj, "__array_interface__"):
                array = _over_interface(obj, obj.__array_interface__, CPU, context)
    if array is None:
        raise refused or TypeError(
            f"{type(obj).__name__} has none of __dlpack__, __cuda_array_interface__, __sycl_usm_array_interface__ and "
            "the buffer protocol; gmm.array() copies lists of numbers")
    return _copy_to_gmm(array, None, context, stream) if copy else array


def _over_interface(obj, interface, device_type, context):
    """An Array by the CUDA Array Interface, or by those of NumPy and SYCL, which follow it."""
    if interface.get("mask") is not None:
        raise BufferError("gmm cannot import an array with a mask")
    data, strides, offset = interface.get("data"), interface.get("strides"), interface.get("offset") or 0
    if device_type == ONE_API:  # strides and the offset are in elements
        itemsize = as_dtype(interface["typestr"]).itemsize
        offset *= itemsize
        strides = None if strides is None else [step * itemsize for step in strides]
    if not isinstance(data, tuple):
        seen = _over_buffer(memoryview(obj if data is None else data).cast("B"), context)
        seen._memory._nbytes = seen.size
        return Array(seen._memory, interface["shape"], interface["typestr"], strides=strides, offset=offset,
                     readonly=seen.readonly)
    address, readonly, device, stream = data[0] + offset, bool(data[1]), 0, None
    if device_type == CUDA:
        stream = interface.get("stream")
        if stream == 0:
            raise ValueError("the CUDA Array Interface does not allow stream 0: 1 is the legacy default stream, "
                             "2 the thread's own")
        if address:  # the interface does not name the device; the driver does, where the context is CUDA's
            knows = native.default_context() if context is None else context
            device = max(knows.query(address).device, 0) if knows.info.backend_name == "cuda" else 0
    elif device_type == ONE_API:
        sycl.wait_for_queue(obj, interface)
        readonly = readonly and not sycl.means_writable(obj)
    return over(obj, address, interface["shape"], strides, interface["typestr"], readonly, (device_type, device),
                as_stream(stream), context)


def _over_buffer(obj, context):
    view = memoryview(obj)
    if view.suboffsets:
        raise BufferError("the buffer's elements lie behind pointers, which gmm does not support")
    letter = view.format.lstrip("@=<")
    if letter not in _LETTERS:
        raise BufferError(f"gmm has no element type for the buffer's format {view.format!r}")
    return over(view, native.view_address(view), view.shape, view.strides or None,
                 f"{_LETTERS[letter]}{view.itemsize}", view.readonly, HOST_DEVICE, None, context)


def array(self: Context, source: Any, dtype: Any = None, kind: KindLike = Kind.DEVICE, *, device: int = 0,
          tag: TagLike = 0, stream: Any = None) -> Array:
    """A new Array with a copy of an array of any package, of a buffer, or of numbers, which NumPy reads.

    dtype: None: that of the source. An array is never converted, so another dtype than its own is a TypeError. Without
    a stream the call waits for the copy.
    """
    wanted, options = None if dtype is None else as_dtype(dtype), {"device": device, "tag": tag, "stream": stream}
    try:
        seen = asarray(source, stream=stream, context=self)
    except TypeError:
        if hasattr(source, "__dlpack__") or hasattr(source, "__cuda_array_interface__"):
            raise
        import numpy

        numbers = numpy.asarray(source, None if wanted is None else _numpy_dtype(wanted))
        made = empty(self, numbers.shape, wanted or numbers.dtype, kind, **options)
        made.copy_from(numpy.ascontiguousarray(numbers).reshape(-1).view("u1"), stream=stream)
        return made
    if wanted not in (None, seen._dtype):
        raise TypeError(f"the source has elements of {seen.dtype_name}; gmm does not convert: request that dtype, "
                        "or convert with the source's library")
    made = empty(self, seen.shape, seen._dtype, kind, **options)
    _copy_elements(made, seen, stream)
    return made
