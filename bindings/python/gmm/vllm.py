# SPDX-License-Identifier: Apache-2.0
"""vLLM's sleep mode over gmm: the interface of its CuMemAllocator, and a backend for its SleepModeBackendFactory.

    from gmm.vllm import CuMemAllocator

    allocator = CuMemAllocator.get_instance()
    with allocator.use_memory_pool(tag="weights"):
        model = make_model().cuda()
    allocator.sleep(offload_tags="weights")
    allocator.wake_up()
"""
import contextlib
import gc
import importlib
import logging
import os
import sys

from gmm._memory_saver import preload as _preload
from gmm._torch import pools as _pools

__all__ = ["CuMemAllocator", "GmmSleepModeBackend", "plugin", "register"]

_logger = logging.getLogger(__name__)
_PREFIX = "vllm:"  # the tags of this allocator are nobody else's
_BACKENDS = "vllm.device_allocator.sleep_mode_backend"
_GIB = 1 << 30


def _as_tuple(tags):
    return (tags,) if isinstance(tags, str) else tuple(tags)


class CuMemAllocator:
    """Memory that sleeps by tags. There is one of it in a process: get_instance().

    What is allocated inside use_memory_pool(tag) has the tag. sleep() keeps the contents of some tags in host memory and gives up all others; wake_up()
    brings the memory back to its addresses, with what was kept. A call that fails leaves everything as it was.
    """

    instance = None
    default_tag = "default"

    @staticmethod
    def get_instance():
        """The one of the process."""
        if CuMemAllocator.instance is None:
            CuMemAllocator.instance = CuMemAllocator()
        return CuMemAllocator.instance

    def __init__(self):
        try:
            import torch  # pylint: disable=import-outside-toplevel # PyTorch is imported at the first use only

            self._library = _preload.load(_preload.find_library())
        except (ImportError, OSError, RuntimeError) as error:
            raise AssertionError(f"cumem allocator is not available: {error}") from error
        self._torch = torch
        self._allocator = torch.cuda.memory.CUDAPluggableAllocator(self._library.path, "tms_torch_malloc", "tms_torch_free")
        self._tags = {}
        self.current_tag = CuMemAllocator.default_tag

    def _numbers(self, tags):
        return [self._tags[tag] for tag in dict.fromkeys(tags) if tag in self._tags]

    @contextlib.contextmanager
    def use_memory_pool(self, tag=None):
        """In its with block tensors are made in memory of a tag; None: "default"."""
        tag = CuMemAllocator.default_tag if tag is None else tag
        if not isinstance(tag, str):
            raise AssertionError(f"a tag is a str, not {type(tag).__name__}")
        torch, library = self._torch, self._library
        if tag not in self._tags:
            self._tags[tag] = library.tag(_PREFIX + tag)
        with contextlib.ExitStack() as stack:
            self._expandable_segments_off(stack)
            before, self.current_tag = self.current_tag, tag
            stack.callback(setattr, self, "current_tag", before)
            stack.enter_context(_pools.autograd_stays(torch))
            stack.enter_context(library.region(tag=_PREFIX + tag))
            # Pools that go with the block: what lives on goes back when it is freed and the cache is emptied.
            with _pools.use_new(torch, self._allocator):
                yield

    def _expandable_segments_off(self, stack):
        """PyTorch takes no memory from an allocator of ours while they are on."""
        conf = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") + "," + os.environ.get("PYTORCH_ALLOC_CONF", "")
        if "expandable_segments:True" not in conf:
            return
        configure = getattr(self._torch._C, "_accelerator_setAllocatorSettings", None) or self._torch.cuda.memory._set_allocator_settings
        configure("expandable_segments:False")
        stack.callback(configure, "expandable_segments:True")

    def sleep(self, offload_tags=None):
        """Gives the memory of all tags back: contents of the tags listed (None: "default") are kept in host memory, all others are given up.

        What sleeps already stays as it is kept.
        """
        offload_tags = (CuMemAllocator.default_tag,) if offload_tags is None else offload_tags
        offload_tags = (offload_tags,) if isinstance(offload_tags, str) else offload_tags
        if not isinstance(offload_tags, tuple):
            raise AssertionError(f"offload_tags is a str or a tuple, not {type(offload_tags).__name__}")
        self._free_unused()
        kept = self._numbers(offload_tags)
        dropped = [number for tag, number in self._tags.items() if tag not in offload_tags]
        awake = [number for number in kept if self._library.tag_info(number).active_bytes]
        # What must not be lost first: the other cannot be undone.
        offloaded = self._library.pause(awake, _preload.PAUSE_KEEP_HOST)
        try:
            discarded = self._library.pause(dropped, _preload.PAUSE_DROP)
        except Exception:
            self._library.resume(awake)
            raise
        _logger.info("CuMemAllocator: sleep freed %.2f GiB memory in total, of which %.2f GiB is backed up in CPU and the rest %.2f GiB is discarded "
                     "directly.", (offloaded + discarded) / _GIB, offloaded / _GIB, discarded / _GIB)

    def discard(self, tags):
        """Gives the memory of some tags (a str or a tuple) back without their contents; the others stay awake. What sleeps already stays as it is kept."""
        self._free_unused()
        self._library.pause(self._numbers(_as_tuple(tags)), _preload.PAUSE_DROP)

    def wake_up(self, tags=None):
        """Brings the memory of some tags back, of all with None, with the contents that were kept. On gmm.OutOfMemoryError all of it still sleeps."""
        self._library.resume(list(self._tags.values()) if tags is None else self._numbers(_as_tuple(tags)))

    def get_current_usage(self):
        """Bytes allocated in the memory pools, asleep or not."""
        return sum(map(self._library.live_bytes, self._tags.values()))

    def _free_unused(self):
        """So that nothing is copied that nobody uses."""
        gc.collect()
        self._torch.cuda.empty_cache()


