# SPDX-License-Identifier: Apache-2.0
"""gmm under PyTorch: its CUDA allocator, pools with a tag, and unified memory as RFC-0023 of PyTorch has it.

    import gmm.torch

    gmm.torch.use()                       # all of PyTorch's CUDA memory is gmm's; before the first use of CUDA

    weights = gmm.torch.pool("weights")   # or some of it: a torch.cuda.MemPool
    with torch.cuda.use_mem_pool(weights):
        model = make_model().cuda()
    gmm.context().pause("weights")        # the memory is somebody else's, the tensors stay where they are

    gmm.torch.install()                   # the RFC's names in torch.cuda and on Tensor
    torch.cuda.set_enabled_uvm()          # new tensors are managed
    x = torch.randn(1000).to("cuda")      # the same memory, on the GPU

PyTorch is imported with it; where there is none, at the first use, which says so. Memory is that of gmm.context(): its statistics, tags, limits, traces and
pauses see the tensors. Tensors over gmm's memory go through torch.multiprocessing without a copy from here on: see gmm.multiprocessing.enable_torch().
"""
import os

from gmm import multiprocessing as _sharing
from gmm._enums import Kind

__all__ = ["get_enabled_uvm", "get_uvm_move_on_copy", "install", "is_managed", "manage_memory", "pool", "set_enabled_uvm", "set_uvm_move_on_copy",
           "unmanage_memory", "use", "uvm_to"]


def use(kind=None):
    """Makes gmm PyTorch's allocator of CUDA memory: torch.cuda.memory.change_current_allocator() with all hooks. Returns the allocator.

    Before the first use of CUDA in the process, else RuntimeError. kind: of new memory; None: VMM, which can be paused. Later calls may change it.

    torch.cuda.empty_cache() is trim() then, set_per_process_memory_fraction() a limit on the device, record_stream() is heeded, and CUDA graphs keep
    their memory. A tensor has the current tag of its thread: `with gmm.context().tag("weights"):`. Want of memory is torch.OutOfMemoryError with gmm's
    message (a plain RuntimeError where no C++ compiler is there). PyTorch's own statistics do not see this memory: gmm.context().stats() does.
    """
    from gmm import _torch_managed  # pylint: disable=import-outside-toplevel

    return _torch_managed.use(kind)


def pool(tag=None, *, kind=Kind.VMM):
    """A torch.cuda.MemPool over gmm, for torch.cuda.use_mem_pool(), whose memory has a tag: gmm.context().pause(tag) gives it back and keeps its addresses.

    tag: a gmm.Tag, its number or its name (made when there is none); None: the default tag. The pool belongs to the current device. PyTorch's cache is
    on top of it, so statistics of PyTorch see it. After use() it is a pool of the same interface without a cache of its own: gmm has one.
    pool.use() is use_mem_pool() that nests, the innermost counting, and keeps a backward inside of it on its thread.
    """
    from gmm import _torch_pool  # pylint: disable=import-outside-toplevel

    return _torch_pool.make(tag, kind)


def set_enabled_uvm(enabled=True):
    """New tensors are managed from here on, on the CPU and on CUDA devices, on every thread; with False no longer (which the RFC does not have).

    Where PyTorch sees a CUDA device this calls use(): before the first use of CUDA. Tensors from before stay as they are; see manage_memory().
    The environment variable PYTORCH_ENABLE_UNIFIED_MEMORY=1 does it when gmm.torch is imported.
    """
    from gmm import _torch_managed  # pylint: disable=import-outside-toplevel

    _torch_managed.set_enabled(bool(enabled))


def get_enabled_uvm():
    """Whether new tensors are managed."""
    from gmm import _torch_managed  # pylint: disable=import-outside-toplevel

    return _torch_managed.get_enabled()


def set_uvm_move_on_copy(move=True):
    """Whether .to(), .cuda() and .cpu() move managed tensors while UVM is enabled: the result is on the other device, over the same memory.

    A change of the type or layout, or copy=True, copies all the same.
    """
    from gmm import _torch_managed  # pylint: disable=import-outside-toplevel

    _torch_managed.set_move_on_copy(bool(move))


def get_uvm_move_on_copy():
    """Whether .to(), .cuda() and .cpu() move managed tensors while UVM is enabled."""
    from gmm import _torch_managed  # pylint: disable=import-outside-toplevel

    return _torch_managed._state["move_on_copy"]


def is_managed(tensor):
    """Whether the memory of a tensor is managed: one address for the host and every device."""
    from gmm import _torch_managed  # pylint: disable=import-outside-toplevel

    return _torch_managed.is_managed(tensor)


def manage_memory(tensor):
    """The tensor when its memory is managed, else a managed copy of it on the same device, as with pin_memory(). Differentiable."""
    from gmm import _torch_managed  # pylint: disable=import-outside-toplevel

    return _torch_managed.manage_memory(tensor)


def unmanage_memory(tensor):
    """The tensor when its memory is not managed, else a copy in ordinary memory of the same device. Differentiable."""
    from gmm import _torch_managed  # pylint: disable=import-outside-toplevel

    return _torch_managed.unmanage_memory(tensor)


def uvm_to(tensor, device, non_blocking=False):
    """A tensor over the same memory on another device ("cpu", "cuda", "cuda:1"); the tensor itself when it is there already.

    The pages are told to prefer that device and their migration is queued on the current stream; on the way to the CPU the call waits for that
    stream, unless non_blocking. The memory lives until the last tensor of any device is gone. Gradients flow back, and a write through either tensor is a
    write to both, also for autograd's checks. ValueError when the tensor is not managed.
    """
    from gmm import _torch_managed  # pylint: disable=import-outside-toplevel

    return _torch_managed.uvm_to(tensor, device, non_blocking)


def install(move_on_copy=True):
    """Puts RFC-0023's names into PyTorch, and lets .to(), .cuda() and .cpu() move managed tensors while UVM is enabled. Calling it twice does nothing.

    torch.cuda: set_enabled_uvm, get_enabled_uvm, set_uvm_move_on_copy, uvm_to. Tensor: is_managed, manage_memory, unmanage_memory, uvm_to.
    """
    from gmm import _torch_patches  # pylint: disable=import-outside-toplevel

    functions = {"set_enabled_uvm": set_enabled_uvm, "get_enabled_uvm": get_enabled_uvm, "set_uvm_move_on_copy": set_uvm_move_on_copy, "uvm_to": uvm_to}
    methods = {"is_managed": is_managed, "manage_memory": manage_memory, "unmanage_memory": unmanage_memory, "uvm_to": uvm_to}
    _torch_patches.install(functions, methods)
    set_uvm_move_on_copy(move_on_copy)


try:
    _sharing.enable_torch()
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise

if os.environ.get("PYTORCH_ENABLE_UNIFIED_MEMORY", "0").lower() not in ("", "0", "false", "off", "no"):
    set_enabled_uvm()
