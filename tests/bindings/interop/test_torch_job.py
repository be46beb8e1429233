# SPDX-License-Identifier: Apache-2.0
"""gmm.job under torchrun: two ranks with gloo train, pause as one, resume, and train on bit for bit."""
import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import json, pathlib, sys, torch, torch.distributed as dist, gmm

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
                with gmm.job.paused(tag, context=context) as released:
                    assert released >= 4 * count and context.tag_info(tag).active_bytes == 0
            loss = torch.tanh(data @ weights).square().mean()
            gradient = 2 * data.T @ (torch.tanh(data @ weights) * (1 - torch.tanh(data @ weights) ** 2)) / data.numel()
            dist.all_reduce(gradient)
            weights -= 0.1 * gradient
            losses.append(loss.item().hex())
        return losses

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
