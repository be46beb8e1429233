# SPDX-License-Identifier: Apache-2.0
"""Training and generation in turn on one GPU, as SGLang's colocated engines do it: one side sleeps while the other
works.

A small transformer with random weights writes tokens greedily, is trained on them, and hands its weights back, several
times. It runs as it is, and with gmm.memory_saver in both hook modes: then the generator's weights and cache and the
graph's memory go while the trainer works, and the trainer's weights, gradients and optimizer state while tokens are
written. Losses and tokens must be the same bit for bit.

Needs PyTorch, and gmm on PYTHONPATH. Usage: colocated_loop.py [--small] [--device cpu] [--iterations N]
"""
import argparse
import contextlib
import json
import os
import subprocess
import sys
import time

MODES = ("plain", "torch", "preload")
MIB = 1 << 20


def build(torch, size, device):
    """A decoder-only transformer. Attention is written out: its parts are deterministic."""
    nn = torch.nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.between = nn.LayerNorm(size.width, device=device), nn.LayerNorm(size.width, device=device)
            self.mix = nn.Linear(size.width, 3 * size.width, device=device)
            self.join = nn.Linear(size.width, size.width, device=device)
            self.up, self.down = nn.Linear(size.width, 4 * size.width, device=device), nn.Linear(4 * size.width,
                                                                                                 size.width,
                                                                                                 device=device)

        def split(self, x):
            batch, length, _ = x.shape
            return [part.view(batch, length, size.heads, -1).transpose(1, 2)
                    for part in self.mix(self.before(x)).chunk(3, -1)]

        def rest(self, x, attended):
            batch, length, _ = x.shape
            x = x + self.join(attended.transpose(1, 2).reshape(batch, length, size.width))
            return x + self.down(torch.relu(self.up(self.between(x))))

        @staticmethod
        def attend(query, key, value, seen):
            scores = query @ key.transpose(-1, -2) / query.shape[-1]**0.5
            return torch.softmax(scores.masked_fill(~seen, float("-inf")), -1) @ value

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            # Embeddings as products: the gradient of an index is summed in no fixed order.
            self.tokens = nn.Linear(size.vocabulary, size.width, bias=False, device=device)
            self.places = nn.Parameter(torch.randn(size.length, size.width, device=device) * 0.02)
            self.layers = nn.ModuleList([Layer() for _ in range(size.layers)])
            self.out = nn.Linear(size.width, size.vocabulary, device=device)

        def forward(self, one_hot):
            length = one_hot.shape[1]
            x = self.tokens(one_hot) + self.places[:length]
            seen = torch.ones(length, length, dtype=torch.bool, device=device).tril()
            for layer in self.layers:
                x = layer.rest(x, layer.attend(*layer.split(x), seen))
            return self.out(x)

        def step(self, one_hot, here, seen, cache):
            """One more token: here is 1 at its place, seen tells the places up to it. Its keys and values are put into
            the cache.
            """
            x = self.tokens(one_hot) + (here @ self.places)
            for layer, (keys, values) in zip(self.layers, cache):
                query, key, value = layer.split(x)
                at = (here > 0).view(1, 1, -1, 1)
                keys.copy_(torch.where(at, key, keys))
                values.copy_(torch.where(at, value, values))
                x = layer.rest(x, layer.attend(query, keys, values, seen))
            return self.out(x)

    return Model()


class Size:
    def __init__(self, small):
        self.vocabulary, self.width, self.heads, self.layers, self.length, self.batch = (
            (64, 64, 4, 2, 16, 2) if small else (1024, 1024, 16, 8, 96, 16))
        self.prompt = 4


