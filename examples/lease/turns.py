# SPDX-License-Identifier: Apache-2.0
"""A trainer and a generator, two programs on one GPU that is too small for both. Usage: turns.py [MIB]

Without a GPU they share a host device of 64 MiB. On a GPU pass a MIB of more than half of it.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

import gmm

HERE = pathlib.Path(__file__).parent


def share_a_small_device(folder, size):
    """On the host backend processes share a device only if a file says how large it is."""
    with gmm.Context() as context:
        if context.info.backend_name != "host":
            return
    os.environ.update(GMM_BACKEND="host", GMM_HOST_CARD=os.path.join(folder, "card"), GMM_IPC_DIR=folder)
    gmm.Context("host", host_devices=1, host_memory=size).close()  # the first one says the size


def main():
    size = sys.argv[1] if len(sys.argv) > 1 else "40"
    with tempfile.TemporaryDirectory() as folder:
        share_a_small_device(folder, 64 << 20)
        programs = [subprocess.Popen([sys.executable, str(HERE / name), size, steps])
                    for name, steps in (("trainer.py", "4"), ("generator.py", "12"))]
        codes = [program.wait() for program in programs]
    if any(codes):
        sys.exit(f"the programs ended with {codes}")
    print("turns: ok")


if __name__ == "__main__":
    main()
