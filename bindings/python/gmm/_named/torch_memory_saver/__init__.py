# SPDX-License-Identifier: Apache-2.0
"""gmm.memory_saver under the name of torch_memory_saver: see gmm._memory_saver.by_name.

Upstream's modules are names of this one, so that programs import from them what upstream has there.
"""
# pylint: disable=import-outside-toplevel # the package loads without PyTorch
import pathlib
import sys
from typing import Literal

from gmm import memory_saver as _implementation
from gmm._memory_saver import preload as _preload
from gmm._memory_saver.preload import Library as BinaryWrapper
from gmm._memory_saver.preload import changed_environment as change_env
from gmm.memory_saver import register_hook_mode

HookMode = Literal["preload", "torch"]


def is_xpu():
    """Whether PyTorch has an Intel GPU."""
    import torch

    return hasattr(torch, "xpu") and torch.xpu.is_available()


def get_binary_path_from_package(stem):
    """The path of a library with this stem, beside the package or in it: all are links to one library, for any CUDA."""
    package = pathlib.Path(__file__).parent
    found = sorted(path for folder in (package, package.parent) for path in folder.glob(f"{stem}*.so"))
    if not found:
        raise RuntimeError(f"torch_memory_saver (gmm): no file in {package.parent} begins with {stem}; "
                           "python -m gmm.memory_saver makes that folder anew")
    return found[0]


class HookUtilModePreload:
    """Hook mode "preload": the library in front of the CUDA runtime."""

    def get_path_binary(self):
        """The path of the library."""
        return _preload.preloaded_library()


def configure_subprocess():
    """In its with block the environment makes new processes load the library, for hook mode "preload"."""
    return _preload.preloading(str(get_binary_path_from_package("torch_memory_saver_hook_mode_preload")))


class TorchMemorySaver(_implementation.TorchMemorySaver):
    """gmm.memory_saver.TorchMemorySaver, which refuses a backend on the platforms where upstream does."""

    @staticmethod
    def _check_backend(enable_cpu_backup, cpu_backup_backend):
        _implementation.TorchMemorySaver._check_backend(enable_cpu_backup, cpu_backup_backend)
        if cpu_backup_backend is None:
            return
        import torch

        if is_xpu():
            raise ValueError("cpu_backup_backend is not supported on XPU")
        if cpu_backup_backend == "mmap" and torch.version.hip:
            raise ValueError("cpu_backup_backend='mmap' is not supported on ROCm")


# Of upstream's testing_utils, for upstream's own tests.


def get_device():
    """The type of the device that is tested."""
    return "xpu" if is_xpu() else "cuda"


def empty_cache():
    """Returns what PyTorch's cache holds to the driver."""
    import torch

    getattr(torch, get_device()).empty_cache()


def get_and_print_gpu_memory(message, gpu_id=0):
    """The bytes of a device that are in use, as the driver counts them; prints them too."""
    import torch

    free, total = getattr(torch, get_device()).mem_get_info(gpu_id)
    print(f"GPU {gpu_id} memory: {(total - free) / 1024 ** 3:.2f} GB ({message})")
    return total - free


#: The instance of the process.
torch_memory_saver = TorchMemorySaver()
#: Its name in an earlier release.
memory_saver = torch_memory_saver

for _name in ("binary_wrapper", "entrypoint", "hooks", "hooks.base", "hooks.mode_preload", "hooks.mode_torch",
              "testing_utils", "utils"):
    sys.modules[f"{__name__}.{_name}"] = globals()[_name.rpartition(".")[2]] = sys.modules[__name__]
