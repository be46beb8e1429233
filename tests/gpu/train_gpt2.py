# SPDX-License-Identifier: Apache-2.0
"""Trains GPT-2 small on random tokens with PyTorch's own allocator and with gmm's, and compares step time and peak
reserved memory, in the Test Anything Protocol.

Needs PyTorch with CUDA, gmm on PYTHONPATH, and the GPU to itself. Two processes work in turns, a block of steps each,
so that clocks and neighbours do the same to both. Each block gives one ratio. Their median and quartiles are printed
and decide nothing, because the processor's share of a step scatters by a tenth on a virtual machine.
PYTORCH_CUDA_ALLOC_CONF goes to the process with PyTorch's own allocator.

    train_gpt2.py                 or
    train_gpt2.py --rehearse      a tiny model on the CPU, without gmm: shows only that the script runs
"""
import collections
import concurrent.futures
import functools
import os
import pathlib
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "bindings" / "python")]
import tap  # noqa: E402 # pylint: disable=wrong-import-position
from remote import Remote  # noqa: E402 # pylint: disable=wrong-import-position

MIB = 1 << 20
Shape = collections.namedtuple("Shape", "layers heads width vocabulary batch length blocks steps")
SMALL = Shape(12, 12, 768, 50257, batch=8, length=1024, blocks=60, steps=2)  # GPT-2 small: 124 million parameters
TINY = Shape(2, 2, 32, 101, batch=2, length=16, blocks=3, steps=3)
WARM_UP = 5


def make_model(torch, shape):
    nn, functional = torch.nn, torch.nn.functional

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            width = shape.width
            self.tokens, self.positions = nn.Embedding(shape.vocabulary, width), nn.Embedding(shape.length, width)
            layer = nn.TransformerEncoderLayer(width, shape.heads, 4 * width, 0.1, batch_first=True, norm_first=True,
                                               activation=functools.partial(functional.gelu, approximate="tanh"))
            self.blocks = nn.TransformerEncoder(layer, shape.layers, nn.LayerNorm(width), enable_nested_tensor=False)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(shape.length))
            self.head = nn.Linear(width, shape.vocabulary, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, tokens, targets):
            x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
            logits = self.head(self.blocks(x, self.mask, is_causal=True))
            return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))

    return Model()


class Trainer:
    """Trains in the process of one allocator: "torch", "gmm", or "" for a rehearsal on the CPU."""

    def __init__(self, allocator):
        if allocator == "gmm":
            import gmm.torch

            gmm.torch.use()
            self.statistics = gmm.context().stats
        import torch

        self.torch, self.allocator, self.losses = torch, allocator, []
        self.shape, self.device = SMALL if allocator else TINY, "cuda" if allocator else "cpu"
        torch.manual_seed(1)
        torch.set_float32_matmul_precision("high")
        self.model = make_model(torch, self.shape).to(self.device)
        for parameter in self.model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.02)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=bool(allocator))
        self.data = torch.randint(0, self.shape.vocabulary, (8, self.shape.batch, self.shape.length + 1),
                                  generator=torch.Generator().manual_seed(2)).to(self.device)
        for _ in range(WARM_UP):
            self.step()

    def step(self):
        """The seconds of one step."""
        start = time.perf_counter()
        batch = self.data[len(self.losses) % len(self.data)]
        self.optimizer.zero_grad(set_to_none=True)
        with self.torch.autocast(self.device, dtype=self.torch.bfloat16):
            loss = self.model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.losses.append(loss.detach())
        if self.allocator:
            self.torch.cuda.synchronize()
        return time.perf_counter() - start

    def block(self):
        """The seconds of each step of a block, and gmm's calls into the driver so far."""
        return [self.step() for _ in range(self.shape.steps)], (
            self.statistics().backend_calls if self.allocator == "gmm" else 0)

    def end(self):
        """Peak reserved bytes, peak live bytes, and the mean losses of the first and of the last epoch."""
        if self.allocator == "gmm":
            now = self.statistics(device=0)
            peaks = now.peak_reserved_bytes, now.peak_live_bytes
        else:
            peaks = self.torch.cuda.max_memory_reserved(), self.torch.cuda.max_memory_allocated()
        epoch = len(self.data)
        losses = [statistics.mean(map(float, part)) for part in (self.losses[:epoch], self.losses[-epoch:])]
        return *(peaks if self.allocator else (0, 0)), *losses


def start(name, trainer):
    environment = {variable: value for variable, value in os.environ.items()
                   if name != "gmm" or variable not in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")}
    return Remote(f"import train_gpt2\ntrainer = train_gpt2.Trainer({trainer!r})", env=environment, cwd=HERE)


def main():
    rehearse = sys.argv[1:] == ["--rehearse"]
    with concurrent.futures.ThreadPoolExecutor() as threads:
        starting = {name: threads.submit(start, name, "" if rehearse else name) for name in ("torch", "gmm")}
    trainers = {name: future.result() for name, future in starting.items()}
    try:
        ratios, times, calls = [], {"torch": [], "gmm": []}, []
        for number in range((TINY if rehearse else SMALL).blocks):
            middle = {}
            for name in ("torch", "gmm") if number % 2 else ("gmm", "torch"):
                taken, so_far = trainers[name]("trainer.block()")
                times[name] += taken
                middle[name] = statistics.median(taken)
                calls += [so_far] if name == "gmm" else []
            ratios.append(middle["gmm"] / middle["torch"])
        ends = {name: trainer("trainer.end()") for name, trainer in trainers.items()}
    finally:
        for trainer in trainers.values():
            trainer.kill()
    low, ratio, high = statistics.quantiles(ratios, n=4)
    print(f"# step: {ratio:.3f} of the time with PyTorch's allocator, quartiles {low:.3f} and {high:.3f}; " +
          ", ".join(f"{name} {1e3 * statistics.median(times[name]):.3f} ms" for name in times) +
          f"; calls of gmm into the driver during the blocks: {calls[-1] - calls[0]}")
    for name, (reserved, live, first, last) in ends.items():
        print(f"# {name}: peak reserved {reserved / MIB:.1f} MiB, peak live {live / MIB:.1f} MiB, "
              f"losses from {first:.4f} to {last:.4f}", flush=True)
    (theirs, _, *their_losses), (ours, _, *our_losses) = ends["torch"], ends["gmm"]
    # The kernels add in any order, and the difference grows with each step.
    tap.check(all(abs(one - other) < most for one, other, most in zip(their_losses, our_losses, (0.02, 0.5))),
              "GPT-2 small: the losses of both agree")
    if not rehearse:
        tap.check(0 < ours < theirs, f"GPT-2 small: peak reserved is {ours / theirs:.4f} of PyTorch's")
    tap.finish()


if __name__ == "__main__":
    main()
