# SPDX-License-Identifier: Apache-2.0
"""Context.reset() and frees while other threads use the context."""
import gc
import threading
import weakref

import pytest
from checks import refused, until
from conftest import open_context

import gmm
import gmm.lease
from gmm import Kind

MIB = 1 << 20


@pytest.fixture
def waiting(tmp_path):
    """(context, stream, start, go_on): start(function) runs it on a thread that waits for a call of the stream."""
    context = open_context("host")
    context.ipc_configure(directory=str(tmp_path))
    stream, go, entered, threads = context.stream(), threading.Event(), threading.Event(), []
    stream.call(lambda: (entered.set(), go.wait(30)))
    assert entered.wait(30)

    def start(function):
        threads.append(threading.Thread(target=function))
        threads[0].start()
        until(lambda: context._users)

    def go_on():
        assert threads[0].is_alive()
        go.set()
        threads[0].join()

    yield context, stream, start, go_on
    go.set()
    context.close()


def test_reset_ends_memory_before_other_threads_run(waiting):
    """A reset waits for the devices. Other threads see closed memory, and their calls are refused."""
    context, stream, start, go_on = waiting
    buffer, dropped, array = context.alloc(MIB), context.alloc(MIB), context.empty(10)
    start(context.reset)
    assert buffer.closed and array.closed
    refused(RuntimeError, lambda: context.alloc(1), context.stats, context.reset, stream.synchronize, stream.close,
            context.close, match="reset|use it")
    buffer.free()  # as of any closed buffer
    del dropped
    gc.collect()
    go_on()
    assert context.stats().live_blocks == 0
    with context.alloc(MIB) as other:
        assert not other.closed and buffer.closed


@pytest.mark.parametrize("kind", ["lease", "watcher", "stream"])
def test_handles_that_die_during_a_reset_end_after_it(waiting, kind, unraisable):
    """The library's thread calls a lease or watcher, so neither is gone before the library has ended it."""
    context, _, start, go_on = waiting
    context.tag("weights", gmm.Contents.HOST)
    make = {"lease": lambda: gmm.lease.Lease("dying", ["weights"], asked=lambda ask: None, context=context),
            "watcher": lambda: context.watch("weights", prepare=len), "stream": context.stream}[kind]
    dying = make()
    gone = weakref.ref(dying)
    start(context.reset)
    del dying
    gc.collect()
    assert gone() is not None
    go_on()
    until(lambda: gone() is None)
    if kind == "lease":
        with gmm.lease.Lease("other", context=context) as other:
            other.request()  # the server answers
            until(lambda: {entry.name for entry in gmm.lease.status(context=context)} == {"other"})
    assert not unraisable


def test_reset_leaves_imported_and_pinned_memory(host):
    with open_context("host") as exporter:
        sent, own = exporter.alloc(MIB, Kind.HOST), bytearray(4096)
        sent.fill(7)
        received, pinned, buffer = host.ipc_import(sent.ipc_export()), host.pin(own), host.alloc(MIB)
        refused(gmm.BusyError, exporter.reset, match="importers")
        host.reset()
        assert not sent.closed and buffer.closed and not received.closed and bytes(memoryview(received)[:2]) == b"\7\7"
        with pytest.raises(BufferError):  # page-locked memory stays where it is
            own.extend(b"more")
        pinned.close()
        own.extend(b"more")
        received.close()
