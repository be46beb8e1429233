# SPDX-License-Identifier: Apache-2.0
"""Methods of torch.Tensor for managed memory, and RFC-0023's names in PyTorch."""
from __future__ import annotations

import functools
import os

import torch
import torch.utils._device  # pylint: disable=unused-import

from gmm._torch import allocator, library, managed, workers

_originals = {}

# The functions with pin_memory=True: those with a shape or values, and those that follow a tensor, which is the first
# argument.
_FACTORIES = ("arange", "empty", "empty_permuted", "empty_strided", "eye", "full", "linspace", "logspace", "ones",
              "rand", "randint", "randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices",
              "zeros")
_FOLLOWERS = ("empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like")
_METHODS = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")


def _moved(tensor, device, non_blocking):
    """The tensor over the same memory on a device; None when PyTorch shall copy."""
    if device is None or not managed.moves() or managed.storage_of(tensor) is None:
        return None
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if device.type not in ("cpu", "cuda"):
        return None
    device = managed.resolve(device)
    return managed.move(tensor, device, non_blocking) if managed.movable(tensor, device) else None


def _host_side_used(tensor, device):
    """Notes that an asynchronous copy uses managed memory of a CPU tensor, so that its release is deferred."""
    if tensor.device.type == "cpu" and device.type == "cuda" and managed.is_managed(tensor):
        managed.record(tensor, device, managed.stream_of(device))


def _copied(source, made, non_blocking):
    """Gives the RFC's hints for the direction of a copy between devices, after it."""
    if not managed.get_enabled_uvm() or made is source or made.device == source.device:
        return made
    gpu = made.device if made.device.type == "cuda" else source.device
    if gpu.type != "cuda" or managed.capturing(gpu):
        return made
    if non_blocking:
        _host_side_used(source, gpu)
        _host_side_used(made, gpu)
    if managed.is_managed(made):
        managed.hint(made, made.device, gpu, managed.stream_of(gpu))
    return made


def _dynamo():
    return torch.compiler.is_compiling()  # the compiler shall trace PyTorch's own method


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


def _to_managed(tensor, args, kwargs, to):
    """.to() whose result is managed, with one copy at most."""
    try:
        device, non_blocking, moves = _parse_to(tensor, args, kwargs)
    except (TypeError, RuntimeError):
        return to(tensor, *args, **kwargs)  # it raises
    device = tensor.device if device is None else torch.device(device)
    if moves and device.type in ("cpu", "cuda") and managed.storage_of(tensor) is not None and tensor.numel() \
            and not tensor.is_neg():
        tensor = managed.manage_memory(tensor)
        device = managed.resolve(device)
        return managed.move(tensor, device, non_blocking) if managed.movable(tensor, device) else tensor
    return managed.manage_memory(to(tensor, *args, **kwargs))


def _to(original):
    def to_where_enabled(self, *args, **kwargs):
        if not managed.get_enabled_uvm() or _dynamo():
            return original(self, *args, **kwargs)
        try:
            device, non_blocking, moves = _parse_to(self, args, kwargs)
        except (TypeError, RuntimeError):
            return original(self, *args, **kwargs)  # it raises
        if moves:
            made = _moved(self, device, non_blocking)
            if made is not None:
                return made
        return _copied(self, original(self, *args, **kwargs), non_blocking)

    @functools.wraps(original)
    def to(self, *args, **kwargs):
        manage = kwargs.pop("manage", None)  # the RFC's: None is whether UVM is enabled
        if manage:
            return _to_managed(self, args, kwargs, to_where_enabled)
        made = to_where_enabled(self, *args, **kwargs)
        if manage is not None and managed.get_enabled_uvm() and managed.is_managed(made):
            return managed.unmanage_memory(made)
        return made

    return to


