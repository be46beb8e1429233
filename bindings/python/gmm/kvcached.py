# SPDX-License-Identifier: Apache-2.0
"""kvcached's module vmm_ops over gmm: elastic KV caches of vLLM and SGLang.

    import gmm.kvcached

    gmm.kvcached.use()             # before kvcached is imported; or GMM_KVCACHED=1 in the environment

kvcached's Python code, which engines call, then runs without its compiled module. The names and arguments are those of
kvcached 0.1.6, without get_transaction_state(). Pages are those of gmm.context(): its statistics, quotas and traces see
them. A driver that refuses raises an exception, and no tensor has changed. Using a page that is not mapped is a fault;
upstream has zeros there.
"""
from __future__ import annotations

import collections
import contextlib
import fcntl
import functools
import operator
import os
import pathlib
import struct
import sys
import threading
import time
import weakref
from typing import Any

from gmm._context import Context
from gmm._core.elastic import PAGE
from gmm._core.enums import Contents, Kind
from gmm._core.errors import Error
from gmm._core.resource import need_cuda
from gmm._default import context as default_context


def use() -> None:
    """Makes this module kvcached.vmm_ops. RuntimeError where kvcached has loaded its compiled module."""
    if sys.modules.setdefault("kvcached.vmm_ops", sys.modules[__name__]) is not sys.modules[__name__]:
        raise RuntimeError("gmm.kvcached.use(): kvcached.vmm_ops is imported; call it before kvcached is imported")


class _Group:
    """The tensors of a group of layers. A page is mapped in all of them or in none."""

    def __init__(self):
        self.lock = threading.Lock()
        self.tensors, self.made = [], None  # and the arguments that made them
        self.context, self.places = None, []  # the addresses that a page's offset is added to
        self.page = self.end = 0  # an offset is a multiple of a page's bytes, below the end
        self.mapped, self.prepared = set(), {}  # offsets, and offsets to unmap by the transaction's id

    @contextlib.contextmanager
    def changing(self, offsets):
        """Locks the group, and checks offsets. The with block gets False where there are no tensors."""
        with self.lock:
            for offset in offsets if self.tensors else ():
                if offset % self.page or not 0 <= offset < self.end:
                    raise ValueError(f"the offset {offset} is no multiple of {self.page} below {self.end}")
            yield bool(self.tensors)

    def ranges(self, offsets):
        return [(place + offset, self.page) for offset in offsets for place in self.places]

    def unmap(self, offsets):
        old = self.mapped.intersection(offsets)
        self.context.pause_ranges(self.ranges(old), contents=Contents.DROP)
        self.mapped -= old
        with contextlib.suppress(Error):  # other processes may want the memory; what is refused goes another time
            self.context.trim(kind=Kind.VMM)


_groups: dict[int, _Group] = collections.defaultdict(_Group)
_settings = ("cuda", PAGE, True)


def _context(device):
    context = default_context()
    if device.startswith("cuda"):
        return need_cuda(context, "gmm.kvcached")
    return context if context.info.backend_name == "host" else Context("host")


def init_kvcached(dev_str: str, page_size: int = 0, contiguous_layout: bool = True) -> None:
    """Chooses the device, the page size in bytes (0: 2 MiB) and the layout of later tensors."""
    global _settings
    shutdown_kvcached()
    if page_size % PAGE:
        raise ValueError(f"a page of {page_size} bytes is no multiple of 2 MiB")
    _context(dev_str)
    _settings = (dev_str, page_size or PAGE, contiguous_layout)


def shutdown_kvcached() -> None:
    """Unmaps all pages. The addresses go with the last tensor."""
    for number, group in list(_groups.items()):
        with group.lock:
            if group.tensors:
                group.unmap(group.mapped)
            del _groups[number]


