# SPDX-License-Identifier: Apache-2.0
"""NOT PyTorch: a fake of the parts that gmm.memory_saver and gmm.vllm use, for tests without PyTorch and a GPU.

Device memory is the fake CUDA runtime's. The caching allocator does what matters to the drop-ins as PyTorch's does:
pools that keep what was freed, the first pool that was begun for a thread wins, none is begun twice, and pluggable
allocators are called for their pools only.
"""
import collections
import contextlib
import ctypes
import itertools
import math
import os
import sys
import threading
from types import SimpleNamespace

import numpy

SEGMENT = 2 << 20
ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL)
runtime = ctypes.CDLL(None)  # as a program that is linked with the runtime: what LD_PRELOAD names comes first


class ThreadState(threading.local):
    device = 0


state = ThreadState()
opened = set()  # the devices that were used
lock = threading.RLock()
settings = []


class OutOfMemoryError(RuntimeError):
    pass


def call(name, *arguments):
    result = getattr(runtime, name)(*arguments)
    if result != 0:
        raise RuntimeError(f"{name}: CUDA error {result}")


# Devices.


def set_device(index):
    """Makes the context of a device current, as every use of it does."""
    state.device = index
    opened.add(index)
    call("cudaSetDevice", index)


def current_device():
    set_device(state.device)
    return state.device


@contextlib.contextmanager
def use_device(index):
    before = state.device
    set_device(index)
    try:
        yield
    finally:
        set_device(before)


def mem_get_info(index=None):
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with use_device(state.device if index is None else index):
        call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


# The caching allocator. An allocator is a pair of functions with the arguments of a pluggable one.


def cuda_malloc(size, _device, _stream):
    out = ctypes.c_void_p()
    return out.value if runtime.cudaMalloc(ctypes.byref(out), ctypes.c_size_t(size)) == 0 else None


def cuda_free(address, _size, _device, _stream):
    call("cudaFree", ctypes.c_void_p(address))


class CUDAPluggableAllocator:
    def __init__(self, path, malloc, free):
        library, size, device, stream = ctypes.CDLL(path), ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p
        self.functions = (ctypes.CFUNCTYPE(ctypes.c_void_p, size, device, stream)((malloc, library)),
                          ctypes.CFUNCTYPE(None, ctypes.c_void_p, size, device, stream)((free, library)))

    def allocator(self):
        return self.functions


Block = collections.namedtuple("Block", "address size device pool")


