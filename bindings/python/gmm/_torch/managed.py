# SPDX-License-Identifier: Apache-2.0
"""Managed tensors: one memory under tensors of several devices."""
from __future__ import annotations

import os
import warnings
import weakref
from typing import Any

import torch

from gmm._core.enums import Kind
from gmm._core.resource import need_cuda
from gmm._default import context as default_context
from gmm._torch import allocator
from gmm._torch import library

_HOST = library.HOST
_peers = weakref.WeakValueDictionary()  # by (number of the shared memory, device): the storage there
_enabled = False
_move_on_copy = False


# The switches.


def set_enabled(enabled: bool) -> None:
    """Notes whether new tensors are managed; the caller has made them so."""
    global _enabled  # pylint: disable=global-statement
    _enabled = enabled


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


def moves() -> bool:
    """Whether .to(), .cuda() and .cpu() move managed tensors now."""
    return _enabled and _move_on_copy


# Tensors.


def ordinal(device):
    """A torch.device as a number; -1 for the host."""
    if device.type == "cpu":
        return _HOST
    return torch.cuda.current_device() if device.index is None else device.index


def resolve(device):
    """A torch.device with its index, from anything that names one.

    ValueError unless it is the host or a CUDA device.
    """
    if isinstance(device, int):
        device = torch.device("cuda", device)
    device = torch.device(device)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"gmm.torch: managed memory is on \"cpu\" and \"cuda\" devices, not on {str(device)!r}")
    if device.type == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", ordinal(device)) if device.index is None else device


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
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or tensor.layout is not torch.strided:
        return None
    if tensor.device.type not in ("cpu", "cuda"):
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


os.register_at_fork(before=_warn_before_fork, after_in_child=lambda: set_enabled(False))


# One memory, several devices.


def peers_of(storage):
    """The number of other storages over the memory of this one."""
    if library.loaded() is None:
        return 0
    return max(0, library.load().users(storage._cdata) - 1)


def _joined(storage, device):
    """The storage over the same memory on a device. There is one for each device."""
    lib = library.load()
    with library.lock:
        lib.must(lib.share(storage._cdata), "gmm.torch: ")
        number = lib.shared(storage._cdata)  # of the memory, for all storages over it
        _peers[number, storage.device] = storage
        found = _peers.get((number, device))
        if found is not None and lib.shared(found._cdata) == number:
            return found
        made = _empty(torch.uint8, device).untyped_storage()
        lib.must(lib.join(made._cdata, storage._cdata, ordinal(device)), "gmm.torch: ")
        _peers[number, device] = made
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
        raise RuntimeError("gmm.torch: a tensor cannot move to the host while a CUDA graph is captured, "
                           "because the host would have to wait; "
                           "move it before or after, or with non_blocking=True")
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
        if grad is None:
            return None, None, None
        if is_managed(grad) and grad.device != ctx.source and storage_of(grad) is not None:
            return move(grad, ctx.source, False), None, None
        return grad.to(ctx.source), None, None

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
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if device.type not in ("cpu", "cuda") or storage_of(tensor) is None:
        return None
    device = resolve(device)
    if tensor.device == device or tensor.is_neg() or tensor.numel() == 0 or not is_managed(tensor):
        return None
    return move(tensor, device, non_blocking)


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
