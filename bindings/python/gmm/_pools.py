# SPDX-License-Identifier: Apache-2.0
"""Which of PyTorch's memory pools the allocations of a thread go to.

PyTorch keeps what it freed, and would give it to a tensor of another region: each region has pools of its own. Where several are in use at
once PyTorch takes the one that was begun first; here the innermost counts, so an outer one is ended meanwhile.
"""
import contextlib
import threading


class _Threads(threading.local):
    def __init__(self):
        self.uses = []  # of this thread, innermost last


_threads = _Threads()


class _Use:
    """Allocations of the thread on some devices go to one pool each, between begin() and end()."""

    def __init__(self, torch, pools):
        self._torch = torch
        self._pools = pools
        self._begun = None

    def begin(self):
        with contextlib.ExitStack() as stack:
            for device, pool in self._pools:
                stack.enter_context(self._torch.cuda.use_mem_pool(pool, device=device))
            self._begun = stack.pop_all()

    def end(self):
        begun, self._begun = self._begun, None
        begun.close()


@contextlib.contextmanager
def use(torch, pools):
    """Routes the allocations of this thread to pools, given as pairs of a device and its pool."""
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
        if outer is not None:
            outer.begin()


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
            self._idle.clear()


def autograd_stays(torch):
    """Backward runs on the thread that asks for it: the threads of autograd, of which PyTorch's pools know nothing, allocate nothing meanwhile."""
    return torch.autograd.set_multithreading_enabled(False)
