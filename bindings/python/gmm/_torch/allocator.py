# SPDX-License-Identifier: Apache-2.0
"""gmm as PyTorch's allocator of CUDA memory, and pools of PyTorch whose memory has a tag of gmm."""
from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from typing import Any

import torch

from gmm._core.enums import DEFAULT_TAG, Kind
from gmm._core.resource import need_cuda, resource_tag
from gmm._core.tag import Tag
from gmm._default import context as default_context
from gmm._torch import library, pools

_is_used = False


def is_used() -> bool:
    """Whether gmm is PyTorch's allocator."""
    return _is_used


def _need_cuda(caller):
    if not torch.cuda.is_available():
        raise RuntimeError(f"{caller}: PyTorch sees no CUDA device")
    need_cuda(default_context(), caller)


def use(kind: Kind | None = None) -> None:
    """Makes gmm PyTorch's allocator of CUDA memory, in the place of PyTorch's own and of the same kind.

    PyTorch's own must hold no memory yet: after the first CUDA tensor of the process the call raises RuntimeError.
    torch.cuda.set_device() may come before it.
    kind: of new memory; None: VMM, which can be paused. Later calls may change the kind.

    From then on gmm answers what PyTorch asks of its allocator: memory_stats() and its kin, memory_snapshot() and the
    history, MemPool, CUDA graphs and torch.compile(mode="reduce-overhead"), sharing with other processes. A snapshot
    has no paused memory, and the history no pause.
    torch.cuda.empty_cache() trims gmm, set_per_process_memory_fraction() sets a quota on the device, and
    record_stream() is obeyed. A tensor gets the current tag of its thread: `with gmm.context().tag("weights"):`. When
    memory runs out, PyTorch raises torch.OutOfMemoryError with gmm's reason.

    The first call for a version of PyTorch compiles a C++ file, in 5 to 20 seconds, and keeps it in $GMM_TORCH_CACHE or
    ~/.cache/gmm. `python -m gmm.torch build [FOLDER]` does that ahead, also for another machine. RuntimeError where the
    file is missing and cannot be compiled.
    """
    global _is_used  # pylint: disable=global-statement
    with library.lock:
        _need_cuda("gmm.torch.use()")
        lib = library.load()
        if not _is_used:
            lib.must(lib.install(torch.cuda.device_count(), 1), "gmm.torch.use(): ")
            _is_used = True
        if kind is not None:
            lib.set_kind(int(kind))


class TaggedPool(torch.cuda.MemPool):
    """A torch.cuda.MemPool over gmm."""

    tag = 0

    @contextlib.contextmanager
    def use(self, device=None):
        """torch.cuda.use_mem_pool() that nests: the innermost pool of the thread counts.

        A backward inside of it stays on the thread.
        """
        device = torch.cuda.current_device() if device is None else torch.cuda._utils._get_device_index(device)
        with pools.use(torch, [(device, self)]):
            yield self

    def __del__(self):
        if not sys.is_finalizing():
            pools.retire(torch, self)  # its end may have to wait: see pools.py


@functools.lru_cache(maxsize=None)
def _plug(allocate, deallocate):
    # For the life of the process: memory may outlive its pool.
    return torch._C._cuda_customAllocator(allocate, deallocate)


def pool(tag: Tag | int | str | None = None, *, kind: Kind = Kind.VMM, use_on_oom: bool = False,
         no_split: bool = False) -> Any:
    """A torch.cuda.MemPool over gmm whose memory has a tag, for torch.cuda.use_mem_pool().

    gmm.context().pause(tag) pauses that memory.
    tag: a gmm.Tag, its number or its name, which is made when it is new; None: the default tag. The pool belongs to the
    current device. The pool divides what it takes from gmm, as PyTorch's own pools do, so PyTorch's statistics see the
    memory. pool.use() is use_mem_pool() that nests: the innermost pool counts. A backward inside of it stays on its
    thread. use_on_oom, no_split: as torch.cuda.MemPool has them; a PyTorch without them raises TypeError.
    """
    if not _is_used and (name := pools.expandable_segments()):
        raise RuntimeError("gmm.torch.pool(): PyTorch's pools use no pluggable allocator while expandable_segments is "
                           f"on; remove it from {name}, or call gmm.torch.use()")
    _need_cuda("gmm.torch.pool()")
    lib = library.load()
    number = resource_tag(lib.context, tag) or DEFAULT_TAG
    with library.lock:
        allocate = lib.slot(number, int(kind))
    if not allocate:
        raise RuntimeError("gmm.torch.pool(): 64 pairs of tag and kind have pools already, which is the maximum; "
                           "use one of those tags")
    # Older versions of PyTorch lack the arguments: only those that differ from their defaults are passed.
    wishes = {name: value for name, value in (("use_on_oom", use_on_oom), ("no_split", no_split)) if value}
    made = TaggedPool(_plug(allocate, ctypes.cast(lib.cdll.gmm_torch_dealloc, ctypes.c_void_p).value), **wishes)
    made.tag = number
    return made
