# SPDX-License-Identifier: Apache-2.0
"""Trains by turns. It knows no other process. Usage: trainer.py [MIB] [STEPS]"""
import sys
import time

import gmm
import gmm.lease

MIB = 1 << 20
PAGE = 4096


def main():
    size = (int(sys.argv[1]) if len(sys.argv) > 1 else 40) * MIB
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    context = gmm.context()
    context.tag("weights", gmm.Contents.HOST)   # a pause keeps them in host memory
    page = bytearray(PAGE)
    with gmm.lease.Lease("trainer", offer=["weights"]) as lease:
        with lease.use(size):                   # room for what the first turn allocates
            weights = context.alloc(size, gmm.Kind.VMM, tag="weights")
            weights.fill(0)
        for step in range(1, steps + 1):
            begin = time.monotonic()
            with lease.use() as resumed:        # the weights are back, with their contents
                waited = time.monotonic() - begin
                weights.copy_to(page)
                assert page == bytes([step - 1]) * PAGE, "the contents were lost"
                weights.fill(step)              # a step of training
                time.sleep(0.02)
            print(f"trainer: step {step}, {resumed // MIB} MiB came back, waited {waited * 1000:.0f} ms", flush=True)
            time.sleep(0.05)                    # it looks at its loss; others may have the memory
    weights.free()


if __name__ == "__main__":
    main()
