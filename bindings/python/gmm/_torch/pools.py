# SPDX-License-Identifier: Apache-2.0
"""The pool of PyTorch that a thread allocates from.

PyTorch caches freed memory, and would give it to a tensor of another region. So each region has pools of its own.
Where several pools are in use at once, PyTorch uses the one that was begun first. Here the innermost counts, so this
module ends the outer use for that time.

Destroying a pool while a thread allocates from one, or captures a graph, ends the process: ~MemPool() asserts that
there is none on its device (synchronize_and_free_events() in c10/cuda/CUDACachingAllocator.cpp). So retired pools wait
here until there is none.
"""
import collections
import contextlib
import os
import threading


_threads = threading.local()
_lock = threading.RLock()  # reentrant: the garbage collector may end a with block anywhere
_busy = 0  # uses and captures of all threads that are under way
_retired = []  # pools to destroy once nothing is under way


def _destroy_retired(torch):
    with _lock:
        # PyTorch knows only this thread's captures; those of use() and capturing() are counted.
        if _retired and not _busy and not torch.cuda.is_current_stream_capturing():
            _retired.clear()


def retire(torch, pool):
    """Destroys a pool as soon as that is safe."""
    with _lock:
        _retired.append(pool)
        _destroy_retired(torch)


@contextlib.contextmanager
def capturing(torch):
    """Destroys no pool inside its with block."""
    global _busy  # pylint: disable=global-statement
    with _lock:
        _destroy_retired(torch)
        _busy += 1
    try:
        yield
    finally:
        with _lock:
            _busy -= 1
            _destroy_retired(torch)


def _begin(torch, pools):
    """Lets the thread allocate from pools, one on each of some devices. Returns the stack whose close() ends that."""
    with contextlib.ExitStack() as stack:
        if pools:
            stack.enter_context(capturing(torch))
        for device, pool in pools:
            stack.enter_context(torch.cuda.use_mem_pool(pool, device=device))
        return stack.pop_all()


@contextlib.contextmanager
def use(torch, pools, ended=None):
    """Routes the allocations of this thread to pools, which are pairs of a device and its pool.

    A backward runs on this thread, because PyTorch's pools do not route the threads of autograd.
    ended: called at the end, while the thread uses no pool.
    """
    uses = _threads.__dict__.setdefault("uses", [])  # of this thread, innermost last
    outer = uses[-1] if uses else None
    if outer is not None:
        outer["begun"].close()
    mine = {"pools": pools}
    try:
        mine["begun"] = _begin(torch, pools)
        try:
            uses.append(mine)
            with torch.autograd.set_multithreading_enabled(False):
                yield
        finally:
            uses.remove(mine)
            mine["begun"].close()
    finally:
        if ended is not None:
            ended()
        if outer is not None:
            outer["begun"] = _begin(torch, outer["pools"])


def devices(torch):
    """The current device and the others that this process uses. Making a pool on another device would open it."""
    current = torch.cuda.current_device()
    in_use = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    count = torch.cuda.device_count() if in_use else 0
    return [current] + [device for device in range(count) if device != current and in_use(device)]


class Pools:
    """The pools of regions, by a key.

    Two regions of a key at once, nested or in two threads, have two pools, because PyTorch cannot begin one twice.
    """

    def __init__(self, torch, allocator=None):
        self._torch = torch
        self._allocator = allocator
        self._lock = threading.Lock()
        self._idle = collections.defaultdict(list)  # by key and device

    @contextlib.contextmanager
    def use(self, key=None, keep=True):
        """Routes the allocations of this thread to pools of the key.

        keep: False: the end destroys the pools and returns their freed memory to the driver.
        """
        taken = []  # the only reference to each, so that clear() destroys them

        def end():
            self._put(key, taken)
            if not keep:
                self.clear()

        try:
            for device in devices(self._torch):
                taken.append((device, self._take(key, device)))
        except BaseException:
            end()
            raise
        with use(self._torch, taken, end):
            yield

    def _take(self, key, device):
        with self._lock:
            if self._idle[key, device]:
                return self._idle[key, device].pop()
        pool = self._torch.cuda.MemPool
        with self._torch.cuda.device(device):
            return pool() if self._allocator is None else pool(self._allocator.allocator())

    def _put(self, key, taken):
        with self._lock:
            while taken:
                device, pool = taken.pop()
                self._idle[key, device].append(pool)

    def clear(self):
        """Destroys the idle pools as soon as that is safe."""
        with self._lock:
            idle, self._idle = self._idle, collections.defaultdict(list)
        with _lock:
            _retired.extend(pool for pools in idle.values() for pool in pools)
            idle.clear()
            _destroy_retired(self._torch)


def expandable_segments():
    """The environment's variable that asks for expandable segments; None where none does.

    With them PyTorch uses no pluggable allocator.
    """
    return next((name for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
                 if "expandable_segments:True" in os.environ.get(name, "")), None)
