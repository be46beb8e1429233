# SPDX-License-Identifier: Apache-2.0
"""The methods of gmm.Array that are written in Python; native/array.c has the others."""
import ctypes
import operator
import struct
import sys

from gmm import _native as native
from gmm._core.buffer import not_pickled
from gmm._core.enums import as_kind
from gmm._core.errors import Error
from gmm._core.interchange import CPU, ONE_API, Interchange, methods_of
from gmm._core.stream import as_stream
from gmm._native import Array

# The struct module's letters; a complex number has two parts.
STRUCT_FORMATS = {
    "|b1": "?", "|u1": "B", "<u2": "H", "<u4": "I", "<u8": "Q", "|i1": "b", "<i2": "h", "<i4": "i", "<i8": "q",
    "<f2": "e", "<f4": "f", "<f8": "d", "<c8": "ff", "<c16": "dd"}
_PYTHON_TYPES = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}


def dtype_name(dtype):
    """The name of another package's element type: of NumPy, PyTorch or Python, or of a type with a typestr."""
    if dtype is None:
        return "float64"
    if dtype in _PYTHON_TYPES:
        return _PYTHON_TYPES[dtype]
    typestr = getattr(dtype, "str", None)  # numpy.dtype
    if isinstance(typestr, str):
        return dtype.name if typestr[1:2] == "V" else typestr
    if type(dtype).__module__ == "torch":
        return str(dtype).removeprefix("torch.")
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        return dtype_name(numpy.dtype(dtype))
    return getattr(dtype, "__name__", str(dtype))


native.set_helper("dtype_name", dtype_name)


def _numpy():
    try:
        import numpy
    except ImportError:
        raise ImportError("numpy() needs NumPy, which is not installed; "
                          "memoryview(array) needs none where the host reaches the memory") from None
    return numpy


def _numpy_dtype(array):
    """bfloat16 and the float8 types come from ml_dtypes."""
    numpy = _numpy()
    try:
        return numpy.dtype(array.dtype)
    except TypeError:
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(f"NumPy has no {array.dtype} without the package ml_dtypes; "
                            f"use view('uint{8 * array.itemsize}')") from None
        return numpy.dtype(getattr(ml_dtypes, array.dtype))


def _contiguous(array, doing):
    if not array.contiguous:
        raise ValueError(f"{doing} needs an array whose elements lie one after another; "
                         f"this one has the strides {array.strides}")


def _check_backend(context, array):
    """Refuses another package's device memory for a context of another backend, which cannot read it."""
    if array.buffer is not None or array._host_reaches():
        return
    needed = "sycl" if array._foreign_device[0] == ONE_API else "cuda"
    if context.info.backend_name != needed:
        raise BufferError(
            f"the memory is of DLPack device {array._foreign_device}; "
            f"a context of the {context.info.backend_name} backend cannot copy it: open one "
            f"of the {needed} backend, and import with its from_dlpack() or asarray()")


_MANY, _EDGE = 1000, 3  # as NumPy


def _edges(array, is_short):
    """Nested lists of texts; None stands for what is left out."""
    length = array.shape[0]
    cut = is_short and length > 2 * _EDGE
    parts = (array[:_EDGE], None, array[length - _EDGE:]) if cut else (array,)
    found = []
    for part in parts:
        if part is None:
            found.append(None)
        elif array.ndim == 1:
            found.extend(_number(value, array.dtype) for value in part.tolist())
        else:
            found.extend(_edges(part[i], is_short) for i in range(part.shape[0]))
    return found


def _number(value, dtype):
    digits = {"<f2": 4, "<f4": 7}.get(dtype)
    return repr(value) if digits is None or not isinstance(value, float) else repr(float(f"{value:.{digits}g}"))


def _text(array, is_short):
    if array.ndim == 0:
        return _number(array.item(), array.dtype)
    nested = _edges(array, is_short)

    def widest(items):
        return max((widest(item) if isinstance(item, list) else len(item or "...") for item in items), default=0)

    width = widest(nested)

    def show(items, depth):
        if any(isinstance(item, list) for item in items):
            apart = ",\n" + " " * (depth + 1)
            return "[" + apart.join("..." if item is None else show(item, depth + 1) for item in items) + "]"
        return "[" + ", ".join(f"{item or '...':>{width}}" for item in items) + "]"

    return show(nested, 0)


