# SPDX-License-Identifier: Apache-2.0
"""gmm as PyTorch's allocator of CUDA memory, with all hooks: what gmm.torch.use() switches on."""
import ctypes
import pathlib

import torch

from gmm._torch import extension, library, switches

_allocator = None


def current():
    """The pluggable allocator once gmm is PyTorch's, else None."""
    return _allocator


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
    backend = library.load().context.info.backend_name
    if backend != "cuda":
        raise RuntimeError(f"gmm.torch.use(): gmm's default context has the {backend!r} backend; "
                           "unset GMM_BACKEND, or open the context on a machine with a CUDA driver")
    allocator = make_allocator()
    try:
        torch.cuda.memory.change_current_allocator(allocator)
    except RuntimeError as error:
        raise RuntimeError("gmm.torch: PyTorch's own allocator is in use already; "
                           "call gmm.torch.use() or set_enabled_uvm() before the first "
                           "use of CUDA, or use gmm.torch.pool()") from error
    return allocator


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
