#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Touches host memory and gives it back, so that a virtual machine whose memory grows with use has it before something
is measured.

Usage: grow_memory.py GIB SECONDS      until GIB are available, for at most SECONDS

Stops when 3 seconds have passed in which nothing was added, and always leaves 3 GiB. Prints what was and what is
available.
"""
import concurrent.futures
import ctypes
import pathlib
import sys
import time

PIECE, LEFT, PATIENCE = 256 << 20, 3 << 30, 3


def available():
    lines = pathlib.Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def main():
    begin, before, touched = time.monotonic(), available(), []
    target, end = int(sys.argv[1]) << 30, begin + float(sys.argv[2])

    def work():
        last = begin
        while available() + len(touched) * PIECE < target and time.monotonic() < min(end, last + PATIENCE):
            if available() < LEFT + 4 * PIECE:
                time.sleep(0.05)
                continue
            piece = (ctypes.c_char * PIECE)()
            ctypes.memset(piece, 1, PIECE)  # other threads run in it
            touched.append(piece)
            last = time.monotonic()

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: work(), range(4)))
    size = len(touched) * PIECE
    print(f"host memory available: {before / 2**30:.1f} GiB before, {(available() + size) / 2**30:.1f} GiB with "
          f"{size / 2**30:.1f} GiB touched, {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main()
