# SPDX-License-Identifier: Apache-2.0
"""Managed tensors: one memory under tensors of several devices, and RFC-0023's names in PyTorch."""
from __future__ import annotations

import functools
import os
import warnings
import weakref
from typing import Any

import torch
import torch.utils._device  # pylint: disable=unused-import

from gmm._core.enums import Kind
from gmm._core.resource import need_cuda
from gmm._default import context as default_context
from gmm._torch import allocator, library

_peers = weakref.WeakValueDictionary()  # by (address, device): the storage there
_enabled = False
_move_on_copy = False
_table = []  # (owner, name, function, always) of each replacement that patch() is to make


# The switches.


def get_enabled_uvm() -> bool:
    """Whether new tensors are managed."""
    return _enabled


def set_uvm_move_on_copy(move: bool = True) -> None:
    """Sets whether .to(), .cuda() and .cpu() move managed tensors while UVM is enabled.

    The result of a move lies on the other device, over the same memory. A change of the type or layout, or copy=True,
    still copies.
    """
    global _move_on_copy  # pylint: disable=global-statement
    _move_on_copy = bool(move)


def get_uvm_move_on_copy() -> bool:
    """Whether .to(), .cuda() and .cpu() move managed tensors while UVM is enabled."""
    return _move_on_copy


# Tensors.


def ordinal(device):
    """A torch.device as a number; -1 for the host."""
    if device.type == "cpu":
        return library.HOST
    return torch.cuda.current_device() if device.index is None else device.index


def resolve(device):
    """A torch.device with its index, from anything that names one.

    ValueError unless it is the host or a CUDA device.
    """
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"gmm.torch: managed memory is on \"cpu\" and \"cuda\" devices, not on {str(device)!r}")
    return torch.device("cpu") if device.type == "cpu" else torch.device("cuda", ordinal(device))


def stream_of(device):
    """The current stream of a device as a number."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def capturing(device):
    """Whether the current stream captures a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _empty(dtype, device):
    return torch.empty(0, dtype=dtype, device=device)


def storage_of(tensor):
    """The storage of a plain tensor; None for a sparse, meta, fake or batched tensor, and for a subclass."""
    if (type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
            or tensor.layout is not torch.strided or tensor.device.type not in ("cpu", "cuda")):
        return None
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # functorch's wrappers
        return None


def is_managed(tensor: torch.Tensor) -> bool:
    """Whether the memory of a tensor is managed: one address for the host and every device."""
    storage = storage_of(tensor)
    if storage is None or not storage.nbytes():
        return False
    if library.loaded() is None and tensor.device.type == "cpu" and not torch.cuda.is_initialized():
        return False  # there is no managed memory yet, and default_context() would open one
    return default_context().query(storage.data_ptr()).kind == Kind.MANAGED


def _warn_before_fork():
    """The driver does not map managed memory in a forked child: a read there ends the child with a signal."""
    lib = library.loaded()
    if lib is None or lib.context.closed or lib.context.info.backend_name != "cuda":
        return  # the host backend's managed memory is ordinary memory, of which a child has a copy
    if any(tag.name == library.HOST_TAG and lib.context.stats(tag=tag).live_bytes for tag in lib.context.tags()):
        warnings.warn("gmm.torch: a forked process cannot read the managed tensors of its parent; start it by 'spawn' "
                      "(DataLoader: multiprocessing_context='spawn'), or give it unmanage_memory() of them",
                      RuntimeWarning, stacklevel=3)


def _end_in_child():
    global _enabled  # pylint: disable=global-statement
    _enabled = False


os.register_at_fork(before=_warn_before_fork, after_in_child=_end_in_child)


# One memory, several devices.


def _joined(storage, device):
    """The storage over the same memory on a device. There is one for each device."""
    lib = library.load()
    with library.lock:
        address = storage.data_ptr()
        _peers[address, storage.device] = storage
        found = _peers.get((address, device))
        if found is not None and found.data_ptr() == address:  # a resize gives a storage other memory
            return found
        made = _empty(torch.uint8, device).untyped_storage()
        lib.must(lib.join(made._cdata, storage._cdata, ordinal(device)), "gmm.torch: ")
        _peers[address, device] = made
        return made