class Segments:
    """Of a pool: they are kept when their tensor is gone."""

    def __init__(self, allocator=None):
        self.malloc, self.free = allocator or (cuda_malloc, cuda_free)
        self.is_pluggable, self.idle, self.live = allocator is not None, [], 0

    def take(self, size, device):
        block = next((block for block in self.idle if block.size >= size and block.device == device), None)
        if block is not None:
            self.idle.remove(block)
        else:
            segment = -(-size // SEGMENT) * SEGMENT
            with use_device(device):
                address = self.malloc(segment, device, None)
            if not address:
                raise OutOfMemoryError("CUDA out of memory")
            block = Block(address, segment, device, self)
        self.live += 1
        return block

    def release(self):
        idle, self.idle = self.idle, []
        for block in idle:
            with use_device(block.device):
                self.free(block.address, block.size, block.device, None)


default = Segments()
dropped = []  # segments of pools that nobody holds, with tensors that live
begun = []  # (device, segments, thread), in the order of their begin
ids = itertools.count(1)


class MemPool:
    def __init__(self, allocator=None):
        self.id, self.device, self.segments = (0, next(ids)), current_device(), Segments(allocator)

    def __del__(self):
        with lock:
            if any(device == self.device for device, *_ in begun):
                print("captures_underway.empty() INTERNAL ASSERT FAILED: a MemPool goes while one is in use",
                      file=sys.stderr, flush=True)
                os.abort()  # PyTorch throws in a destructor
            self.segments.release()
            if self.segments.live:
                dropped.append(self.segments)


@contextlib.contextmanager
def use_mem_pool(pool, device=None):
    device = current_device() if device is None else device
    entry = (device, pool.segments, threading.get_ident())
    with lock:
        if any(other[:2] == entry[:2] for other in begun):
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        if pool.segments.is_pluggable and pool.device != device:
            raise RuntimeError("the pool's allocator is unknown on this device")
        begun.append(entry)
    try:
        yield
    finally:
        with lock:
            begun.remove(entry)


def empty_cache():
    with lock:
        for segments in [default, *dropped]:
            segments.release()
        dropped[:] = [segments for segments in dropped if segments.live]


class CUDAGraph:
    arguments = None


@contextlib.contextmanager
def graph(cuda_graph, **arguments):
    """Routes allocations to a pool of the graph's own, as a capture does. It records nothing."""
    cuda_graph.arguments, cuda_graph.memory = arguments, MemPool()
    with use_mem_pool(cuda_graph.memory):
        yield


# Tensors. Those of the host are NumPy's.

float32, int64, uint8 = (numpy.dtype(name) for name in ("float32", "int64", "uint8"))
Device = collections.namedtuple("Device", "type index")


def device(text):
    kind, _, number = text.partition(":")
    return Device(kind, int(number) if number else current_device() if kind == "cuda" else None)


class HostTensor(numpy.ndarray):
    is_cuda, device = False, Device("cpu", None)
    clone = numpy.ndarray.copy

    def data_ptr(self):
        return self.ctypes.data

    def content(self):
        return self.tobytes()

    def view(self, what):
        return self.reshape(what) if isinstance(what, tuple) else super().view(what)


class Tensor:
    """A block of the caching allocator, which goes back when nobody looks at it any more."""

    is_cuda, has_own_order = True, True

    def __init__(self, shape, dtype, place):
        self.shape, self.dtype, self.device = shape, dtype, place
        self.nbytes = math.prod(shape) * dtype.itemsize
        with lock:
            mine = (place.index, threading.get_ident())
            segments = next((segments for at, segments, thread in begun if (at, thread) == mine), default)
            self.block = segments.take(max(1, self.nbytes), place.index)

    def __del__(self):
        with lock:
            self.block.pool.live -= 1
            self.block.pool.idle.append(self.block)

    def data_ptr(self):
        return self.block.address if self.nbytes else 0

    def is_contiguous(self):
        return self.has_own_order

    def stride(self):
        return ()

    def t(self):
        self.has_own_order = False
        return self

    def copy(self, to, source):
        with use_device(self.device.index):
            call("cudaMemcpy", ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(self.nbytes), 4)

    def cpu(self):
        out = numpy.empty(self.shape, self.dtype)
        self.copy(out.ctypes.data, self.data_ptr())
        return out

    def content(self):
        return self.cpu().tobytes()

    def tolist(self):
        return self.cpu().tolist()

    def fill_(self, value):
        content = numpy.full(self.shape, value, self.dtype)
        self.copy(self.data_ptr(), content.ctypes.data)
        return self


def empty(shape, dtype=float32, device="cpu"):
    place = globals()["device"](device)
    if place.type == "cpu":
        return numpy.empty(shape, dtype).view(HostTensor)
    return Tensor((shape,) if isinstance(shape, int) else tuple(shape), dtype, place)


def full(shape, value, dtype=float32, device="cpu"):
    made = empty(shape, dtype, device)
    (made.fill if device == "cpu" else made.fill_)(value)
    return made


def frombuffer(buffer, dtype):
    return numpy.frombuffer(buffer, dtype).view(HostTensor)


autograd = SimpleNamespace(set_multithreading_enabled=lambda mode: contextlib.nullcontext())  # it has no backward
version = SimpleNamespace(cuda="13.0", hip=None)
_C = SimpleNamespace(_cuda_hasPrimaryContext=opened.__contains__, _accelerator_setAllocatorSettings=settings.append)
cuda = SimpleNamespace(
    memory=SimpleNamespace(CUDAPluggableAllocator=CUDAPluggableAllocator), set_device=set_device, device=use_device,
    current_device=current_device, device_count=lambda: int(os.environ.get("FAKE_CUDA_DEVICES", "1")),
    mem_get_info=mem_get_info, MemPool=MemPool, use_mem_pool=use_mem_pool, empty_cache=empty_cache,
    CUDAGraph=CUDAGraph, graph=graph, is_current_stream_capturing=lambda: False)
