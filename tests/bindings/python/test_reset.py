# SPDX-License-Identifier: Apache-2.0
"""Context.reset() and frees while other threads use the context."""
import gc
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref

import pytest
from conftest import open_context

import gmm
import gmm.lease
from gmm import Kind
from gmm import _native as native

MIB = 1 << 20


def test_reset_ends_memory_before_other_threads_run():
    """A reset waits for the devices. Meanwhile another thread sees closed memory, and its calls are refused."""
    context = open_context("host")
    stream, go, entered = context.stream(), threading.Event(), threading.Event()
    buffer, dropped = context.alloc(MIB), context.alloc(MIB)
    array = context.empty(10)
    stream.call(lambda: (entered.set(), go.wait(10)))
    assert entered.wait(10)
    resetting = threading.Thread(target=context.reset)
    resetting.start()
    try:
        while not context._users:
            time.sleep(0.001)
        assert buffer.closed and array.closed
        with pytest.raises(gmm.ClosedError):
            buffer.address
        for call in (lambda: context.alloc(1), context.stats, context.reset, stream.synchronize, stream.close,
                     context.close):
            with pytest.raises(RuntimeError, match="reset|use it"):
                call()
        buffer.free()  # as of any closed buffer
        del dropped
        gc.collect()
        assert resetting.is_alive()
    finally:
        go.set()
        resetting.join()
    assert context.stats().live_blocks == 0
    with context.alloc(MIB) as other:
        assert not other.closed and buffer.closed
    context.close()


def test_reset_is_refused_while_a_call_is_under_way(host):
    stream, go = host.stream(), threading.Event()
    buffer = host.alloc(MIB)
    stream.call(lambda: go.wait(10))
    waiter = threading.Thread(target=stream.synchronize)
    waiter.start()
    while not host._users:
        time.sleep(0.001)
    try:
        with pytest.raises(RuntimeError, match="calls on other threads use the context"):
            host.reset()
    finally:
        go.set()
        waiter.join()
    assert not buffer.closed
    host.reset()
    assert buffer.closed


@pytest.fixture(scope="module")
def slow_calls(tmp_path_factory):
    """A library for LD_PRELOAD in which gmm_reset() and gmm_free() wait. None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("slow")
    (folder / "slow.c").write_text(SLOW_CALLS)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", folder / "slow.so", folder / "slow.c"], check=True)
    return folder / "slow.so"


SLOW_CALLS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <unistd.h>
_Atomic int wait_in_free, wait_in_reset, inside, frees;
int gmm_try_free(void *context, void *memory, void *stream) {
  (void)context, (void)memory, (void)stream;
  return -50; /* GMM_ERROR_NOT_READY */
}
int gmm_free(void *context, void *memory, void *stream) {
  while (wait_in_free) { inside = 1; usleep(100); }
  frees++;
  void *library = dlopen("libgmm.so.1", RTLD_NOW | RTLD_NOLOAD);
  return ((int (*)(void *, void *, void *))dlsym(library, "gmm_free"))(context, memory, stream);
}
int gmm_reset(void *context) {
  (void)context;
  while (wait_in_reset) { inside = 1; usleep(100); }
  return %d; /* GMM_ERROR_BUSY */
}
""" % native.GMM_ERROR_BUSY

SLOW_PROGRAM = """
import ctypes, gc, sys, threading, time
import gmm
slow = ctypes.CDLL(sys.argv[1])
number = lambda name: ctypes.c_int.in_dll(slow, name)
context = gmm.Context("host")

def meanwhile(flag, call, check):
    number(flag).value = 1
    thread = threading.Thread(target=call)
    thread.start()
    while not number("inside").value:
        time.sleep(0.001)
    try:
        check()
    finally:
        number(flag).value = number("inside").value = 0
        thread.join()
"""


