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
    libc = ctypes.CDLL(None)  # unlike the module mmap it lets other threads run
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_POPULATE
    begin, before, touched = time.monotonic(), available(), []

    def work():
        last = begin
        while (available() + len(touched) * PIECE < target and time.monotonic() - begin < seconds
               and time.monotonic() - last < PATIENCE):
            if available() < LEFT + 4 * PIECE:
                time.sleep(0.05)
            elif libc.mmap(None, PIECE, mmap.PROT_READ | mmap.PROT_WRITE, kind, -1, 0) in (
                    None, ctypes.c_void_p(-1).value):
                return
            else:
                touched.append(PIECE)
                last = time.monotonic()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = (available() + sum(touched)) / 2**30
    print(f"host memory available: {before / 2**30:.1f} GiB before, {after:.1f} GiB with "
          f"{sum(touched) / 2**30:.1f} GiB touched, {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main()
