# SPDX-License-Identifier: Apache-2.0
"""A spawned process that opens a handle, for test_numba.py."""
import numpy as np
from numba import cuda


def read(handle, dtype, is_staged):
    pointer = (handle.open_staged if is_staged else handle.open)(cuda.current_context())
    try:
        array = np.zeros(handle.size // np.dtype(dtype).itemsize, dtype=dtype)
        cuda.cudadrv.driver.device_to_host(array, pointer, handle.size)
        return array
    finally:
        handle.close()
