# SPDX-License-Identifier: Apache-2.0
"""A consumer of the ring: see ring.py for what is said on stdin and stdout."""
import platform
import sys
import zlib

import gmm


def say(*words):
    print(*words, flush=True)


def consume(context, size, ring, ready):
    """Copies out and checks frames until the end; returns how many, and how many were bad."""
    stream = context.stream()
    staging = context.alloc(size, gmm.Kind.HOST)
    copied = context.event(ipc=True) if ready else None
    say("hello", f"Python-{platform.python_version()}", copied.ipc_export().hex() if copied else "-")
    checked = bad = 0
    for line in sys.stdin:
        word, *values = line.split()
        if word == "end":
            break
        number, slot, checksum = map(int, values)
        if ready:
            stream.wait(ready[slot])
        context.copy(staging, ring.address + slot * size, size, stream=stream)
        if ready:
            copied.record(stream)
            say("taken", number)
            stream.synchronize()
        else:
            stream.synchronize()
            say("taken", number)
        frame = memoryview(staging)
        right = zlib.crc32(frame) == checksum and int.from_bytes(frame[:8], "little") == number
        del frame
        checked += 1
        bad += not right
        say("checked", number, "ok" if right else "bad")
    return checked, bad


def main():
    _, backend, _, _, size, handle = sys.stdin.readline().split()
    handles = []
    while (words := sys.stdin.readline().split())[0] == "ready":
        handles.append(bytes.fromhex(words[1]))
    with gmm.Context(backend) as context, context.ipc_import(bytes.fromhex(handle)) as ring:
        ready = [context.ipc_import_event(event) for event in handles]
        checked, bad = consume(context, int(size), ring, ready)
        say("done", checked, bad)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
