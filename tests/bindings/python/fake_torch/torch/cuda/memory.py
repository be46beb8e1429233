# SPDX-License-Identifier: Apache-2.0
"""Part of the fake of PyTorch: pluggable allocators."""
import ctypes


class _CustomAllocator:
    def __init__(self, malloc, free):
        self.malloc, self.free = malloc, free


class CUDAPluggableAllocator:
    def __init__(self, path_to_so_file, alloc_fn_name, free_fn_name):
        library = ctypes.CDLL(path_to_so_file)
        malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int,
                                  ctypes.c_void_p)((alloc_fn_name, library))
        free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int,
                                ctypes.c_void_p)((free_fn_name, library))
        self._allocator = _CustomAllocator(malloc, free)

    def allocator(self):
        return self._allocator
