# SPDX-License-Identifier: Apache-2.0
"""Unified memory switched on and off, as RFC-0023 of PyTorch has it."""
import contextlib
import os

import torch

from gmm._core.enums import Kind
from gmm._torch import allocator, extension, library, managed, patches, switches, tagged_pool


def set_enabled(enabled):
    """See gmm.torch.set_enabled_uvm()."""
    with switches.lock():
        if enabled:
            has_device = torch.cuda.is_available()
            if not has_device and not os.environ.get("GMM_BACKEND"):
                raise RuntimeError("torch.cuda.set_enabled_uvm(): PyTorch sees no CUDA device, so there is no unified "
                                   "memory; GMM_BACKEND=host tries the interface with memory of the host")
            lib = library.load()
            if has_device:
                allocator.use(None)
            home = torch.cuda.current_device() if has_device else 0
            extension.load(lib).take_cpu_tensors()
            lib.check(lib.cdll.gmm_torch_host_start(home))
            patches.patch()
            lib.cdll.gmm_torch_set_managed(1)
        elif library.loaded() is not None:
            library.load().cdll.gmm_torch_set_managed(0)
        switches.set_enabled(enabled)


@contextlib.contextmanager
def use_uvm(device=None):
    """See gmm.torch.use_uvm()."""
    device = managed.resolve("cuda" if device is None else device)
    with torch.cuda.device(device):
        pool = tagged_pool.make(None, Kind.MANAGED)
    with pool.use(device):
        yield pool
