# SPDX-License-Identifier: Apache-2.0
"""A trainer and a generator, two processes on one GPU that is too small for both. Usage: turns.py [MIB]

Without a GPU they share a host device of 64 MiB. On a GPU pass a MIB of more than half of it.
"""
import multiprocessing
import os
import sys
import tempfile
import time

import gmm
import gmm.lease


def work(name, seed, size):
    """One of the two. It knows no other process."""
    context = gmm.context()
    context.tag(name, gmm.Contents.HOST)         # a pause keeps the contents in host memory
    with gmm.lease.Lease(name, offer=[name]) as lease:
        with lease.use(size):                    # waits for the bytes that the first turn allocates
            weights = context.alloc(size, gmm.Kind.VMM, tag=name)
            weights.fill(seed)
        for step in range(4):
            page = bytearray(4096)
            with lease.use() as resumed:         # the weights are back, with their contents
                weights.copy_to(page)
                assert page == bytes([seed + step]) * len(page), "the contents were lost"
                weights.fill(seed + step + 1)    # a step of training
            print(f"{name}: step {step}, {resumed >> 20} MiB came back", flush=True)
            time.sleep(0.05)                     # others may have the memory
        weights.free()


def main():
    size = int(sys.argv[1] if len(sys.argv) > 1 else 40) << 20
    with tempfile.TemporaryDirectory() as folder:
        # Processes share a device of the backend host when this file says how large it is.
        os.environ.update(GMM_HOST_CARD=os.path.join(folder, "card"), GMM_IPC_DIR=folder)
        gmm.Context(host_devices=1, host_memory=64 << 20).close()
        spawn = multiprocessing.get_context("spawn")
        programs = [spawn.Process(target=work, args=each) for each in (("trainer", 1, size), ("generator", 101, size))]
        for program in programs:
            program.start()
        for program in programs:
            program.join()
        for entry in gmm.lease.status():
            print(entry)
    sys.exit(any(program.exitcode for program in programs))


if __name__ == "__main__":
    main()
