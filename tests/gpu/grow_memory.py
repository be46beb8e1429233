#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Touches host memory and gives it back, so that a virtual machine whose memory grows with use has it before something
is measured.

Usage: grow_memory.py GIB [SECONDS]      until GIB are available, for at most SECONDS (30)

Stops when 3 seconds have passed in which nothing was added, and always leaves 3 GiB. Prints what was and what is
available.
"""

import ctypes
import mmap
import pathlib
import sys
import threading
import time

PIECE, LEFT, PATIENCE = 256 << 20, 3 << 30, 3
MAP_POPULATE = 0x8000


def available():
    lines = pathlib.Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def main():
    target, seconds = int(sys.argv[1]) << 30, float(sys.argv[2]) if len(sys.argv) > 2 else 30
    libc = ctypes.CDLL(None, use_errno=True)  # unlike the module mmap it lets other threads run
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    begin = time.monotonic()
    before = available()
    lock, touched, last = threading.Lock(), [0], [begin]

    def work():
        while touched[0] < target and time.monotonic() - begin < seconds:
            if available() + touched[0] >= target:
                return
            if available() < LEFT + 4 * PIECE:
                if time.monotonic() - last[0] > PATIENCE:
                    return
                time.sleep(0.05)
                continue
            at = libc.mmap(None, PIECE, mmap.PROT_READ | mmap.PROT_WRITE,
                           mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_POPULATE, -1, 0)
            if at in (None, ctypes.c_void_p(-1).value):
                return
            with lock:
                touched[0] += PIECE
                last[0] = time.monotonic()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"host memory available: {before / 2**30:.1f} GiB before, {(available() + touched[0]) / 2**30:.1f} GiB with "
          f"{touched[0] / 2**30:.1f} GiB touched, "
          f"{time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main()
