# SPDX-License-Identifier: Apache-2.0
"""One ring of frames in shared GPU memory: this producer fills it, consumers in other processes and languages read it.

    ring.py [--frames N] [--slots N] [--frame-size BYTES] [--kind vmm|device|host] [--damage FRAME]
            [--consumer NAME COMMAND]... [--skip NAME]...

Only lines of text pass through pipes, never frames. The producer starts each consumer and writes to its stdin:

    ring BACKEND KIND SLOTS BYTES HANDLE           the block, as a handle in hexadecimal digits
    ready HANDLE                                   an event for each slot, where the device has events between processes
    frame NUMBER SLOT CRC32                        a frame is on its way into the slot; one line a frame
    end

The consumer answers on its stdout:

    hello LANGUAGE HANDLE                          its event, or "-"
    taken NUMBER                                   its copy of the frame is queued (without events: done)
    checked NUMBER ok|bad                          what the checksum of the copy says
    done CHECKED BAD

With events no host waits for the other side's device. The consumer's stream waits for the slot's event before it copies
the frame out, and the producer's stream waits for the consumer's event before it writes the slot again.
"""
import argparse
import pathlib
import random
import shlex
import subprocess
import sys
import threading
import time
import zlib

import gmm

SECONDS = 120  # for everything; then the consumers are ended


class Consumer:
    """A process that reads the ring."""

    def __init__(self, name, command, greeting, context):
        self.name = name
        self.taken = -1
        self.checked = self.bad = 0
        self.process = subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.say(*greeting)
        word, self.language, handle = self.hear()
        if word != "hello":
            raise RuntimeError(f"{name} said {word!r} instead of hello")
        self.copied = None if handle == "-" else context.ipc_import_event(bytes.fromhex(handle))

    def say(self, *lines):
        self.process.stdin.write("".join(f"{line}\n" for line in lines))
        self.process.stdin.flush()

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended or was ended after {self.checked} frames")
        return line.split()

    def listen(self, until):
        """Reads answers until the consumer has taken that frame."""
        while self.taken < until:
            self.note(*self.hear())

    def note(self, word, *values):
        if word == "taken":
            self.taken = int(values[0])
        elif word == "checked":
            self.checked += 1
            self.bad += values[1] != "ok"
        else:
            raise RuntimeError(f"{self.name} said {word!r}")

    def finish(self):
        self.say("end")
        while (heard := self.hear())[0] != "done":
            self.note(*heard)
        if self.copied is not None:
            self.copied.close()
        self.process.stdin.close()
        code = self.process.wait()
        if heard[1:] != [str(self.checked), str(self.bad)] or code != (self.bad != 0):
            raise RuntimeError(f"{self.name} checked {self.checked} frames, told {heard[1:]}, and ended with {code}")


def events_of(context, count):
    """An event a slot that other processes can wait for; none where the device has not got them."""
    try:
        return [context.event(ipc=True) for _ in range(count)]
    except gmm.NotSupportedError as error:
        print(f"The host waits instead of the device: {error}")
        return []


def produce(context, arguments, commands):
    slots, size = arguments.slots, arguments.frame_size
    kind = gmm.Kind[arguments.kind.upper()]
    stream = context.stream()
    ring = context.alloc(slots * size, kind)
    staging = context.alloc(slots * size, gmm.Kind.HOST)  # page-locked: copies from it run behind our back
    ready = events_of(context, slots)
    greeting = [f"ring {context.info.backend_name} {kind.name} {slots} {size} {ring.ipc_export().hex()}"]
    greeting += [f"ready {event.ipc_export().hex()}" for event in ready] + ["start"]
    consumers = []
    watchdog = threading.Timer(SECONDS, lambda: [consumer.process.kill() for consumer in consumers])
    watchdog.daemon = True
    watchdog.start()
    try:
        for name, command in commands:
            consumers.append(Consumer(name, command, greeting, context))
        start = time.perf_counter()
        for number in range(arguments.frames):
            slot = number % slots
            frame = number.to_bytes(8, "little") + random.Random(number).randbytes(size - 8)
            checksum = zlib.crc32(frame)
            for consumer in consumers:
                consumer.listen(number - slots)
                if consumer.copied is not None:
                    stream.wait(consumer.copied)
            if ready:
                ready[slot].synchronize()  # the staging memory of the slot has been read
            place = memoryview(staging)[slot * size:(slot + 1) * size]
            place[:] = frame
            if number == arguments.damage:
                place[size // 2] ^= 1
            context.copy(ring.address + slot * size, staging.address + slot * size, size, stream=stream)
            if ready:
                ready[slot].record(stream)
            else:
                stream.synchronize()
            for consumer in consumers:
                consumer.say(f"frame {number} {slot} {checksum}")
            del place
        for consumer in consumers:
            consumer.finish()
        return consumers, time.perf_counter() - start
    finally:
        watchdog.cancel()
        for consumer in consumers:
            if consumer.process.poll() is None:
                consumer.process.kill()
                consumer.process.wait()
        stream.synchronize()


def main():
    parser = argparse.ArgumentParser(description="A ring of frames in shared GPU memory.")
    parser.add_argument("--frames", type=int, default=48)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--frame-size", type=int, default=1 << 20)
    parser.add_argument("--kind", choices=["vmm", "device", "host"], default="vmm")
    parser.add_argument("--damage", type=int, default=-1, metavar="FRAME",
                        help="spoils one frame behind its checksum, to see it noticed")
    parser.add_argument("--consumer", nargs=2, action="append", metavar=("NAME", "COMMAND"),
                        help="the default is consumer.py")
    parser.add_argument("--skip", action="append", default=[], metavar="NAME",
                        help="says that a consumer was not built")
    arguments = parser.parse_args()
    own = pathlib.Path(__file__).with_name("consumer.py")
    commands = arguments.consumer or [("Python", shlex.join([sys.executable, str(own)]))]
    with gmm.Context() as context:
        consumers, seconds = produce(context, arguments, commands)
        device = context.device_info(0).name
    megabytes = arguments.frames * arguments.frame_size / 1e6
    print(f"{arguments.frames} frames of {arguments.frame_size} bytes through {arguments.slots} slots of "
          f"{arguments.kind.upper()} memory, {device}: {seconds:.2f} s, {megabytes / seconds:.0f} MB/s")
    for consumer in consumers:
        print(f"{consumer.name} ({consumer.language}): {consumer.checked} frames checked, {consumer.bad} bad")
    for name in arguments.skip:
        print(f"{name}: skipped, as it was not built")
    good = all(consumer.checked == arguments.frames and consumer.bad == 0 for consumer in consumers)
    print("ring: ok" if good else "ring: FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
