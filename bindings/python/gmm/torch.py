# SPDX-License-Identifier: Apache-2.0
"""gmm under PyTorch: its CUDA allocator, pools with a tag, and unified memory as RFC-0023 of PyTorch has it.

    import gmm.torch

    gmm.torch.use()                       # before the first CUDA tensor: all CUDA memory of PyTorch is gmm's

    weights = gmm.torch.pool("weights")   # or some of it: a torch.cuda.MemPool
    with torch.cuda.use_mem_pool(weights):
        model = make_model().cuda()
    gmm.context().pause("weights")        # the memory goes back to the driver, the tensors' addresses stay

    gmm.torch.install()                   # the RFC's names in torch.cuda and on Tensor
    torch.cuda.set_enabled_uvm()          # new tensors are managed
    x = torch.randn(1000).to("cuda")      # the same memory, on the GPU

`import gmm.torch` imports PyTorch. Where there is no PyTorch, the first use of a function raises ImportError. All
memory is that of gmm.context(): its statistics, tags, quotas, traces and pauses see the tensors. From then on tensors
over gmm's memory travel through torch.multiprocessing without a copy: see gmm.multiprocessing.enable_torch().
"""
# pylint: disable=import-outside-toplevel # what needs PyTorch is imported at the first use only
import os
import warnings

from gmm import multiprocessing as _multiprocessing
from gmm._core.enums import Kind

__all__ = ["get_enabled_uvm", "get_uvm_move_on_copy", "install", "is_managed", "manage_memory", "pool",
           "set_enabled_uvm", "set_uvm_move_on_copy", "unmanage_memory", "use", "use_uvm", "uvm_to"]


def use(kind=None):
    """Makes gmm PyTorch's allocator of CUDA memory, in the place of PyTorch's own and of the same kind.

    Returns the allocator. PyTorch's own must hold no memory yet: after the first CUDA tensor of the process the call
    raises RuntimeError. torch.cuda.set_device() may come before it.
    kind: of new memory; None: VMM, which can be paused. Later calls may change the kind.

    From then on gmm answers what PyTorch asks of its allocator: memory_stats() and its kin, memory_snapshot() and the
    history, MemPool, CUDA graphs and torch.compile(mode="reduce-overhead"), sharing with other processes.
    torch.cuda.empty_cache() trims gmm, set_per_process_memory_fraction() sets a quota on the device, and
    record_stream() is obeyed. A tensor gets the current tag of its thread: `with gmm.context().tag("weights"):`. When
    memory runs out, PyTorch raises torch.OutOfMemoryError with gmm's reason.

    The first call for a version of PyTorch compiles a C++ file, in 5 to 20 seconds, and keeps it in $GMM_TORCH_CACHE or
    ~/.cache/gmm. Where that is impossible, a RuntimeWarning says why, and gmm becomes a CUDAPluggableAllocator with all
    hooks, of which PyTorch asks no statistics, snapshots, pools or checkpoints. GMM_TORCH_ALLOCATOR=pluggable in the
    environment asks for that one.
    """
    from gmm._torch import allocator, patches

    made = allocator.use(kind)
    patches.serve_use_uvm(use_uvm)  # PyTorch's own needs PyTorch's allocator
    return made


def pool(tag=None, *, kind=Kind.VMM, use_on_oom=False, no_split=False):
    """A torch.cuda.MemPool over gmm whose memory has a tag, for torch.cuda.use_mem_pool().

    gmm.context().pause(tag) pauses that memory.
    tag: a gmm.Tag, its number or its name, which is made when it is new; None: the default tag. The pool belongs to the
    current device. PyTorch's cache lies above it, so PyTorch's statistics see the memory. After use() the pool has no
    cache of its own: gmm caches. pool.use() is use_mem_pool() that nests: the innermost pool counts. A backward inside
    of it stays on its thread. use_on_oom, no_split: as torch.cuda.MemPool has them; a PyTorch without them raises
    TypeError.
    """
    from gmm._torch import tagged_pool

    return tagged_pool.make(tag, kind, use_on_oom, no_split)


