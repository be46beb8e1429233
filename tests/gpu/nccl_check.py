# SPDX-License-Identifier: Apache-2.0
"""gmm.nccl on two GPUs, in the Test Anything Protocol: two processes with one communicator of torch.distributed.

Collectives run over memory of alloc(comm=True), registered, before a pause, after it, and replayed by a graph. Exits
with 77 where there are fewer than two GPUs or no PyTorch with NCCL.

Usage: nccl_check.py [--rehearse]      --rehearse: no GPU; only what leads to the check is run
"""
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "support"))
import tap  # noqa: E402

MIB = 1 << 20
SIZE = 256 * MIB
COUNT = SIZE // 4
RANKS = 2


class Failed(Exception):
    """A check did not hold."""


def must(holds, message):
    if not holds:
        raise Failed(message)


def why_not():
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        return f"no PyTorch: {error}"
    if not torch.distributed.is_nccl_available():
        return "this PyTorch has no NCCL"
    if torch.cuda.device_count() < RANKS:
        return f"{torch.cuda.device_count()} GPUs"
    return None


class Rank:
    """One process: the buffer as a tensor, and what the checks do with it."""

    def __init__(self, rank):
        import torch
        import torch.distributed as distributed

        import gmm
        import gmm.nccl

        self.rank, self.torch, self.distributed, self.gmm, self.nccl = rank, torch, distributed, gmm, gmm.nccl
        torch.cuda.set_device(rank)
        distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
        self.words = distributed.new_group(backend="gloo")  # agrees while NCCL's memory is away
        self.context = gmm.context()
        self.tag = self.context.tag("network", gmm.Contents.HOST)
        self.buffer = self.context.alloc(SIZE, comm=True, device=rank, tag=self.tag)
        self.tensor = torch.as_tensor(_Interface(self.buffer), device=f"cuda:{rank}")

    def barrier(self):
        self.torch.cuda.synchronize()
        self.distributed.barrier(group=self.words)

    def reduces(self, seed):
        """An all-reduce in place has the sum of both ranks."""
        self.tensor.fill_(seed + self.rank)
        self.distributed.all_reduce(self.tensor)
        self.torch.cuda.synchronize()
        wanted = float(RANKS * seed + sum(range(RANKS)))
        must(bool((self.tensor == wanted).all()), f"the sum is {self.tensor[0].item()}, not {wanted}")

    def pause(self):
        self.barrier()
        before = self.torch.cuda.mem_get_info()[0]
        went = self.context.pause(self.tag)
        came = self.torch.cuda.mem_get_info()[0] - before
        foreign = self.tag.info.foreign_bytes
        self.barrier()
        return went, came, foreign

    def resume(self):
        self.barrier()
        self.context.resume(self.tag)
        self.barrier()

    def check_properties(self):
        info = self.context.query(self.buffer)
        device = self.context.device_info(self.rank)
        must(info.allocation_base == info.base, "the block is not one allocation")
        return (f"capabilities {device.capabilities!r}, routes {info.ipc_routes!r}, "
                f"{info.allocation_size // MIB} MiB at 0x{info.base:x}")

    def check_registered(self):
        with self.nccl.register(self.buffer, name="nccl") as registration:
            self.reduces(1)
            for seed in (2, 3):
                went, came, foreign = self.pause()
                must(foreign == 0 and went >= SIZE, f"{went} bytes went back, {foreign} stayed with others")
                self.resume()
                must(registration.active, f"not registered again: {registration.error}")
                self.reduces(seed)
        return f"{went // MIB} MiB went back, the driver has {came // MIB} MiB more"

    def check_window(self):
        with self.nccl.register(self.buffer, window=True) as registration:
            self.reduces(4)
            went, _, foreign = self.pause()
            must(foreign == 0 and went >= SIZE, f"{went} bytes went back, {foreign} stayed with others")
            self.resume()
            must(registration.active, f"no window again: {registration.error}")
            self.reduces(5)
        return f"windows {'made' if any(registration.handles) else 'ended'}"

    def check_forgotten(self):
        """A window that nobody ends keeps the pages, and the pause says so."""
        import ctypes

        communicator = self.nccl._communicator(None, self.rank)
        info, window = self.context.query(self.buffer), ctypes.c_void_p()
        self.nccl._call("ncclCommWindowRegister", ctypes.c_void_p(communicator), ctypes.c_void_p(info.allocation_base),
                        ctypes.c_size_t(info.allocation_size), ctypes.byref(window), ctypes.c_int(1))
        if not window:
            return "this NCCL makes no window of the memory"
        went, _, foreign = self.pause()
        self.nccl._call("ncclCommWindowDeregister", ctypes.c_void_p(communicator), window)
        self.resume()
        self.reduces(6)
        must(went + foreign >= SIZE, f"{went} bytes went back and {foreign} stayed, of {SIZE}")
        return f"{went // MIB} MiB went back, {foreign // MIB} MiB stayed with NCCL"

    def check_speed(self):
        """As fast as NCCL is over its own buffers in PyTorch's memory, within a quarter."""
        plain = self.torch.ones(COUNT, device=f"cuda:{self.rank}")

        def seconds(tensor):
            for _ in range(3):
                self.distributed.all_reduce(tensor)
            self.barrier()
            begin = time.monotonic()
            for _ in range(10):
                self.distributed.all_reduce(tensor)
            self.torch.cuda.synchronize()
            return (time.monotonic() - begin) / 10

        with self.nccl.register(self.buffer):
            ours, theirs = seconds(self.tensor), seconds(plain)
        must(ours < 1.25 * theirs, f"{SIZE / ours / 1e9:.0f} GB/s, PyTorch's memory {SIZE / theirs / 1e9:.0f} GB/s")
        return f"{SIZE / ours / 1e9:.0f} GB/s, PyTorch's memory {SIZE / theirs / 1e9:.0f} GB/s"

    def check_suspend(self):
        if not self.nccl.can_suspend():
            return "SKIP this NCCL is older than 2.29.7"
        self.barrier()
        before = self.torch.cuda.mem_get_info()[0]
        self.nccl.suspend(device=self.rank)
        came = self.torch.cuda.mem_get_info()[0] - before
        told = self.nccl.memory(device=self.rank)
        self.barrier()
        self.nccl.resume(device=self.rank)
        self.reduces(7)
        must(told.suspended == 1 and told.total >= told.suspendable, str(told))
        return (f"{came // MIB} MiB went back; NCCL tells {told.suspendable // MIB} MiB that it can give back and "
                f"{told.persistent // MIB} MiB that it keeps")


