# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors over gmm's memory in torch.multiprocessing: gmm.multiprocessing.enable_torch() switches this on.

PyTorch pickles a tensor as its storage and a view of it. PyTorch itself first copies a CPU storage to a file of shared
memory, and cannot share a CUDA storage of a pluggable allocator. Here a storage whose address a context of gmm knows
travels as a handle, and the receiver's storage lies over the imported memory. All other storages go PyTorch's way. So
do CPU tensors over MANAGED memory, which cannot be shared: PyTorch copies them to its file.
"""
import weakref
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing  # registers its reductions before these
from torch.multiprocessing import reductions

from gmm import _context
from gmm._core.enums import Kind, State
from gmm._core.errors import ERRORS
from gmm._multiprocessing.parcel import export, pack

_HERE = (State.ACTIVE, State.PAUSED, State.PARTLY_PAUSED, State.IMPORTED)
_received = weakref.WeakValueDictionary()  # imported buffers by address, to send them on


def _owner(storage):
    """(context, PointerInfo) of a storage in gmm's memory, or None.

    Small storages of PyTorch's own ask each context once.
    """
    address = storage.data_ptr()
    if address == 0 or storage.nbytes() == 0:
        return None
    for context in _context.members(_context.contexts):
        if not context.closed:
            info = context.query(address)
            if info.state in _HERE:
                if info.kind == Kind.MANAGED and storage.device.type == "cpu":
                    return None
                return context, info
    return None


def _export(storage, context, info):
    address = storage.data_ptr()
    if info.kind == Kind.MANAGED:
        raise ERRORS["InvalidKindError"](
            f"a CUDA tensor over MANAGED memory at 0x{address:x} was sent to another process; "
            "managed memory cannot be shared: send a clone() of it in DEVICE or VMM memory")
    if info.state == State.IMPORTED and address in _received:
        return export(_received[address])
    return context.ipc_export(address)


def _reduce_storage(storage):
    owner = _owner(storage) if storage.device.type in ("cpu", "cuda") else None
    if owner is None:
        return reductions.reduce_storage(storage)
    context, info = owner
    handle = _export(storage, context, info)
    if storage.is_cuda:
        torch.cuda.current_stream(storage.device).synchronize()
    reductions.shared_cache[handle, storage.nbytes()] = reductions.StorageWeakRef(storage)
    return _rebuild_storage, (pack(storage, context, handle, storage.nbytes(), info.device), storage.device.type)


def _rebuild_storage(parcel, device_type):
    # Tensors that shared a storage share one here.
    known = reductions.storage_from_cache(torch.UntypedStorage, (parcel.handle, parcel.nbytes))
    return parcel.open(lambda context, device: _import_storage(parcel, context, device, device_type), known)


def _import_storage(parcel, context, device, device_type):
    enable()  # a receiver of such tensors sends them on in the same way
    buffer = parcel.import_buffer(context, device)
    storage = torch.from_dlpack(buffer).untyped_storage()
    if storage.device.type != device_type:
        raise RuntimeError(f"a {device_type} tensor over {buffer.kind.name} memory of gmm arrived as one of "
                           f"{storage.device}")
    _received[storage.data_ptr()] = buffer
    reductions.shared_cache[parcel.handle, parcel.nbytes] = reductions.StorageWeakRef(storage)
    return storage


def _reduce_tensor(tensor):
    """Handles CUDA tensors. PyTorch already pickles CPU tensors by their storage."""
    is_plain = tensor.is_cuda and tensor.layout == torch.strided and not tensor.is_nested
    if not is_plain or _owner(tensor.untyped_storage()) is None:
        return reductions.reduce_tensor(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError("a tensor with a history cannot be sent to another process, "
                           "because autograd works in one process only; send detach() of it")
    torch.utils.hooks.warn_if_has_hooks(tensor)
    metadata = tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.requires_grad
    return reductions.rebuild_tensor, (type(tensor), tensor._typed_storage(), metadata)


def enable():
    """Registers these reductions with multiprocessing's pickler in this process. A receiver registers them itself."""
    for kind in {torch.Tensor, torch.nn.Parameter, *torch._tensor_classes}:
        ForkingPickler.register(kind, _reduce_tensor)
    ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
