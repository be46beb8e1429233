# SPDX-License-Identifier: Apache-2.0
"""Garbage that is collected inside each callback neither deadlocks nor crashes.

The garbage is blocks, heaps, streams, events, tickets and whole contexts. A deadlock ends the process with the stacks
of all threads.
"""
import faulthandler
import gc
import threading

import pytest
from checks import refused, until
from conftest import BACKENDS, open_context

import gmm

pytestmark = pytest.mark.filterwarnings("error")  # an exception in a finalizer
MIB = 1 << 20


class Ring:
    """Keeps itself and others alive until the collector comes."""

    def __init__(self, **kept):
        self.__dict__.update(kept)
        self.ring = self


@pytest.fixture(params=BACKENDS, autouse=True)
def make(request):
    """make(**options): a context."""
    faulthandler.dump_traceback_later(120, exit=True)
    gc.disable()  # only where a case says so
    yield lambda **options: open_context(request.param, **options)
    gc.enable()
    faulthandler.cancel_dump_traceback_later()


def lose_a_context(make):
    context = make()
    Ring(context=context, buffer=context.alloc(MIB), stream=context.stream())


def kept_block(make):
    """(context, tag, block): a block of 7s with a tag of its own."""
    context = make()
    tag = context.tag("t", gmm.Contents.HOST)
    kept = context.alloc(MIB, gmm.Kind.VMM, tag=tag)
    kept.fill(7)
    return context, tag, kept


@pytest.mark.parametrize("asynchronous", [False, True])
def test_progress(make, asynchronous):
    """The thread that copies has the tag's locks, so a block of the tag cannot go on it."""
    context, tag, kept = kept_block(make)
    Ring(buffer=context.alloc(MIB, gmm.Kind.VMM, tag=tag), heap=context.heap(gmm.Kind.VMM, tag=tag),
         stream=context.stream(), event=context.event())
    lose_a_context(make)
    dropped, closed = [context.alloc(MIB, gmm.Kind.VMM, tag=tag)], context.alloc(MIB, gmm.Kind.VMM, tag=tag)
    seen = []

    def progress(done, total):
        if not seen:
            gc.collect()
            dropped.clear()
            closed.close()
        seen.append(done)

    ticket = tag.pause_async(progress=progress) if asynchronous else None
    assert (ticket.result() if asynchronous else tag.pause(progress=progress)) > 0 and seen and closed.closed
    until(lambda: context.stats().live_blocks == 1, 60 * asynchronous)  # at the end of the call all of it is done
    tag.resume()
    assert bytes(kept) == bytes([7]) * MIB
    context.close()  # no free is under way


def test_ticket_in_its_own_progress(make):
    """The end of a ticket waits for its operation, of which the callback is a part."""
    context, tag, _kept = kept_block(make)
    seen = []

    def progress(done, total):
        context._tickets.clear()
        gc.collect()
        seen.append(done == total)

    Ring(ticket=tag.pause_async(progress=progress))
    until(lambda: tag.info.state == gmm.State.PAUSED)
    assert seen[-1]
    tag.resume()


def test_call_of_a_stream(make):
    """The thread of a stream cannot wait for the stream's end, which the end of the stream does, and of its context."""
    go, ran = threading.Event(), []

    def lose():
        context = make()
        stream = context.stream()

        def call():
            go.wait(60)
            gc.collect()
            ran.append(True)

        stream.call(call)
        Ring(stream=stream, event=stream.record(), buffer=context.alloc(MIB, stream=stream), context=context)

    lose()
    go.set()
    until(lambda: ran)
    gone = len(gmm._context.contexts)
    until(lambda: gc.collect() == 0 and len(gmm._context.contexts) <= gone)


def test_out_of_memory(make):
    """Garbage is collected before the handler hears, and memory that a handler drops is free when it returns."""
    context = make()
    context.set_limit(16 * MIB)
    asked, held = [], []

    def handler(info):
        asked.append(info)
        return [held.clear(), lose_a_context(make), info.attempt < 2][-1]

    context.set_oom_handler(handler)
    for _ in range(64):
        Ring(buffer=context.alloc(MIB))
    assert asked == []
    held.append(context.alloc(12 * MIB))
    context.alloc(12 * MIB).close()
    assert asked[0].requested_bytes == 12 * MIB and asked[0].kind is gmm.Kind.DEVICE
    refused(gmm.LimitExceededError, lambda: context.alloc(32 * MIB))
    assert [info.attempt for info in asked] == [1, 1, 2]
    for other in (asked.append, None):  # the answer None is no
        context.set_oom_handler(other)
        refused(gmm.LimitExceededError, lambda: context.alloc(32 * MIB))
    assert len(asked) == 4


def test_log(make):
    """A log callback may come from any thread of the library."""
    said = []

    def hear(level, message):
        said.append(message)
        gc.collect()

    lose_a_context(make)
    context = make(log=hear)
    lose_a_context(make)
    left = context.alloc(100, name="left")
    context.close()  # reports the block that is left
    assert left.closed and any("left" in message for message in said), said


def test_deleter_of_a_tensor(make):
    """The end of another package's memory collects; the tensor goes inside a progress callback, too."""

    class Owner:
        """Its end is the deleter of the memory that gmm.asarray() sees through it."""

        def __init__(self, buffer):
            self.buffer = buffer
            self.__array_interface__ = {"shape": (16,), "typestr": "|u1", "data": (buffer.address, False), "version": 3}

        def __del__(self):
            lose_a_context(make)
            gc.collect()

    context, tag, _kept = kept_block(make)
    tensors = [gmm.asarray(Owner(context.alloc(MIB, gmm.Kind.HOST))),
               gmm.from_dlpack(context.empty(16, "uint8", gmm.Kind.HOST))]
    Ring(buffer=context.alloc(MIB, gmm.Kind.VMM, tag=tag))
    tag.pause(progress=lambda done, total: tensors.clear())
    gc.collect()
    assert context.stats().live_blocks == 1
    tag.resume()
