# SPDX-License-Identifier: Apache-2.0
"""Buffers, arrays, events and PyTorch tensors between processes on a GPU, in the Test Anything Protocol.

Needs gmm on PYTHONPATH; PyTorch where it is there. Takes at most 200 MiB of the GPU a process, and four processes.
"""
import gc
import multiprocessing
import os
import pathlib
import subprocess
import sys
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

import tap  # noqa: E402 # pylint: disable=wrong-import-position

import gmm  # noqa: E402 # pylint: disable=wrong-import-position
import gmm.multiprocessing  # noqa: E402 # pylint: disable=wrong-import-position

MIB = 1 << 20
SECONDS = 40  # of one wait
HELD = []
PROCESSES = multiprocessing.get_context("spawn")


class Skip(Exception):
    """The check cannot be made here."""


def must(holds, message):
    if not holds:
        raise AssertionError(message)


# The other process: takes orders until None comes.


def work(orders, answers):
    while (order := orders.get()) is not None:
        try:
            answers.put(("done", globals()[order[0]](*order[1:])))
        except BaseException as error:  # pylint: disable=broad-exception-caught # told to the other side
            answers.put(("failed", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
        del order
        gc.collect()


def invert(buffer):
    """Every byte becomes its complement, through a copy in host memory. Says what the buffer was."""
    words = f"{buffer.kind.name} {buffer.state.name}"
    buffer.copy_from(bytes(255 - byte for byte in bytes(buffer)))
    return words


def wait_and_read(event, buffer):
    stream = buffer.context.stream()
    copied = buffer.context.alloc(buffer.nbytes, gmm.Kind.HOST)
    stream.wait(event)
    copied.copy_from(buffer, stream=stream)
    stream.synchronize()
    return set(memoryview(copied))


def negate(tensor):
    tensor.neg_()
    import torch  # pylint: disable=import-outside-toplevel

    if tensor.is_cuda:
        torch.cuda.synchronize()
    return str(tensor.device), float(tensor.sum())


def hold(buffer):
    """Keeps an import until the process is killed."""
    HELD.append(buffer)
    return os.getpid()


class Worker:
    def __init__(self):
        self.orders, self.answers = PROCESSES.Queue(), PROCESSES.Queue()
        self.process = PROCESSES.Process(target=work, args=(self.orders, self.answers), daemon=True)
        self.process.start()

    def ask(self, *order):
        self.orders.put(order)
        word, answer = self.answers.get(timeout=SECONDS)
        must(word == "done", answer)
        return answer

    def end(self):
        self.orders.put(None)
        self.process.join(SECONDS)
        must(self.process.exitcode == 0, f"the other process ended with {self.process.exitcode}")


# The checks.


def ring(kind):
    done = subprocess.run([sys.executable, HERE.parents[1] / "examples" / "ring" / "ring.py", "--kind", kind,
                           "--frames", "64"], capture_output=True, text=True,
                          timeout=SECONDS)
    must(done.returncode == 0, f"{done.stdout}{done.stderr}")
    return " ".join(done.stdout.split("\n")[:2])


def buffers(worker, context, kind):
    pattern = bytes(range(251)) * 4096
    with context.alloc(len(pattern), kind) as buffer:
        buffer.copy_from(pattern)
        words = worker.ask("invert", buffer)
        must(bytes(buffer) == bytes(255 - byte for byte in pattern), "what the other process wrote is not here")
        must(words == f"{kind.name} IMPORTED", words)
    must(gmm.multiprocessing.wait_until_received(SECONDS), "something never arrived")


def events(worker, context):
    """The stream of the other process waits for 64 fills of this one."""
    stream, event = context.stream(), context.event(ipc=True)
    with context.alloc(64 * MIB, gmm.Kind.VMM) as buffer:
        for value in range(64):
            buffer.fill(value, stream=stream)
        event.record(stream)
        seen = worker.ask("wait_and_read", event, buffer)
        must(seen == {63}, f"bytes {seen}")


def killed_receiver(context):
    """The memory of an import whose process was killed goes back within a second."""
    other = Worker()
    context.trim()
    before = context.stats().reserved_bytes
    buffer = context.alloc(64 * MIB, gmm.Kind.VMM, dedicated=True)
    pid = other.ask("hold", buffer)
    must(gmm.multiprocessing.wait_until_received(SECONDS), "it never arrived")
    buffer.close()
    context.trim()
    must(context.stats().reserved_bytes >= before + 64 * MIB, "the importer does not keep the memory")
    os.kill(pid, 9)
    end = time.monotonic() + 1
    while context.stats().reserved_bytes > before and time.monotonic() < end:
        context.trim()
        time.sleep(0.01)
    other.process.join(SECONDS)
    must(context.stats().reserved_bytes <= before, f"{context.stats().reserved_bytes - before} bytes stay")


def tensors(worker, context, kind):
    torch = _torch()
    gmm.multiprocessing.enable_torch()
    tensor = torch.from_dlpack(context.alloc(4 * MIB, kind)).view(torch.float32)
    tensor.copy_(torch.arange(tensor.numel(), device=tensor.device) % 7)
    before = float(tensor.sum())
    device, after = worker.ask("negate", tensor[100:])
    must(device == str(tensor.device), f"it arrived on {device}")
    must(float(tensor.sum()) == 2 * float(tensor[:100].sum()) - before and after < 0,
         f"{before} became {float(tensor.sum())}, there {after}")


def tensors_of_the_allocator():
    """In a process of its own: PyTorch's CUDA memory is gmm's, and goes to another process."""
    if not _torch().cuda.is_available():
        raise Skip("PyTorch sees no CUDA device")
    done = subprocess.run([sys.executable, os.path.abspath(__file__), "--use"], capture_output=True, text=True,
                          timeout=SECONDS)
    must(done.returncode == 0, f"{done.stdout}{done.stderr}")
    return done.stdout.strip()


def use():
    import torch  # pylint: disable=import-outside-toplevel

    import gmm.torch  # pylint: disable=import-outside-toplevel

    gmm.torch.use()
    gmm.multiprocessing.enable_torch()
    tensor = torch.ones(1000, 1000, device="cuda")
    worker = Worker()
    device, after = worker.ask("negate", tensor)
    must(float(tensor.sum()) == -1e6 == after, f"{float(tensor.sum())} here, {after} there")
    worker.end()
    print(f"a tensor of gmm.torch.use() on {device}")


def _torch():
    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ImportError as error:
        raise Skip(str(error)) from None
    if gmm.context().info.backend_name == "cuda" and not torch.cuda.is_available():
        raise Skip("PyTorch sees no CUDA device")
    return torch


def main():
    def step(name, function, *arguments):
        begin = time.monotonic()
        try:
            words = function(*arguments)
            tap.check(True, f"{name} ({time.monotonic() - begin:.1f} s){': ' + words if words else ''}")
        except Skip as error:
            tap.skip(name, str(error))
        except Exception as error:  # pylint: disable=broad-exception-caught # a line for each, whatever comes
            tap.check(False, f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}",
                      [*traceback.format_exc().splitlines(), *str(error).splitlines()])
        gc.collect()

    context = gmm.context()
    print(f"# {context.device_info(0).name}", flush=True)
    worker = Worker()
    for kind in (gmm.Kind.VMM, gmm.Kind.DEVICE, gmm.Kind.HOST):
        step(f"a buffer of {kind.name} memory", buffers, worker, context, kind)
    step("an event", events, worker, context)
    for kind in (gmm.Kind.VMM, gmm.Kind.DEVICE):
        step(f"a tensor over {kind.name} memory", tensors, worker, context, kind)
    step("the end of the other process", worker.end)
    step("a killed receiver", killed_receiver, context)
    step("tensors of PyTorch's allocator", tensors_of_the_allocator)
    for kind in ("vmm", "device"):
        step(f"the ring of {kind} memory", ring, kind)
    tap.finish()


if __name__ == "__main__":
    if sys.argv[1:] == ["--use"]:
        use()
    else:
        main()