def _base():
    """vLLM's class of backends where vLLM is loaded, as its factory may ask for it; else the same interface."""
    module = sys.modules.get(_BACKENDS)
    return module.SleepModeBackend if module is not None and hasattr(module, "SleepModeBackend") else object


class GmmSleepModeBackend(_base()):
    """vLLM's sleep mode by CuMemAllocator of this module. States: "RUNNING", "SUSPENDED", "RESUMING"."""

    def __init__(self):
        super().__init__()
        self._state = "RUNNING"

    def suspend(self, level=1):
        """Level 1 keeps the weights in host memory and gives up the rest; level 2 gives up everything."""
        if level not in (1, 2):
            raise ValueError(f"sleep level {level!r}: there are 1 and 2")
        CuMemAllocator.get_instance().sleep(offload_tags=("weights",) if level == 1 else ())
        self._state = "SUSPENDED"

    def resume(self, tags=None):
        """Wakes the memory of some tags, or of all."""
        before, self._state = self._state, "RESUMING"
        try:
            CuMemAllocator.get_instance().wake_up(tags)
        except BaseException:
            self._state = before
            raise
        self._state = "RUNNING"

    def discard(self, tags):
        """Gives the memory of some tags back without their contents."""
        CuMemAllocator.get_instance().discard(tags)
        self._state = "SUSPENDED"

    def state(self):
        """One of the three states."""
        return self._state

    @classmethod
    def is_supported(cls):
        """Whether a CUDA device and the library are here."""
        try:
            import torch  # pylint: disable=import-outside-toplevel

            _preload.find_library()
        except (ImportError, RuntimeError):
            return False
        return torch.cuda.is_available()

    @classmethod
    def preserves_communicators(cls):
        """True: their memory is not of these tags."""
        return True

    @classmethod
    def preserves_nccl(cls):
        """True, as preserves_communicators(); an older name."""
        return True

    @classmethod
    def preserves_compiled_artifacts(cls):
        """False, as vLLM's own backend says."""
        return False

    @classmethod
    def preserves_graphs_with_communicators(cls):
        """False, as vLLM's own backend says."""
        return False

    @classmethod
    def supports_durable_storage(cls):
        """False: kept contents go with the process."""
        return False


_registered = set()


def register(name="gmm"):
    """Makes vLLM allocate its weights and its cache here, and registers the backend under a name for `sleep_mode_backend`.

    To be called in each of vLLM's processes before the model is loaded; ImportError when vLLM is not installed. Calling it twice does nothing.
    """
    allocators = importlib.import_module("vllm.device_allocator")
    cumem = importlib.import_module("vllm.device_allocator.cumem")
    if name in _registered:
        return
    theirs = cumem.CuMemAllocator
    if theirs is not CuMemAllocator and getattr(theirs, "instance", None) is not None and theirs.instance.get_current_usage():
        raise RuntimeError("vLLM has allocated memory for its sleep mode already; call gmm.vllm.register() before the model is loaded")
    try:
        backends = importlib.import_module(_BACKENDS)
    except ImportError:
        backends = None  # an older vLLM: its worker asks CuMemAllocator itself
    if backends is not None:
        backends.SleepModeBackendFactory.register_backend(name, __name__, "GmmSleepModeBackend")
        if not issubclass(GmmSleepModeBackend, backends.SleepModeBackend):
            backends.SleepModeBackend.register(GmmSleepModeBackend)
    cumem.CuMemAllocator = CuMemAllocator
    if hasattr(allocators, "get_mem_allocator_instance"):
        allocators.get_mem_allocator_instance = CuMemAllocator.get_instance
    _registered.add(name)


def plugin():
    """For vLLM's entry point `vllm.general_plugins`, which it calls in each of its processes: register(), when GMM_VLLM=1 asks for it."""
    if os.environ.get("GMM_VLLM") == "1":
        register()