def create_kv_tensors(size: int, dtype_size: int, dev_str: str, num_layers: int, num_kv_buffers: int = 2,
                      group_id: int = 0, unified_pool: bool = False) -> list[Any]:
    """Reserves the tensors of a group: one of `size` bytes for each layer, or one for all in the contiguous layout."""
    import torch

    from gmm.torch import reserve

    dtype = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(dtype_size)
    if dtype is None:
        raise RuntimeError(f"Unsupported dtype size: {dtype_size}")
    group, (device, page, contiguous) = _groups[group_id], _settings
    made = (size, dtype_size, num_layers, num_kv_buffers, unified_pool)
    with group.lock:
        if group.made not in (None, made):
            raise ValueError(f"group {group_id} has other tensors; call shutdown_kvcached() first")
        if group.made is None:
            size = -(-size // page) * page * (num_layers if contiguous else 1)
            page *= num_layers * num_kv_buffers if contiguous else 1
            halves = 1 if contiguous or unified_pool else 2  # keys, and behind them values
            if size % (halves * page):
                raise ValueError(f"a tensor of {size} bytes is no multiple of {halves} pages of {page} bytes")
            group.context, group.page, group.end = _context(device), page, size // halves
            tensors = [reserve((size // page, page // dtype_size), dtype, device=device, context=group.context,
                               page=page) for _ in range(1 if contiguous else num_layers)]
            group.places = [tensor.data_ptr() + half * group.end for tensor in tensors for half in range(halves)]
            group.tensors, group.made = [tensor.view(-1) for tensor in tensors], made
        return group.tensors


def kv_tensors_created(group_id: int = 0) -> bool:
    """Whether the tensors of a group are there."""
    return bool(_groups[group_id].tensors)


def map_to_kv_tensors_with_result(offsets: list[int], group_id: int = 0) -> tuple[bool, list[int]]:
    """Gives pages memory in all layers, all or none, and returns those that had none. False: there are no tensors."""
    group = _groups[group_id]
    with group.changing(offsets) as ready:
        new = [offset for offset in dict.fromkeys(offsets) if offset not in group.mapped] if ready else []
        if new:
            group.context.resume_ranges(group.ranges(new))
            group.mapped.update(new)
        return ready, new


def map_to_kv_tensors(offsets: list[int], group_id: int = 0) -> bool:
    """map_to_kv_tensors_with_result() without the second result."""
    return map_to_kv_tensors_with_result(offsets, group_id)[0]


def unmap_from_kv_tensors(offsets: list[int], group_id: int = 0) -> bool:
    """Takes the memory of pages in all layers, all or none. False: there are no tensors."""
    group = _groups[group_id]
    with group.changing(offsets) as ready:
        if ready:
            group.unmap(offsets)
        return ready


def prepare_unmap_from_kv_tensors(offsets: list[int], transaction_id: str, group_id: int = 0) -> bool:
    """Notes an unmap. False: there are no tensors."""
    _groups[group_id].prepared[transaction_id] = offsets
    return kv_tensors_created(group_id)


def commit_unmap_from_kv_tensors(transaction_id: str, group_id: int = 0) -> bool:
    """Carries out an unmap. A commit that is repeated changes nothing, unless the first one failed."""
    done = unmap_from_kv_tensors(_groups[group_id].prepared.get(transaction_id, ()), group_id)
    return abort_unmap_from_kv_tensors(transaction_id, group_id) and done


def abort_unmap_from_kv_tensors(transaction_id: str, group_id: int = 0) -> bool:
    """Forgets an unmap."""
    _groups[group_id].prepared.pop(transaction_id, None)
    return True


class InternalPage:
    """The blocks of a page. A block that reaches into the next page belongs to none."""

    def __init__(self, page_id: int, page_size: int) -> None:
        self.page_id, self.page_size, self._count = page_id, page_size, 0
        self._free = free = []
        self.free, self.free_batch = free.append, free.extend
        self.num_free_blocks, self.get_free_blocks = free.__len__, free.copy

    def init(self, block_mem_size: int) -> None:
        self._free[:] = range(*self.get_block_range(self.page_id, self.page_size, block_mem_size))
        self._count = len(self._free)

    def alloc(self, num_blocks: int = 1) -> list[int]:
        if len(self._free) < num_blocks:
            raise RuntimeError("Not enough free blocks in page")
        taken = self._free[:num_blocks]
        del self._free[:num_blocks]
        return taken

    def empty(self) -> bool:
        return len(self._free) == self._count

    def full(self) -> bool:
        return not self._free

    @staticmethod
    def get_block_range(page_id: int, page_size: int, block_mem_size: int) -> tuple[int, int]:
        return -(-page_id * page_size // block_mem_size), (page_id + 1) * page_size // block_mem_size

    get_num_blocks = staticmethod(operator.floordiv)  # of the bytes of a page and of a block


def _exchange(path, change=None):
    """The total, used and prepared bytes of a pool in the file that kvctl and kvtop open, which change() replaces."""
    file = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        numbers = struct.unpack("3q", os.pread(file, 24, 0).ljust(24, b"\0"))
        if change is not None:
            os.pwrite(file, struct.pack("3q", *change(numbers)), 0)
        return numbers
    finally:
        os.close(file)


class PageAllocator:
    """Gives pages out. A page is mapped in all layers, or by callbacks in all workers.

    Where none is mapped, alloc_page() maps KVCACHED_MIN_RESERVED_PAGES by one call: there is no thread that maps ahead.
    free_pages() leaves KVCACHED_MAX_RESERVED_PAGES mapped.
    """

    def __init__(self, num_layers: int, mem_size_per_layer: int, page_size: int, world_size: int = 1, pp_rank: int = 0,
                 async_sched: bool = False, contiguous_layout: bool = True, enable_page_prealloc: bool = True,
                 num_kv_buffers: int = 2, group_id: int = 0, ipc_name: str = "") -> None:
        self._page_size, self._world_size, self._group_id = page_size, world_size, group_id
        self._parts = num_layers * num_kv_buffers
        self._stride = page_size * (self._parts if contiguous_layout else 1)  # between the offsets of pages
        self._total = self._made = mem_size_per_layer // page_size
        self._free, self._reserved = collections.deque(range(self._total)), collections.deque()  # reserved: mapped
        self._reclaimed = collections.deque()  # beyond the limit
        least, self._most = (min(self._total, int(os.environ.get(f"KVCACHED_{name}_RESERVED_PAGES", default)))
                             for name, default in (("MIN", 5), ("MAX", 10)))
        self._least = least if enable_page_prealloc else 0
        self._lock, self._uses_ipc, self._on_map, self._on_unmap = threading.RLock(), False, None, None
        self._target, self._seen, self._heard = -1, mem_size_per_layer, 0
        name = os.environ.get("KVCACHED_IPC_NAME") or f"kvcached_engine_{os.getpgrp()}"
        self._path = os.path.join("/dev/shm", ipc_name or name + (f"_g{group_id}" if group_id else ""))
        pathlib.Path(self._path).touch(0o666)
        _exchange(self._path, lambda before: (mem_size_per_layer * self._parts, 0, 0))
        self._release = weakref.finalize(self, pathlib.Path(self._path).unlink, missing_ok=True)

    def start_prealloc_thread(self) -> None:
        """Maps the first pages, where the device has them."""
        with self._lock, contextlib.suppress(Error, RuntimeError):  # alloc_page() raises it
            self._map(min(self._least - len(self._reserved), self.get_avail_physical_pages()))

    def stop_prealloc_thread(self) -> None:
        """Does nothing."""

    def alloc_page(self) -> InternalPage:
        """A page that is mapped. RuntimeError: none is left, or the driver or a quota refuses."""
        with self._lock:
            count = max(1, min(self._least, self.get_avail_physical_pages())) if not self._reserved else 0
            while not self._reserved:
                if not self._free:
                    raise RuntimeError("No free pages left")
                try:
                    self._map(count)
                except Error as error:
                    if count == 1:
                        raise RuntimeError(f"Failed to map page {self._free[0]}: {error}") from error
                    count = 1
            page = self._reserved.popleft()
            self._show()
            return InternalPage(page, self._page_size)

    def free_page(self, page_id: int) -> None:
        self.free_pages([page_id])

    def free_pages(self, page_ids: list[int]) -> None:
        with self._lock:
            room = max(0, self._most - len(self._reserved))
            self._reserved.extend(page_ids[:room])
            self._unmap(page_ids[room:])

    def trim(self) -> None:
        with self._lock:
            pages = list(self._reserved)
            self._reserved.clear()
            self._unmap(pages)

    def resize(self, new_mem_size: int) -> bool:
        """Sets the bytes of a layer. False where more pages are in use."""
        wanted = new_mem_size // self._page_size
        with self._lock:
            if wanted < self.get_num_inuse_pages():
                return False
            if len(self._free) < self._total - wanted:
                self.trim()
            for _ in range(self._total, wanted):
                if not self._reclaimed:
                    self._reclaimed.append(self._made)
                    self._made += 1
                self._free.append(self._reclaimed.popleft())
            for _ in range(wanted, self._total):
                self._reclaimed.append(self._free.pop())
            self._total = wanted
            return True

    def reset_free_page_order(self) -> None:
        with self._lock:
            self._free = collections.deque(sorted(self._free))

    def _change(self, callback, function, pages):
        offsets = [page * self._stride for page in pages]
        if offsets and callback is not None and (self._world_size > 1 or self._uses_ipc):
            callback(self._world_size, offsets)
        elif offsets and not function(offsets, self._group_id):
            raise RuntimeError("the KV tensors are not created")

    def _map(self, count):
        """Maps the first free pages. After a failure they are free again: to map a page twice changes nothing."""
        pages = [self._free.popleft() for _ in range(min(count, len(self._free)))]
        try:
            self._change(self._on_map, map_to_kv_tensors, pages)
        except BaseException:
            self._free.extendleft(reversed(pages))
            raise
        self._reserved.extend(pages)
        self._show()

    def _unmap(self, pages):
        """Unmaps pages that are in no list. After a failure they are mapped ones that can be given out."""
        try:
            self._change(self._on_unmap, unmap_from_kv_tensors, pages)
        except BaseException:
            self._reserved.extend(pages)
            raise
        self._free.extend(pages)
        self._show()

    def _show(self):
        """Shows kvtop the pages in use."""
        unit = self._parts * self._page_size
        shown = self.get_num_inuse_pages() * unit, len(self._reserved) * unit
        with contextlib.suppress(FileNotFoundError):  # another pool of the same name has ended
            _exchange(self._path, lambda before: (before[0], *shown))

    def get_page_state(self, name: str | None = None) -> Any:
        """Four numbers at one moment by name, or one of them."""
        with self._lock:
            free = len(self._free) + len(self._reserved)
            state = {"total_pages": self._total, "free_pages": free, "inuse_pages": self._total - free,
                     "reserved_pages": len(self._reserved)}
        return state if name is None else state[name]

    get_num_free_pages = functools.partialmethod(get_page_state, "free_pages")
    get_num_inuse_pages = functools.partialmethod(get_page_state, "inuse_pages")
    get_num_total_pages = functools.partialmethod(get_page_state, "total_pages")
    get_num_reserved_pages = functools.partialmethod(get_page_state, "reserved_pages")

    def get_avail_physical_pages(self) -> int:
        """The pages that the device and gmm's quotas have left, without what KVCACHED_GPU_UTILIZATION spares."""
        info = _context(_settings[0]).device_info(int(_settings[0].partition(":")[2] or 0))
        spared = int(info.total_memory * (1 - float(os.environ.get("KVCACHED_GPU_UTILIZATION", 0.95))))
        return max(0, info.budget_bytes - info.held_bytes - spared) // self._page_size // self._parts

    def check_and_get_resize_target(self, current_mem_size: int) -> int:
        """The bytes of a layer that kvctl has set; -1 where they are the current ones."""
        try:
            target = _exchange(self._path)[0] // self._parts
        except FileNotFoundError:
            return -1  # nobody sets a limit
        return -1 if target == current_mem_size else target

    def get_resize_target(self) -> int:
        """The last bytes of a layer that kvctl has set; -1: none yet. It looks every 0.1 s."""
        if time.monotonic() - self._heard > 0.1:
            self._heard = time.monotonic()
            target = self.check_and_get_resize_target(self._seen)
            if target >= 0:
                self._target = self._seen = target
        return self._target

    def get_page_id(self, block_id: int, block_mem_size: int) -> int:
        return block_id * block_mem_size // self._page_size

    def group_indices_by_page(self, indices: list[int], block_mem_size: int) -> dict[int, list[int]]:
        found = collections.defaultdict(list)
        for index in indices:
            found[self.get_page_id(index, block_mem_size)].append(index)
        return dict(found)

    set_broadcast_map_callback = functools.partialmethod(setattr, "_on_map")
    set_broadcast_unmap_callback = functools.partialmethod(setattr, "_on_unmap")
    set_use_worker_ipc = functools.partialmethod(setattr, "_uses_ipc")

    def release_shared_segment(self) -> bool:
        return self._release() is None
