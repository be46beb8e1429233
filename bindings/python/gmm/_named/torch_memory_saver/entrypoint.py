# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver.entrypoint: the class."""
import sys

from gmm import memory_saver

from .utils import is_xpu


class TorchMemorySaver(memory_saver.TorchMemorySaver):
    """gmm.memory_saver.TorchMemorySaver, which refuses a backend on the platforms where upstream does."""

    @staticmethod
    def _check_backend(enable_cpu_backup, cpu_backup_backend):
        memory_saver.TorchMemorySaver._check_backend(enable_cpu_backup, cpu_backup_backend)
        if cpu_backup_backend is None:
            return
        if is_xpu():
            raise ValueError("cpu_backup_backend is not supported on XPU")
        if cpu_backup_backend == "mmap" and getattr(getattr(sys.modules.get("torch"), "version", None), "hip", None):
            raise ValueError("cpu_backup_backend='mmap' is not supported on ROCm")
