# SPDX-License-Identifier: Apache-2.0
"""Many threads on the same objects: threads.py [ROUNDS].

The threads contradict each other on purpose: one closes what another uses. Each call either works or raises what the
interface promises, and in the end nothing is live. A free-threaded Python runs them at once; with a GIL the threads
change often. A deadlock ends the process with the stacks of all threads.
"""
import concurrent.futures
import contextlib
import faulthandler
import gc
import sys
import threading

import gmm
from gmm import Kind
from gmm import _native as native

THREADS = 4
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
KIB = 1 << 10
MIB = 1 << 20
#: Exceptions of a call on an object that another thread closes.
CLOSED = (gmm.ClosedError, BufferError, RuntimeError)


def together(*functions, times=1):
    """Runs each function on a thread of its own, all from one moment on. Raises the exception of a thread."""
    start = threading.Barrier(len(functions))

    def run(function):
        start.wait()
        for _ in range(times):
            function()

    with concurrent.futures.ThreadPoolExecutor(len(functions)) as threads:
        for done in [threads.submit(run, function) for function in functions]:
            done.result()


def tolerant(function, *arguments, allowed=CLOSED):
    def run():
        with contextlib.suppress(allowed):
            function(*arguments)

    return run


def each(function, *sequences):
    """A function that calls another one with each of the elements, whatever of CLOSED it raises."""
    return lambda: [tolerant(function, *elements)() for elements in zip(*sequences)]


def check_empty(context):
    gc.collect()
    stats = context.stats()
    assert stats.live_blocks == 0 and stats.allocations == stats.frees, stats


def allocate_and_free(context):
    """The common case: own blocks in a shared context, some of which another thread frees."""
    passed = []

    def work():
        for i in range(300):
            buffer = context.alloc(256 * (1 + i % 20), Kind.HOST)
            memoryview(buffer)[0] = i % 256
            if i % 3 == 0:
                passed.append(buffer)
            elif i % 3 == 1:
                buffer.close()
            if i % 7 == 0:
                tolerant(lambda: passed.pop().close(), allowed=IndexError)()

    together(*[work] * THREADS)


def views_and_free(context):
    """Memory is freed only without views, and a view is never of freed memory."""
    buffers = [context.alloc(4 * KIB, Kind.HOST) for _ in range(100)]
    arrays = [gmm.Array(buffer, (16, 16), "float64", offset=KIB) for buffer in buffers]

    def look(buffer, array):
        with memoryview(buffer) as view:
            view[0] = 1
            assert view[0] == 1 and not buffer.closed

    def look_through_arrays(buffer, array):
        with memoryview(array[0]) as view:
            view[0] = 1.0
        array.__dlpack__()

    together(each(look, buffers, arrays), each(look_through_arrays, buffers, arrays), each(gmm.Buffer.free, buffers),
             each(gmm.Buffer.free, buffers))
    for buffer in buffers:
        buffer.free()
        assert buffer._exports == 0 and buffer.closed
    assert context._exports == 0


def close_a_context(context):
    def use():
        with context.alloc(KIB, Kind.HOST) as buffer:
            buffer.fill(1)
            context.query(buffer)
        gmm.alloc(KIB).close()

    def streams():
        with context.stream() as stream:
            stream.record().close()

    together(tolerant(use), tolerant(streams), tolerant(context.close), tolerant(use),
             tolerant(lambda: gmm.context().close()), times=20)
    context.close()
    assert context._users == 0


def reset_a_context(context):
    kept = []

    def use():
        kept.append(context.alloc(KIB, Kind.HOST))
        kept.pop().close()

    together(tolerant(use), tolerant(context.alloc, KIB), tolerant(context.reset), tolerant(use), times=30)
    kept.clear()
    gc.collect()
    context.reset()  # frees of refused resets may be under way
    assert context.stats().live_blocks == 0


def streams_of_blocks(context):
    """A stream is closed before or after the free of a block on it, never in the middle."""
    for _ in range(20):
        stream = context.stream()
        blocks = [context.alloc(KIB, stream=stream) for _ in range(10)]
        together(each(gmm.Buffer.free, blocks), tolerant(stream.close), each(gmm.Buffer.free, blocks[::-1]))
        stream.close()


def handlers(context):
    """A handler is replaced while others run it."""
    context.set_limit(MIB)

    def fail():
        try:
            context.alloc(64 * MIB)
        except gmm.LimitExceededError:
            return
        raise AssertionError("allocated beyond the limit")

    def change():
        context.set_oom_handler(lambda info: False)
        context.set_oom_handler(None)

    together(fail, fail, change, change, times=10)


def one_capsule(context):
    """A capsule is good for one import, by the thread that comes first."""
    arrays = [context.zeros(16, "uint8", Kind.HOST) for _ in range(100)]
    capsules, taken = [array.__dlpack__() for array in arrays], []

    def take():
        for capsule in capsules:
            with contextlib.suppress(ValueError):
                taken.append(native.dlpack_import(capsule))

    together(*[take] * THREADS)
    assert len(taken) == len(capsules)
    del capsules[:], take
    gc.collect()
    assert [array.buffer._exports for array in arrays] == [0] * len(arrays)


def pins(context):
    pinned = [context.pin(bytearray(64 * KIB)) for _ in range(20)]
    look = each(lambda pin: (len(pin.object or b""), pin.address), pinned)
    together(look, each(gmm.Pin.close, pinned), look, each(gmm.Pin.close, pinned))
    assert all(pin.closed and pin.object is None for pin in pinned)


def pauses(context):
    """Tickets, whose end several threads look at, and the collector."""
    tag = context.tag("paused", gmm.Contents.HOST)
    kept = context.alloc(MIB, Kind.VMM, tag=tag)
    kept.fill(7)
    for _ in range(2):
        ticket = tag.pause_async(progress=lambda done, total: gc.collect() >= 0)
        together(ticket.result, ticket.wait, tolerant(ticket.close), lambda: ticket.info)
        ticket.close()
        together(tag.resume, context.stats, gc.collect, context.blocks)
    assert bytes(kept) == bytes([7]) * MIB


CASES = [allocate_and_free, views_and_free, close_a_context, reset_a_context,
         streams_of_blocks, handlers, one_capsule, pins, pauses]

if __name__ == "__main__":
    faulthandler.dump_traceback_later(240, exit=True)
    sys.setswitchinterval(1e-5)
    for _ in range(ROUNDS):
        for case in CASES:
            with gmm.Context("host", host_devices=2, host_memory=1 << 30) as opened:
                case(opened)
                if not opened.closed and case is not reset_a_context:
                    check_empty(opened)
    print("with a GIL" if getattr(sys, "_is_gil_enabled", lambda: True)() else "free-threaded")
