# SPDX-License-Identifier: Apache-2.0
"""Part of the fake of PyTorch: devices, and a caching allocator with pools over the CUDA driver that is found."""
import contextlib
import ctypes
import itertools
import os
import sys
import threading

from . import memory

_SEGMENT = 2 << 20
_driver = ctypes.CDLL("libcuda.so.1")
ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL)
_runtime = ctypes.CDLL(None)  # as a program that is linked with the runtime: what LD_PRELOAD names comes first
_contexts = {}
_lock = threading.RLock()


class OutOfMemoryError(RuntimeError):
    pass


def _must(result, what):
    if result != 0:
        raise RuntimeError(f"{what}: CUDA error {result}")


class _Threads(threading.local):
    device = 0


_threads = _Threads()


def _enter(index):
    """Makes the context of a device current, as every use of it does."""
    with _lock:
        if index not in _contexts:
            _must(_driver.cuInit(0), "cuInit")
            context = ctypes.c_void_p()
            _must(_driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), index), "cuDevicePrimaryCtxRetain")
            _contexts[index] = context
    _must(_runtime.cudaSetDevice(index), "cudaSetDevice")
    _must(_driver.cuCtxSetCurrent(_contexts[index]), "cuCtxSetCurrent")


def is_available():
    return _driver.cuInit(0) == 0


def device_count():
    count = ctypes.c_int()
    _must(_driver.cuInit(0), "cuInit")
    _must(_driver.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    return count.value


def current_device():
    _enter(_threads.device)
    return _threads.device


def set_device(index):
    _threads.device = index
    _enter(index)


@contextlib.contextmanager
def device(index):
    before = _threads.device
    set_device(index)
    try:
        yield
    finally:
        set_device(before)


def synchronize(device=None):
    _must(_driver.cuCtxSynchronize(), "cuCtxSynchronize")


def mem_get_info(index=None):
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with device(_threads.device if index is None else index):
        _must(_driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "cuMemGetInfo")
    return free.value, total.value


def _read(address, size, index=0):
    buffer = ctypes.create_string_buffer(max(1, size))
    with device(index):
        _must(_driver.cuMemcpyDtoH_v2(buffer, ctypes.c_uint64(address), ctypes.c_size_t(size)), "cuMemcpyDtoH")
    return buffer.raw[:size]


def _write(address, content, index=0):
    with device(index):
        _must(_driver.cuMemcpyHtoD_v2(ctypes.c_uint64(address), content, ctypes.c_size_t(len(content))), "cuMemcpyHtoD")


# --- The caching allocator


def _raw_alloc(size):
    out = ctypes.c_void_p()
    return out.value if _runtime.cudaMalloc(ctypes.byref(out), ctypes.c_size_t(size)) == 0 else None


def _raw_free(address):
    _must(_runtime.cudaFree(ctypes.c_void_p(address)), "cudaFree")


class _Pool:
    """Segments that are kept when their tensor is gone."""

    def __init__(self, allocator=None):
        self.allocator, self.idle, self.live, self.kept = allocator, [], 0, True

    def take(self, size, index):
        for block in self.idle:
            if block.size >= size and block.index == index:
                self.idle.remove(block)
                break
        else:
            segment = -(-size // _SEGMENT) * _SEGMENT
            with device(index):
                address = self.allocator.malloc(segment, index, None) if self.allocator else _raw_alloc(segment)
            if not address:
                raise OutOfMemoryError("CUDA out of memory")
            block = _Block(address, segment, index, self)
        self.live += 1
        return block

    def release(self):
        idle, self.idle = self.idle, []
        for block in idle:
            with device(block.index):
                if self.allocator:
                    self.allocator.free(block.address, block.size, block.index, None)
                else:
                    _raw_free(block.address)


class _Block:
    def __init__(self, address, size, index, pool):
        self.address, self.size, self.index, self.pool = address, size, index, pool


_default = _Pool()
_dropped = []  # pools that nobody holds, with tensors that live
_begun = []  # (device, pool, thread), in the order of their begin
_ids = itertools.count(1)


class MemPool:
    def __init__(self, allocator=None):
        if allocator is not None and not isinstance(allocator, memory._CustomAllocator):
            raise TypeError("MemPool takes what CUDAPluggableAllocator.allocator() gives")
        self.id = (0, next(_ids))
        self.device = current_device()
        self._pool = _Pool(allocator)

    def __del__(self):
        with _lock:
            if any(index == self.device for index, *_ in _begun):
                print("captures_underway.empty() INTERNAL ASSERT FAILED: a MemPool goes while one is in use",
                      file=sys.stderr, flush=True)
                os.abort()  # PyTorch throws in a destructor
            self._pool.kept = False
            self._pool.release()
            if self._pool.live:
                _dropped.append(self._pool)


@contextlib.contextmanager
def use_mem_pool(pool, device=None):
    index = current_device() if device is None else device
    with _lock:
        if any(entry[:2] == (index, pool._pool) for entry in _begun):
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        if pool._pool.allocator and pool.device != index:
            raise RuntimeError("the pool's allocator is unknown on this device")
        entry = (index, pool._pool, threading.get_ident())
        _begun.append(entry)
    try:
        yield
    finally:
        with _lock:
            _begun.remove(entry)


def _allocate(size, index):
    with _lock:
        for begun, pool, thread in _begun:
            if (begun, thread) == (index, threading.get_ident()):
                return pool.take(size, index)
        return _default.take(size, index)


def _give_back(block):
    with _lock:
        block.pool.live -= 1
        block.pool.idle.append(block)


def empty_cache():
    with _lock:
        _default.release()
        for pool in list(_dropped):
            pool.release()
            if not pool.live:
                _dropped.remove(pool)


# --- Graphs


def is_current_stream_capturing():
    return False


class CUDAGraph:
    arguments = None


@contextlib.contextmanager
def graph(cuda_graph, pool=None, stream=None, capture_error_mode="global"):
    """Routes allocations to a pool of the graph's own, as a capture does. It records nothing."""
    cuda_graph.arguments = {"pool": pool, "stream": stream, "capture_error_mode": capture_error_mode}
    cuda_graph.memory = MemPool()
    with use_mem_pool(cuda_graph.memory):
        yield