def run_slow(library, code):
    done = subprocess.run([sys.executable, "-X", "dev", "-c", SLOW_PROGRAM + code, str(library)],
                          env={**os.environ, "LD_PRELOAD": str(library)},
                          capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def test_a_refused_reset_leaves_what_lives_and_frees_what_went(slow_calls):
    run_slow(slow_calls, """
kept, freed, dropped = (context.alloc(1 << 20) for _ in range(3))

def reset():
    try:
        context.reset()
    except gmm.BusyError:
        outcome.append("refused")

def check():
    global dropped
    assert kept.closed and freed.closed
    freed.free()
    del dropped
    gc.collect()
    assert number("frees").value == 0

outcome = []
meanwhile("wait_in_reset", reset, check)
assert outcome == ["refused"]
assert not kept.closed and freed.closed and number("frees").value == 2
assert context.stats().live_blocks == 1
kept.fill(1)
context.synchronize()
kept.free()
context.close()
""")


@pytest.mark.parametrize("how", [
    "buffer.free()",
    pytest.param("globals().pop('buffer'); gc.collect()", marks=pytest.mark.skipif(
        not getattr(sys, "_is_gil_enabled", lambda: True)(),
        reason="in a free-threaded Python the thread that made an object may be the one that frees it")),
])
def test_a_free_holds_its_stream(slow_calls, how):
    """The stream of a block cannot be closed by another thread while a free on it is under way."""
    run_slow(slow_calls, f"""
stream = context.stream()
buffer = context.alloc(1 << 20, stream=stream)

def free():
    exec({how!r}, globals())

def check():
    try:
        stream.close()
    except RuntimeError as error:
        outcome.append(str(error))

outcome = []
meanwhile("wait_in_free", free, check)
assert len(outcome) == 1 and "use it" in outcome[0], outcome
assert context.stats().live_blocks == 0 and number("frees").value == 1
stream.close()
context.close()
""")


def test_reset_leaves_imported_and_pinned_memory(host):
    with open_context("host") as exporter:
        sent = exporter.alloc(MIB, Kind.HOST)
        sent.fill(7)
        exporter.synchronize()
        received, own = host.ipc_import(sent.ipc_export()), bytearray(4096)
        pinned, buffer = host.pin(own), host.alloc(MIB)
        host.reset()
        assert buffer.closed and not received.closed and not pinned.closed
        assert bytes(memoryview(received)[:2]) == b"\7\7"
        with pytest.raises(BufferError):  # page-locked memory stays where it is
            own.extend(b"more")
        pinned.close()
        own.extend(b"more")
        received.close()


@pytest.mark.parametrize("kind", ["lease", "watcher", "stream"])
def test_what_dies_during_a_reset_ends_after_it(kind, tmp_path, monkeypatch):
    """The library's thread calls a lease or watcher, so neither is gone before the library has ended it."""
    unraisable = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
    context = open_context("host")
    context.ipc_configure(directory=str(tmp_path))
    context.tag("weights", gmm.Contents.HOST)

    def make():
        if kind == "lease":
            return gmm.lease.Lease("dying", ["weights"], asked=lambda ask: None, context=context)
        return context.watch("weights", prepare=len) if kind == "watcher" else context.stream()

    stream, go, entered = context.stream(), threading.Event(), threading.Event()
    dying = make()
    gone = weakref.ref(dying)
    stream.call(lambda: (entered.set(), go.wait(30)))
    assert entered.wait(30)
    resetting = threading.Thread(target=context.reset)
    resetting.start()
    try:
        while not context._users:
            time.sleep(0.001)
        del dying
        gc.collect()
        assert resetting.is_alive() and gone() is not None
    finally:
        go.set()
        resetting.join()
    deadline = time.monotonic() + 30
    while gone() is not None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    if kind == "lease":
        with gmm.lease.Lease("other", context=context):
            while {entry.name for entry in gmm.lease.status(context=context)} != {"other"}:
                assert time.monotonic() < deadline
    stream.close()
    context.close()
    assert not unraisable
