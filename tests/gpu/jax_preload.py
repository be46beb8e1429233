# SPDX-License-Identifier: Apache-2.0
"""JAX under the preload library: its arrays lie in memory of gmm, which a pause takes and a resume brings back.

cupy_check.py starts it with LD_PRELOAD, and with an allocator of XLA in XLA_PYTHON_CLIENT_ALLOCATOR. Prints what was
found, or ends with an AssertionError.
"""
import ctypes
import os

import jax
import jax.numpy as jnp

from gmm._memory_saver import preload

ELEMENTS = 8 << 20


def main():
    library = preload.Library(preload.preloaded()[0])
    device = jax.devices("gpu")[0]
    array = jax.device_put(jnp.arange(ELEMENTS, dtype="float32"), device)
    double = jax.jit(lambda x: x * 2)(array).block_until_ready()
    expected = float(double[-1])

    info = preload.PointerInfo()
    library._check(library.cdll.gmm_query(library.context, double.unsafe_buffer_pointer(), ctypes.byref(info)))
    stats = preload.StatsInfo()
    library._check(library.cdll.gmm_stats_query(library.context, None, ctypes.byref(stats)))
    allocator = os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "default")
    print(f"jax {jax.__version__}, XLA's allocator {allocator!r}: kind {info.kind}, state {info.state}, "
          f"{stats.allocations} allocations, {stats.live_bytes >> 20} MiB live")
    assert info.state == preload.STATE_ACTIVE, "the array is in no memory of gmm"
    assert stats.live_bytes >= 2 * 4 * ELEMENTS, "gmm has less than both arrays"

    library.pause_name(None)
    library._check(library.cdll.gmm_query(library.context, double.unsafe_buffer_pointer(), ctypes.byref(info)))
    assert info.state == preload.STATE_PAUSED, f"it was not paused: state {info.state}"
    library.resume_name(None)
    assert float(double[-1]) == expected == 2.0 * (ELEMENTS - 1), "other contents after the resume"
    assert float(jax.jit(lambda x: (x + 1).sum())(array[:1000])) == 500500.0


if __name__ == "__main__":
    main()
