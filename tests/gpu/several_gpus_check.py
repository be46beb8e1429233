# SPDX-License-Identifier: Apache-2.0
"""What gmm does with several GPUs at once, in the Test Anything Protocol, beside the driver or one GPU in the same run.

pause: a tag with memory on two GPUs pauses and resumes at 1.9 times the bandwidth of one.
move:  gmm_move() takes VMM memory to another GPU as fast as the driver's calls by hand, and keeps the address.
job:   two ranks with NCCL train, pause everything as one, let another process fill the GPUs, and train on bit for bit.

Exits with 77 where there are fewer than two GPUs. `job` needs PyTorch with NCCL.
Usage: several_gpus_check.py [--gib N] [--rehearse] [pause] [move] [job]     --rehearse: no GPU, so no goal for a speed
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

GIB = 1 << 30
MIB = 1 << 20
DEVICES = 2
BLOCKS = 16


def timed(function, *arguments):
    begin = time.monotonic()
    function(*arguments)
    return time.monotonic() - begin


def places(size):
    return [(0, 1), (size // 2, 2), (size - 4096, 3)]


def mark(block, seed):
    """Bytes of which none is zero, as zeros are not copied, and others at both ends and in the middle."""
    block.fill(seed)
    for at, more in places(block.nbytes):
        block.fill(seed + more, offset=at, size=4096)


def is_marked(block, seed):
    found = bytearray(4096)
    for at, more in [*places(block.nbytes), (block.nbytes // 4, 0)]:
        block.copy_to(found, offset=at)
        if found != bytes([seed + more]) * 4096:
            return False
    return True


class Allocation(ctypes.Structure):
    """CUmemAllocationProp of pages on a GPU."""

    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("place", ctypes.c_int), ("device", ctypes.c_int),
                ("win32", ctypes.c_void_p), ("flags", ctypes.c_uint64)]


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("place", ctypes.c_int), ("device", ctypes.c_int), ("flags", ctypes.c_int)]


class Driver:
    """Copies between two GPUs, and moves of pages, by the driver alone."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.contexts = []
        for device in range(DEVICES):
            context = ctypes.c_void_p()
            self.must(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
            self.contexts.append(context)

    @staticmethod
    def must(result):
        if result != 0:
            raise RuntimeError(f"the driver answered {result}")

    def peer_copy(self, size):
        """Seconds of a copy from GPU 0 to GPU 1 with peer access."""
        blocks = []
        for device, context in enumerate(self.contexts):
            self.must(self.cuda.cuCtxSetCurrent(context))
            self.cuda.cuCtxEnablePeerAccess(self.contexts[1 - device], 0)  # it may be on already
            block = ctypes.c_uint64()
            self.must(self.cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(size)))
            blocks.append(block)

        def copy():
            self.must(self.cuda.cuMemcpyAsync(blocks[1], blocks[0], ctypes.c_size_t(size), None))
            self.must(self.cuda.cuCtxSynchronize())

        taken = statistics.median(timed(copy) for _ in range(3))
        for context, block in zip(self.contexts, blocks):
            self.must(self.cuda.cuCtxSetCurrent(context))
            self.must(self.cuda.cuMemFree_v2(block))
        return taken

    def pages(self, device, size):
        handle = ctypes.c_uint64()
        allocation = Allocation(1, 0, 1, device, None, 0)
        self.must(self.cuda.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(allocation),
                                        ctypes.c_uint64(0)))
        return handle

    def reserve(self, size):
        address = ctypes.c_uint64()
        self.must(self.cuda.cuMemAddressReserve(ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_size_t(0),
                                                ctypes.c_uint64(0), ctypes.c_uint64(0)))
        return address

    def map(self, address, size, handle):
        self.must(self.cuda.cuMemMap(address, ctypes.c_size_t(size), ctypes.c_size_t(0), handle, ctypes.c_uint64(0)))
        self.must(self.cuda.cuMemSetAccess(address, ctypes.c_size_t(size), ctypes.byref(Access(1, 0, 3)),
                                           ctypes.c_size_t(1)))

    def unmap(self, address, size):
        self.must(self.cuda.cuMemUnmap(address, ctypes.c_size_t(size)))

    def move(self, size):
        """Seconds of each step of a move of pages, that keeps the address, with as few calls as can be: medians."""
        self.must(self.cuda.cuCtxSetCurrent(self.contexts[0]))
        base, window, held = self.reserve(size), self.reserve(size), [self.pages(0, size)]
        self.map(base, size, held[0])

        def copy():
            self.must(self.cuda.cuMemcpyAsync(window, base, ctypes.c_size_t(size), None))
            self.must(self.cuda.cuCtxSynchronize())

        def switch():
            self.unmap(base, size)
            self.map(base, size, held[1])
            self.unmap(window, size)

        def give_back():
            self.must(self.cuda.cuMemRelease(held.pop(0)))

        taken = {"create": [], "map": [], "copy": [], "switch": [], "give back": []}
        for device in (1, 0, 1, 0, 1):
            taken["create"].append(timed(lambda: held.append(self.pages(device, size))))
            taken["map"].append(timed(self.map, window, size, held[1]))
            taken["copy"].append(timed(copy))
            taken["switch"].append(timed(switch))
            taken["give back"].append(timed(give_back))
        self.unmap(base, size)
        give_back()
        for address in (base, window):
            self.must(self.cuda.cuMemAddressFree(address, ctypes.c_size_t(size)))
        return {step: statistics.median(times[2:]) for step, times in taken.items()}


