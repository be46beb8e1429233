# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver.utils: where the library lies, the platform, and the environment."""
import contextlib
import ctypes
import functools
import pathlib

from gmm._memory_saver.preload import changed_environment as change_env  # pylint: disable=unused-import # upstream's

_CUDA_MAJORS = (13, 12)


def _torch():
    try:
        import torch  # pylint: disable=import-outside-toplevel # the package loads without PyTorch
    except ImportError:
        return None
    return torch


def _is_rocm():
    return bool(getattr(getattr(_torch(), "version", None), "hip", None))


@functools.lru_cache(maxsize=1)
def is_xpu():
    """Whether PyTorch has an Intel GPU."""
    torch = _torch()
    return hasattr(torch, "xpu") and torch.xpu.is_available()


def _cuda_major():
    """The version of CUDA that PyTorch was built for; else that of a runtime which can be loaded."""
    version = getattr(getattr(_torch(), "version", None), "cuda", None)
    if version:
        return int(version.split(".")[0])
    for major in _CUDA_MAJORS:
        with contextlib.suppress(OSError):
            ctypes.CDLL(f"libcudart.so.{major}")
            return major
    raise RuntimeError("torch_memory_saver (gmm): there is no CUDA here: PyTorch names no version, and no libcudart.so "
                       "can be loaded")


def get_binary_path_from_package(stem):
    """The path of the library with this stem, beside the package or in it. RuntimeError unless there is one."""
    package = pathlib.Path(__file__).parent
    pattern = f"{stem}.*.so" if _is_rocm() or is_xpu() else f"{stem}_cu{_cuda_major()}.*.so"
    found = list(package.glob(pattern)) or list(package.parent.glob(pattern))
    if len(found) != 1:
        raise RuntimeError(f"torch_memory_saver (gmm): {len(found)} files in {package.parent} match {pattern}; "
                           "python -m gmm.memory_saver makes that folder anew")
    return found[0]


__all__ = ["change_env", "get_binary_path_from_package", "is_xpu"]
