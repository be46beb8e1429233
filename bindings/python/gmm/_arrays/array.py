# SPDX-License-Identifier: Apache-2.0
"""gmm.Array: what of it is written in Python. The rest is native/array.c."""
import ctypes
import operator
import struct
import sys

from gmm import _native as native
from gmm._core.buffer import not_pickled
from gmm._core.interchange import CPU, ONE_API, Interchange, methods_of
from gmm._core.stream import as_stream
from gmm._native import Array

# For struct; complex numbers are two.
STRUCT_FORMATS = {
    "|u1": "B", "|i1": "b", "|b1": "?", "<u2": "H", "<i2": "h", "<u4": "I", "<i4": "i", "<u8": "Q", "<i8": "q", "<f2": "e", "<f4": "f", "<f8": "d",
    "<c8": "ff", "<c16": "dd"}
_PYTHON_TYPES = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}


def dtype_name(dtype):
    """The name of another package's element type: of NumPy, PyTorch, Python, or whatever has a typestr."""
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
        raise ImportError("numpy() needs NumPy, which is not installed; memoryview(array) does without where the host reaches the memory") from None
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
            raise TypeError(f"NumPy has no {array.dtype} without the package ml_dtypes; take view('uint{8 * array.itemsize}')") from None
        return numpy.dtype(getattr(ml_dtypes, array.dtype))


def _contiguous(array, doing):
    if not array.contiguous:
        raise ValueError(f"{doing} needs an array whose elements lie one after another; this one has the strides {array.strides}")


def _check_backend(context, array):
    """Another package's memory of a device is for a context that knows the device: the host's processor must not look there."""
    if array.buffer is not None or array._host_reaches():
        return
    needed = "sycl" if array._foreign_device[0] == ONE_API else "cuda"
    if context.info.backend_name != needed:
        raise BufferError(
            f"the memory is of DLPack device {array._foreign_device}; a context of the {context.info.backend_name} backend cannot copy it: open one "
            f"of the {needed} backend, and import with its from_dlpack() or asarray()")


class _Methods(Interchange):
    @property
    def context(self):
        """The gmm.Context of the memory; for memory of another package the one that imported it, or the default one: it copies and orders streams."""
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
        """All that the library knows about the memory at the first element: PointerInfo, as it is now."""
        return self.context.query(self.address)

    @property
    def kind(self):
        """The kind of memory; Kind.UNSPECIFIED for ordinary host memory of another package."""
        return self.info.kind

    @property
    def device(self):
        """The device that it belongs to; HOST for memory that was moved to the host."""
        return self.info.device

    def free(self, stream=None):
        """Frees the buffer that the elements lie in, for all arrays over it. Memory of another package is let go. Freeing twice does nothing.

        BufferError while a view of it lives.
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
        """Sets every byte to a value. Without a stream it waits until that is done."""
        _contiguous(self, "fill()")
        self._writable("fill()")
        if self.buffer is None and self._foreign_device[0] == CPU:
            if not 0 <= operator.index(value) <= 255:
                raise ValueError(f"a byte is a number from 0 to 255, not {value}")
            ctypes.memset(self.address, value, self.nbytes)  # a GPU's driver fills no ordinary memory
        elif self.nbytes:
            self._queue(native.gmm_fill, (self, value, self.nbytes), stream)

    def copy_from(self, source, *, stream=None):
        """Copies the elements of an array, of a buffer, or of an object with the buffer protocol, as many bytes as these are.

        Without a stream it waits until the bytes are there. With one it only queues the copy from memory of gmm; a copy from an object of
        Python waits all the same.
        """
        _contiguous(self, "copy_from()")
        self._writable("copy_from()")
        self._copy(source, stream, lambda address: (self, address, self.nbytes), False)

    def copy_to(self, destination, *, stream=None):
        """Copies the elements into an array, a buffer, or a writable object with the buffer protocol, of as many bytes. Waits as copy_from()."""
        _contiguous(self, "copy_to()")
        if isinstance(destination, Array):
            destination._writable("copy_to()")
        self._copy(destination, stream, lambda address: (address, self, self.nbytes), True)

    def copy(self, kind=None, *, stream=None):
        """A new contiguous Array of the same elements in gmm's memory: of the same kind and device by itself. Waits without a stream."""
        info = self.info
        if kind is None:
            kind = info.kind or native.GMM_KIND_HOST
        where = max(info.device, 0)
        made = self.context.empty(self.shape, self.dtype, kind, device=where, stream=self.stream if stream is None else stream)
        if self.contiguous:
            made.copy_from(self, stream=stream)
            return made
        if not self._host_reaches():
            made.free()
            raise BufferError("a strided array that the host cannot reach is copied by the library that computes with it; gmm copies contiguous ones")
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
        if self.buffer is None and getattr(other, "buffer", None) is not None and isinstance(other, (Array, native.Memory)):
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
                raise ValueError(f"{nbytes} bytes do not fill an array of {self.nbytes} bytes, nor the other way round")
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
        """The same memory in a type that the buffer protocol has a word for."""
        return self if self.dtype[0] in "<|" else self.view(f"uint{8 * self.itemsize}")

    def _wait_for_own_stream(self):
        if self.buffer is not None or self._foreign_stream is not None:
            native.gmm_stream_synchronize(self._stream_context, self.stream)

    def numpy(self, *, copy=None):
        """The array for NumPy: the same memory where the host reaches it, else a copy of it; both after the work queued on the array's stream.

        copy: False: never a copy (BufferError); True: always one.
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
        """For NumPy: numpy()."""
        try:
            seen = self.numpy(copy=copy)
        except BufferError as error:
            raise ValueError(str(error)) from None  # NumPy's word for copy=False that is not possible
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
            values = [values[at:at + length] for at in range(0, len(values), length)] if length else [[] for _ in range(self.shape[0])]
        return values if self.ndim else values[0]

    def item(self):
        """The one element of an array of one, as a number of Python."""
        if self.size != 1:
            raise ValueError(f"item() is for arrays of one element; this one has {self.size}")
        return self.reshape(1).tolist()[0]

    def __bytes__(self):
        """The elements in C's order."""
        if not self.contiguous:
            return bytes(self.copy(native.GMM_KIND_HOST))
        copied = bytearray(self.nbytes)
        self.copy_to(copied)
        return bytes(copied)

    def __reduce_ex__(self, protocol):
        raise not_pickled(self)  # multiprocessing's pickler does not ask here: multiprocessing.py

    def _describe(self):
        what = f"<gmm.Array {self.shape} of {self.dtype_name}"
        if self.closed:
            return f"{what}, closed>"
        return f"{what} at 0x{self.address:x}{', read-only' if self.readonly else ''}>"


native.extend(Array, methods_of(_Methods))
