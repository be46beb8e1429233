# SPDX-License-Identifier: Apache-2.0
"""Unified memory switched on and off, as RFC-0023 of PyTorch has it."""
import torch

from gmm._torch import allocator, extension, library, patches, switches


def set_enabled(enabled):
    """See gmm.torch.set_enabled_uvm()."""
    with switches.lock():
        if enabled:
            lib = library.load()
            has_device = torch.cuda.is_available()
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
