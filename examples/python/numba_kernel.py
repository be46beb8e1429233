# SPDX-License-Identifier: Apache-2.0
"""Numba kernels over memory of gmm: python numba_kernel.py

It needs a GPU, numba-cuda (pip install 'numba-cuda[cu13]') and numpy. Where one is missing it says so and ends with 0.
"""
import sys

try:
    import numpy as np
    from numba import cuda
except ImportError as error:
    print(f"skipped: {error}; pip install 'numba-cuda[cu13]' numpy")
    sys.exit()

import gmm
import gmm.numba

if not cuda.is_available():
    print("skipped: Numba sees no GPU")
    sys.exit()

# From here on everything that Numba allocates comes from gmm. Device memory of the kind VMM can be paused.
gmm.numba.use(kind=gmm.Kind.VMM)


@cuda.jit
def saxpy(out, x, y, a):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


size = 1 << 20
x, y = np.arange(size, dtype=np.float32), np.ones(size, dtype=np.float32)
cuda.current_context()

with gmm.context().tag("inputs", gmm.Contents.HOST):
    device_x, device_y = cuda.to_device(x), cuda.to_device(y)
out = cuda.managed_array(size, dtype=np.float32)  # the host reads it where it is
saxpy.forall(size)(out, device_x, device_y, np.float32(2))
cuda.synchronize()
assert (out == 2 * x + y).all()
print("Numba's array is", gmm.context().query(device_x.device_ctypes_pointer.value).kind.name, "memory of gmm")

# The inputs lie in host memory while another program needs the GPU, and come back to the same addresses.
print("paused:", gmm.context().pause("inputs") >> 20, "MiB given back")
gmm.context().resume("inputs")
saxpy.forall(size)(out, device_x, device_y, np.float32(3))
cuda.synchronize()
assert (out == 3 * x + y).all()

# The other way round: a kernel over a buffer that gmm allocated, without a copy.
buffer = gmm.alloc(size * 4)
view = cuda.as_cuda_array(buffer).view(np.float32)
saxpy.forall(size)(view, device_x, device_y, np.float32(4))
assert (view.copy_to_host() == 4 * x + y).all()
print("a kernel wrote into", buffer)
