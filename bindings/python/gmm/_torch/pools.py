# SPDX-License-Identifier: Apache-2.0
"""Which of PyTorch's memory pools the allocations of a thread go to.

PyTorch keeps what it freed, and would give it to a tensor of another region: each region has pools of its own. Where several are in use at
once PyTorch takes the one that was begun first; here the innermost counts, so an outer one is ended meanwhile.

A pool that goes while any thread allocates to one, or captures a graph, ends the process: ~MemPool() asserts that there is none on its device
(synchronize_and_free_events() in c10/cuda/CUDACachingAllocator.cpp). So what is to go waits here until there is none.
"""
import contextlib
import threading


class _Threads(threading.local):
    def __init__(self):
        self.uses = []  # of this thread, innermost last


_threads = _Threads()
_lock = threading.RLock()  # again by the same thread: the garbage collector may end a with block anywhere
_busy = 0  # uses of all threads that are begun, and captures
_gone = []  # pools that nobody wants any more


def _let_go(torch):
    with _lock:
        # Of captures that the program began itself only this thread's can be seen.
        if _gone and not _busy and not torch.cuda.is_current_stream_capturing():
            _gone.clear()


def retire(torch, pool):
    """Takes a pool that nobody wants any more; it goes when it may."""
    with _lock:
        _gone.append(pool)
        _let_go(torch)


@contextlib.contextmanager
def capturing(torch):
    """No pool goes inside of its with block."""
    global _busy  # pylint: disable=global-statement
    with _lock:
        _let_go(torch)
        _busy += 1
    try:
        yield
    finally:
        with _lock:
            _busy -= 1
            _let_go(torch)


class _Use:
    """Allocations of the thread on some devices go to one pool each, between begin() and end()."""

    def __init__(self, torch, pools):
        self._torch = torch
        self._pools = pools
        self._begun = None

    def begin(self):
        with contextlib.ExitStack() as stack:
            if self._pools:
                stack.enter_context(capturing(self._torch))
            for device, pool in self._pools:
                stack.enter_context(self._torch.cuda.use_mem_pool(pool, device=device))
            self._begun = stack.pop_all()

    def end(self):
        begun, self._begun = self._begun, None
        begun.close()


@contextlib.contextmanager
def use(torch, pools, ended=None):
    """Routes the allocations of this thread to pools, given as pairs of a device and its pool. ended: called after it, when the thread uses none."""
    uses = _threads.uses
    outer = uses[-1] if uses else None
    if outer is not None:
        outer.end()
    mine = _Use(torch, pools)
    try:
        mine.begin()
        try:
            uses.append(mine)
            yield
        finally:
            uses.remove(mine)
            mine.end()
    finally:
        if ended is not None:
            ended()
        if outer is not None:
            outer.begin()


@contextlib.contextmanager
def use_new(torch, allocator):
    """The same with pools that go with the block: what was allocated there and freed goes back to the driver at its end."""
    pools = []

    def drop():
        with _lock:
            _gone.extend(pool for _, pool in pools)
            pools.clear()  # an exception's traceback holds this frame for longer
            _let_go(torch)

    try:
        for device in devices(torch):
            pools.append((device, make(torch, device, allocator)))
    except BaseException:
        drop()
        raise
    with use(torch, pools, drop):
        yield


def devices(torch):
    """The current device, and those that this process uses besides. Others would be opened by making a pool there."""
    current = torch.cuda.current_device()
    in_use = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    count = torch.cuda.device_count() if in_use else 0
    return [current] + [device for device in range(count) if device != current and in_use(device)]


def make(torch, device, allocator):
    """A new pool. It belongs to the device that is current when it is made. allocator: a pluggable one, or None for PyTorch's own."""
    with torch.cuda.device(device):
        return torch.cuda.MemPool() if allocator is None else torch.cuda.MemPool(allocator.allocator())


class Pools:
    """The pools of regions, by a key. Two regions of a key at once, nested or in two threads, have two pools: PyTorch begins none twice."""

    def __init__(self, torch, allocator=None):
        self._torch = torch
        self._allocator = allocator
        self._lock = threading.Lock()
        self._idle = {}

    @contextlib.contextmanager
    def use(self, key):
        """Routes the allocations of this thread to the key's pools."""
        taken = []
        try:
            for device in devices(self._torch):
                with self._lock:
                    idle = self._idle.setdefault((key, device), [])
                    pool = idle.pop() if idle else None
                taken.append((device, pool if pool is not None else make(self._torch, device, self._allocator)))
            with use(self._torch, taken):
                yield
        finally:
            with self._lock:
                for device, pool in taken:
                    self._idle[key, device].append(pool)

    def clear(self):
        """Gives the pools up."""
        with self._lock:
            idle, self._idle = self._idle, {}
        with _lock:
            _gone.extend(pool for pools in idle.values() for pool in pools)
            idle.clear()
            _let_go(self._torch)


def autograd_stays(torch):
    """Backward runs on the thread that asks for it: the threads of autograd, of which PyTorch's pools know nothing, allocate nothing meanwhile."""
    return torch.autograd.set_multithreading_enabled(False)
