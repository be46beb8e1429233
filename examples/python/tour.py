# SPDX-License-Identifier: Apache-2.0
"""The tour in Python: every step of the interface on every kind of memory, as one table, then a replay of real traces.

../README.md says what each step must hold; the same program stands in four more languages beside it.

    python tour.py [TRACE.gz ...]
"""
import ctypes
import os
import subprocess
import sys

import gmm
from gmm import Advice, Capability, Contents, Kind, State
from replay import replay

MIB = 1 << 20
BLOCK = 64 * MIB
COMPLEMENT = bytes(255 - value for value in range(256))

ONLY_MANAGED = "a hint about pages is for MANAGED memory"
ONLY_VMM = "only VMM memory can give its pages back and keep its address"


class NotThere(Exception):
    """This kind lacks the step."""


class Failed(Exception):
    """The step did not hold what it must."""


def must(holds, message):
    if not holds:
        raise Failed(message)


def pattern():
    """Byte i is (i * 31 + i / 4096) & 255, which repeats every MiB."""
    page = bytes(j * 31 & 255 for j in range(4096))
    shifted = (page.translate(bytes((value + k) & 255 for value in range(256))) for k in range(256))
    return b"".join(shifted)


class Tour:
    def __init__(self, context):
        self.context = context
        self.device = context.device_info(0)
        self.is_host = bool(self.device.capabilities & Capability.IS_CPU)
        self.stream = context.stream()
        # On the host backend the contents go to a file: a copy in host memory would be as large as what goes back.
        self.tag = context.tag("tour", Contents.FILE if self.is_host else Contents.HOST)
        self.pattern = pattern()
        self.bytes = bytearray(BLOCK)
        self.kind = None
        self.block = None

    # Bytes in and out.

    def write(self, memory, complement=False):
        piece = self.pattern.translate(COMPLEMENT) if complement else self.pattern
        for offset in range(0, BLOCK, MIB):
            self.bytes[offset:offset + MIB] = piece
        memory.copy_from(self.bytes, stream=self.stream)

    def check(self, memory, complement=False):
        piece = self.pattern.translate(COMPLEMENT) if complement else self.pattern
        ctypes.memset((ctypes.c_char * BLOCK).from_buffer(self.bytes), 0, BLOCK)
        memory.copy_to(self.bytes, stream=self.stream)
        for offset in range(0, BLOCK, MIB):
            if self.bytes[offset:offset + MIB] != piece:
                wrong = next(i for i in range(MIB) if self.bytes[offset + i] != piece[i])
                raise Failed(f"byte {offset + wrong} is {self.bytes[offset + wrong]}, expected {piece[wrong]}")

    def memory_free(self):
        """The bytes free on a GPU, or those resident in the process as a negative number."""
        if self.is_host:
            with open("/proc/self/statm") as file:
                return -int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        return self.context.device_info(0).free_memory

    def look_at(self, address):
        info = self.context.query(address)
        must((info.kind, info.base, info.size, info.device, info.tag, info.state) ==
             (self.kind, self.block.address, BLOCK, 0, self.tag, State.ACTIVE), str(info))

    # The steps.

    def alloc(self):
        self.block = self.context.alloc(BLOCK, self.kind, tag=self.tag, stream=self.stream,
                                        dedicated=self.kind == Kind.VMM)
        must(self.block.address % 256 == 0, f"0x{self.block.address:x} is not a multiple of 256")

    def write_and_read(self):
        self.write(self.block)
        self.check(self.block)

    def query(self):
        self.look_at(self.block)

    def query_interior(self):
        self.look_at(self.block.address + BLOCK // 2)

    def query_foreign(self):
        state = self.context.query(ctypes.addressof((ctypes.c_char * 1).from_buffer(self.bytes))).state
        must(state == State.UNKNOWN, f"a variable of the program has state {state!r}")

    def pin(self):
        if not self.device.capabilities & Capability.PIN:
            raise NotThere("the device cannot pin")
        mine = bytearray(self.pattern.translate(COMPLEMENT))
        expected = bytes(mine)
        with self.context.pin(mine) as pinned:
            self.context.copy(self.block, pinned, MIB, stream=self.stream)
            self.stream.synchronize()
            mine[:] = bytes(MIB)
            self.context.copy(pinned, self.block, MIB, stream=self.stream)
            self.stream.synchronize()
        must(mine == expected, "the pinned bytes came back changed")
        self.write(self.block)

    def advise(self):
        if self.kind != Kind.MANAGED:
            raise NotThere(ONLY_MANAGED)
        self.block.advise(Advice.SET_PREFERRED_LOCATION, 0)
        self.block.advise(Advice.UNSET_PREFERRED_LOCATION, 0)
        self.check(self.block)

    def prefetch(self):
        if self.kind != Kind.MANAGED:
            raise NotThere(ONLY_MANAGED)
        self.block.prefetch(gmm.HOST)
        self.block.prefetch(0)
        self.stream.synchronize()
        self.check(self.block)

    def move(self):
        if self.kind in (Kind.DEVICE, Kind.HOST):
            raise NotThere("the driver cannot move DEVICE and HOST memory: use VMM or MANAGED")
        self.block.move(gmm.HOST)
        self.check(self.block)
        self.block.move(0)
        self.check(self.block)
        self.look_at(self.block)

    def share(self):
        if self.kind == Kind.MANAGED:
            raise NotThere("the driver has no way to share MANAGED memory: use DEVICE, VMM or HOST")
        sys.stdout.flush()
        second = subprocess.run([sys.executable, os.path.abspath(__file__), "--peer", str(BLOCK)],
                                input=self.block.ipc_export(), check=False)
        must(second.returncode == 0, f"the second process ended with {second.returncode}; its message stands above")
        self.check(self.block, complement=True)
        self.write(self.block)

    def pause(self):
        self.must_pause()
        self.context.trim()
        before = self.memory_free()
        self.tag.pause()
        self.context.trim()  # what the copies went through stays for the next pause otherwise
        gone = self.memory_free() - before
        must(self.block.state == State.PAUSED, f"after the pause the state is {self.block.state!r}")
        must(gone >= BLOCK // 4 * 3, f"only {gone / MIB:.1f} MiB came back to the system")
        return f"{gone / MIB:.1f} MiB"

    def resume(self):
        self.must_pause()
        taken = self.tag.resume()
        self.look_at(self.block)
        self.check(self.block)
        return f"{taken / MIB:.1f} MiB"

    def must_pause(self):
        if self.kind != Kind.VMM:
            raise NotThere(ONLY_VMM)
        if not self.device.capabilities & Capability.PAUSE:
            raise NotThere("the device cannot pause")

    def free(self):
        address = self.block.address
        self.block.free()
        state = self.context.query(address).state
        must(state in (State.FREE, State.UNKNOWN), f"after the free the state is {state!r}")
        live = self.context.stats(tag=self.tag).live_blocks
        must(live == 0, f"{live} blocks are live still")
        self.stream.synchronize()
        self.context.trim()


STEPS = {
    "alloc": Tour.alloc, "write and read": Tour.write_and_read, "query": Tour.query,
    "query interior": Tour.query_interior, "query foreign": Tour.query_foreign, "pin": Tour.pin, "advise": Tour.advise,
    "prefetch": Tour.prefetch, "move": Tour.move, "share": Tour.share, "pause": Tour.pause, "resume": Tour.resume,
    "free": Tour.free,
}
# What a step needs: bytes for those that compare them, a pause for a resume, a block for all.
NEEDS = {"alloc": None, "resume": "pause",
         **dict.fromkeys(("pin", "advise", "prefetch", "move", "share", "pause"), "write and read")}


def run(tour):
    """Runs every step on every kind and prints the table. Returns the number of steps that failed."""
    cells, footnotes, failures = {}, [], []
    for kind in tour.device.kinds:
        tour.kind = kind
        for step, function in STEPS.items():
            try:
                must(cells.get((NEEDS.get(step, "alloc"), kind)) != "FAILED", "not reached")
                cells[step, kind] = function(tour) or "ok"
            except (NotThere, gmm.NotSupportedError) as why:
                if str(why) not in footnotes:
                    footnotes.append(str(why))
                cells[step, kind] = f"- [{footnotes.index(str(why)) + 1}]"
            except (Failed, gmm.Error) as error:
                name = f"{error.name}: " if isinstance(error, gmm.Error) else ""
                cells[step, kind] = "FAILED"
                failures.append(f"FAILED {kind.name} {step}: {name}{error}")
    print(f"\n{'step':<18}" + "".join(f"{kind.name:<14}" for kind in tour.device.kinds))
    for step in STEPS:
        print(f"{step:<18}" + "".join(f"{cells[step, kind]:<14}" for kind in tour.device.kinds))
    print()
    for number, footnote in enumerate(footnotes, 1):
        print(f"[{number}] {footnote}")
    for failure in failures:
        print(failure)
    return len(failures)


def peer():
    """The second process: checks the pattern in the memory of the handle on stdin and writes its complement."""
    with gmm.Context() as context:
        tour = Tour(context)
        with context.ipc_import(sys.stdin.buffer.read()) as shared:
            tour.check(shared)
            tour.write(shared, complement=True)


def main(words):
    if words == ["--peer", str(BLOCK)]:
        try:
            peer()
        except (Failed, gmm.Error) as error:
            print(f"second process: {error}", file=sys.stderr)
            return 1
        return 0
    if words and words[0].startswith("-"):
        print("use: tour.py [TRACE.gz ...]", file=sys.stderr)
        return 2
    with gmm.Context() as context:
        tour = Tour(context)
        print(f"gmm {gmm.__version__}, python {sys.version_info.major}.{sys.version_info.minor}, "
              f"backend {context.info.backend_name} ({context.info.driver_version}), device 0: {tour.device.name}")
        if tour.is_host:
            print("This is the host backend: it needs no GPU, and its figures say nothing about one.")
        failures = run(tour)
    if words:
        print("\nReplay of real PyTorch traces, kind VMM")
        print(f"{'trace':<18}{'operations':<14}{'requested':<14}{'reserved':<14}{'ratio':<8}{'ns/op first':<14}"
              "ns/op again")
    for path in words:
        try:
            print(replay(path))
        except (OSError, ValueError, gmm.Error) as error:
            print(f"FAILED replay: {path}: {error}")
            failures += 1
    print("\ntour: ok" if failures == 0 else f"\ntour: {failures} steps failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