def _pin_memory(original):
    @functools.wraps(original)
    def pin_memory(self, *args, **kwargs):
        # The RFC has one allocator for all host memory: the devices reach managed memory too, and copy it at any time.
        is_plain = self.device.type == "cpu" and managed.storage_of(self) is not None
        if managed.get_enabled_uvm() and not _dynamo() and is_plain:
            return managed.manage_memory(self)
        return original(self, *args, **kwargs)

    return pin_memory


def _is_for_cpu(args, kwargs, follows):
    """Whether a factory makes a plain tensor on the CPU."""
    device, source = kwargs.get("device"), args[0] if follows and args else None
    if device is None:
        device = source.device if isinstance(source, torch.Tensor) else torch.get_default_device()
    layout = kwargs.get("layout") or (source.layout if isinstance(source, torch.Tensor) else torch.strided)
    return torch.device(device).type == "cpu" and layout is torch.strided


def _pinning(follows):
    """For factories: what the RFC has one allocator for is managed with pin_memory=True too."""
    def wrapper(original):
        @functools.wraps(original)
        def factory(*args, **kwargs):
            if (kwargs.get("pin_memory") and managed.get_enabled_uvm() and not _dynamo()
                    and torch._C._len_torch_dispatch_stack() == 0 and _is_for_cpu(args, kwargs, follows)):
                return original(*args, **{**kwargs, "pin_memory": False})
            return original(*args, **kwargs)

        return factory

    return wrapper


def _patch_factories():
    # The table of `with torch.device(...)` holds PyTorch's own functions, by which it recognises a call: it is made
    # once, and must not hold ours. The table of torch.jit.script() gets ours too, where it exists already.
    torch.utils._device._device_constructors()
    names = [(name, False) for name in _FACTORIES] + [(name, True) for name in _FOLLOWERS]
    for name, follows in names:
        if hasattr(torch, name):
            _replace(torch, name, _pinning(follows))
            torch.jit._builtins._register_builtin(getattr(torch, name), "aten::" + name)
    for name in _METHODS:
        _replace(torch.Tensor, name, _pinning(True))


def _new_storage(original):
    """PyTorch makes the storages of copy.deepcopy() and of unpickled tensors by its default CPU allocator."""
    def new(cls, *args, **kwargs):
        if (managed.get_enabled_uvm() and cls is torch.UntypedStorage and len(args) == 1 and type(args[0]) is int
                and set(kwargs) <= {"device"} and torch.device(kwargs.get("device") or "cpu").type == "cpu"
                and not _dynamo() and torch._C._len_torch_dispatch_stack() == 0):
            return torch.empty(args[0], dtype=torch.uint8, device="cpu").untyped_storage()
        return original(cls, *args, **kwargs)

    return staticmethod(new)


def _move_or_copy(tensor, device, non_blocking, memory_format, copy):
    if managed.get_enabled_uvm() and not _dynamo() and memory_format is torch.preserve_format:
        made = _moved(tensor, device, non_blocking)
        if made is not None:
            return made
    return _copied(tensor, copy(), non_blocking)


def _cuda(original):
    @functools.wraps(original)
    def cuda(self, device=None, non_blocking=False, memory_format=torch.preserve_format):
        return _move_or_copy(self, "cuda" if device is None else device, non_blocking, memory_format,
                             lambda: original(self, device, non_blocking, memory_format=memory_format))

    return cuda


def _cpu(original):
    @functools.wraps(original)
    def cpu(self, memory_format=torch.preserve_format):
        return _move_or_copy(self, "cpu", False, memory_format, lambda: original(self, memory_format=memory_format))

    return cpu


def _copy_(original):
    @functools.wraps(original)
    def copy_(self, src, non_blocking=False):
        original(self, src, non_blocking)
        is_asynchronous = non_blocking and isinstance(src, torch.Tensor) and self.device != src.device
        if is_asynchronous and managed.get_enabled_uvm() and not _dynamo():
            gpu = self.device if self.device.type == "cuda" else src.device
            if managed.storage_of(self) is not None and managed.storage_of(src) is not None:
                _host_side_used(self, gpu)
                _host_side_used(src, gpu)
        return self

    return copy_


