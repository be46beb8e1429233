# SPDX-License-Identifier: Apache-2.0
"""Replays an allocation trace: one line of the tour's second table. The times are Python's, objects included."""
import gzip
import os
import time

import gmm

MIB = 1 << 20


def read_trace(path):
    """The trace's operations as (id, size or None, stream number)."""
    operations = []
    with gzip.open(path, "rt") as file:
        for number, line in enumerate(file, 1):
            words = line.split()
            if len(words) == 4 and words[0] == "a":
                operations.append((int(words[1]), int(words[2]), int(words[3])))
            elif len(words) == 3 and words[0] == "f":
                operations.append((int(words[1]), None, int(words[2])))
            else:
                raise ValueError(f"line {number} is not of a trace: {line[:60]!r}")
    if not operations:
        raise ValueError("the trace is empty")
    return operations


def peak_requested(operations):
    sizes, now, peak = {}, 0, 0
    for block, size, _ in operations:
        if size is None:
            now -= sizes.pop(block)
        else:
            sizes[block] = size
            now += size
            peak = max(peak, now)
    return peak


def run(context, operations, streams):
    """Runs one pass, which ends with nothing live. Returns the seconds it took."""
    live = {}
    alloc, vmm = context.alloc, gmm.Kind.VMM
    start = time.perf_counter()
    for block, size, number in operations:
        if size is None:
            live.pop(block).free(streams[number])
        else:
            live[block] = alloc(size, vmm, stream=streams[number])
    for buffer in live.values():
        buffer.free()
    return time.perf_counter() - start


def replay(path):
    """The trace's line of the table."""
    operations = read_trace(path)
    requested = peak_requested(operations)
    with gmm.Context(host_memory=16 << 30) as context:
        streams = {number: context.stream() if number else None for number in {number for _, _, number in operations}}
        first = run(context, operations, streams)
        reserved = context.stats(kind=gmm.Kind.VMM).peak_reserved_bytes
        again = run(context, operations, streams)
    name = os.path.basename(path).split(".")[0]
    count = len(operations)
    return (f"{name:<18}{count:<14}{f'{requested / MIB:.1f} MiB':<14}{f'{reserved / MIB:.1f} MiB':<14}"
            f"{reserved / requested:<8.3f}{first / count * 1e9:<14.0f}{again / count * 1e9:.0f}")
