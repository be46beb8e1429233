# SPDX-License-Identifier: Apache-2.0
"""A CallbackMemoryResource of RMM whose callbacks are Python: where the one of C++ cannot be compiled."""
import sys

from gmm import _native as native
from gmm._core.resource import alloc_desc, hand_over

# Resources that were made, for good. RMM's C++ has copies of them with bare addresses of their callables, and no copy
# says when it goes.
_made = []


def resource(context, kind, device, tag):
    """A CallbackMemoryResource that calls Python."""
    import rmm  # pylint: disable=import-outside-toplevel # at the first use only

    def allocate(size, stream):
        if not size:
            return 0
        number, got = stream.__cuda_stream__()[1], []
        try:
            hand_over(got.append, lambda address: native.gmm_free(context, address, number), native.gmm_alloc,
                      context, size, alloc_desc(kind, device, tag, number))
            return got[0]
        except OverflowError as error:  # beyond any memory: want of memory to RMM
            raise MemoryError(str(error)) from None
        except BaseException:  # Ctrl-C, too: RMM does not get the address
            if got:
                deallocate(got[0], size, stream)
            raise

    def deallocate(address, _size, stream):
        try:
            if address:
                native.gmm_free(context, address, stream.__cuda_stream__()[1])
        except Exception as error:  # pylint: disable=broad-exception-caught # RMM's C++ takes no error here
            print(f"gmm.rmm could not free the memory at {address:#x}: {error}", file=sys.stderr)

    made = rmm.mr.CallbackMemoryResource(allocate, deallocate)
    _made.append((made, allocate, deallocate))
    return made
