# SPDX-License-Identifier: Apache-2.0
"""A buffer that gmm and dpctl share: one SYCL USM allocation, one SYCL queue, no copy.

    pip install dpctl intel-opencl-rt numpy     # intel-opencl-rt makes the CPU a SYCL device, without an Intel GPU
    python sycl_shared_buffer.py
"""
import sys

try:
    import dpctl
    import dpctl.memory
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}; pip install dpctl intel-opencl-rt numpy")
    sys.exit()

import gmm


def main():
    try:
        context = gmm.Context("sycl")
    except gmm.NoBackendError as error:
        print(f"skipped: {error}")
        return
    with context:
        print(f"{context.device_info().name}, {context.info.driver_version}")
        for kind in (gmm.Kind.DEVICE, gmm.Kind.HOST, gmm.Kind.MANAGED):
            # gmm's pool gives the memory, dpctl looks at it.
            buffer = context.alloc(1 << 20, kind)
            shared = dpctl.memory.as_usm_memory(buffer)
            assert shared._pointer == buffer.address
            buffer.fill(1)
            shared.copy_from_host(np.full(512, 2, "u1"))  # dpctl writes the first half KiB
            read = bytearray(1024)
            buffer.copy_to(read)
            assert read == b"\2" * 512 + b"\1" * 512
            print(f"{kind.name:8} gmm's, for dpctl: USM {shared.get_usm_type()} at 0x{shared._pointer:x}")

        # dpctl allocates, gmm looks at it.
        usm = dpctl.memory.MemoryUSMShared(4096)
        array = gmm.asarray(usm)
        assert array.address == usm._pointer and context.query(array.address).kind == gmm.Kind.MANAGED
        print(f"MANAGED  dpctl's, for gmm: {array!r}")

        # A queue of dpctl orders gmm's work.
        queue = dpctl.SyclQueue(property="in_order")
        block = context.alloc(1 << 20, gmm.Kind.MANAGED, stream=queue)
        block.fill(7, stream=queue)
        queue.wait()
        print(f"a queue of dpctl filled it with {memoryview(block)[0]}")
        block.free(queue)


if __name__ == "__main__":
    main()
