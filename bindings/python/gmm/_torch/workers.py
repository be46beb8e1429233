# SPDX-License-Identifier: Apache-2.0
"""Worker processes of DataLoader.

The driver does not map managed memory in a forked child: a read there ends the child with a signal. So a loader that
would take a managed tensor into a forked worker raises an error, in the parent and before the fork.
"""
import functools
import gc
import multiprocessing
import types

import torch

from gmm._torch import library, managed

_MOST = 1_000_000  # objects visited; a larger dataset consists of numbers, not of tensors
_SKIPPED = (type, types.ModuleType, types.BuiltinFunctionType, str, bytes, int, float, complex, bool, type(None),
            torch.dtype, torch.device)


def managed_inside(*roots):
    """A managed tensor that is reachable from some objects, but not through modules and globals; else None."""
    seen, found = set(), list(roots)
    while found and len(seen) < _MOST:
        value = found.pop()
        if isinstance(value, _SKIPPED) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if value.device.type == "cpu" and managed.is_managed(value):
                return value
            continue
        if isinstance(value, types.FunctionType):
            found.extend((value.__closure__, value.__defaults__, value.__kwdefaults__))
        else:
            found.extend(gc.get_referents(value))
    return None


def check(loader):
    """RuntimeError when forked workers would read managed memory of CUDA."""
    attached = library.loaded()
    if attached is None or attached.context.info.backend_name != "cuda":
        return  # the host backend's managed memory is ordinary memory, of which a child has a copy
    context = loader.multiprocessing_context
    method = context.get_start_method() if context is not None else multiprocessing.get_start_method()
    if method != "fork":
        return
    tensor = managed_inside(loader.dataset, loader.collate_fn, loader.worker_init_fn, loader.sampler)
    if tensor is not None:
        raise RuntimeError(f"gmm.torch: DataLoader would take a managed tensor of shape {tuple(tensor.shape)} into "
                           "forked workers, where its memory is not "
                           "mapped; use multiprocessing_context=\"spawn\", "
                           "or put unmanage_memory() of it into the dataset")


def patch():
    """Makes loaders with workers call check()."""
    from torch.utils.data import dataloader  # pylint: disable=import-outside-toplevel

    iterator = dataloader._MultiProcessingDataLoaderIter
    original = iterator.__init__

    @functools.wraps(original)
    def __init__(self, loader):
        self._shutdown = True  # tells its __del__ that there is nothing to end when check() raises
        check(loader)
        original(self, loader)

    iterator.__init__ = __init__
