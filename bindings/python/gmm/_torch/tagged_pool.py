# SPDX-License-Identifier: Apache-2.0
"""gmm.torch.pool(): PyTorch's pools whose memory has a tag of gmm."""
import contextlib
import functools
import os
import sys

import torch

from gmm import _native as native
from gmm._core.tag import tag_number
from gmm._torch import allocator, library, managed, pools


class _Tagged:
    """What both kinds of pools share."""

    tag = 0

    @contextlib.contextmanager
    def use(self, device=None):
        """torch.cuda.use_mem_pool() that nests: the innermost pool of the thread counts.

        A backward inside of it stays on the thread.
        """
        device = torch.cuda.current_device() if device is None else managed.ordinal(managed.resolve(device))
        with pools.autograd_stays(torch), pools.use(torch, [(device, self)]):
            yield self


class _Route:
    """While it lives, threads that allocate to a pool's id get memory of a tag and kind."""

    def __init__(self, pool_id, slot):
        self._id = tuple(pool_id)
        lib = library.load()
        lib.check(lib.cdll.gmm_torch_route(*self._id, slot))
        self._unroute = lib.cdll.gmm_torch_unroute

    def __del__(self):
        unroute = getattr(self, "_unroute", None)
        if unroute is not None:
            unroute(*self._id)


class RoutedPool(_Tagged):
    """A pool when gmm is PyTorch's allocator by CUDAPluggableAllocator. It has no memory of its own."""

    allocator = None

    def __init__(self, tag, slot):
        self.tag = tag
        self.id = tuple(torch.cuda.graph_pool_handle())
        self._route = _Route(self.id, slot)
        self._uses = 1

    def use_count(self):
        """1, and 1 more for each use() that is under way."""
        return self._uses

    def snapshot(self, include_traces=True):  # pylint: disable=unused-argument # the interface is MemPool's
        """The blocks of the pool's tag, each as a segment, in the form of torch.cuda.memory_snapshot()."""
        return [_segment(self.id, block) for block in library.load().context.blocks(tag=self.tag)]

    @contextlib.contextmanager
    def use(self, device=None):
        self._uses += 1
        try:
            with super().use(device):
                yield self
        finally:
            self._uses -= 1


def _segment(pool_id, block):
    size = block.reserved_size
    return {"device": block.device, "address": block.address, "total_size": size, "allocated_size": size,
            "active_size": size, "requested_size": block.size, "stream": 0, "segment_type": "large",
            "segment_pool_id": tuple(pool_id), "is_expandable": False,
            "blocks": [{"address": block.address, "size": size, "requested_size": block.size,
                        "state": "active_allocated"}]}


@functools.lru_cache(maxsize=None)
def _mem_pool_class():
    class TaggedPool(_Tagged, torch.cuda.MemPool):
        """A torch.cuda.MemPool over gmm."""

        def __del__(self):
            if not sys.is_finalizing():
                pools.retire(torch, self)  # its end may have to wait: see pools.py

    return TaggedPool


@functools.lru_cache(maxsize=None)
def _routed_mem_pool_class():
    class RoutedMemPool(_Tagged, torch.cuda.MemPool):
        """A torch.cuda.MemPool when gmm is PyTorch's allocator: its blocks are gmm's, with its tag and kind."""

        def route(self, tag, slot):
            """Gives the pool its tag and kind."""
            self.tag = tag
            self._route = _Route(self.id, slot)

    return RoutedMemPool


@functools.lru_cache(maxsize=None)
def _plug(allocate, deallocate):
    # For the life of the process: memory may outlive its pool.
    return torch._C._cuda_customAllocator(allocate, deallocate)


def _check_settings():
    conf = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") + "," + os.environ.get("PYTORCH_ALLOC_CONF", "")
    if "expandable_segments:True" in conf:
        raise RuntimeError("gmm.torch.pool(): "
                           "PyTorch's pools use no pluggable allocator while expandable_segments is on; remove it from "
                           "PYTORCH_CUDA_ALLOC_CONF, or call gmm.torch.use()")


def _wishes(**wishes):
    """The arguments of torch.cuda.MemPool that differ from their defaults: older versions of PyTorch lack them."""
    return {name: value for name, value in wishes.items() if value}


def make(tag, kind, use_on_oom=False, no_split=False):
    """See gmm.torch.pool()."""
    lib = library.load()
    wishes = _wishes(use_on_oom=use_on_oom, no_split=no_split)
    if isinstance(tag, str):
        tag = lib.context.tag(tag)
    number = native.GMM_TAG_DEFAULT if tag is None else tag_number(lib.context, tag)
    slot, allocate, deallocate = lib.slot(number, int(kind))
    if allocator.is_native():
        made = _routed_mem_pool_class()(**wishes)
        made.route(number, slot)
        return made
    if allocator.current() is not None:
        return RoutedPool(number, slot)
    _check_settings()
    if not torch.cuda.is_available():
        raise RuntimeError("gmm.torch.pool(): PyTorch sees no CUDA device")
    if lib.context.info.backend_name != "cuda":
        raise RuntimeError(f"gmm.torch.pool(): gmm's default context has the {lib.context.info.backend_name!r} "
                           "backend; unset GMM_BACKEND")
    made = _mem_pool_class()(_plug(allocate, deallocate), **wishes)
    made.tag = number
    return made
