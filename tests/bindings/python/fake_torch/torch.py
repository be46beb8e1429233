# SPDX-License-Identifier: Apache-2.0
"""NOT PyTorch: a fake of the parts that gmm.memory_saver and gmm.vllm use, for tests without PyTorch and a GPU.

Device memory is the fake CUDA driver's. The caching allocator does what matters to the drop-ins as PyTorch's does:
pools that keep what was freed, the first pool that was begun for a thread wins, none is begun twice, and pluggable
allocators are called for their pools only.
"""
import collections
import contextlib
import ctypes
import itertools
import math
import os
import struct
import sys
import threading
from types import SimpleNamespace

SEGMENT = 2 << 20
driver = ctypes.CDLL("libcuda.so.1")
ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL)
runtime = ctypes.CDLL(None)  # as a program that is linked with the runtime: what LD_PRELOAD names comes first


class ThreadState(threading.local):
    device, multithreading = 0, True


state = ThreadState()
contexts = {}
lock = threading.RLock()
settings = []


class OutOfMemoryError(RuntimeError):
    pass


def call(library, name, *arguments):
    result = getattr(library, name)(*arguments)
    if result != 0:
        raise RuntimeError(f"{name}: CUDA error {result}")


# Devices.


def set_device(index):
    """Makes the context of a device current, as every use of it does."""
    state.device = index
    with lock:
        if index not in contexts:
            call(driver, "cuInit", 0)
            contexts[index] = ctypes.c_void_p()
            call(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(contexts[index]), index)
    call(runtime, "cudaSetDevice", index)
    call(driver, "cuCtxSetCurrent", contexts[index])


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


def device_count():
    count = ctypes.c_int()
    call(driver, "cuInit", 0)
    call(driver, "cuDeviceGetCount", ctypes.byref(count))
    return count.value