def _record_stream(original):
    @functools.wraps(original)
    def record_stream(self, stream):
        # PyTorch's own allocator ignores memory that it did not allocate. When gmm is PyTorch's allocator, its hook
        # hears of the stream.
        if not allocator.is_used() and self.device.type == "cuda" and managed.is_managed(self):
            managed.record(self, self.device, stream.cuda_stream)
        return original(self, stream)

    return record_stream


def _share(original):
    @functools.wraps(original)
    def share(self, *args, **kwargs):
        if managed.peers_of(self):
            raise RuntimeError("gmm.torch: tensors on another device share the memory of this CPU storage, "
                               "and would lose it when the storage "
                               "moves to memory that processes share; send clone()")
        return original(self, *args, **kwargs)

    return share


def _replace(owner, name, wrapper):
    original = getattr(owner, name)
    _originals[owner, name] = original
    setattr(owner, name, wrapper(original))


def patch():
    """Replaces, once, the methods of PyTorch by which managed tensors move, and those that would be unsafe for them."""
    with allocator.lock:
        if _originals:
            return
        _replace(torch.Tensor, "to", _to)
        _replace(torch.Tensor, "cuda", _cuda)
        _replace(torch.Tensor, "cpu", _cpu)
        _replace(torch.Tensor, "copy_", _copy_)
        _replace(torch.Tensor, "pin_memory", _pin_memory)
        _patch_factories()
        _replace(torch.UntypedStorage, "__new__", _new_storage)
        _replace(torch.Tensor, "record_stream", _record_stream)
        for name in ("_share_fd_cpu_", "_share_filename_cpu_"):
            _replace(torch.UntypedStorage, name, _share)
        workers.patch()


def set_enabled_uvm(enabled: bool = True) -> None:
    """Makes new tensors managed, on the CPU and on CUDA devices, on every thread.

    False ends that, which the RFC does not have.

    It calls use(), so it must come before the first CUDA tensor. RuntimeError where PyTorch sees no CUDA device, unless
    GMM_BACKEND names a backend of gmm, such as host. Tensors from before stay as they are: see manage_memory(). With
    PYTORCH_ENABLE_UNIFIED_MEMORY=1 in the environment, `import torch` calls install() and this where gmm's wheel is
    installed, and else `import gmm.torch` does.
    """
    with allocator.lock:
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


def serve_use_uvm() -> None:
    """Replaces torch.cuda._use_uvm() of PyTorch 2.15, where there is one, by gmm's."""
    for module in (torch.cuda, torch.cuda.memory):
        if hasattr(module, "_use_uvm"):
            module._use_uvm = managed.use_uvm


allocator.after_use.append(serve_use_uvm)


def install(move_on_copy: bool = True) -> None:
    """Puts RFC-0023's names into PyTorch, and lets .to(), .cuda() and .cpu() move managed tensors while UVM is enabled.

    A second call does nothing.
    torch.cuda: set_enabled_uvm, get_enabled_uvm, set_uvm_move_on_copy, uvm_to. Tensor: is_managed, manage_memory,
    unmanage_memory, uvm_to, and to(manage=True), whose result is managed. While UVM is enabled, pin_memory() gives a
    managed tensor, and to(manage=False) one in ordinary memory.
    """
    patch()
    for function in (set_enabled_uvm, managed.get_enabled_uvm, managed.set_uvm_move_on_copy, managed.uvm_to):
        setattr(torch.cuda, function.__name__, function)
    for method in (managed.is_managed, managed.manage_memory, managed.unmanage_memory, managed.uvm_to):
        setattr(torch.Tensor, method.__name__, method)
    serve_use_uvm()
    managed.set_uvm_move_on_copy(move_on_copy)