def check_pause(gmm, size, rehearse):
    with gmm.Context() as context:
        tags = [context.tag(f"gpu{device}", gmm.Contents.HOST) for device in range(DEVICES)]
        # As a program holds it: some large blocks.
        blocks = [context.alloc(size // BLOCKS, gmm.Kind.VMM, device=i % DEVICES, tag=tags[i % DEVICES])
                  for i in range(BLOCKS * DEVICES)]
        for number, block in enumerate(blocks):
            mark(block, 3 + 4 * number)
        context.synchronize()
        context.pause(*tags)  # the backup's memory is page-locked now
        context.resume(*tags)
        out, back = {}, {}
        for name, some in (("GPU 0", tags[:1]), ("GPU 1", tags[1:]), ("both", tags)):
            taken = [(timed(context.pause, *some), timed(context.resume, *some)) for _ in range(3)]
            out[name], back[name] = (statistics.median(column) for column in zip(*taken))
        kept = all(is_marked(block, 3 + 4 * number) for number, block in enumerate(blocks))
        for block in blocks:
            block.free()
    tap.check(kept, "the contents came back on both")
    for words, taken in (("pause", out), ("resume", back)):
        one = max(taken["GPU 0"], taken["GPU 1"])
        ratio = DEVICES * one / taken["both"]
        rates = ", ".join(f"{name} {size * (2 if name == 'both' else 1) / at / 1e9:.1f} GB/s"
                          for name, at in taken.items())
        tap.check(rehearse or ratio >= 1.9, f"{words} of {size >> 20} MiB on each: {ratio:.2f} x one GPU ({rates})")


def check_move(gmm, size, rehearse):
    with gmm.Context() as context:
        block = context.alloc(size, gmm.Kind.VMM, device=0, dedicated=True)
        address = block.address
        mark(block, 40)

        def move(device):
            begin = time.monotonic()
            block.move(device)
            context.synchronize()
            return time.monotonic() - begin

        move(1)
        move(0)
        taken = statistics.median(move(device) for device in (1, 0, 1))
        tap.check(block.address == address and is_marked(block, 40), "the address and the contents stay")
        block.free()
    driver = Driver()
    link, steps = driver.peer_copy(size), driver.move(size)
    by_hand = sum(steps.values())
    tap.check(rehearse or by_hand >= 0.95 * taken,
              f"a move of {size >> 20} MiB: {size / taken / 1e9:.1f} GB/s, {by_hand / taken:.2f} of the same by hand, "
              f"{link / taken:.2f} of a peer copy of {size / link / 1e9:.1f} GB/s")
    print("# by hand: " + ", ".join(f"{step} {at * 1e3:.1f} ms" for step, at in steps.items()))


RANK = """
import ctypes, json, os, pathlib, subprocess, sys
import torch, torch.distributed as dist
import gmm, gmm.torch

OTHER = '''
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, size = int(sys.argv[1]), int(sys.argv[2])
context, block = ctypes.c_void_p(), ctypes.c_uint64()
for result in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
               cuda.cuCtxSetCurrent(context), cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(size)),
               cuda.cuMemsetD8_v2(block, ctypes.c_ubyte(0xff), ctypes.c_size_t(size)), cuda.cuCtxSynchronize()):
    if result:
        sys.exit(f"the driver answered {result}")
'''
folder, gib = pathlib.Path(sys.argv[1]), float(sys.argv[2])
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
gmm.torch.use()
torch.use_deterministic_algorithms(True)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
told = {"went": [], "other": []}
width = 4096
ballast = torch.full((int(gib * (1 << 30)) // 4,), 7.0, device="cuda")


def train(pauses):
    torch.manual_seed(5)
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)]).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    torch.manual_seed(100 + rank)
    data = torch.randn(256, width, device="cuda")
    losses = []
    for step in range(6):
        if pauses and step % 2:
            torch.cuda.synchronize()
            free = torch.cuda.mem_get_info()[0]
            with gmm.job.paused(contents=gmm.Contents.HOST):
                more = torch.cuda.mem_get_info()[0] - free
                told["went"].append(more)
                done = subprocess.run([sys.executable, "-c", OTHER, str(rank), str(free + more // 2)],
                                      capture_output=True, text=True)
                told["other"].append(done.stderr.strip()[-200:] if done.returncode else "filled")
        optimizer.zero_grad(set_to_none=True)
        loss = torch.tanh(model(data)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        losses.append(loss.item().hex())
    return losses


undisturbed = train(False)
paused = train(True)
told.update(undisturbed=undisturbed, paused=paused, ballast=bool((ballast == 7).all()))
(folder / f"rank{rank}").write_text(json.dumps(told))
dist.barrier()
os._exit(0)  # NCCL's end is not what is tested
"""


def check_job(gib):
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        tap.skip("a job over NCCL", f"no PyTorch: {error}")
        return
    if not dist.is_nccl_available() or torch.cuda.device_count() < DEVICES:
        tap.skip("a job over NCCL", "needs NCCL and two GPUs")
        return
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "train.py")
        program.write_text(RANK, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(DEVICES), "--standalone",
             str(program), folder, str(gib)], capture_output=True, text=True, timeout=150, check=False,
            env={**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "GMM_BACKEND": "cuda"})
        ranks = [json.loads(path.read_text()) for path in sorted(pathlib.Path(folder).glob("rank*"))]
    tap.check(len(ranks) == DEVICES, "both ranks end", (done.stdout + done.stderr)[-1500:].splitlines())
    for number, told in enumerate(ranks):
        tap.check(told["undisturbed"] == told["paused"] and len(set(told["paused"])) == 6 and told["ballast"],
                  f"rank {number}: the losses are those of an undisturbed run, bit for bit", [str(told)])
        tap.check(told["other"] == ["filled"] * 3 and min(told["went"]) >= gib * GIB,
                  f"rank {number}: another process filled what {[went // MIB for went in told['went']]} MiB left",
                  [str(told["other"])])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=16, help="on each GPU; default: 16")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("what", nargs="*", default=["pause", "move", "job"])
    arguments = parser.parse_args()
    import gmm

    with gmm.Context() as context:
        devices = context.info.device_count
    if devices < DEVICES:
        print(f"1..0 # SKIP {devices} GPUs")
        sys.exit(77)
    size = int(arguments.gib * GIB) // (BLOCKS * 2 * MIB) * BLOCKS * 2 * MIB
    if "pause" in arguments.what:
        check_pause(gmm, size, arguments.rehearse)
    if "move" in arguments.what:
        check_move(gmm, size, arguments.rehearse)
    if "job" in arguments.what:
        check_job(min(arguments.gib, 8))
    sys.exit(tap.end())


if __name__ == "__main__":
    main()
