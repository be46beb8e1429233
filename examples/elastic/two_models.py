# SPDX-License-Identifier: Apache-2.0
"""Two models with paged KV caches share one budget of memory. Each reserves a cache as large as all of it.

    python two_models.py [FILE]

FILE gets a plot by matplotlib. Requests come to one model, then to the other. A finished request's pages stay as a
cache of its prefix until a model wants their memory.
"""
import sys

try:
    import torch
except ImportError:
    print("skipped: PyTorch is not installed")
    sys.exit()
import gmm.torch

MIB = 1 << 20
BUDGET = 12 * MIB
TOKENS, HEADS, WIDTH = 16, 8, 64  # of a page: its tokens, and the heads of the model with their width
LENGTH, ROUNDS = 64, 400  # tokens of a request; rounds of the program, with a token for each request
BUSY, QUIET = 16, 2  # requests at once
attention = torch.nn.functional.scaled_dot_product_attention


class Model:
    """One layer of attention with random weights, over a cache whose rows are pages of 64 KiB."""

    def __init__(self, name):
        rows = BUDGET // (2 * TOKENS * HEADS * WIDTH * 4)
        self.name, self.cache = name, gmm.torch.reserve((rows, 2, TOKENS, HEADS, WIDTH), torch.float32, tag=name)
        self.weights = (torch.randn(4, HEADS * WIDTH, HEADS * WIDTH) / (HEADS * WIDTH) ** 0.5).to(self.cache.device)
        self.unused, self.idle, self.requests = list(range(rows)), [], []  # idle: pages of requests that have ended

    def evict(self):
        """Gives the pages that were idle for the longest time back; False where no page is idle."""
        rows, self.idle = self.idle[:16], self.idle[16:]
        self.cache.gmm.give_back(rows)
        self.unused += rows
        return bool(rows)

    def take_page(self):
        """A page with memory. None where running requests have all of it."""
        while True:
            try:
                if self.unused:
                    self.cache.gmm.take(self.unused[0])
                    return self.unused.pop(0)
            except MemoryError:  # the budget is spent
                pass
            if not self.other.evict() and not self.evict():
                return None

    def step(self, request):
        """Appends a token to a request, whose output is what attention sees of all its tokens."""
        pages, history = request["pages"], request["history"]
        place = len(history) % TOKENS
        if place == 0:
            page = self.take_page()
            if page is None:
                return  # it waits for a round
            pages.append(page)
        query, key, value = (request["hidden"] @ self.weights[:3]).view(3, HEADS, WIDTH)
        self.cache[pages[-1], 0, place], self.cache[pages[-1], 1, place] = key, value
        history.append((query, key, value))
        tokens = self.cache[pages].transpose(0, 1).flatten(1, 2)[:, :len(history)].transpose(1, 2)
        output = attention(query[:, None], *tokens)
        request["hidden"] = torch.nn.functional.normalize(output.flatten() @ self.weights[3], dim=0) * 8
        if len(history) == LENGTH:
            query, *others = (torch.stack(each, 1) for each in zip(*history))
            if not torch.allclose(output, attention(query[:, -1:], *others), atol=1e-4):
                sys.exit(f"{self.name}: attention over ordinary tensors gives something else")
            self.idle += pages
            self.requests.remove(request)

    def run(self, load):
        """A round: new requests up to the load, and a token for each."""
        while len(self.requests) < load:
            hidden = torch.randn(HEADS * WIDTH).to(self.cache.device)
            self.requests.append({"pages": [], "hidden": hidden, "history": []})
        for request in list(self.requests):
            self.step(request)


def plot(history, path):
    """Draws the memory of both models over time."""
    try:
        from matplotlib import pyplot
    except ImportError:
        return "no plot, as matplotlib is not installed"
    pyplot.stackplot(range(len(history)), *zip(*history), labels=["first", "second"])
    pyplot.axhline(BUDGET / MIB, color="black", label="budget")
    pyplot.gca().set(xlabel="round", ylabel="MiB")
    pyplot.legend()
    pyplot.savefig(path)
    return f"plot: {path}"


def main():
    context = gmm.context()
    if context.info.backend_name != "host" and not torch.cuda.is_available():
        return f"skipped: PyTorch cannot use the memory of {context!r}"
    context.set_limit(BUDGET)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the tensors are small
    first, second = Model("first"), Model("second")
    first.other, second.other, history = second, first, []
    print("round   first: requests, MiB   second: requests, MiB")
    for number in range(1, ROUNDS + 1):
        first.run(BUSY if number <= ROUNDS // 2 else QUIET)
        second.run(QUIET if number <= ROUNDS // 2 else BUSY)
        history.append([context.stats(tag=model.name).reserved_bytes // MIB for model in (first, second)])
        if number % 50 == 0:
            mine, yours = history[-1]
            print(f"{number:5} {len(first.requests):16} {mine:6} {len(second.requests):18} {yours:6}")
    peaks = [max(each) for each in zip(*history)]
    if max(map(sum, history)) * MIB > BUDGET or sum(peaks) * MIB <= BUDGET:
        sys.exit(f"the peaks of {peaks} MiB were not shared in {BUDGET // MIB} MiB")
    said = plot(history, sys.argv[1]) if sys.argv[1:] else "a file's name as an argument gets a plot"
    return f"peaks of {peaks[0]} and {peaks[1]} MiB in {BUDGET // MIB} MiB; {said}"


if __name__ == "__main__":
    print(main())
