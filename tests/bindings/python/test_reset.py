# SPDX-License-Identifier: Apache-2.0
"""Context.reset() and frees while other threads use the context."""
import gc
import os
import shutil
import subprocess
import sys
import threading
import weakref

import pytest
from checks import refused, until
from conftest import open_context

import gmm
import gmm.lease
from gmm import Kind
from gmm import _native as native

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


def test_reset_is_refused_while_a_call_is_under_way(waiting):
    context, stream, start, go_on = waiting
    buffer = context.alloc(MIB)
    start(stream.synchronize)
    with pytest.raises(RuntimeError, match="cannot reset the context: calls on other threads use it"):
        context.reset()
    go_on()
    assert not buffer.closed
    context.reset()
    assert buffer.closed


@pytest.mark.parametrize("kind", ["lease", "watcher", "stream"])
def test_handles_that_die_during_a_reset_end_after_it(waiting, kind, monkeypatch):
    """The library's thread calls a lease or watcher, so neither is gone before the library has ended it."""
    unraisable = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
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
        host.reset()
        assert buffer.closed and not received.closed and bytes(memoryview(received)[:2]) == b"\7\7"
        with pytest.raises(BufferError):  # page-locked memory stays where it is
            own.extend(b"more")
        pinned.close()
        own.extend(b"more")
        received.close()


#: Stands in front of the library's gmm_reset().
SLOW_RESET = f"""
#include <unistd.h>
_Atomic int inside, go;
int gmm_reset(void *context) {{
  for (inside = 1; !go; (void)context) usleep(100);
  return {native.GMM_ERROR_BUSY};
}}
"""
PROGRAM = """
import ctypes, gc, sys, threading
import gmm
from checks import refused, until

slow = ctypes.CDLL(sys.argv[1])
inside, go = (ctypes.c_int.in_dll(slow, name) for name in ("inside", "go"))
context = gmm.Context("host")
thread = threading.Thread(target=lambda: refused(gmm.BusyError, context.reset))
kept, freed, dropped = (context.alloc(1 << 20) for _ in range(3))
thread.start()
until(lambda: inside.value)
closed = kept.closed, freed.closed
freed.free()
del dropped
gc.collect()
go.value = 1
thread.join()
assert closed == (True, True) and not kept.closed and freed.closed
until(lambda: context.stats().live_blocks == 1)
kept.fill(1)
context.synchronize()
context.close()
"""


def test_a_reset_that_is_refused(tmp_path):
    """Live blocks stay, and those that the program freed during the reset are freed after it."""
    compiler, library = shutil.which("cc"), tmp_path / "slow.so"
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "slow.c").write_text(SLOW_RESET)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "slow.c"], check=True)
    done = subprocess.run([sys.executable, "-X", "dev", "-c", PROGRAM, str(library)], capture_output=True, text=True,
                          env={**os.environ, "LD_PRELOAD": str(library)}, cwd=os.path.dirname(__file__), timeout=60,
                          check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