def alias(tensor, device):
    """A tensor over the same memory, with the same shape, on another device. A write to either counts for both."""
    storage = storage_of(tensor)
    if tensor.is_conj():
        return alias(tensor.conj(), device).conj()
    with torch.no_grad():
        joined = _joined(storage, device)
        made = _empty(tensor.dtype, device)
        made.set_(joined, tensor.storage_offset(), tensor.size(), tensor.stride())
    if not (tensor.is_inference() or made.is_inference()):
        library.load().share_version(made._cdata, tensor._cdata)
    return made


def _span(tensor):
    """The bytes from a tensor's first to its last element."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride()))
    return (last + 1) * tensor.element_size()


def hint(tensor, device, other, stream):
    """Gives RFC-0023's hints for a move of a tensor's pages to a device, and queues their migration.

    other: the GPU that still maps the pages when they move to the host.
    """
    size = _span(tensor)
    if size:
        lib = library.load()
        gpu = ordinal(other) if other.type == "cuda" else 0
        lib.check(lib.move(tensor.data_ptr(), size, ordinal(device), gpu, stream))


def record(tensor, device, stream):
    """Notes that a stream of a device uses the memory of a tensor."""
    storage = storage_of(tensor)
    if storage is not None and storage.nbytes():
        lib = library.load()
        lib.check(lib.record(storage.data_ptr(), ordinal(device), stream))


def _move(tensor, device, non_blocking):
    """alias() with hints, migration and waits, outside autograd."""
    source = tensor.device
    made = alias(tensor, device)
    gpu = device if device.type == "cuda" else source
    stream = stream_of(gpu)
    captured = capturing(gpu)
    if captured and device.type == "cpu" and not non_blocking:
        raise RuntimeError("gmm.torch: a tensor cannot move to the host while a CUDA graph is captured, because the "
                           "host would have to wait; move it before or after, or with non_blocking=True")
    if source.type == "cuda" and device.type == "cuda":  # the other GPU must not start before this one is done
        torch.cuda.current_stream(device).wait_event(torch.cuda.current_stream(source).record_event())
        record(tensor, source, stream_of(source))
    if not captured:  # a graph contains no hints
        hint(tensor, device, gpu, stream)
    if gpu.type == "cuda":
        record(tensor, gpu, stream)
    if device.type == "cpu" and source.type == "cuda" and not non_blocking:
        torch.cuda.current_stream(source).synchronize()
    return made


class _Move(torch.autograd.Function):
    """A move with a gradient, which moves back to the source device, or is copied where it cannot move."""

    @staticmethod
    def forward(ctx, tensor, device, non_blocking):
        ctx.source, ctx.target = tensor.device, device
        ctx.set_materialize_grads(False)
        return _move(tensor, device, non_blocking)

    @staticmethod
    def backward(ctx, grad):
        if grad is not None:
            made = moved(grad, ctx.source, False)
            grad = grad.to(ctx.source) if made is None else made
        return grad, None, None

    @staticmethod
    def jvp(ctx, grad, _device, _non_blocking):
        return None if grad is None else grad.to(ctx.target)


def move(tensor, device, non_blocking):
    """A managed tensor over the same memory on another device. Differentiable."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        return _Move.apply(tensor, device, non_blocking)
    return _move(tensor, device, non_blocking)


def _check_plain(tensor, what):
    if storage_of(tensor) is None:
        raise TypeError(f"gmm.torch.{what}(): expected a plain strided tensor on \"cpu\" or \"cuda\", not "
                        f"{type(tensor).__name__} of layout {tensor.layout} on {tensor.device}; use .to() or .clone()")


