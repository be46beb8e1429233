# SPDX-License-Identifier: Apache-2.0
"""A spawned process that opens handles, for test_numba.py."""
import time

import numpy as np
from numba import cuda


def read_array(ipc_array):
    with ipc_array as array:
        return array.copy_to_host()


def read_both(first, second):
    """Two handles that are open at the same time, of one allocation perhaps."""
    with first as one, second as two:
        return one.copy_to_host(), two.copy_to_host()


def read_handle(handle, dtype):
    dtype = np.dtype(dtype)
    array = handle.open_array(cuda.current_context(), shape=handle.size // dtype.itemsize, dtype=dtype)
    try:
        return array.copy_to_host()
    finally:
        handle.close()


def read_staged(handle, dtype):
    pointer = handle.open_staged(cuda.current_context())
    try:
        array = np.zeros(handle.size // np.dtype(dtype).itemsize, dtype=dtype)
        cuda.cudadrv.driver.device_to_host(array, pointer, handle.size)
        return array
    finally:
        handle.close()


def add_one(ipc_array):
    """Writes, so that the exporter sees that nothing was copied."""
    with ipc_array as array:
        array.copy_to_device(array.copy_to_host() + 1)
        cuda.synchronize()


def started():
    return time.time()