def mem_get_info(index=None):
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with use_device(state.device if index is None else index):
        call(driver, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


# The caching allocator. An allocator is a pair of functions with the arguments of a pluggable one.


def cuda_malloc(size, _device, _stream):
    out = ctypes.c_void_p()
    return out.value if runtime.cudaMalloc(ctypes.byref(out), ctypes.c_size_t(size)) == 0 else None


def cuda_free(address, _size, _device, _stream):
    call(runtime, "cudaFree", ctypes.c_void_p(address))


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
        self.allocator, self.idle, self.live = allocator, [], 0

    def take(self, size, device):
        block = next((block for block in self.idle if block.size >= size and block.device == device), None)
        if block is not None:
            self.idle.remove(block)
        else:
            segment = -(-size // SEGMENT) * SEGMENT
            with use_device(device):
                address = (self.allocator or (cuda_malloc, cuda_free))[0](segment, device, None)
            if not address:
                raise OutOfMemoryError("CUDA out of memory")
            block = Block(address, segment, device, self)
        self.live += 1
        return block

    def release(self):
        idle, self.idle = self.idle, []
        for block in idle:
            with use_device(block.device):
                (self.allocator or (cuda_malloc, cuda_free))[1](block.address, block.size, block.device, None)


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
        if pool.segments.allocator and pool.device != device:
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
def graph(cuda_graph, pool=None, stream=None, capture_error_mode="global"):
    """Routes allocations to a pool of the graph's own, as a capture does. It records nothing."""
    cuda_graph.arguments = {"pool": pool, "stream": stream, "capture_error_mode": capture_error_mode}
    cuda_graph.memory = MemPool()
    with use_mem_pool(cuda_graph.memory):
        yield


# Tensors.


class HostBytes:
    def __init__(self, buffer):
        self.address, self.buffer = ctypes.addressof(buffer), buffer

    def read(self, size):
        return ctypes.string_at(self.address, size)

    def write(self, content):
        ctypes.memmove(self.address, content, len(content))


class DeviceBytes:
    """A block of the caching allocator, which goes back when nobody looks at it any more."""

    def __init__(self, size, device):
        with lock:
            mine = (device, threading.get_ident())
            segments = next((segments for at, segments, thread in begun if (at, thread) == mine), default)
            self.block = segments.take(size, device)
        self.address = self.block.address

    def __del__(self):
        with lock:
            self.block.pool.live -= 1
            self.block.pool.idle.append(self.block)

    def read(self, size):
        buffer = ctypes.create_string_buffer(size)
        with use_device(self.block.device):
            call(driver, "cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(self.address), ctypes.c_size_t(size))
        return buffer.raw

    def write(self, content):
        with use_device(self.block.device):
            call(driver, "cuMemcpyHtoD_v2", ctypes.c_uint64(self.address), content, ctypes.c_size_t(len(content)))


dtype = collections.namedtuple("dtype", "name itemsize code")
uint8, int64, float32 = dtype("uint8", 1, "B"), dtype("int64", 8, "q"), dtype("float32", 4, "f")
Device = collections.namedtuple("Device", "type index")


def device(text):
    kind, _, number = text.partition(":")
    return Device(kind, int(number) if number else current_device() if kind == "cuda" else None)


class Tensor:
    def __init__(self, storage, shape, dtype, device, is_contiguous=True):
        self.storage, self.shape, self.dtype, self.device = storage, tuple(shape), dtype, device
        self.is_contiguous = lambda: is_contiguous
        self.is_cuda, self.nbytes = device.type == "cuda", math.prod(shape) * dtype.itemsize

    def data_ptr(self):
        return self.storage.address if self.nbytes else 0

    def stride(self):
        return ()

    def t(self):
        return Tensor(self.storage, self.shape[::-1], self.dtype, self.device, False)

    def view(self, what):
        shape, kind = ((self.nbytes // what.itemsize,), what) if isinstance(what, dtype) else (what, self.dtype)
        return Tensor(self.storage, shape, kind, self.device)

    def content(self):
        return self.storage.read(self.nbytes)

    def clone(self):
        made = empty(self.shape, self.dtype, self.device)
        made.storage.write(self.content())
        return made

    def tolist(self):
        return memoryview(self.content()).cast(self.dtype.code).tolist()

    def fill_(self, value):
        self.storage.write(struct.pack("=" + self.dtype.code, value) * math.prod(self.shape))
        return self


def empty(shape, dtype=float32, device="cpu"):
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    place = globals()["device"](device) if isinstance(device, str) else device
    size = max(1, math.prod(shape) * dtype.itemsize)
    on_device = place.type == "cuda"
    storage = DeviceBytes(size, place.index) if on_device else HostBytes(ctypes.create_string_buffer(size))
    return Tensor(storage, shape, dtype, place)


def full(shape, value, dtype=float32, device="cpu"):
    return empty(shape, dtype, device).fill_(value)


def frombuffer(buffer, dtype):
    return Tensor(HostBytes(buffer), (ctypes.sizeof(buffer) // dtype.itemsize,), dtype, device("cpu"))


class set_multithreading_enabled(contextlib.AbstractContextManager):
    def __init__(self, mode):
        self.before, state.multithreading = state.multithreading, mode

    def __exit__(self, *exception):
        state.multithreading = self.before


def backward(function):
    """As Tensor.backward() chooses its thread: runs the function on a thread of autograd's, or on this one."""
    if not state.multithreading:
        return function()
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


autograd = SimpleNamespace(set_multithreading_enabled=set_multithreading_enabled, backward=backward)
version = SimpleNamespace(cuda="13.0", hip=None)
_C = SimpleNamespace(_cuda_hasPrimaryContext=contexts.__contains__, _accelerator_setAllocatorSettings=settings.append)
cuda = SimpleNamespace(
    memory=SimpleNamespace(CUDAPluggableAllocator=CUDAPluggableAllocator), set_device=set_device, device=use_device,
    current_device=current_device, device_count=device_count, mem_get_info=mem_get_info, MemPool=MemPool,
    use_mem_pool=use_mem_pool, empty_cache=empty_cache, CUDAGraph=CUDAGraph, graph=graph,
    is_available=lambda: driver.cuInit(0) == 0, is_current_stream_capturing=lambda: False)
