# SPDX-License-Identifier: Apache-2.0
"""vLLM's sleep mode over gmm: the interface of its CuMemAllocator.

    from gmm.vllm import CuMemAllocator

    allocator = CuMemAllocator.get_instance()
    with allocator.use_memory_pool(tag="weights"):
        model = make_model().cuda()
    allocator.sleep(offload_tags="weights")
    allocator.wake_up()
"""
from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
from collections.abc import Iterable, Iterator
from typing import ClassVar

from gmm._core.enums import Contents
from gmm._memory_saver import preload as _preload
from gmm._torch import pools as _pools

__all__ = ["CuMemAllocator", "plugin", "register"]

_logger = logging.getLogger(__name__)
_PREFIX = "vllm:"  # of this allocator's tags, so that no other code has them
_BACKENDS = "vllm.device_allocator.sleep_mode_backend"
_GIB = 1 << 30


class CuMemAllocator:
    """Memory that sleeps by tags. get_instance() returns the instance of the process.

    Memory that is allocated inside use_memory_pool(tag) has the tag. sleep() keeps the contents of some tags in host
    memory and drops all others. wake_up() gives the tags physical memory again, at the same addresses and with the kept
    contents. A call that fails changes nothing.
    """

    instance: ClassVar[CuMemAllocator | None] = None
    default_tag: ClassVar[str] = "default"

    @staticmethod
    def get_instance() -> CuMemAllocator:
        """The instance of the process."""
        if CuMemAllocator.instance is None:
            CuMemAllocator.instance = CuMemAllocator()
        return CuMemAllocator.instance

    def __init__(self) -> None:
        try:
            import torch  # pylint: disable=import-outside-toplevel # only here

            self._library = _preload.load(_preload.find_library())
        except (ImportError, OSError, RuntimeError) as error:
            raise AssertionError(f"cumem allocator is not available: {error}") from error
        self._torch = torch
        self._allocator = self._library.pluggable_allocator()
        self._tags = {}
        self.current_tag = CuMemAllocator.default_tag

    def _numbers(self, tags):
        tags = (tags,) if isinstance(tags, str) else tags
        return [self._tags[tag] for tag in dict.fromkeys(tags) if tag in self._tags]

    @contextlib.contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """Tensors that are made in its with block lie in memory of a tag; None: "default"."""
        tag = CuMemAllocator.default_tag if tag is None else tag
        if not isinstance(tag, str):
            raise AssertionError(f"a tag is a str, not {type(tag).__name__}")
        torch, library = self._torch, self._library
        if len((_PREFIX + tag).encode()) > 48:  # the library shortens it
            raise ValueError(f"{tag!r}: the name of a memory pool has at most 43 bytes")
        if tag not in self._tags:
            self._tags[tag] = library.context.tag(_PREFIX + tag).number
        with contextlib.ExitStack() as stack:
            self._expandable_segments_off(stack)
            before, self.current_tag = self.current_tag, tag
            stack.callback(setattr, self, "current_tag", before)
            stack.enter_context(library.region(_PREFIX + tag))
            # The block destroys its pools. Tensors that outlive it return their memory when they are freed and the
            # cache is emptied.
            with _pools.Pools(torch, self._allocator).use(keep=False):
                yield

    def _expandable_segments_off(self, stack):
        if not _pools.expandable_segments():
            return
        configure = getattr(self._torch._C, "_accelerator_setAllocatorSettings", None)
        configure = configure or self._torch.cuda.memory._set_allocator_settings
        configure("expandable_segments:False")
        stack.callback(configure, "expandable_segments:True")

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        """Returns the memory of all tags to the driver.

        Host memory keeps the contents of the tags in offload_tags (None: "default"). All other contents are lost. Tags
        that sleep already do not change.
        """
        offload_tags = (CuMemAllocator.default_tag,) if offload_tags is None else offload_tags
        offload_tags = (offload_tags,) if isinstance(offload_tags, str) else offload_tags
        if not isinstance(offload_tags, tuple):
            raise AssertionError(f"offload_tags is a str or a tuple, not {type(offload_tags).__name__}")
        self._free_unused()
        freed = self._library.turns.sleep({number: Contents.HOST if tag in offload_tags else Contents.DROP
                                           for tag, number in self._tags.items()})
        if freed is not None:
            _logger.info("CuMemAllocator: sleep freed %.2f GiB memory in total, "
                         "of which %.2f GiB is backed up in CPU and the rest %.2f GiB is discarded "
                         "directly.", sum(freed) / _GIB, freed[0] / _GIB, freed[1] / _GIB)

    def discard(self, tags: tuple[str, ...] | str) -> None:
        """Returns the memory of some tags, a str or a tuple, to the driver and drops the contents.

        The other tags stay awake. Tags that sleep already do not change.
        """
        self._free_unused()
        self._library.turns.sleep(dict.fromkeys(self._numbers(tags), Contents.DROP))

    def wake_up(self, tags: Iterable[str] | None = None) -> None:
        """Gives some tags physical memory again, with their kept contents; None: all tags.

        After gmm.OutOfMemoryError all of them still sleep.
        """
        self._library.turns.wake_up(self._numbers(self._tags if tags is None else tags))

    def get_current_usage(self) -> int:
        """The live bytes of the memory pools, asleep or not."""
        return sum(self._library.context.stats(tag=tag).live_bytes for tag in self._tags.values())

    def _free_unused(self):
        """Frees unused memory, so that sleep() does not copy it."""
        gc.collect()
        self._torch.cuda.empty_cache()


_registered = set()


def register(name: str = "gmm") -> None:
    """Makes vLLM allocate its weights and its cache here.

    vLLM's own backend, which calls the allocator, gets a second name for `sleep_mode_backend`.

    Each of vLLM's processes must call it before it loads the model. ImportError when vLLM is not installed. A second
    call does nothing.
    """
    allocators = importlib.import_module("vllm.device_allocator")
    cumem = importlib.import_module("vllm.device_allocator.cumem")
    if name in _registered:
        return
    theirs = cumem.CuMemAllocator
    instance = None if theirs is CuMemAllocator else getattr(theirs, "instance", None)
    if instance is not None and instance.get_current_usage():
        raise RuntimeError("vLLM has allocated memory for its sleep mode already; "
                           "call gmm.vllm.register() before the model is loaded")
    try:
        backends = importlib.import_module(_BACKENDS)
    except ImportError:
        backends = None  # an older vLLM, whose worker calls CuMemAllocator itself
    if backends is not None:
        backends.SleepModeBackendFactory.register_backend(name, _BACKENDS, "CuMemBackend")
    cumem.CuMemAllocator = CuMemAllocator
    if hasattr(allocators, "get_mem_allocator_instance"):
        allocators.get_mem_allocator_instance = CuMemAllocator.get_instance
    _registered.add(name)


def plugin() -> None:
    """Calls register() when GMM_VLLM=1 is set. vLLM calls it in each of its processes, by `vllm.general_plugins`."""
    if os.environ.get("GMM_VLLM") == "1":
        register()
