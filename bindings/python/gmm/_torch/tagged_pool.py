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


class RoutedPool(_Tagged):
    """A pool when gmm is PyTorch's allocator: threads that allocate to its id get memory of its tag.

    It has no memory of its own.
    """

    def __init__(self, tag, slot):
        self.tag = tag
        self.id = tuple(torch.cuda.graph_pool_handle())
        lib = library.load()
        lib.check(lib.cdll.gmm_torch_route(*self.id, slot))
        self._unroute = lib.cdll.gmm_torch_unroute

    def __del__(self):
        unroute = getattr(self, "_unroute", None)
        if unroute is not None:
            unroute(*self.id)


@functools.lru_cache(maxsize=None)
def _mem_pool_class():
    class TaggedPool(_Tagged, torch.cuda.MemPool):
        """A torch.cuda.MemPool over gmm."""

        def __del__(self):
            if not sys.is_finalizing():
                pools.retire(torch, self)  # its end may have to wait: see pools.py

    return TaggedPool


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


def make(tag, kind):
    """See gmm.torch.pool()."""
    lib = library.load()
    if isinstance(tag, str):
        tag = lib.context.tag(tag)
    number = native.GMM_TAG_DEFAULT if tag is None else tag_number(lib.context, tag)
    slot, allocate, deallocate = lib.slot(number, int(kind))
    if allocator.current() is not None:
        return RoutedPool(number, slot)
    _check_settings()
    if not torch.cuda.is_available():
        raise RuntimeError("gmm.torch.pool(): PyTorch sees no CUDA device")
    if lib.context.info.backend_name != "cuda":
        raise RuntimeError(f"gmm.torch.pool(): gmm's default context has the {lib.context.info.backend_name!r} "
                           "backend; unset GMM_BACKEND")
    made = _mem_pool_class()(_plug(allocate, deallocate))
    made.tag = number
    return made
