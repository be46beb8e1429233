# SPDX-License-Identifier: Apache-2.0
"""Trains GPT-2 small on random tokens with PyTorch's own allocator and with gmm's, and compares step time and peak
reserved memory, in the Test Anything Protocol.

Needs PyTorch with CUDA, gmm on PYTHONPATH, and the GPU to itself. Two processes work in turns, a block of steps each,
so that clocks and neighbours do the same to both. Each block gives one ratio, and the median of them counts.
PYTORCH_CUDA_ALLOC_CONF goes to the process with PyTorch's own allocator.

    train_gpt2.py [--slower 1.02]
    train_gpt2.py --rehearse      a tiny model on the CPU, without gmm: shows only that the script runs
"""
import argparse
import collections
import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import tap  # noqa: E402 # pylint: disable=wrong-import-position

MIB = 1 << 20
Shape = collections.namedtuple("Shape", "layers heads width vocabulary batch length blocks steps")
SMALL = Shape(12, 12, 768, 50257, batch=8, length=1024, blocks=10, steps=10)  # GPT-2 small: 124 million parameters
TINY = Shape(2, 2, 32, 101, batch=2, length=16, blocks=3, steps=3)
WARM_UP = 5


def make_model(torch, shape):
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch, tokens, width = x.shape
            q, k, v = (part.view(batch, tokens, self.heads, -1).transpose(1, 2)
                       for part in self.qkv(self.before_attention(x)).chunk(3, dim=-1))
            attended = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0,
                                                               is_causal=True)
            x = x + functional.dropout(self.out(attended.transpose(1, 2).reshape(batch, tokens, width)), 0.1,
                                       self.training)
            return x + functional.dropout(self.down(functional.gelu(self.up(self.before_mlp(x)), approximate="tanh")),
                                          0.1, self.training)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            width = shape.width
            self.tokens, self.positions = nn.Embedding(shape.vocabulary, width), nn.Embedding(shape.length, width)
            self.blocks = nn.ModuleList(Block(width, shape.heads) for _ in range(shape.layers))
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, shape.vocabulary, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, tokens, targets):
            x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x))
            return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))

    return Model()


def child(shape, allocator):
    """Does steps when a line of its input says so, and prints one JSON object for each line. allocator: "" for a
    rehearsal on the CPU.
    """
    if allocator == "gmm":
        import gmm
        import gmm.torch

        gmm.torch.use()
    import torch

    device = "cuda" if allocator else "cpu"
    wait = torch.cuda.synchronize if allocator else lambda: None
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    model = make_model(torch, shape).to(device)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=bool(allocator))
    data = torch.randint(0, shape.vocabulary, (8, shape.batch, shape.length + 1),
                         generator=torch.Generator().manual_seed(2)).to(device)
    done = 0

    def step():
        nonlocal done
        batch = data[done % len(data)]
        done += 1
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    def answer(**words):
        print(json.dumps(words), flush=True)

    for _ in range(WARM_UP):
        loss = step()
    wait()
    answer()
    for line in sys.stdin:
        if not line.strip().isdigit():
            break
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            loss = step()
            wait()
            times.append(time.perf_counter() - start)
        answer(times=times, calls=gmm.context().stats().backend_calls if allocator == "gmm" else 0)
    reserved = live = 0
    if allocator == "gmm":
        statistics_now = gmm.context().stats(device=0)
        reserved, live = statistics_now.peak_reserved_bytes, statistics_now.peak_live_bytes
    elif allocator:
        reserved, live = torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()
    answer(reserved=reserved, live=live, loss=float(loss))
    sys.stdout.flush()
    os._exit(0)  # what was asked for is printed; the end of an allocator is tested elsewhere


class Trainer:
    """One of the two processes."""

    def __init__(self, name, rehearse):
        self.name = name
        environment = dict(os.environ)
        if name == "gmm":
            for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
                environment.pop(variable, None)
        self.process = subprocess.Popen([sys.executable, __file__, "--child", name, *["--rehearse"] * rehearse],
                                        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process with {self.name}'s allocator ended with {self.process.wait()}")
        return json.loads(line)

    def ask(self, line):
        print(line, file=self.process.stdin, flush=True)
        return self.read()


def compare(shape, rehearse):
    """The median ratio of the times of a step, and the last words of both processes."""
    trainers = [Trainer(name, rehearse) for name in ("torch", "gmm")]
    guard = threading.Timer(45, lambda: [trainer.process.kill() for trainer in trainers])
    guard.start()
    try:
        for trainer in trainers:
            trainer.read()
        ratios, calls, times = [], [], {trainer.name: [] for trainer in trainers}
        for number in range(shape.blocks):
            block = {}
            for trainer in trainers if number % 2 else reversed(trainers):
                told = trainer.ask(shape.steps)
                times[trainer.name] += told["times"]
                block[trainer.name] = statistics.median(told["times"])
                if trainer.name == "gmm":
                    calls.append(told["calls"])
            ratios.append(block["gmm"] / block["torch"])
        ends = {trainer.name: trainer.ask("end") for trainer in trainers}
    finally:
        guard.cancel()
        for trainer in trainers:
            trainer.process.kill()
            trainer.process.wait()
    print("# step: " + ", ".join(f"{name} {1e3 * statistics.median(times[name]):.3f} ms" for name in times) +
          f"; ratios of blocks {' '.join(f'{one:.3f}' for one in ratios)}; calls of gmm into the driver so far {calls}")
    for name, end in ends.items():
        print(f"# {name}: peak reserved {end['reserved'] / MIB:.1f} MiB, peak live {end['live'] / MIB:.1f} MiB, last "
              f"loss {end['loss']:.4f}", flush=True)
    return statistics.median(ratios), ends


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--slower", type=float, default=1.02, help="the most that a step may take, as a ratio")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--child", choices=["torch", "gmm"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    shape = TINY if arguments.rehearse else SMALL
    if arguments.child:
        child(shape, "" if arguments.rehearse else arguments.child)
    ratio, ends = compare(shape, arguments.rehearse)
    ours, theirs = ends["gmm"], ends["torch"]
    tap.check(abs(theirs["loss"] - ours["loss"]) < 0.1, "GPT-2 small: the losses of both agree")
    if not arguments.rehearse:
        tap.check(ratio <= arguments.slower, f"GPT-2 small: a step takes {ratio:.4f} of the time with PyTorch's "
                                             f"allocator (at most {arguments.slower})")
        tap.check(0 < ours["reserved"] < theirs["reserved"],
                  f"GPT-2 small: peak reserved is {ours['reserved'] / theirs['reserved']:.4f} of PyTorch's")
    sys.exit(tap.end())


if __name__ == "__main__":
    main()
