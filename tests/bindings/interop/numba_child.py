# SPDX-License-Identifier: Apache-2.0
"""A spawned process that opens handles, for test_numba.py."""
import numpy as np
from numba import cuda


def add_one(first, second):
    """Reads two handles that are open at the same time, and writes, so that the exporter sees that it is its memory."""
    with first as one, second as two:
        found = one.copy_to_host(), two.copy_to_host()
        one.copy_to_device(found[0] + 1)
        cuda.synchronize()
        return found


def read(handle, dtype, is_staged):
    pointer = (handle.open_staged if is_staged else handle.open)(cuda.current_context())
    try:
        array = np.zeros(handle.size // np.dtype(dtype).itemsize, dtype=dtype)
        cuda.cudadrv.driver.device_to_host(array, pointer, handle.size)
        return array
    finally:
        handle.close()