def set_enabled_uvm(enabled=True):
    """Makes new tensors managed, on the CPU and on CUDA devices, on every thread.

    False ends that, which the RFC does not have.

    It calls use(), so it must come before the first CUDA tensor. RuntimeError where PyTorch sees no CUDA device, unless
    GMM_BACKEND names a backend of gmm, such as host. Tensors from before stay as they are: see manage_memory(). With
    PYTORCH_ENABLE_UNIFIED_MEMORY=1 in the environment, `import torch` calls install() and this where gmm's wheel is
    installed, and else `import gmm.torch` does.
    """
    from gmm._torch import unified

    unified.set_enabled(bool(enabled))


def get_enabled_uvm():
    """Whether new tensors are managed."""
    from gmm._torch import unified

    return unified.switches.enabled()


def set_uvm_move_on_copy(move=True):
    """Sets whether .to(), .cuda() and .cpu() move managed tensors while UVM is enabled.

    The result of a move lies on the other device, over the same memory. A change of the type or layout, or copy=True,
    still copies.
    """
    from gmm._torch import unified

    unified.switches.set_move_on_copy(bool(move))


def get_uvm_move_on_copy():
    """Whether .to(), .cuda() and .cpu() move managed tensors while UVM is enabled."""
    from gmm._torch import unified

    return unified.switches.move_on_copy()


def is_managed(tensor):
    """Whether the memory of a tensor is managed: one address for the host and every device."""
    from gmm._torch import managed

    return managed.is_managed(tensor)


def manage_memory(tensor):
    """The tensor when its memory is managed, else a managed copy of it on the same device, as with pin_memory().

    Differentiable.
    """
    from gmm._torch import managed

    return managed.manage_memory(tensor)


def unmanage_memory(tensor):
    """The tensor when its memory is not managed, else a copy in ordinary memory of the same device. Differentiable."""
    from gmm._torch import managed

    return managed.unmanage_memory(tensor)


def use_uvm(device=None):
    """A context manager: CUDA tensors that this thread makes in its with block are managed; those of others are not.

    It gives the pool. device: None: the current one. install() and use() put it in the place of torch.cuda._use_uvm(),
    which PyTorch has from 2.15 on.
    """
    from gmm._torch import unified

    return unified.use_uvm(device)


def uvm_to(tensor, device, non_blocking=False):
    """A tensor over the same memory on another device ("cpu", "cuda", "cuda:1").

    The result is the tensor itself when it lies there already. Otherwise that device becomes the preferred location of
    the pages, and their migration is queued on the current stream. On the way to the CPU the call waits for that stream
    unless non_blocking is set. The memory lives until the last tensor of any device is gone. Gradients flow back. A
    write through either tensor counts as a write to both in autograd's checks. ValueError when the tensor is not
    managed.
    """
    from gmm._torch import managed

    return managed.uvm_to(tensor, device, non_blocking)


def install(move_on_copy=True):
    """Puts RFC-0023's names into PyTorch, and lets .to(), .cuda() and .cpu() move managed tensors while UVM is enabled.

    A second call does nothing.
    torch.cuda: set_enabled_uvm, get_enabled_uvm, set_uvm_move_on_copy, uvm_to. Tensor: is_managed, manage_memory,
    unmanage_memory, uvm_to, and to(manage=True), whose result is managed. While UVM is enabled, pin_memory() gives a
    managed tensor, and to(manage=False) one in ordinary memory.
    """
    from gmm._torch import patches

    functions = {"set_enabled_uvm": set_enabled_uvm, "get_enabled_uvm": get_enabled_uvm,
                 "set_uvm_move_on_copy": set_uvm_move_on_copy, "uvm_to": uvm_to}
    methods = {"is_managed": is_managed, "manage_memory": manage_memory, "unmanage_memory": unmanage_memory,
               "uvm_to": uvm_to}
    patches.install(functions, methods)
    patches.serve_use_uvm(use_uvm)
    set_uvm_move_on_copy(move_on_copy)


try:
    _multiprocessing.enable_torch()
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise

def _obey_environment():
    install()
    try:
        set_enabled_uvm()
    except RuntimeError as error:
        warnings.warn(f"PYTORCH_ENABLE_UNIFIED_MEMORY: unified memory is not enabled: {error}", RuntimeWarning,
                      stacklevel=2)


if os.environ.get("PYTORCH_ENABLE_UNIFIED_MEMORY", "0").lower() not in ("", "0", "false", "off", "no"):
    _obey_environment()
