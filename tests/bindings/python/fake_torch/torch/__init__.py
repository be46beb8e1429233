# SPDX-License-Identifier: Apache-2.0
"""NOT PyTorch: a fake of the parts that gmm.memory_saver and gmm.vllm use, for tests without PyTorch and a GPU.

torch_memory_saver's own examples run on it too; the arithmetic that they do is NumPy's. Device memory is the fake CUDA
driver's. Its caching allocator does what matters to the drop-ins as PyTorch's does:
pools that keep what was freed, the first pool that was begun for a thread wins, none is begun twice, and pluggable
allocators are called for their pools only.
"""
import ctypes
import functools
import math
import operator
import struct

from . import _C, autograd, cuda, version


class dtype:  # as PyTorch spells it
    def __init__(self, name, size, code):
        self.name, self.itemsize, self.code = name, size, code

    def __repr__(self):
        return f"torch.{self.name}"


uint8 = dtype("uint8", 1, "B")
int64 = dtype("int64", 8, "q")
float32 = dtype("float32", 4, "f")
float64 = dtype("float64", 8, "d")


class device:
    def __init__(self, type, index=None):
        if ":" in type:
            type, number = type.split(":")
            index = int(number)
        self.type, self.index = type, index

    def __eq__(self, other):
        return (self.type, self.index) == (other.type, other.index)

    def __hash__(self):
        return hash((self.type, self.index))

    def __repr__(self):
        return f"device(type={self.type!r}, index={self.index})"


class _HostBytes:
    def __init__(self, address, keep):
        self.address, self._keep = address, keep


class _DeviceBytes:
    """A block of the caching allocator, which goes back when nobody looks at it any more."""

    def __init__(self, size, index):
        self.block = cuda._allocate(size, index)
        self.address = self.block.address

    def __del__(self):
        cuda._give_back(self.block)


class Tensor:
    def __init__(self, storage, shape, dtype, device, stride=None):
        self._storage, self.shape, self.dtype, self.device = storage, tuple(shape), dtype, device
        contiguous = (functools.reduce(operator.mul, self.shape[i + 1:], 1) for i in range(len(self.shape)))
        self._stride = stride or tuple(contiguous)

    is_cuda = property(lambda self: self.device.type == "cuda")
    nbytes = property(lambda self: self.numel() * self.dtype.itemsize)

    def numel(self):
        return math.prod(self.shape)

    def data_ptr(self):
        return self._storage.address if self.nbytes else 0

    def stride(self):
        return self._stride

    def is_contiguous(self):
        return self._stride == Tensor(None, self.shape, self.dtype, self.device).stride()

    def t(self):
        return Tensor(self._storage, self.shape[::-1], self.dtype, self.device, self._stride[::-1])

    def view(self, what):
        if isinstance(what, dtype):
            count = self.nbytes // what.itemsize
            return Tensor(self._storage, (count,), what, self.device)
        if math.prod(what) != self.numel():
            raise RuntimeError("shape is invalid")
        return Tensor(self._storage, what, self.dtype, self.device)

    def _bytes(self):
        if self.is_cuda:
            return cuda._read(self._storage.address, self.nbytes, self.device.index)
        return ctypes.string_at(self._storage.address, self.nbytes)

    def clone(self):
        return self.to(self.device, copy=True)

    def cpu(self):
        return self.to("cpu")

    def detach(self):
        return self

    def to(self, place, copy=False):
        if isinstance(place, dtype):
            return _of(self._array().astype(place.code), place, self.device)
        place = _place(place)
        if place == self.device and not copy:
            return self
        made = empty(self.shape, self.dtype, place)
        made._write(self._bytes())
        return made

    def copy_(self, other):
        self._write(_of(other._array(), self.dtype, device("cpu"))._bytes())
        return self

    # Arithmetic.

    def _array(self):
        import numpy  # what gmm's own tests of this fake use needs none

        return numpy.frombuffer(self._bytes(), self.dtype.code).reshape(self.shape)

    def _write(self, content):
        if self.is_cuda:
            cuda._write(self._storage.address, content, self.device.index)
        else:
            ctypes.memmove(self._storage.address, content, len(content))

    def __getitem__(self, index):
        array = self._array()[index]
        return _of(array, self.dtype, device("cpu"))

    def __setitem__(self, index, value):
        array = self._array().copy()
        array[index] = value._array() if isinstance(value, Tensor) else value
        self._write(array.tobytes())

    def __eq__(self, other):
        return self._array() == (other._array() if isinstance(other, Tensor) else other)

    __hash__ = object.__hash__

    def add(self, value):
        return _of(self._array() + value, self.dtype, self.device)

    def remainder(self, value):
        return _of(self._array() % value, self.dtype, self.device)

    def sum(self):
        return _of(self._array().sum(dtype="d"), float64, device("cpu"))

    def item(self):
        return self._array().item()

    def __float__(self):
        return float(self.item())

    def tolist(self):
        return memoryview(self._bytes()).cast(self.dtype.code).tolist() if len(self.shape) else self.item()

    def fill_(self, value):
        content = struct.pack("=" + self.dtype.code, value) * self.numel()
        if self.is_cuda:
            cuda._write(self._storage.address, content, self.device.index)
        else:
            ctypes.memmove(self._storage.address, content, len(content))
        return self


def _on_host(content, shape, dtype):
    buffer = ctypes.create_string_buffer(content, max(1, len(content)))
    return Tensor(_HostBytes(ctypes.addressof(buffer), buffer), shape, dtype, globals()["device"]("cpu"))


def _place(where):
    if isinstance(where, int):
        where = f"cuda:{where}"
    if not isinstance(where, str):
        return where
    place = device(where)
    return device("cuda", cuda.current_device()) if place.type == "cuda" and place.index is None else place


def _of(array, kind, place):
    made = empty(array.shape, kind, place)
    made._write(array.astype(kind.code).tobytes())
    return made


def empty(shape, dtype=float32, device="cpu"):
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    place = _place(device)
    size = math.prod(shape) * dtype.itemsize
    if place.type == "cpu":
        return _on_host(bytes(size), shape, dtype)
    return Tensor(_DeviceBytes(max(1, size), place.index), shape, dtype, place)


def full(shape, value, dtype=float32, device="cpu"):
    return empty(shape, dtype, device).fill_(value)


def frombuffer(buffer, dtype):
    size = ctypes.sizeof(buffer)
    if not size:
        raise ValueError("both buffer length and count must not be 0")
    return Tensor(_HostBytes(ctypes.addressof(buffer), buffer), (size // dtype.itemsize,), dtype, device("cpu"))


def randn(shape, dtype=float32, device="cpu"):
    import numpy

    return _of(numpy.random.default_rng(1).standard_normal(shape), dtype, _place(device))


def arange(count, dtype=int64):
    import numpy

    return _of(numpy.arange(count), dtype, device("cpu"))


def equal(a, b):
    return a.shape == b.shape and a._bytes() == b._bytes()


def all(array):
    return array.all()


def get_device_module():
    return cuda
