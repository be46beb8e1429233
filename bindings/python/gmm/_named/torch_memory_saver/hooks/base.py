# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver.hooks.base: the interface of a hook mode."""
from typing import Literal

HookMode = Literal["preload", "torch"]


class HookUtilBase:
    """A hook mode: the library that has the functions, and the allocator of its pools."""

    @staticmethod
    def create(hook_mode):
        """The hook mode of a name."""
        from . import mode_preload, mode_torch  # lazy: both are subclasses of this module's class

        modes = {"preload": mode_preload.HookUtilModePreload, "torch": mode_torch.HookUtilModeTorch}
        return modes[hook_mode]()

    def get_path_binary(self):
        """The path of the library."""
        raise NotImplementedError

    def get_allocator(self):
        """The allocator for torch.cuda.MemPool(); None: PyTorch's own."""
        return None
