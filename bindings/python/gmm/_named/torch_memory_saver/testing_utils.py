# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver.testing_utils: what upstream's own tests use."""
from .utils import is_xpu


def get_device():
    """The type of the device that is tested."""
    return "xpu" if is_xpu() else "cuda"


def _module():
    import torch  # pylint: disable=import-outside-toplevel # the package loads without PyTorch

    return torch.xpu if is_xpu() else torch.cuda


def empty_cache():
    """Returns what PyTorch's cache holds to the driver."""
    _module().empty_cache()


def get_and_print_gpu_memory(message, gpu_id=0):
    """The bytes of a device that are in use, as the driver counts them; prints them too."""
    free, total = _module().mem_get_info(gpu_id)
    print(f"GPU {gpu_id} memory: {(total - free) / 1024 ** 3:.2f} GB ({message})")
    return total - free