def uvm_to(tensor: torch.Tensor, device: Any, non_blocking: bool = False) -> torch.Tensor:
    """A tensor over the same memory on another device ("cpu", "cuda", "cuda:1").

    The result is the tensor itself when it lies there already. Otherwise that device becomes the preferred location of
    the pages, and their migration is queued on the current stream. On the way to the CPU the call waits for that stream
    unless non_blocking is set. The memory lives until the last tensor of any device is gone. Gradients flow back. A
    write through either tensor counts as a write to both in autograd's checks. ValueError when the tensor is not
    managed.
    """
    device = resolve(device)
    _check_plain(tensor, "uvm_to")
    if tensor.device == device:
        return tensor
    if tensor.is_neg():
        raise ValueError("gmm.torch.uvm_to(): the tensor is a negated view; call resolve_neg() first, which copies")
    if tensor.numel() == 0:
        return tensor.to(device, copy=True)
    if not is_managed(tensor):
        raise ValueError("gmm.torch.uvm_to(): the tensor is not managed; make it after set_enabled_uvm(), "
                         "or copy it with manage_memory()")
    return move(tensor, device, non_blocking)


def moved(tensor, device, non_blocking):
    """The tensor over the same memory on another device; None where it is there already, or cannot move."""
    try:
        device = resolve(device)
    except ValueError:
        return None
    if storage_of(tensor) is None or tensor.device == device or tensor.is_neg() or tensor.numel() == 0:
        return None
    return move(tensor, device, non_blocking) if is_managed(tensor) else None


# Copies into and out of managed memory.


def _copied(tensor, kind):
    """A copy on the same device, in memory of a kind (0: ordinary host memory). Differentiable, as clone() is."""
    device = tensor.device
    storage = _empty(torch.uint8, device).untyped_storage()
    # As clone() decides: a dense tensor without overlaps has the same strides, any other becomes contiguous.
    pattern = torch.empty_like(tensor, device="meta")
    nbytes = _span(pattern)
    lib = library.load()
    lib.must(lib.take_cpu_tensors(), "gmm.torch: ")
    lib.must(lib.assign(storage._cdata, nbytes, ordinal(device), kind, stream_of(device)),
             f"gmm.torch: {nbytes} bytes: ", torch.OutOfMemoryError)
    with torch.no_grad():
        made = _empty(tensor.dtype, device).set_(storage, 0, pattern.size(), pattern.stride())
    return made.copy_(tensor)


def manage_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor when its memory is managed, else a managed copy of it on the same device, as with pin_memory().

    Differentiable.
    """
    _check_plain(tensor, "manage_memory")
    if tensor.numel() == 0 or is_managed(tensor):
        return tensor
    lib = library.load()
    if tensor.device.type == "cpu":
        lib.check(lib.host_start(torch.cuda.current_device() if torch.cuda.is_available() else 0))
    else:
        need_cuda(lib.context, "gmm.torch.manage_memory() of a CUDA tensor")
    return _copied(tensor, int(Kind.MANAGED))


def unmanage_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor when its memory is not managed, else a copy in ordinary memory of the same device. Differentiable."""
    _check_plain(tensor, "unmanage_memory")
    if tensor.numel() == 0 or not is_managed(tensor):
        return tensor
    if tensor.device.type == "cpu":
        return _copied(tensor, 0)
    if not allocator.is_used():
        return tensor.clone()  # PyTorch's own allocator
    return _copied(tensor, int(Kind.VMM))


# Functions in the place of PyTorch's.


def _in_place_of(owner, *names, always=False):
    """Lets function(original, *arguments) stand in the place of an owner's functions, once patch() was called.

    always: also while UVM is disabled, and where the compiler traces PyTorch's own function.
    """
    def note(function):
        _table.extend((owner, name, function, always) for name in names if hasattr(owner, name))
        return function

    return note


def _serves():
    return _enabled and not torch.compiler.is_compiling()


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
        if tensor.device.type == "cpu" and gpu.type == "cuda" and is_managed(tensor):
            record(tensor, gpu, stream_of(gpu))


