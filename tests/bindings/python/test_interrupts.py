# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at each point where Python looks for signals: nothing is lost, and nothing stays begun.

Python looks when a function of its own begins and when a call of C has returned. A profiling function is called there,
too, and raises what the signal's handler would.
"""
import contextlib
import gc
import os
import pathlib
import re
import sys

import pytest
from checks import until

import gmm
import gmm.lease

MIB = 1 << 20
# An interrupt in a finalizer is reported, and the program goes on.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
PACKAGE = pathlib.Path(gmm.__file__).parent
#: The native functions that make what somebody must end.
MAKERS = {"gmm_context_create", "gmm_heap_create", "gmm_stream_create", "gmm_event_create", "gmm_event_import",
          "gmm_pause_async", "gmm_resume_async", "gmm_ipc_import", "gmm_ipc_import_fd", "gmm_pin", "gmm_alloc",
          "gmm_heap_alloc", "gmm_tag_push", "gmm_trace_begin", "gmm_defer_begin", "gmm_watch", "gmm_lease_create",
          "gmm_lease_request"}


def interrupted(act, after):
    """Calls act() again and again, with Ctrl-C at its first, second, ... point in gmm, and after(k) behind each one.

    Returns the number of points.
    """
    for k in range(1, 10000):
        left = k

        def look(frame, event, _argument):
            nonlocal left
            code = frame.f_code
            is_ours = code is act.__code__ or code.co_filename.startswith((str(PACKAGE), contextlib.__file__))
            if is_ours and event in ("call", "c_return"):
                left -= 1
                if left == 0:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        sys.setprofile(look)
        try:
            act()
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        gc.collect()
        after(k)
        if left > 0:
            return k - 1
    raise AssertionError("it does not come to an end")


@pytest.fixture
def context(tmp_path):
    logged = []
    context = gmm.Context("host", host_memory=64 * MIB, log=lambda level, message: logged.append(message))
    context.ipc_configure(directory=str(tmp_path))
    context.left = context.alloc(1, gmm.Kind.MANAGED)
    gc.freeze()  # older objects are no garbage of a test, and need not be looked at for each of its points
    yield context
    gc.unfreeze()
    context.kept = None
    gc.collect()
    context.close()
    assert any("live" in message for message in logged)  # a lost ticket would hold the library's context


def test_python_code_calls_no_function_that_makes_something():
    """Such a call and taking what it makes are one step: Handle._open(), extend(map()), a Scope."""
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        found += [(file.name, name) for name in re.findall(r"\bnative\.(\w+)\(", text) if name in MAKERS]
    assert not found


def handles(context, tmp_path):
    """Heaps, streams, events, pins, watchers, the current tag, traces and deferred frees."""
    context.alloc(MIB).free()
    heard, memory, tag = [], bytearray(1 << 16), context.tag("current")
    with context.pin(memory) as pinned:
        address = pinned.address

    def heaps():
        return len(context.snapshot()["heaps"])

    def act():
        context.heap(gmm.Kind.HOST)
        context.stream().close()
        context.event().close()
        context.pin(memory).close()
        with tag as entered, context.watch(0, losing=heard.append), context.trace(tmp_path / "trace"), context.defer():
            assert entered is tag

    def after(k):
        memory.append(0)  # BufferError while a view of it lives
        memory.pop()
        context.pause(gmm.DEFAULT_TAG)
        context.resume(gmm.DEFAULT_TAG)
        with context.trace(tmp_path / "other"), context.alloc(MIB) as block:  # BusyError while another trace runs
            assert block.info.tag == gmm.DEFAULT_TAG and context.query(address).state == gmm.State.UNKNOWN
        return heaps() == before and context.trim() > 0 and not heard  # a trim is 0 inside defer()

    context.kept = context.alloc(MIB, gmm.Kind.VMM)
    before = heaps()
    return act, after


def paused(context, tmp_path):
    tag = context.tag("paused", gmm.Contents.HOST)
    context.kept = context.alloc(MIB, gmm.Kind.VMM, tag=tag)

    @context.paused("paused")
    def decorated():
        assert tag.info.paused_bytes >= MIB

    def act():
        with tag.paused() as released:
            assert released >= MIB
        decorated()

    return act, lambda k: tag.info.paused_bytes == 0


def tickets(context, tmp_path):
    tag = context.tag("ticket", gmm.Contents.HOST)
    context.kept = context.alloc(MIB, gmm.Kind.VMM, tag=tag)

    def act():
        tag.pause_async().result()
        tag.resume_async().result()

    def after(k):
        assert all(ticket.wait(60) for ticket in list(context._tickets))  # of an operation that goes on
        tag.resume()
        return tag.info.paused_bytes == 0 and not context._tickets

    return act, after


def lease(context, tmp_path):
    context.tag("lease", gmm.Contents.HOST)
    kept = context.kept = gmm.lease.Lease("kept", "lease", context=context)

    def act():
        gmm.lease.Lease("dropped", context=context)
        with kept.use():
            pass

    def members():
        try:
            return {entry.name for entry in gmm.lease.status(context=context)}
        except gmm.NotReadyError:  # the server is still starting
            return set()

    def after(k):
        until(lambda: members() == {"kept"})  # the server hears of the end of the dropped one
        return kept.info().state == gmm.lease.LeaseState.IDLE

    return act, after


def descriptor(context, tmp_path):
    """The descriptor of an export is closed, unless the caller has it."""
    block = context.kept = context.heap(gmm.Kind.VMM, exportable=True).alloc(MIB)
    block.ipc_export_fd()

    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    before, got = descriptors(), []

    def after(k):
        for fd, _, _ in got:
            os.close(fd)
        got.clear()
        return descriptors() == before

    return lambda: got.append(block.ipc_export_fd()), after


@pytest.mark.parametrize("make, points", [
    (handles, 20), (paused, 20), (tickets, 10), (lease, 10), (descriptor, 1)])
def test_nothing_stays_begun(context, tmp_path, make, points):
    act, after = make(context, tmp_path)

    def check(k):
        assert after(k), k

    assert interrupted(act, check) >= points
