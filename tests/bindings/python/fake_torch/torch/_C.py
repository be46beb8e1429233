# SPDX-License-Identifier: Apache-2.0
"""Part of the fake of PyTorch."""
settings = []


def _cuda_hasPrimaryContext(device):
    from . import cuda
    return device in cuda._contexts


def _accelerator_setAllocatorSettings(text):
    settings.append(text)
