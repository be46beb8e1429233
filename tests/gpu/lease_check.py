# SPDX-License-Identifier: Apache-2.0
"""Leases on a GPU, in the Test Anything Protocol: two processes hand weights to and fro, on a card with room for one.

This process takes the rest of the card, without a lease. The time of a hand-over (a request that has to take the memory
from the other process) stands beside that of the same copies out and in by the driver, at pinned bandwidth, in the same
run. The contents are compared after each hand-over. Then a holder is killed, and memory is taken past the server.

Exits with 77 where there is no GPU, or too little free memory of the GPU or the host.

Usage: lease_check.py [--mib MIB] [--rehearse]     --rehearse: on the fake driver, where times show nothing
"""
import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "support"))
import tap  # noqa: E402

import gmm  # noqa: E402
import gmm.lease  # noqa: E402

MIB = 1 << 20
GOAL = 1.15
ROUNDS = 3
WAIT = 30.0


class Member:
    """A process with a lease and weights."""

    def __init__(self, name, size):
        self.context = gmm.Context("cuda")
        self.size, self.chunk = size, min(64 * MIB, size)
        self.stamp = ord(name[0])
        self.context.prepare_backup(size)  # page-locked ahead, as a warm process has it
        self.context.tag("weights", gmm.Contents.HOST)
        self.lease = gmm.lease.Lease(name, ["weights"], residency=0.001, context=self.context)
        # Both page-locked: what the chunks are, and where they come to be compared.
        self.pattern = self.context.alloc(self.chunk, gmm.Kind.HOST)
        self.staging = self.context.alloc(self.chunk, gmm.Kind.HOST)
        view = memoryview(self.pattern).cast("B")
        piece = bytes((i * 31 + i // 4096 + self.stamp) & 255 for i in range(MIB))
        for i in range(0, self.chunk, MIB):
            view[i:i + MIB] = piece
        self.words = view[:16].cast("Q")
        self.memcmp = ctypes.CDLL(None).memcmp
        self.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

    def chunks(self):
        return range(0, self.size, self.chunk)

    def mark(self, offset, turn):
        self.words[0], self.words[1] = offset, turn

    def make(self):
        """The weights, in the first turn."""
        self.weights = self.context.alloc(self.size, gmm.Kind.VMM, tag="weights")
        for offset in self.chunks():
            self.mark(offset, 0)
            self.weights.copy_from(self.pattern, offset=offset)
        return True

    def change(self, turn):
        """Other contents, so that old backups are no use."""
        for offset in self.chunks():
            self.mark(offset, turn)
            self.weights.copy_from(self.pattern, offset=offset)
        return True

    def check(self, turn):
        """The chunks that are wrong."""
        wrong = 0
        for offset in self.chunks():
            self.mark(offset, turn)
            self.context.copy(self.staging, self.weights.address + offset, self.chunk)
            self.context.synchronize(0)
            wrong += self.memcmp(self.staging.address, self.pattern.address, self.chunk) != 0
        return wrong

    def measure(self):
        """Seconds of the driver's copies of all weights out, and in, with page-locked memory."""
        block = self.context.alloc(min(self.size, 1024 * MIB), gmm.Kind.HOST)
        stream = self.context.stream()
        told = []
        for is_out in (True, False):
            stream.synchronize()
            begin = time.monotonic()
            for offset in range(0, self.size, block.nbytes):
                size = min(block.nbytes, self.size - offset)
                pair = (block, self.weights.address + offset) if is_out else (self.weights.address + offset, block)
                self.context.copy(*pair, size, stream=stream)
            stream.synchronize()
            told.append(time.monotonic() - begin)
        stream.close()
        block.free()
        return told

    def request(self, extra=0, timeout=WAIT):
        begin = time.monotonic()
        try:
            resumed = self.lease.request(extra, timeout=timeout)
        except gmm.Error as error:
            return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - begin}
        return {"resumed": resumed, "seconds": time.monotonic() - begin}

    def release(self):
        return self.lease.release()

    def info(self):
        return self.lease.info()._asdict()


def member_main(name, size):
    member = Member(name, size)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        print(json.dumps(getattr(member, command)(*arguments)), flush=True)
    os._exit(0)  # the memory goes with the process


class Process:
    """A member as this process sees it."""

    def __init__(self, name, size):
        self.name = name
        self.process = subprocess.Popen([sys.executable, str(HERE), "--member", name, "--mib", str(size // MIB)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, *command):
        print(json.dumps(command), file=self.process.stdin, flush=True)

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process {self.name} ended with {self.process.wait()}")
        return json.loads(line)

    def __call__(self, *command):
        self.tell(*command)
        return self.hear()

    def end(self):
        self.process.kill()
        self.process.wait()


def why_not(size):
    try:
        with gmm.Context("cuda") as context:
            free = context.device_info(0).free_memory
    except gmm.Error as error:
        return f"no GPU: {error}"
    if free < 3 * size:
        return f"{free // MIB} MiB of the GPU are free, and {3 * size // MIB} are needed"
    with open("/proc/meminfo", encoding="ascii") as file:
        available = int(dict(line.split(":", 1) for line in file)["MemAvailable"].split()[0]) * 1024
    if available < 3 * size:
        return f"{available // MIB} MiB of host memory are available, and {3 * size // MIB} are needed"
    return None


def hand_over(pair, size, rehearses):
    """Rows: the turns with their contents, and what a hand-over costs."""
    times, wrong, failed, turns = [], 0, [], {process.name: 0 for process in pair}
    for turn in range(1, 2 * ROUNDS + 1):
        process = pair[(turn - 1) % 2]
        told = process("request")
        if told.get("resumed", 0) < size:
            failed.append(f"turn {turn}: {told}")
            continue
        times.append(told["seconds"])
        wrong += process("check", turns[process.name])
        turns[process.name] = turn
        process("change", turn)
        process("release")
    tap.check(not failed and not wrong, f"{len(times)} hand-overs of {size // MIB} MiB, {wrong} chunks wrong", failed)
    # Last, as it writes over the weights.
    told = pair[1]("request")
    copies = pair[1]("measure")
    pair[1]("change", turns[pair[1].name])
    pair[1]("release")
    if not times or "error" in told:
        tap.check(False, f"hand-over: nothing was measured: {told}")
        return turns
    middle, floor = statistics.median(times), sum(copies)
    words = (f"hand-over {middle * 1000:.0f} ms ({min(times) * 1000:.0f} to {max(times) * 1000:.0f}), copies out and "
             f"in {copies[0] * 1000:.0f} + {copies[1] * 1000:.0f} ms ({size / copies[0] / 1e9:.1f} and "
             f"{size / copies[1] / 1e9:.1f} GB/s): {middle / floor:.3f} x, the goal is {GOAL} x")
    tap.check(rehearses or middle <= GOAL * floor, words)
    return turns


def past_the_server(context, pair, turns):
    """This process has no lease and takes what was free: a request is denied at once, and nothing is lost."""
    first, second = pair
    assert "resumed" in second("request")
    second("release")
    free = context.device_info(0).free_memory
    taken = context.alloc(free // 4 * 3, gmm.Kind.DEVICE)
    denied = first("request", free // 2)
    state = first("info")
    taken.free()
    context.trim()
    granted = first("request", free // 2)
    wrong = first("check", turns[first.name]) if "resumed" in granted else "all"
    first("release")
    is_named = denied.get("error", "").startswith("OutOfMemoryError") and "second" in denied["error"]
    tap.check(is_named and denied["seconds"] < 10 and state["state"] == 0 and wrong == 0,
              f"{free // 4 * 3 // MIB} MiB were taken without a lease: a request was denied in "
              f"{denied['seconds'] * 1000:.0f} ms, and granted when they were free, {wrong} chunks wrong",
              [str(denied), str(granted), str(state)])


def killed_holder(pair, turns):
    first, second = pair
    assert "resumed" in second("request")
    first.tell("request", 0, WAIT)
    time.sleep(0.5)
    begin = time.monotonic()
    second.end()
    told = first.hear()
    wrong = first("check", turns[first.name])
    tap.check("resumed" in told and not wrong,
              f"a holder was killed: the other one had its memory {time.monotonic() - begin:.2f} s later, compared, "
              f"{wrong} chunks wrong", [str(told)])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=8192)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--member")
    arguments = parser.parse_args()
    size = arguments.mib * MIB
    if arguments.member:
        member_main(arguments.member, size)
    if arguments.rehearse and "--mib" not in sys.argv:
        size = 64 * MIB
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GMM_IPC_DIR"] = folder
        if arguments.rehearse:
            os.environ.update(FAKE_CUDA_LEDGER=os.path.join(folder, "ledger"), FAKE_CUDA_MEMORY=str(4 * size))
        reason = why_not(size)
        if reason is not None:
            print(f"# {reason}")
            sys.exit(77)
        pair = [Process(name, size) for name in ("first", "second")]
        try:
            run(pair, size, arguments.rehearse)
        finally:
            for process in pair:
                process.end()
    sys.exit(tap.end())


def run(pair, size, rehearses):
    for process in pair:
        assert process.hear() == "ready"
    with gmm.Context("cuda") as context:
        # Room for one of them and a half, beside what their contexts have.
        free = context.device_info(0).free_memory
        ballast = context.alloc(free - size - size // 2, gmm.Kind.DEVICE)
        for process in pair:
            told = process("request", size)
            assert "resumed" in told, told
            process("make")
            process("release")
        turns = hand_over(pair, size, rehearses)
        past_the_server(context, pair, turns)
        killed_holder(pair, turns)
        ballast.free()


if __name__ == "__main__":
    main()
