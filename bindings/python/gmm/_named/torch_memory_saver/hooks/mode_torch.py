# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver.hooks.mode_torch: PyTorch's pluggable allocator."""
from ..utils import get_binary_path_from_package
from .base import HookUtilBase


class HookUtilModeTorch(HookUtilBase):
    """Hook mode "torch"."""

    def __init__(self):
        import torch  # pylint: disable=import-outside-toplevel # the package loads without PyTorch

        self.allocator = torch.cuda.memory.CUDAPluggableAllocator(self.get_path_binary(), "tms_torch_malloc",
                                                                  "tms_torch_free")

    def get_path_binary(self):
        return str(get_binary_path_from_package("torch_memory_saver_hook_mode_torch"))

    def get_allocator(self):
        return self.allocator.allocator()