class _Interface:
    """A block as __cuda_array_interface__."""

    def __init__(self, buffer):
        self.__cuda_array_interface__ = {
            "shape": (COUNT,), "typestr": "<f4", "data": (buffer.address, False), "version": 3, "strides": None}
        self.buffer = buffer


CHECKS = [name for name in vars(Rank) if name.startswith("check_")]


def child(rank):
    made = Rank(rank)
    for name in CHECKS:
        try:
            words = getattr(made, name)() or ""
            print(f"PASS\t{name}\t{words}", flush=True)
        except Exception as error:  # pylint: disable=broad-exception-caught # a row for each, whatever comes
            print(f"FAIL\t{name}\t{type(error).__name__}: {error}", flush=True)
            os._exit(1)  # the other rank may wait in a collective
    made.barrier()
    os._exit(0)  # NCCL's end is not what is tested


def main():
    reason = why_not()
    if reason is not None:
        print(f"# {reason}: needs {RANKS} GPUs with NCCL")
        if "--rehearse" in sys.argv:
            import gmm.nccl  # noqa: F401 # pylint: disable=unused-import

            tap.check(set(CHECKS) > {"check_registered", "check_window"}, "the checks are there")
            sys.exit(tap.end())
        sys.exit(77)
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 20000),
                   "WORLD_SIZE": str(RANKS), "GMM_BACKEND": "cuda"}
    processes = [subprocess.Popen([sys.executable, str(HERE), "--rank", str(rank)], stdout=subprocess.PIPE, text=True,
                                  env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
                 for rank in range(RANKS)]
    told = {}
    deadline = time.monotonic() + 100
    for rank, process in enumerate(processes):
        try:
            out = process.communicate(timeout=max(1, deadline - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            process.kill()
            out = process.communicate()[0]
        for line in out.splitlines():
            if line.count("\t") == 2:
                result, name, words = line.split("\t")
                told[name, rank] = result, words
    for name in CHECKS:
        rows = [told.get((name, rank), ("FAIL", "nothing was told")) for rank in range(RANKS)]
        words = [" | ".join(text for _, text in rows)]
        if rows[0][1].startswith("SKIP"):
            tap.skip(name[6:], rows[0][1][5:])
        else:
            tap.check(all(result == "PASS" for result, _ in rows), f"{name[6:]}: {words[0][:300]}", words)
    sys.exit(tap.end())


if __name__ == "__main__":
    if "--rank" in sys.argv:
        child(int(sys.argv[sys.argv.index("--rank") + 1]))
    main()
