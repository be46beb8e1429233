# SPDX-License-Identifier: Apache-2.0
"""Methods of torch.Tensor for managed memory, and RFC-0023's names in PyTorch."""
from __future__ import annotations

import functools
import os

import torch
import torch.utils._device  # pylint: disable=unused-import

from gmm._torch import allocator, library, managed

_table = []  # (owner, name, function, always) of each replacement
_is_patched = False


def _in_place_of(owner, *names, always=False):
    """Lets function(original, *arguments) stand in the place of an owner's functions, once patch() was called.

    always: also while UVM is disabled, and where the compiler traces PyTorch's own function.
    """
    def note(function):
        _table.extend((owner, name, function, always) for name in names if hasattr(owner, name))
        return function

    return note


def _serves():
    return managed.get_enabled_uvm() and not torch.compiler.is_compiling()


def _replace(owner, name, function, always):
    original = getattr(owner, name)

    @functools.wraps(original)
    def replacement(*args, **kwargs):
        return function(original, *args, **kwargs) if always or _serves() else original(*args, **kwargs)

    setattr(owner, name, staticmethod(replacement) if name == "__new__" else replacement)


# Moves and copies.


def _host_sides_used(gpu, *tensors):
    """Notes that an asynchronous copy uses managed memory of CPU tensors, so that its release is deferred."""
    for tensor in tensors:
        if tensor.device.type == "cpu" and gpu.type == "cuda" and managed.is_managed(tensor):
            managed.record(tensor, gpu, managed.stream_of(gpu))


def _move_or_copy(tensor, device, non_blocking, copy):
    """A move where it can be one, else copy() with the RFC's hints for its direction. device: None: no move."""
    made = managed.moved(tensor, device, non_blocking) if device is not None and managed.moves() else None
    if made is not None:
        return made
    made = copy()
    if made is tensor or made.device == tensor.device:
        return made
    gpu = made.device if made.device.type == "cuda" else tensor.device
    if gpu.type != "cuda" or managed.capturing(gpu):
        return made
    if non_blocking:
        _host_sides_used(gpu, tensor, made)
    if managed.is_managed(made):
        managed.hint(made, made.device, gpu, managed.stream_of(gpu))
    return made


def _parse_to(tensor, args, kwargs):
    """(device, non_blocking) of the arguments of .to(), and whether they change nothing else.

    TypeError or RuntimeError as PyTorch's own.
    """
    words = {name: value for name, value in kwargs.items() if name != "copy"}
    copy = kwargs.get("copy", False)
    # PyTorch's parser takes no `copy`. It follows non_blocking: .to(dtype, non_blocking, copy), .to(other, ...) and
    # .to(device, dtype, non_blocking, copy).
    place = 2 if args and isinstance(args[0], (torch.dtype, torch.Tensor)) else 3
    if len(args) == place + 1 and "copy" not in kwargs:
        args, copy = args[:place], args[place]
    device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **words)
    moves = not copy and dtype in (None, tensor.dtype) and memory_format in (None, torch.preserve_format)
    return device, non_blocking, moves


@_in_place_of(torch.Tensor, "to", always=True)
def _to(original, tensor, *args, manage=None, **kwargs):
    """manage: the RFC's; None: whether UVM is enabled."""
    copy = functools.partial(original, tensor, *args, **kwargs)
    if not manage and not _serves():
        return copy()
    try:
        device, non_blocking, moves = _parse_to(tensor, args, kwargs)
    except (TypeError, RuntimeError):
        return copy()  # it raises
    if manage and moves and managed.storage_of(tensor) is not None and tensor.numel() and not tensor.is_neg():
        target = tensor.device if device is None else torch.device(device)
        if target.type in ("cpu", "cuda"):  # one copy at most
            tensor = managed.manage_memory(tensor)
            made = managed.moved(tensor, target, non_blocking)
            return tensor if made is None else made
    made = _move_or_copy(tensor, device if moves else None, non_blocking, copy) if _serves() else copy()
    if manage:
        return managed.manage_memory(made)
    return managed.unmanage_memory(made) if manage is not None and managed.is_managed(made) else made


@_in_place_of(torch.Tensor, "cuda")
def _cuda(original, tensor, device=None, non_blocking=False, memory_format=torch.preserve_format):
    there = "cuda" if device is None else device
    return _move_or_copy(tensor, there if memory_format is torch.preserve_format else None, non_blocking,
                         lambda: original(tensor, device, non_blocking, memory_format=memory_format))


@_in_place_of(torch.Tensor, "cpu")
def _cpu(original, tensor, memory_format=torch.preserve_format):
    return _move_or_copy(tensor, "cpu" if memory_format is torch.preserve_format else None, False,
                         lambda: original(tensor, memory_format=memory_format))


@_in_place_of(torch.Tensor, "copy_")
def _copy_(original, tensor, src, non_blocking=False):
    original(tensor, src, non_blocking)
    if non_blocking and isinstance(src, torch.Tensor) and tensor.device != src.device:
        if managed.storage_of(tensor) is not None and managed.storage_of(src) is not None:
            _host_sides_used(tensor.device if tensor.device.type == "cuda" else src.device, tensor, src)
    return tensor


@_in_place_of(torch.Tensor, "record_stream", always=True)
def _record_stream(original, tensor, stream):
    # PyTorch's own allocator ignores memory that it did not allocate. When gmm is PyTorch's allocator, the
    # original tells it.
    if not allocator.is_used() and tensor.device.type == "cuda" and managed.is_managed(tensor):
        managed.record(tensor, tensor.device, stream.cuda_stream)
    return original(tensor, stream)


