# SPDX-License-Identifier: Apache-2.0
"""A whole process leaves the GPU and comes back: gmm's pause and the driver's checkpoint, beside the driver alone.

Writes the Test Anything Protocol, with the times in each line.

Exits with 77 where the driver has no checkpoint (CUDA 12.8, driver 570).

Usage: checkpoint_check.py [--gib N] [--rehearse]
  --gib N      memory of gmm that the process holds; default: 8
  --rehearse   on the fake driver of the tests, with 64 MiB: shows that the script works, and nothing about a GPU
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "support"))
import tap  # noqa: E402

MIB = 1 << 20
NO_DRIVER = 77  # as Meson has it


class Failed(Exception):
    """A check did not hold."""


def must(holds, message):
    if not holds:
        raise Failed(message)


def holder(size):
    """The process that holds memory: it does what each line of stdin says, and answers with seconds and contents."""
    import gmm
    from gmm import job

    try:
        context = gmm.Context("cuda")
    except gmm.NoBackendError:
        sys.exit(NO_DRIVER)
    tag = context.tag("weights", gmm.Contents.HOST)
    buffer = context.alloc(size, gmm.Kind.VMM, tag=tag)
    parts = [(offset, (offset // MIB * 37 + 11) & 255) for offset in range(0, size, 16 * MIB)]
    for offset, value in parts:
        buffer.fill(value, offset=offset, size=min(16 * MIB, size - offset))
    print("ready", flush=True)
    for line in sys.stdin:
        word, begin, answer = line.strip(), time.monotonic(), {}
        if word == "pause":
            answer["bytes"] = context.pause(tag)
        elif word == "resume":
            context.resume(tag)
        elif word == "self":
            context.pause(tag)
            suspended = job.suspend_process()
            answer["state"] = job.process_state().name
            answer["bytes"] = sum(suspended.bytes.values())
            job.resume_process(suspended)
            context.resume(tag)
        elif word == "take":  # what is free of the device, but for 512 MiB
            taken, free = [], context.device_info(0).free_memory
            while free > 512 * MIB:
                taken.append(context.alloc(min(free - 512 * MIB, 1 << 30), gmm.Kind.DEVICE))
                free -= min(free - 512 * MIB, 1 << 30)
        answer["seconds"] = time.monotonic() - begin
        if word not in ("pause", "take"):
            end = bytearray(1)
            whole = True
            for offset, value in parts:
                for place in (offset, min(offset + 16 * MIB, size) - 1):
                    buffer.copy_to(end, offset=place)
                    whole = whole and end[0] == value
            answer["whole"] = whole
        print(json.dumps(answer), flush=True)


class Holder:
    def __init__(self, size):
        self._process = subprocess.Popen([sys.executable, str(HERE), "--holder", str(size)], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True, bufsize=1)
        self.pid = self._process.pid
        if self._process.stdout.readline() != "ready\n":
            if self._process.wait() == NO_DRIVER:
                print("# no CUDA driver, or no device")
                sys.exit(NO_DRIVER)
            raise Failed("the process that holds memory did not start")

    def ask(self, word):
        print(word, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        must(line, f"the process ended at '{word}'")
        return json.loads(line)

    def kill(self):
        self._process.kill()
        self._process.wait()


class Checks:
    """In this order; one process for all but the last."""

    def __init__(self, size, is_real):
        from gmm import job
        self.job, self.size, self.is_real = job, size, is_real
        self.holder = Holder(size)
        self.alone = self.both = None

    def rate(self, seconds):
        return f"{seconds:.2f} s, {self.size / seconds / 1e9:.1f} GB/s"

    def _round_trip(self):
        suspended = self.job.suspend_process(self.holder.pid)
        must(self.job.process_state(self.holder.pid) == self.job.ProcessState.CHECKPOINTED, "it is not away")
        begin = time.monotonic()
        self.job.resume_process(suspended)
        return suspended.seconds, time.monotonic() - begin, sum(suspended.bytes.values())

    def check_driver_alone(self):
        self._round_trip()  # the first one makes the driver's host memory
        out, back, went = self._round_trip()
        must(self.holder.ask("read")["whole"], "the contents differ")
        must(went >= self.size, f"{went} bytes of the device went back, of {self.size}")
        self.alone = out, back
        return f"out {self.rate(out)}; back {self.rate(back)}; {went // MIB} MiB of the device went back"

    def _pause_round_trip(self):
        paused = self.holder.ask("pause")
        out, back, went = self._round_trip()
        resumed = self.holder.ask("resume")
        must(resumed["whole"], "the contents differ")
        self.both = paused["seconds"] + out, back + resumed["seconds"]
        return (f"out {self.rate(self.both[0])} (pause {paused['seconds']:.2f} s, checkpoint {out:.2f} s of "
                f"{went // MIB} MiB); back {self.rate(self.both[1])} (restore {back:.2f} s, resume "
                f"{resumed['seconds']:.2f} s)")

    def check_pause_first(self):
        return self._pause_round_trip()

    def check_pause_first_again(self):
        """Its host memory is there by now."""
        return self._pause_round_trip()

    def check_sooner_than_the_driver_alone(self):
        must(self.alone is not None and self.both is not None, "not measured")
        words = (f"out {self.alone[0] / self.both[0]:.2f} x as fast, back {self.alone[1] / self.both[1]:.2f} x, "
                 f"together {sum(self.alone) / sum(self.both):.2f} x")
        must(not self.is_real or sum(self.both) < sum(self.alone), words)
        return words

    def check_a_process_suspends_itself(self):
        answer = self.holder.ask("self")
        must(answer["whole"] and answer["state"] == "CHECKPOINTED", str(answer))
        return f"{answer['seconds']:.2f} s for all; {answer['bytes'] // MIB} MiB besides gmm's"

    def check_no_restore_without_memory(self):
        """The library asks NVML first: a restore that failed would be for good."""
        import gmm
        suspended = self.job.suspend_process(self.holder.pid)
        must(suspended.bytes, "NVML does not tell what went back")
        other = Holder(MIB)
        try:
            other.ask("take")
            try:
                self.job.resume_process(suspended)
                raise Failed("it was restored, though another process has the memory")
            except gmm.OutOfMemoryError as error:
                words = str(error)
            must(self.job.process_state(self.holder.pid) == self.job.ProcessState.CHECKPOINTED, "it is not away")
        finally:
            other.kill()
        for _ in range(50):  # the memory of a process that was killed comes back a moment later
            try:
                self.job.resume_process(suspended)
                break
            except gmm.OutOfMemoryError:
                time.sleep(0.1)
        must(self.holder.ask("read")["whole"], "the contents differ")
        return words.split(";")[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--holder", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.holder:
        holder(arguments.holder)
        return
    size = 64 * MIB if arguments.rehearse else round(arguments.gib * 1024) * MIB
    with tempfile.TemporaryDirectory() as folder:
        if arguments.rehearse:
            nvml = pathlib.Path(os.environ.get("BUILD", "build")).resolve() / "tests" / "support" / "fake_nvml"
            os.environ.update(FAKE_CUDA_LEDGER=os.path.join(folder, "ledger"), FAKE_CUDA_DEVICES="1",
                              FAKE_CUDA_MEMORY=str(2 << 30),
                              LD_LIBRARY_PATH=f"{nvml}:{os.environ.get('LD_LIBRARY_PATH', '')}")
        run(size, not arguments.rehearse)
    sys.exit(tap.end())


def run(size, is_real):
    import gmm
    checks = None
    try:
        checks = Checks(size, is_real)
        checks.job.process_state(checks.holder.pid)
    except (gmm.Error, Failed) as error:
        print(f"# {error}")
        if checks is not None:
            checks.holder.kill()
        sys.exit(1 if isinstance(error, Failed) else 77)
    try:
        for name in (name for name in vars(Checks) if name.startswith("check_")):
            title = name[6:].replace("_", " ")
            try:
                tap.check(True, f"{title}: {getattr(checks, name)()}")
            except (Failed, gmm.Error, checks.job.CheckpointError) as error:
                tap.check(False, f"{title}: {' '.join(str(error).split())[:300]}")
                if isinstance(error, checks.job.ProcessStuckError):
                    break
    finally:
        checks.holder.kill()


main()
