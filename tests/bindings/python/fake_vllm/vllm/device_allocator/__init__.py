# SPDX-License-Identifier: Apache-2.0
"""Part of the fake of vLLM."""


def get_mem_allocator_instance():
    from .cumem import CuMemAllocator
    return CuMemAllocator.get_instance()
