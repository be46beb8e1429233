# SPDX-License-Identifier: Apache-2.0
"""Two ranks of torch.distributed: gmm.job with gloo on the host and with NCCL on two GPUs, and gmm.nccl."""
import subprocess
import sys

import conftest
import pytest
import torch

PRELUDE = """
import os, sys, torch, torch.distributed as dist
import gmm, gmm.job

MIB = 1 << 20
rank, on_gpu = int(os.environ["LOCAL_RANK"]), sys.argv[1] == "nccl"
device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
if on_gpu:
    import gmm.torch
    torch.cuda.set_device(rank)
    gmm.torch.use()
dist.init_process_group(sys.argv[1], device_id=device if on_gpu else None)
torch.use_deterministic_algorithms(True)
context = gmm.context()

def free():
    return torch.cuda.mem_get_info()[0] if on_gpu else 0
"""

TRAINING = PRELUDE + """
side = 4096 if on_gpu else 256
tag = context.tag("weights", gmm.Contents.HOST)
buffer = context.alloc(4 * side * side, gmm.Kind.VMM, tag=tag, device=rank if on_gpu else 0)
weights = torch.from_dlpack(buffer).view(torch.float32).view(side, side)

def train(pauses):
    torch.manual_seed(3)
    weights.copy_(torch.randn(side, side) / side ** 0.5)
    data = torch.randn(2, 64, side)[rank].to(device)
    losses = []
    for step in range(6):
        if pauses and step % 2:
            before = free()
            with gmm.job.paused(contents=gmm.Contents.HOST) as released:
                assert released >= buffer.nbytes and context.tag_info(tag).active_bytes == 0
                assert not on_gpu or free() - before >= buffer.nbytes
        out = torch.tanh(data @ weights)
        gradient = 2 * data.T @ (out * (1 - out ** 2)) / data.numel()
        dist.all_reduce(gradient)
        weights.sub_(gradient, alpha=0.1)
        losses.append(out.square().mean().item().hex())
    return losses

undisturbed = train(False)
assert train(True) == undisturbed and len(set(undisturbed)) == 6
"""

NCCL = PRELUDE + """
import gmm.nccl
size = 256 * MIB
words = dist.new_group(backend="gloo")  # agrees while NCCL's memory is away
tag = context.tag("network", gmm.Contents.HOST)
buffer = context.alloc(size, comm=True, device=rank, tag=tag)
tensor = torch.from_dlpack(buffer).view(torch.float32)
info = context.query(buffer)
assert info.allocation_base == info.base

def together():
    torch.cuda.synchronize()
    dist.barrier(group=words)

def reduces(seed):
    tensor.fill_(seed + rank)
    dist.all_reduce(tensor)
    assert bool((tensor == 2 * seed + 1).all()), tensor[0].item()

for window in (False, True):
    with gmm.nccl.register(buffer, window=window) as registration:
        reduces(1)
        for seed in (2, 3):
            together()
            assert context.pause(tag) >= size and tag.info.foreign_bytes == 0
            together()
            context.resume(tag)
            together()
            assert registration.active, registration.error
            reduces(seed)
if gmm.nccl.can_suspend():
    together()
    gmm.nccl.suspend(device=rank)
    seen = gmm.nccl.memory(device=rank)
    assert seen.suspended == 1 and seen.total >= seen.suspendable
    together()
    gmm.nccl.resume(device=rank)
    reduces(7)
"""


def run(program, backend, tmp_path):
    if backend == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    path = tmp_path / "program.py"
    # NCCL's end is not what is tested.
    path.write_text(program + "\ndist.barrier()\nos._exit(0)\n")
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone",
                           str(path), backend], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_training_goes_on_bit_for_bit(backend, tmp_path):
    if backend == "gloo" and conftest.BACKEND != "host":
        pytest.skip("its tensors are those of the host backend")
    run(TRAINING, backend, tmp_path)


def test_registered_memory_is_reduced_before_and_after_pauses(tmp_path):
    run(NCCL, "nccl", tmp_path)
