# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver.hooks.mode_preload: the library in front of the CUDA runtime."""
import contextlib

from gmm._memory_saver import preload

from ..utils import get_binary_path_from_package
from .base import HookUtilBase


class HookUtilModePreload(HookUtilBase):
    """Hook mode "preload"."""

    def get_path_binary(self):
        return preload.preloaded_library()


@contextlib.contextmanager
def configure_subprocess():
    """In its with block the environment makes new processes load the library, for hook mode "preload"."""
    with preload.preloading(str(get_binary_path_from_package("torch_memory_saver_hook_mode_preload"))):
        yield
