# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors over gmm's memory in torch.multiprocessing: what gmm.multiprocessing.enable_torch() switches on.

PyTorch pickles a tensor as its storage and a view of it. By itself it copies a CPU storage to a file of shared memory
first, and has no way to share a CUDA storage that a pluggable allocator made. Here a storage whose address a context of
gmm knows is sent as a handle, and the receiver's storage lies over the imported memory. All others go PyTorch's way; so
do CPU tensors over MANAGED memory, which cannot be shared: PyTorch moves them into its file.
"""
import weakref
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing  # its reductions are registered first
from torch.multiprocessing import reductions

from gmm import _context
from gmm import _native as native
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
    for context in list(_context.contexts):
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
            f"a CUDA tensor over MANAGED memory at 0x{address:x} was sent to another process; managed memory cannot be shared: send a clone() of it in DEVICE or VMM memory",
            code=native.GMM_ERROR_INVALID_KIND, name="GMM_ERROR_INVALID_KIND")
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
    own = parcel.own()
    if own is not None:
        return own
    key = parcel.handle, parcel.nbytes
    known = reductions.storage_from_cache(torch.UntypedStorage, key)  # one storage for all tensors that had one
    if known is not None:
        parcel.acknowledge()
        return known
    enable()  # who has received such tensors sends them on in the same way
    buffer = parcel.open()
    storage = torch.from_dlpack(buffer).untyped_storage()
    if storage.device.type != device_type:
        raise RuntimeError(f"a {device_type} tensor over {buffer.kind.name} memory of gmm arrived as one of {storage.device}")
    _received[storage.data_ptr()] = buffer
    reductions.shared_cache[key] = reductions.StorageWeakRef(storage)
    return storage


def _reduce_tensor(tensor):
    """CUDA tensors only: PyTorch pickles those of the CPU by their storage already."""
    if not tensor.is_cuda or tensor.layout != torch.strided or tensor.is_nested or _owner(tensor.untyped_storage()) is None:
        return reductions.reduce_tensor(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError("a tensor with a history cannot be sent to another process, as autograd does not reach there; send detach() of it")
    torch.utils.hooks.warn_if_has_hooks(tensor)
    metadata = tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.requires_grad
    return reductions.rebuild_tensor, (type(tensor), tensor._typed_storage(), metadata)


def enable():
    """Registers the above with multiprocessing's pickler, in this process; receivers do it by themselves."""
    for kind in {torch.Tensor, torch.nn.Parameter, *torch._tensor_classes}:
        ForkingPickler.register(kind, _reduce_tensor)
    ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
