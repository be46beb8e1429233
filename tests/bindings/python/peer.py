# SPDX-License-Identifier: Apache-2.0
"""The second process: peer.py BACKEND SIZE BEFORE AFTER.

It imports the handle on stdin, checks that all bytes are BEFORE, and fills the memory with AFTER.
"""
import sys

import gmm

backend, size, before, after = sys.argv[1], *map(int, sys.argv[2:])
with gmm.Context(backend) as context:
    with context.ipc_import(sys.stdin.buffer.read()) as shared:
        assert shared.state == gmm.State.IMPORTED, shared
        assert shared.nbytes >= size, (shared.nbytes, size)
        seen = bytearray(size)
        shared.copy_to(seen)
        assert seen == bytes([before]) * size, seen[:16]
        shared.fill(after, size=size)
    assert shared.closed
print("changed")