def _move_or_copy(tensor, device, non_blocking, copy):
    """A move where it can be one, else copy() with the RFC's hints for its direction. device: None: no move."""
    made = moved(tensor, device, non_blocking) if device is not None and _enabled and _move_on_copy else None
    if made is not None:
        return made
    made = copy()
    if made is tensor or made.device == tensor.device:
        return made
    gpu = made.device if made.device.type == "cuda" else tensor.device
    if gpu.type != "cuda" or capturing(gpu):
        return made
    if non_blocking:
        _host_sides_used(gpu, tensor, made)
    if is_managed(made):
        hint(made, made.device, gpu, stream_of(gpu))
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
    if manage and moves and storage_of(tensor) is not None and tensor.numel() and not tensor.is_neg():
        target = tensor.device if device is None else torch.device(device)
        if target.type in ("cpu", "cuda"):  # one copy at most
            tensor = manage_memory(tensor)
            made = moved(tensor, target, non_blocking)
            return tensor if made is None else made
    made = _move_or_copy(tensor, device if moves else None, non_blocking, copy) if _serves() else copy()
    if manage:
        return manage_memory(made)
    return unmanage_memory(made) if manage is not None and is_managed(made) else made


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
        if storage_of(tensor) is not None and storage_of(src) is not None:
            _host_sides_used(tensor.device if tensor.device.type == "cuda" else src.device, tensor, src)
    return tensor


@_in_place_of(torch.Tensor, "record_stream", always=True)
def _record_stream(original, tensor, stream):
    # PyTorch's own allocator ignores memory that it did not allocate. When gmm is PyTorch's allocator, the
    # original tells it.
    if not allocator.is_used() and tensor.device.type == "cuda" and is_managed(tensor):
        record(tensor, tensor.device, stream.cuda_stream)
    return original(tensor, stream)


@_in_place_of(torch.UntypedStorage, "_share_fd_cpu_", "_share_filename_cpu_", always=True)
def _share(original, storage, *args, **kwargs):
    if library.loaded() is not None and library.load().users(storage._cdata) > 1:
        raise RuntimeError("gmm.torch: tensors on another device share the memory of this CPU storage, and would lose "
                           "it when the storage moves to memory that processes share; send clone()")
    return original(storage, *args, **kwargs)


# New memory. The RFC has one allocator for all host memory: the devices reach managed memory too, and copy it at any
# time. So it needs no pin_memory().


@_in_place_of(torch.Tensor, "pin_memory")
def _pin_memory(original, tensor, *args, **kwargs):
    if tensor.device.type == "cpu" and storage_of(tensor) is not None:
        return manage_memory(tensor)
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
    with library.lock:
        # The table of `with torch.device(...)` holds PyTorch's own functions, by which it recognises a call: it is made
        # once, and must not hold ours. The table of torch.jit.script() gets ours too, where it exists already.
        torch.utils._device._device_constructors()
        while _table:
            owner, name, function, always = _table.pop(0)
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
    global _enabled  # pylint: disable=global-statement
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
        _enabled = bool(enabled)


def install(move_on_copy: bool = True) -> None:
    """Puts RFC-0023's names into PyTorch, and lets .to(), .cuda() and .cpu() move managed tensors while UVM is enabled.

    A second call does nothing.
    torch.cuda: set_enabled_uvm, get_enabled_uvm, set_uvm_move_on_copy, get_uvm_move_on_copy, uvm_to. torch.cuda.memory:
    set_enabled_uvm. Tensor: is_managed, manage_memory, unmanage_memory, uvm_to, and to(manage=True), whose result is
    managed. While UVM is enabled, pin_memory() gives a managed tensor, and to(manage=False) one in ordinary memory.
    """
    patch()
    for function in (set_enabled_uvm, get_enabled_uvm, set_uvm_move_on_copy, get_uvm_move_on_copy, uvm_to):
        setattr(torch.cuda, function.__name__, function)
    torch.cuda.memory.set_enabled_uvm = set_enabled_uvm
    for method in (is_managed, manage_memory, unmanage_memory, uvm_to):
        setattr(torch.Tensor, method.__name__, method)
    set_uvm_move_on_copy(move_on_copy)
