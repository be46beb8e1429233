# SPDX-License-Identifier: Apache-2.0
"""The implementation of gmm.memory_saver, which needs PyTorch."""
import atexit
import contextlib
import ctypes

import torch

from gmm import _native as native
from gmm._core.enums import Contents, State
from gmm._memory_saver import preload
from gmm._torch import pools


class MemorySaver:
    """The memory saver in one hook mode."""

    def __init__(self, hook_mode):
        self._hook_mode = hook_mode
        allocator = None
        if hook_mode == "torch":
            path = preload.find_library()
            allocator = preload.pluggable_allocator(path)
        else:
            path = preload.preloaded_library()
        # The second name is upstream's: programs look for its cdll.
        self._library = self._binary_wrapper = preload.load(path)
        self._pools = pools.Pools(torch, allocator)
        if name := pools.expandable_segments():
            raise RuntimeError("TorchMemorySaver is disabled for the current process because expandable_segments is "
                               f"not supported yet: it is on in {name}")
        self._uses_files = self._binary_wrapper.cdll.tms_get_enable_disk_backup()
        atexit.register(self._end)  # before PyTorch and the driver are torn down

    def _end(self):
        self._pools.clear()
        if self._uses_files and self._library.cdll.gmm_preload_active():  # they have names
            self._library.context.discard_backup()
            self._library.context.trim()

    @contextlib.contextmanager
    def region(self, tag, enable_cpu_backup, enable_disk_backup=False, cpu_backup_backend=None):
        backend = ""
        self._uses_files = self._uses_files or enable_disk_backup
        if enable_cpu_backup:
            backend = cpu_backup_backend or self._binary_wrapper.cdll.tms_get_cpu_backup_backend().decode("utf-8")
        with self._pools.use((tag, enable_cpu_backup, enable_disk_backup, backend)):
            with self._library.region(tag, enable_cpu_backup, cpu_backup_backend, enable_disk_backup):
                yield

    @contextlib.contextmanager
    def cuda_graph(self, cuda_graph, pool, stream, capture_error_mode, tag, enable_cpu_backup, cpu_backup_backend=None):
        if self._hook_mode != "preload":
            raise AssertionError("Only hook_mode=preload supports pauseable CUDA Graph currently")
        # Leaves the pools of an active region, which PyTorch would use before the graph's.
        outside = pools.use(torch, [])
        with outside, pools.capturing(torch):
            graph = torch.cuda.graph(cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode)
            with graph, self._library.region(tag, enable_cpu_backup, cpu_backup_backend):
                yield

    @contextlib.contextmanager
    def disable(self):
        cdll = self._binary_wrapper.cdll
        if not cdll.tms_get_interesting_region():
            raise AssertionError("disable() should be called only when tms is active")
        cdll.tms_set_interesting_region(False)
        try:
            with pools.Pools(torch).use(keep=False):
                yield
        finally:
            cdll.tms_set_interesting_region(True)

    def pause(self, tag=None):
        self._library.turns.pause_name(tag or None)

    def resume(self, tag=None):
        self._library.turns.resume_name(tag or None)

    def _backup_pointer(self, address, nbytes):
        """The address of kept contents; None where nothing is retained of active memory, and where a file keeps them,
        as in the original.
        """
        context = self._library.context
        info = context.query(address)
        if info.state == State.PAUSED and context.tag_info(info.tag).contents == Contents.FILE:
            return None
        try:
            return native.gmm_backup_map(context, address, nbytes)[1]
        except ValueError:
            if info.state == State.ACTIVE:
                return None
            raise

    def get_cpu_backup(self, x, zero_copy=False):
        if not x.is_cuda:
            raise AssertionError(f"not a CUDA tensor: {x.device=}")
        if not x.is_contiguous():
            raise AssertionError(f"not contiguous: {x.shape=} {x.stride()=} {x.dtype=}")
        if not x.nbytes:
            return torch.empty(x.shape, dtype=x.dtype)
        pointer = self._backup_pointer(x.data_ptr(), x.nbytes)
        if pointer is None:
            return None
        kept_bytes = (ctypes.c_uint8 * x.nbytes).from_address(pointer)
        kept = torch.frombuffer(kept_bytes, dtype=torch.uint8).view(x.dtype).view(x.shape)
        return kept if zero_copy else kept.clone()