class Loop:
    """Both engines. region(tag, keep) and graph() are those of the memory saver, or do nothing."""

    def __init__(self, torch, size, device, saver, mode):
        self.torch, self.size, self.device, self.saver, self.mode = torch, size, device, saver, mode
        self.sizes, self.asleep = {}, []
        torch.manual_seed(1234)
        # what the BLAS keeps for good is in no region
        torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)
        with self.region("optimizer", True):
            self.trainer = build(torch, size, device)
            for parameter in self.trainer.parameters():
                parameter.grad = torch.zeros_like(parameter)
            self.optimizer = torch.optim.Adam(self.trainer.parameters(), lr=1e-3)
            self.optimizer.step()  # makes its state here
        with self.region("weights", False):  # they come anew from the trainer
            self.generator = build(torch, size, device).requires_grad_(False)
        head = size.width // size.heads
        with self.region("kv_cache", False):
            self.cache = [[torch.zeros(size.batch, size.heads, size.length, head, device=device) for _ in range(2)]
                          for _ in range(size.layers)]
        self.one_hot = torch.zeros(size.batch, 1, size.vocabulary, device=device)
        self.here = torch.zeros(size.length, device=device)
        self.seen = torch.ones(size.length, dtype=torch.bool, device=device)
        self.logits = torch.zeros(size.batch, 1, size.vocabulary, device=device)
        self.hand_over()
        self.captured = self.capture() if device == "cuda" else None

    def region(self, tag, keep):
        return self.saver.region(tag=tag, enable_cpu_backup=keep) if self.saver else contextlib.nullcontext()

    def pause(self, *tags):
        if not self.saver:
            return
        self.torch.cuda.synchronize()
        before = self.torch.cuda.mem_get_info()[0]
        for tag in tags:
            self.saver.pause(tag)
        gone = self.torch.cuda.mem_get_info()[0] - before
        self.asleep.append(gone)
        expected = sum(self.known_size(tag) for tag in tags)
        assert gone >= 0.9 * expected, f"pause of {tags}: {gone / MIB:.0f} MiB went back, not {expected / MIB:.0f}"

    def resume(self, *tags):
        for tag in tags if self.saver else ():
            self.saver.resume(tag)

    def known_size(self, tag):
        count = lambda model: sum(parameter.nbytes for parameter in model.parameters())  # noqa: E731
        return {"optimizer": 4 * count(self.trainer), "weights": count(self.generator),
                "kv_cache": sum(tensor.nbytes for pair in self.cache for tensor in pair), "cuda_graph": 0}[tag]

    def step(self):
        with self.torch.no_grad():
            self.logits.copy_(self.generator.step(self.one_hot, self.here, self.seen, self.cache))

    def capture(self):
        """The step of the generator as a graph, over memory that will be paused and resumed."""
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with self.saver.cuda_graph(graph, tag="cuda_graph") if self.mode == "preload" else torch.cuda.graph(graph):
            self.step()
        return graph

    def generate(self):
        torch, size = self.torch, self.size
        for pair in self.cache:
            for tensor in pair:
                tensor.zero_()  # nothing of it was kept
        tokens = torch.arange(size.batch * size.prompt, device=self.device).view(size.batch,
                                                                                 size.prompt) % size.vocabulary
        places = torch.arange(size.length, device=self.device)
        for place in range(size.length - 1):
            self.one_hot.copy_(self.as_one_hot(tokens[:, place:place + 1]))
            self.here.copy_(places == place)
            self.seen.copy_(places <= place)
            if self.captured is not None:
                self.captured.replay()
            else:
                self.step()
            if place + 1 >= size.prompt:
                tokens = torch.cat([tokens, self.logits.argmax(-1)], 1)
        return tokens

    def as_one_hot(self, tokens):
        return (tokens.unsqueeze(-1) == self.torch.arange(self.size.vocabulary, device=self.device)).float()

    def train(self, tokens):
        torch = self.torch
        one_hot = self.as_one_hot(tokens)
        losses = []
        for _ in range(3):
            self.optimizer.zero_grad(set_to_none=False)
            scores = torch.log_softmax(self.trainer(one_hot[:, :-1]), -1)
            loss = -(scores * one_hot[:, 1:]).sum() / one_hot[:, 1:].sum()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item().hex())
        return losses

    def hand_over(self):
        with self.torch.no_grad():
            for to, source in zip(self.generator.parameters(), self.trainer.parameters()):
                to.copy_(source)

    def run(self, iterations):
        graph = ("cuda_graph",) if self.mode == "preload" else ()
        losses, written = [], []
        self.pause("optimizer")
        for _ in range(iterations):
            tokens = self.generate()
            written.append(tokens.tolist())
            self.pause("kv_cache", "weights", *graph)
            self.resume("optimizer")
            losses.append(self.train(tokens))
            self.resume("weights")  # in steps: first what the trainer fills
            self.hand_over()
            self.pause("optimizer")
            self.resume("kv_cache", *graph)
        return {"losses": losses, "tokens": written, "asleep": self.asleep}


def child(arguments):
    import torch

    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    saver = None
    if arguments.mode != "plain":
        from gmm.memory_saver import torch_memory_saver as saver

        saver.hook_mode = arguments.mode
    print(json.dumps(Loop(torch, Size(arguments.small), arguments.device, saver,
                          arguments.mode).run(arguments.iterations)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a model for a rehearsal")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"),
                        help="cpu: shows only that the loop is deterministic without pausing")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.mode:
        child(arguments)
        return 0
    results, failed = {}, 0
    from gmm.memory_saver import configure_subprocess

    for mode in MODES if arguments.device == "cuda" else ("plain", "plain"):
        begin = time.monotonic()
        with configure_subprocess() if mode == "preload" else contextlib.nullcontext():
            done = subprocess.run([sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--mode", mode],
                                  stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, timeout=300, check=False)
        seconds = time.monotonic() - begin
        if done.returncode != 0:
            print(f"FAIL  colocated loop: {mode:<8} the process ended with {done.returncode}", flush=True)
            failed += 1
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        first = results.setdefault("first", found)
        same = found["losses"] == first["losses"] and found["tokens"] == first["tokens"]
        losses = [float.fromhex(loss) for loss in found["losses"][-1]]
        slept = f", at most {max(found['asleep']) / MIB:.0f} MiB asleep" if found["asleep"] else ""
        print(f"{'PASS' if same else 'FAIL'}  colocated loop: {mode:<8} {seconds:.1f} s  {len(found['losses'])} turns, "
              f"last loss {losses[-1]:.6f}{slept}, "
              f"losses and tokens {'the same bit for bit' if same else 'DIFFER from the first run'}", flush=True)
        if not same:
            failed += 1
            for name in ("losses", "tokens"):
                turn = next((i for i, pair in enumerate(zip(first[name], found[name])) if pair[0] != pair[1]), None)
                print(f"      {name}: first difference in turn {turn}", flush=True)
    print(f"colocated_loop.py: {'passed' if not failed else 'FAILED'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
