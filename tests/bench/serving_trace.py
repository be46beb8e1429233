#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes traces of servers whose contexts grow, made of random numbers with a seed.

Usage: serving_trace.py NAME [--seed N] [--steps N] > FILE

NAME is one of:
  concat      one batch at a time; each step each layer concatenates its keys and values with one more token's
  speculative the same; each step takes some more tokens and keeps a part of them
  continuous  sequences come and go; a layer's contexts of a sequence grow by blocks of tokens
  doubling    the same with contexts that double, on three streams
  paged       the same with contexts in chunks of one size

The text is what tests/bench/traces/README.md describes.
"""

import argparse
import random
import sys

MIB = 1 << 20


class Writer:
    """Blocks that live, and their lines."""

    def __init__(self, out):
        self.out, self.count = out, 0

    def take(self, size, stream=0):
        """A block: its number and stream."""
        self.out.write(f"a {self.count} {max(int(size), 1)} {stream}\n")
        self.count += 1
        return self.count - 1, stream

    def give(self, block):
        self.out.write(f"f {block[0]} {block[1]}\n")


def load_model(writer, layers, width):
    """Weights of 2 bytes: they stay until the end."""
    for _ in range(layers):
        for factor in (1, .25, .25, 1, 2.75, 2.75, 2.75):
            writer.take(2 * width * width * factor)
        writer.take(2 * width)


def run_layer(writer, width, rows, context, stream):
    """What one layer takes and gives back while it works on some rows."""
    hidden = writer.take(2 * rows * width, stream)
    normed = writer.take(4 * rows * width, stream)
    scores = writer.take(4 * rows * 32 * context, stream)
    softmax = writer.take(4 * rows * 32 * context, stream)
    writer.give(scores)
    writer.give(normed)
    up = writer.take(2 * rows * width * 2.75, stream)
    gate = writer.take(2 * rows * width * 2.75, stream)
    writer.give(softmax)
    writer.give(hidden)
    down = writer.take(2 * rows * width, stream)
    for block in (up, gate, down):
        writer.give(block)


def concat(writer, rng, steps, most_drafts=0):
    layers, width = 16, 1536
    load_model(writer, layers, width)
    done = 0
    while done < steps:
        batch, tokens = rng.choice((4, 8, 12)), rng.randrange(64, 1024)
        row = 2 * batch * width // 4  # a token's keys, of all sequences
        caches = []
        for _ in range(layers):
            run_layer(writer, width, batch, tokens, 0)
            caches.append([writer.take(row * tokens), writer.take(row * tokens)])
        for _ in range(min(rng.randrange(100, 400), steps - done)):
            done += 1
            drafts = most_drafts
            kept = rng.randrange(drafts + 1) if drafts else 0
            tokens += 1 + drafts
            for own in caches:
                for i in range(2):
                    grown = writer.take(row * tokens)
                    writer.give(own[i])
                    own[i] = grown
                # The heads of the queries share those of the keys: each is repeated for the product.
                repeated = [writer.take(4 * row * tokens) for _ in range(2)]
                run_layer(writer, width, batch, tokens, 0)
                for block in repeated:
                    writer.give(block)
            logits = writer.take(4 * batch * 32000 * (1 + drafts))
            writer.give(logits)
            if kept == drafts:
                continue
            tokens -= drafts - kept
            for own in caches:
                for i in range(2):
                    cut = writer.take(row * tokens)
                    writer.give(own[i])
                    own[i] = cut
        for own in caches:
            for block in own:
                writer.give(block)


def speculative(writer, rng, steps):
    concat(writer, rng, steps, 4)


class PagedSequence:
    """A request whose contexts lie in chunks of all layers."""
    CHUNK = 64

    def __init__(self, writer, rng, layers, row, _, stream):
        self.row, self.stream, self.chunks = 2 * layers * row, stream, []
        self.tokens = rng.choice((rng.randrange(16, 256), rng.randrange(256, 4096)))
        self.end = self.tokens + rng.randrange(16, 768)
        self.take(writer)

    def take(self, writer):
        while len(self.chunks) * self.CHUNK < self.tokens:
            self.chunks.append(writer.take(self.row * self.CHUNK, self.stream))

    def step(self, writer):
        self.tokens += 1
        self.take(writer)
        return self.tokens < self.end

    def finish(self, writer):
        for block in self.chunks:
            writer.give(block)


class Sequence:
    """A request: its contexts, and how many tokens it has and will have."""

    def __init__(self, writer, rng, layers, row, round_up, stream):
        self.row, self.round_up, self.stream = row, round_up, stream
        self.tokens = rng.choice((rng.randrange(16, 256), rng.randrange(256, 4096)))
        self.end = self.tokens + rng.randrange(16, 768)
        self.room = round_up(self.tokens)
        self.caches = [writer.take(row * self.room, stream) for _ in range(2 * layers)]

    def step(self, writer):
        """One more token. False: that was the last one."""
        self.tokens += 1
        if self.tokens > self.room:
            self.room = self.round_up(self.tokens)
            for i, old in enumerate(self.caches):
                self.caches[i] = writer.take(self.row * self.room, self.stream)
                writer.give(old)
        return self.tokens < self.end

    def finish(self, writer):
        for block in self.caches:
            writer.give(block)


def serve(writer, rng, steps, round_up, streams, kind=Sequence):
    """Continuous batches: one joins where there is room for its tokens."""
    layers, width, most_tokens = 12, 1024, 48 * 1024
    load_model(writer, layers, width)
    live = []
    for step in range(steps):
        while sum(each.end for each in live) < most_tokens and (rng.random() < .25 or not live):
            live.append(kind(writer, rng, layers, 2 * width // 4, round_up, rng.randrange(streams)))
            run_layer(writer, width, live[-1].tokens, 64, live[-1].stream)
        for stream in range(streams):
            own = [each for each in live if each.stream == stream]
            for _ in range(layers if own else 0):
                run_layer(writer, width, len(own), sum(each.tokens for each in own) // len(own), stream)
        ended = [each for each in live if not each.step(writer)]
        for each in ended:
            each.finish(writer)
            live.remove(each)
        if ended and step % 5 == 0:  # a report of the server, which stays for a while
            writer.take(rng.randrange(1, 64 << 10))


def continuous(writer, rng, steps):
    serve(writer, rng, steps, lambda tokens: (tokens + 63) // 64 * 64, 1)


def doubling(writer, rng, steps):
    serve(writer, rng, steps, lambda tokens: 1 << (tokens - 1).bit_length(), 3)


def paged(writer, rng, steps):
    serve(writer, rng, steps, None, 1, PagedSequence)


KINDS = {"concat": (concat, 600), "speculative": (speculative, 300), "continuous": (continuous, 1500),
         "doubling": (doubling, 1500), "paged": (paged, 1500)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=KINDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int)
    args = parser.parse_args()
    make, steps = KINDS[args.name]
    make(Writer(sys.stdout), random.Random(args.seed), args.steps or steps)


if __name__ == "__main__":
    main()
