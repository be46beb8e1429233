# SPDX-License-Identifier: Apache-2.0
"""Generates by turns. It knows no other process. Usage: generator.py [MIB] [TEXTS]"""
import sys
import threading
import time

import gmm
import gmm.lease

MIB = 1 << 20
PAGE = 4096


def main():
    size = (int(sys.argv[1]) if len(sys.argv) > 1 else 40) * MIB
    texts = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    context = gmm.context()
    context.tag("weights", gmm.Contents.HOST)
    context.tag("kv_cache", gmm.Contents.DROP)  # nobody needs it after a pause
    page = bytearray(PAGE)
    wanted = threading.Event()                  # by somebody who waits
    with gmm.lease.Lease("generator", offer={"weights": 2, "kv_cache": 1}, asked=lambda ask: wanted.set()) as lease:
        with lease.use(size):
            weights = context.alloc(size // 4 * 3, gmm.Kind.VMM, tag="weights")
            weights.fill(7)
            cache = context.alloc(size // 4, gmm.Kind.VMM, tag="kv_cache")
        made = 0
        while made < texts:
            with lease.use() as resumed:
                wanted.clear()
                cache.fill(0)                   # its contents may be anything now
                begin = made
                while made < texts and not wanted.is_set():
                    weights.copy_to(page)
                    assert page == bytes([7]) * PAGE, "the contents were lost"
                    time.sleep(0.02)            # generates a text
                    made += 1
            print(f"generator: texts {begin + 1} to {made}, {resumed // MIB} MiB came back", flush=True)
    weights.free()
    cache.free()


if __name__ == "__main__":
    main()