@_in_place_of(torch.UntypedStorage, "_share_fd_cpu_", "_share_filename_cpu_", always=True)
def _share(original, storage, *args, **kwargs):
    if managed.peers_of(storage):
        raise RuntimeError("gmm.torch: tensors on another device share the memory of this CPU storage, and would lose "
                           "it when the storage moves to memory that processes share; send clone()")
    return original(storage, *args, **kwargs)


# New memory. The RFC has one allocator for all host memory: the devices reach managed memory too, and copy it at any
# time. So it needs no pin_memory().


@_in_place_of(torch.Tensor, "pin_memory")
def _pin_memory(original, tensor, *args, **kwargs):
    if tensor.device.type == "cpu" and managed.storage_of(tensor) is not None:
        return managed.manage_memory(tensor)
    return original(tensor, *args, **kwargs)


@_in_place_of(torch, "arange", "empty", "empty_permuted", "empty_strided", "eye", "full", "linspace", "logspace",
              "ones", "rand", "randint", "randn", "randperm", "scalar_tensor", "tensor", "tril_indices",
              "triu_indices", "zeros", "empty_like", "full_like", "ones_like", "rand_like", "randint_like",
              "randn_like", "zeros_like")
@_in_place_of(torch.Tensor, "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")
def _factory(original, *args, **kwargs):
    if kwargs.get("pin_memory") and torch._C._len_torch_dispatch_stack() == 0:
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None  # the tensor that it follows
        device, layout = kwargs.get("device"), kwargs.get("layout")
        if device is None:
            device = torch.get_default_device() if source is None else source.device
        if layout is None:
            layout = torch.strided if source is None else source.layout
        if torch.device(device).type == "cpu" and layout is torch.strided:
            kwargs = {**kwargs, "pin_memory": False}
    return original(*args, **kwargs)


@_in_place_of(torch.UntypedStorage, "__new__")
def _new_storage(original, cls, *args, **kwargs):
    """PyTorch makes the storages of copy.deepcopy() and of unpickled tensors by its default CPU allocator."""
    if (cls is torch.UntypedStorage and len(args) == 1 and type(args[0]) is int and set(kwargs) <= {"device"}
            and torch.device(kwargs.get("device") or "cpu").type == "cpu"
            and torch._C._len_torch_dispatch_stack() == 0):
        return torch.empty(args[0], dtype=torch.uint8, device="cpu").untyped_storage()
    return original(cls, *args, **kwargs)


def patch():
    """Replaces, once, the methods of PyTorch by which managed tensors move, and those that would be unsafe for them."""
    global _is_patched  # pylint: disable=global-statement
    with library.lock:
        if _is_patched:
            return
        _is_patched = True
        # The table of `with torch.device(...)` holds PyTorch's own functions, by which it recognises a call: it is made
        # once, and must not hold ours. The table of torch.jit.script() gets ours too, where it exists already.
        torch.utils._device._device_constructors()
        for owner, name, function, always in _table:
            _replace(owner, name, function, always)
            if owner is torch:
                torch.jit._builtins._register_builtin(getattr(torch, name), "aten::" + name)


def set_enabled_uvm(enabled: bool = True) -> None:
    """Makes new tensors managed, on the CPU and on CUDA devices, on every thread.

    False ends that, which the RFC does not have.

    It calls use(), so it must come before the first CUDA tensor. RuntimeError where PyTorch sees no CUDA device, unless
    GMM_BACKEND names a backend of gmm, such as host. Tensors from before stay as they are: see manage_memory(). With
    PYTORCH_ENABLE_UNIFIED_MEMORY=1 in the environment, `import torch` calls install() and this where gmm's wheel is
    installed, and else `import gmm.torch` does.
    """
    with library.lock:
        if enabled:
            has_device = torch.cuda.is_available()
            if not has_device and not os.environ.get("GMM_BACKEND"):
                raise RuntimeError("torch.cuda.set_enabled_uvm(): PyTorch sees no CUDA device, so there is no unified "
                                   "memory; GMM_BACKEND=host tries the interface with memory of the host")
            lib = library.load()
            if has_device:
                allocator.use()
            home = torch.cuda.current_device() if has_device else 0
            lib.must(lib.take_cpu_tensors(), "gmm.torch: ")
            lib.check(lib.host_start(home))
            patch()
            lib.set_managed(1)
        elif library.loaded() is not None:
            library.load().set_managed(0)
        managed.set_enabled(bool(enabled))


def install(move_on_copy: bool = True) -> None:
    """Puts RFC-0023's names into PyTorch, and lets .to(), .cuda() and .cpu() move managed tensors while UVM is enabled.

    A second call does nothing.
    torch.cuda: set_enabled_uvm, get_enabled_uvm, set_uvm_move_on_copy, get_uvm_move_on_copy, uvm_to. torch.cuda.memory:
    set_enabled_uvm. Tensor: is_managed, manage_memory, unmanage_memory, uvm_to, and to(manage=True), whose result is
    managed. While UVM is enabled, pin_memory() gives a managed tensor, and to(manage=False) one in ordinary memory.
    """
    patch()
    for function in (set_enabled_uvm, managed.get_enabled_uvm, managed.set_uvm_move_on_copy,
                     managed.get_uvm_move_on_copy, managed.uvm_to):
        setattr(torch.cuda, function.__name__, function)
    torch.cuda.memory.set_enabled_uvm = set_enabled_uvm
    for method in (managed.is_managed, managed.manage_memory, managed.unmanage_memory, managed.uvm_to):
        setattr(torch.Tensor, method.__name__, method)
    managed.set_uvm_move_on_copy(move_on_copy)
