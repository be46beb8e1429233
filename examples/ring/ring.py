# SPDX-License-Identifier: Apache-2.0
"""One ring of frames in shared GPU memory: a producer fills it, consumers in other processes and languages read it.

    ring.py [--frames N] [--kind vmm|device|host] [--damage FRAME] [--consumer COMMAND]...

Only lines of text pass through pipes, never frames. The producer starts each consumer, by default `ring.py --consume`,
and writes to its stdin:

    ring BACKEND BYTES HANDLE      the bytes of a frame, and the block as a handle in base64
    ready HANDLE                   an event for each slot
    start
    frame NUMBER SLOT CRC32        a frame is on its way into the slot
    end

The consumer answers on its stdout with `hello HANDLE` (its event), `taken NUMBER` when its copy is queued, and `done
CHECKED BAD`. No host waits for the other side's device: the consumer's stream waits for the slot's event before it
copies the frame out, and the producer's stream waits for the consumer's event before it writes the slot again.
`--damage` spoils one frame behind its checksum, to see it noticed.
"""
import argparse
import base64
import random
import shlex
import subprocess
import sys
import threading
import zlib

import gmm

SLOTS, SIZE = 4, 1 << 20


def text(handle):
    return base64.b64encode(handle).decode()


class Consumer:
    """A process that reads the ring."""

    def __init__(self, command, greeting, context):
        self.taken, self.result = -1, None
        self.process = subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.say(*greeting)
        self.copied = context.ipc_import_event(base64.b64decode(self.process.stdout.readline().split()[1]))

    def say(self, *lines):
        self.process.stdin.write("".join(f"{line}\n" for line in lines))
        self.process.stdin.flush()

    def listen(self, until):
        """Reads answers until the consumer has taken that frame."""
        while self.taken < until and self.result is None:
            word, *values = self.process.stdout.readline().split() or ["gone"]
            if word == "gone":
                raise RuntimeError(f"a consumer ended after frame {self.taken}")
            if word == "taken":
                self.taken = int(values[0])
            elif word == "done":
                self.result = [int(value) for value in values]


def produce(context, arguments):
    stream = context.stream()
    ring = context.alloc(SLOTS * SIZE, gmm.Kind[arguments.kind.upper()])
    staging = context.alloc(SLOTS * SIZE, gmm.Kind.HOST)  # page-locked, so that copies from it are asynchronous
    ready = [context.event(ipc=True) for _ in range(SLOTS)]
    greeting = [f"ring {context.info.backend_name} {SIZE} {text(ring.ipc_export())}",
                *(f"ready {text(event.ipc_export())}" for event in ready), "start"]
    consumers = [Consumer(command, greeting, context) for command in arguments.consumer]
    watchdog = threading.Timer(120, lambda: [consumer.process.kill() for consumer in consumers])
    watchdog.start()
    try:
        for number in range(arguments.frames):
            slot = number % SLOTS
            frame = bytearray(number.to_bytes(8, "little") + random.Random(number).randbytes(SIZE - 8))
            checksum = zlib.crc32(frame)
            frame[SIZE // 2] ^= number == arguments.damage
            for consumer in consumers:
                consumer.listen(number - SLOTS)
                stream.wait(consumer.copied)
            ready[slot].synchronize()  # the staging memory of the slot has been read
            memoryview(staging)[slot * SIZE:(slot + 1) * SIZE] = frame
            context.copy(ring.address + slot * SIZE, staging.address + slot * SIZE, SIZE, stream=stream)
            ready[slot].record(stream)
            for consumer in consumers:
                consumer.say(f"frame {number} {slot} {checksum}")
        for consumer in consumers:
            consumer.say("end")
            consumer.listen(arguments.frames)
            consumer.process.communicate()
        return [consumer.result for consumer in consumers]
    finally:
        watchdog.cancel()
        for consumer in consumers:
            consumer.process.kill()
        stream.synchronize()


def say(*words):
    print(*words, flush=True)


def consume():
    _, backend, size, handle = sys.stdin.readline().split()
    with gmm.Context(backend) as context, context.ipc_import(base64.b64decode(handle)) as ring:
        handles = [base64.b64decode(line.split()[1]) for line in iter(sys.stdin.readline, "start\n")]
        ready = [context.ipc_import_event(each) for each in handles]
        stream, staging = context.stream(), context.alloc(int(size), gmm.Kind.HOST)
        copied = context.event(ipc=True)
        say("hello", text(copied.ipc_export()))
        checked = bad = 0
        for line in iter(sys.stdin.readline, "end\n"):
            number, slot, checksum = map(int, line.split()[1:])
            stream.wait(ready[slot])
            context.copy(staging, ring.address + slot * int(size), int(size), stream=stream)
            copied.record(stream)
            say("taken", number)
            stream.synchronize()
            checked, bad = checked + 1, bad + (zlib.crc32(memoryview(staging)) != checksum)
        say("done", checked, bad)


def main():
    parser = argparse.ArgumentParser(description="A ring of frames in shared GPU memory.")
    parser.add_argument("--frames", type=int, default=48)
    parser.add_argument("--kind", choices=["vmm", "device", "host"], default="vmm")
    parser.add_argument("--damage", type=int, default=-1, metavar="FRAME")
    parser.add_argument("--consumer", action="append", default=[], metavar="COMMAND")
    arguments = parser.parse_args()
    arguments.consumer.append(shlex.join([sys.executable, __file__, "--consume"]))
    with gmm.Context() as context:
        results = produce(context, arguments)
    for command, (checked, bad) in zip(arguments.consumer, results):
        print(f"{shlex.split(command)[-1]}: {checked} frames checked, {bad} bad")
    good = all(result == [arguments.frames, 0] for result in results)
    print("ring: ok" if good else "ring: FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(consume() if sys.argv[1:] == ["--consume"] else main())
