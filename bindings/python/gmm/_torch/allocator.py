# SPDX-License-Identifier: Apache-2.0
"""gmm as PyTorch's allocator of CUDA memory: what gmm.torch.use() switches on."""
import ctypes
import os
import pathlib
import warnings

import torch

from gmm._torch import extension, library, switches

_allocator = None


class NativeAllocator:
    """gmm as an allocator of PyTorch's own kind, which use() has put in the place of PyTorch's."""

    is_native = True

    def allocator(self):
        """gmm for a torch.cuda.MemPool, as torch.cuda.memory.CUDAPluggableAllocator.allocator() returns it."""
        return make_allocator().allocator()


def current():
    """What use() has returned, once gmm is PyTorch's allocator; else None."""
    return _allocator


def is_native():
    """Whether gmm is PyTorch's allocator and one of its own kind."""
    return isinstance(_allocator, NativeAllocator)


def use(kind):
    """Makes gmm PyTorch's allocator for CUDA, once. kind: of new memory; None: unchanged."""
    global _allocator  # pylint: disable=global-statement
    with switches.lock():
        if _allocator is None:
            _allocator = _become_allocator()
    if kind is not None:
        library.load().cdll.gmm_torch_set_kind(int(kind))
    return _allocator


def _become_allocator():
    if not torch.cuda.is_available():
        raise RuntimeError("gmm.torch.use(): PyTorch sees no CUDA device")
    lib = library.load()
    backend = lib.context.info.backend_name
    if backend != "cuda":
        raise RuntimeError(f"gmm.torch.use(): gmm's default context has the {backend!r} backend; "
                           "unset GMM_BACKEND, or open the context on a machine with a CUDA driver")
    native = _native(lib)
    if native is not None:
        try:
            native.install(torch.cuda.device_count())
        except RuntimeError as error:
            raise RuntimeError(f"gmm.torch.use(): {error}; move gmm.torch.use() above the line that makes the first "
                               "CUDA tensor, or use gmm.torch.pool()") from error
        return NativeAllocator()
    allocator = make_allocator()
    try:
        torch.cuda.memory.change_current_allocator(allocator)
    except RuntimeError as error:
        raise RuntimeError("gmm.torch.use(): PyTorch's own allocator is in use already, and a pluggable allocator "
                           "cannot replace it then; move gmm.torch.use() above the first line that uses CUDA "
                           "(torch.cuda.set_device() is one), or use gmm.torch.pool()") from error
    return allocator


def _native(lib):
    """The compiled allocator; None: the pluggable allocator takes its place."""
    if os.environ.get("GMM_TORCH_ALLOCATOR", "").lower() == "pluggable":
        return None
    try:
        return extension.native(lib)
    except RuntimeError as error:
        warnings.warn("gmm.torch.use(): gmm serves PyTorch through CUDAPluggableAllocator, which has no "
                      f"memory_stats(), snapshots, pools or checkpoints of CUDA graphs. The reason: {error}",
                      RuntimeWarning, stacklevel=2)
        return None


def make_allocator():
    """A pluggable allocator with all hooks."""
    lib = library.load()
    set_errors()
    allocator = torch.cuda.memory.CUDAPluggableAllocator(lib.path, "gmm_torch_alloc", "gmm_torch_dealloc")
    hooks = allocator.allocator()
    hooks.set_init_fn(lib.address("gmm_torch_init"))
    hooks.set_reset_fn(lib.address("gmm_torch_reset"))
    hooks.set_memory_fraction_fn(lib.address("gmm_torch_memory_fraction"))
    hooks.set_base_alloc_fn(lib.address("gmm_torch_base_alloc"))
    hooks.set_record_stream_fn(lib.address("gmm_torch_use_on_stream"))
    hooks.set_begin_allocate_to_pool(lib.address("gmm_torch_begin_pool"))
    hooks.set_end_allocate_to_pool_fn(lib.address("gmm_torch_end_pool"))
    hooks.set_release_pool(lib.address("gmm_torch_release_pool"))
    return allocator


def set_errors():
    """Tells the library how to raise PyTorch's out-of-memory error.

    A NULL would not do: PyTorch takes it for memory. Without a compiler the error is a RuntimeError.
    """
    c10 = ctypes.CDLL(str(pathlib.Path(torch.__file__).resolve().parent / "lib" / "libc10.so"))
    try:
        # c10::detail::torchCheckFail(char const*, char const*, unsigned int, char const*): what TORCH_CHECK calls.
        other = ctypes.cast(c10["_ZN3c106detail14torchCheckFailEPKcS2_jS2_"], ctypes.c_void_p).value
    except AttributeError:
        other = None
    try:
        memory = extension.load(library.load()).throw_memory
    except RuntimeError:
        if other is None:
            raise
        memory = None
    library.load().cdll.gmm_torch_set_errors(memory, other)
