# SPDX-License-Identifier: Apache-2.0
"""NOT PyTorch: a fake of the parts that gmm.memory_saver and gmm.vllm use, for tests without PyTorch and a GPU.

Device memory is the fake CUDA driver's. The caching allocator does what matters to the drop-ins as PyTorch's does:
pools that keep what was freed, the first pool that was begun for a thread wins, none is begun twice, and pluggable
allocators are called for their pools only.
"""
import ctypes
import math
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


class device:
    def __init__(self, type):
        self.type, _, number = type.partition(":")
        self.index = int(number) if number else cuda.current_device() if type == "cuda" else None

    def __eq__(self, other):
        return (self.type, self.index) == (other.type, other.index)

    def __hash__(self):
        return hash((self.type, self.index))


class _HostBytes:
    def __init__(self, buffer):
        self.address, self._keep = ctypes.addressof(buffer), buffer

    def read(self, size):
        return ctypes.string_at(self.address, size)

    def write(self, content):
        ctypes.memmove(self.address, content, len(content))


class _DeviceBytes:
    """A block of the caching allocator, which goes back when nobody looks at it any more."""

    def __init__(self, size, index):
        self.block = cuda._allocate(size, index)
        self.address = self.block.address

    def __del__(self):
        cuda._give_back(self.block)

    def read(self, size):
        return cuda._read(self.address, size, self.block.index)

    def write(self, content):
        cuda._write(self.address, content, self.block.index)


class Tensor:
    def __init__(self, storage, shape, dtype, device, is_transposed=False):
        self._storage, self.shape, self.dtype, self.device = storage, tuple(shape), dtype, device
        self._is_transposed = is_transposed

    is_cuda = property(lambda self: self.device.type == "cuda")
    nbytes = property(lambda self: math.prod(self.shape) * self.dtype.itemsize)

    def data_ptr(self):
        return self._storage.address if self.nbytes else 0

    def stride(self):
        strides = [math.prod(self.shape[i + 1:]) for i in range(len(self.shape))]
        return tuple(reversed(strides)) if self._is_transposed else tuple(strides)

    def is_contiguous(self):
        return not self._is_transposed

    def t(self):
        return Tensor(self._storage, self.shape[::-1], self.dtype, self.device, not self._is_transposed)

    def view(self, what):
        if isinstance(what, dtype):
            return Tensor(self._storage, (self.nbytes // what.itemsize,), what, self.device)
        if math.prod(what) != math.prod(self.shape):
            raise RuntimeError("shape is invalid")
        return Tensor(self._storage, what, self.dtype, self.device)

    def _bytes(self):
        return self._storage.read(self.nbytes)

    def clone(self):
        made = empty(self.shape, self.dtype, self.device)
        made._storage.write(self._bytes())
        return made

    def tolist(self):
        return memoryview(self._bytes()).cast(self.dtype.code).tolist()

    def fill_(self, value):
        self._storage.write(struct.pack("=" + self.dtype.code, value) * math.prod(self.shape))
        return self


def empty(shape, dtype=float32, device="cpu"):
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    place = globals()["device"](device) if isinstance(device, str) else device
    size = max(1, math.prod(shape) * dtype.itemsize)
    on_device = place.type == "cuda"
    storage = _DeviceBytes(size, place.index) if on_device else _HostBytes(ctypes.create_string_buffer(size))
    return Tensor(storage, shape, dtype, place)


def full(shape, value, dtype=float32, device="cpu"):
    return empty(shape, dtype, device).fill_(value)


def frombuffer(buffer, dtype):
    return Tensor(_HostBytes(buffer), (ctypes.sizeof(buffer) // dtype.itemsize,), dtype, device("cpu"))


def get_device_module(device=None):
    """Upstream's wheel asks for it."""
    return cuda