class _Methods(Interchange):
    @property
    def context(self):
        """The gmm.Context of the memory, which copies and orders streams.

        Memory of another package has the context that imported it, else the default one.
        """
        if self.buffer is not None:
            return self.buffer.context
        if self._foreign_context is not None:
            return self._foreign_context
        return native.default_context()

    @property
    def stream(self):
        """The stream that the contents are ordered on: a gmm.Stream, or a number."""
        if self.buffer is not None:
            return self.buffer.stream
        return self._foreign_stream or 0

    @property
    def info(self):
        """What the library knows now about the memory at the first element: PointerInfo."""
        return self.context.query(self.address)

    @property
    def kind(self):
        """The kind of memory; Kind.UNSPECIFIED for ordinary host memory of another package."""
        return self.info.kind

    @property
    def device(self):
        """The device that the memory belongs to; HOST for memory that was moved to the host."""
        return self.info.device

    def free(self, stream=None):
        """Frees the buffer that the elements lie in, for all arrays over it. A second call does nothing.

        Memory of another package is released to it. BufferError while a view of the memory lives.
        """
        if self.buffer is not None:
            self.buffer.free(stream)
        else:
            self._release()

    def close(self):
        """free() on the stream of the allocation."""
        self.free()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.free()

    def fill(self, value, *, stream=None):
        """Sets every byte to a value. Without a stream the call waits for it."""
        _contiguous(self, "fill()")
        self._writable("fill()")
        if self.buffer is None and self._foreign_device[0] == CPU:
            if not 0 <= operator.index(value) <= 255:
                raise ValueError(f"a byte is a number from 0 to 255, not {value}")
            ctypes.memset(self.address, value, self.nbytes)  # a GPU's driver does not fill ordinary memory
        elif self.nbytes:
            self._queue(native.gmm_fill, (self, value, self.nbytes), stream)

    def copy_from(self, source, *, stream=None):
        """Copies an array, a buffer, or an object with the buffer protocol into this array, of as many bytes.

        Without a stream the call waits for the copy. With a stream it only queues a copy from memory of gmm. A copy
        from an object of Python always waits.
        """
        _contiguous(self, "copy_from()")
        self._writable("copy_from()")
        self._copy(source, stream, lambda address: (self, address, self.nbytes), False)

    def copy_to(self, destination, *, stream=None):
        """Copies the elements into an array, a buffer, or a writable object with the buffer protocol.

        The destination has as many bytes. The call waits as copy_from() does.
        """
        _contiguous(self, "copy_to()")
        if isinstance(destination, Array):
            destination._writable("copy_to()")
        self._copy(destination, stream, lambda address: (address, self, self.nbytes), True)

    def copy(self, kind=None, *, stream=None):
        """A new contiguous Array of the same elements in gmm's memory. Without a stream the call waits for the copy.

        kind: None: the same kind. The device is the same.
        """
        info = self.info
        kind = as_kind(kind)
        if kind is None:
            kind = info.kind or native.GMM_KIND_HOST
        where = max(info.device, 0)
        queue_on = self.stream if stream is None else stream
        made = self.context.empty(self.shape, self.dtype, kind, device=where, stream=queue_on)
        if self.contiguous:
            made.copy_from(self, stream=stream)
            return made
        if not self._host_reaches():
            made.free()
            raise BufferError("gmm copies no strided array that the host cannot reach; "
                              "copy it with the library that computes with it")
        self._wait_for_own_stream()
        made.copy_from(memoryview(self._plain).tobytes())
        return made

    def _writable(self, doing):
        if self.readonly:
            raise ValueError(f"{doing}: the array is read-only")

    def _queue(self, function, arguments, stream, context=None):
        context = context or self.context
        _check_backend(context, self)
        queue_on = self.stream if stream is None else as_stream(stream)
        function(context, *arguments, queue_on)
        if stream is None:
            native.gmm_stream_synchronize(context, queue_on)

    def _copy(self, other, stream, arguments, writable):
        held, ordinary, context = None, False, self.context
        other_is_ours = isinstance(other, (Array, native.Memory)) and getattr(other, "buffer", None) is not None
        if self.buffer is None and other_is_ours:
            context = other.buffer.context
        if isinstance(other, Array):
            _contiguous(other, "the other side of a copy")
            nbytes, address = other.nbytes, other
            ordinary = other.buffer is None and other._foreign_device[0] == CPU
        elif isinstance(other, native.Memory):
            nbytes, address = other.nbytes, other
        else:
            held, ordinary = native.HostView(other, writable=writable), True
            nbytes, address = held.nbytes, held.address
        try:
            if nbytes != self.nbytes:
                raise ValueError(f"{nbytes} bytes cannot be copied from or to an array of {self.nbytes} bytes")
            if nbytes:
                if isinstance(other, Array):
                    _check_backend(context, other)
                self._queue(native.gmm_copy, arguments(address), stream, context)
                if ordinary and stream is not None:
                    native.gmm_stream_synchronize(context, as_stream(stream))
        finally:
            if held is not None:
                held.release()

    @property
    def _plain(self):
        """The same memory with an element type that the buffer protocol knows."""
        return self if self.dtype[0] in "<|" else self.view(f"uint{8 * self.itemsize}")

    def _wait_for_own_stream(self):
        if self.buffer is not None or self._foreign_stream is not None:
            native.gmm_stream_synchronize(self._stream_context, self.stream)

    def numpy(self, *, copy=None):
        """A NumPy array over the same memory where the host reaches it, else over a copy.

        The call waits for the work queued on the array's stream. copy: False: BufferError where a copy would be needed;
        True: always a copy.
        """
        numpy = _numpy()
        dtype = _numpy_dtype(self)
        if self._host_reaches():
            self._wait_for_own_stream()
            seen = numpy.asarray(memoryview(self._plain))
            seen = seen if seen.dtype == dtype else seen.view(dtype)
            return seen.copy() if copy else seen
        if copy is False:
            raise BufferError("the host cannot reach this memory, and copy=False")
        made = numpy.empty(self.shape, dtype)
        self.copy_to(made.reshape(-1).view("u1"))
        return made

    def __array__(self, dtype=None, copy=None):
        """numpy(), for NumPy."""
        try:
            seen = self.numpy(copy=copy)
        except BufferError as error:
            raise ValueError(str(error)) from None  # NumPy expects it where copy=False is not possible
        return seen if dtype is None or seen.dtype == dtype else seen.astype(dtype)

    def tolist(self):
        """The elements as nested lists of Python's numbers."""
        if self.dtype not in STRUCT_FORMATS:
            return self.numpy().tolist()
        letter = STRUCT_FORMATS[self.dtype]
        values = list(struct.unpack(f"={self.size * len(letter)}{letter[0]}", bytes(self)))
        if len(letter) == 2:
            values = [complex(real, imaginary) for real, imaginary in zip(values[::2], values[1::2])]
        for length in reversed(self.shape[1:]):
            if length:
                values = [values[at:at + length] for at in range(0, len(values), length)]
            else:
                values = [[] for _ in range(self.shape[0])]
        return values if self.ndim else values[0]

    def item(self):
        """The element of an array of one element, as a number of Python."""
        if self.size != 1:
            raise ValueError(f"item() needs an array of one element; this one has {self.size}")
        return self.reshape(1).tolist()[0]

    def __bytes__(self):
        """The elements in C's order."""
        if not self.contiguous:
            return bytes(self.copy(native.GMM_KIND_HOST))
        copied = bytearray(self.nbytes)
        self.copy_to(copied)
        return bytes(copied)

    def __reduce_ex__(self, protocol):
        raise not_pickled(self)  # multiprocessing's pickler asks _multiprocessing/reducers.py instead

    def _show(self):
        """str(): the elements, with those in the middle left out where there are many; repr() where gmm cannot copy."""
        try:
            return _text(self, self.size > _MANY)
        except (BufferError, Error, ImportError, TypeError, RuntimeError):
            return self._describe()

    def _describe(self):
        what = f"<gmm.Array {self.shape} of {self.dtype_name}"
        if self.closed:
            return f"{what}, closed>"
        return f"{what} at 0x{self.address:x}{', read-only' if self.readonly else ''}>"


native.extend(Array, methods_of(_Methods))
