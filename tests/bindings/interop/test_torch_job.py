# SPDX-License-Identifier: Apache-2.0
"""gmm.job under torchrun: two ranks with gloo train, pause as one over the store, resume, and train on bit for bit."""
import datetime
import json
import subprocess
import sys

import pytest
import torch.distributed as dist

import gmm
from gmm import job as jobs

PROGRAM = """
import json, pathlib, sys, torch, torch.distributed as dist, gmm
from gmm import job as jobs

dist.init_process_group("gloo")
rank = dist.get_rank()
with gmm.Context("host") as context:
    tag = context.tag("weights", gmm.Contents.HOST)

    def train(pauses):
        torch.manual_seed(3)
        count = 256 * 256
        buffer = context.alloc(4 * count, gmm.Kind.VMM, tag=tag)
        weights = torch.frombuffer(buffer, dtype=torch.float32).view(256, 256)
        weights.copy_(torch.randn(256, 256))
        data = torch.randn(2, 64, 256)[rank]
        losses = []
        for step in range(6):
            if pauses and step % 2:
                with job.paused(tag) as info:
                    assert info.state == jobs.JobState.COMMITTED and info.job_bytes > info.bytes > 0, info
                    assert context.tag_info(tag).active_bytes == 0
                assert job.info().failed_rank is None
            loss = torch.tanh(data @ weights).square().mean()
            gradient = 2 * data.T @ (torch.tanh(data @ weights) * (1 - torch.tanh(data @ weights) ** 2)) / data.numel()
            dist.all_reduce(gradient)
            weights -= 0.1 * gradient
            losses.append(loss.item().hex())
        return losses

    with jobs.Job(jobs.Store(), timeout=60, context=context) as job:
        undisturbed, paused = train(False), train(True)
pathlib.Path(sys.argv[1], f"losses{rank}").write_text(json.dumps([undisturbed, paused]))
dist.destroy_process_group()
"""


def test_training_goes_on_bit_for_bit(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone",
                           str(program), str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        undisturbed, paused = json.loads((tmp_path / f"losses{rank}").read_text())
        assert undisturbed == paused and len(set(paused)) == 6


@pytest.mark.parametrize("kind", ["file", "hash", "tcp"])
def test_stores_keep_the_first_value(tmp_path, kind):
    if kind == "file":
        store = dist.FileStore(str(tmp_path / "store"), 1)
    elif kind == "hash":
        store = dist.HashStore()
    else:
        store = dist.TCPStore("127.0.0.1", 0, 1, True, timeout=datetime.timedelta(seconds=30))
    exchange = jobs.Store(store)
    assert exchange.get("a/1", 0) is None
    assert exchange.set("a/1", "yes 5", 5) == "yes 5"
    assert exchange.set("a/1", "no 0 -50 late", 5) == "yes 5"
    assert exchange.get("a/1", 0) == "yes 5"
    exchange.erase("a/1")
    assert exchange.get("a/1", 0) is None
    with gmm.Context("host") as context, jobs.Job(exchange, rank=0, ranks=1, context=context) as job:
        with job.paused():
            pass
        assert job.info().epoch == 2
