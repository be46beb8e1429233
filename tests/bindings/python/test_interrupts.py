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

import gmm
import gmm.lease

MIB = 1 << 20
# An interrupt in a finalizer is told, and goes on.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
PACKAGE = pathlib.Path(gmm.__file__).parent
#: The native functions that make what somebody must end.
MAKERS = {"gmm_context_create", "gmm_heap_create", "gmm_stream_create", "gmm_event_create", "gmm_event_import",
          "gmm_pause_async", "gmm_resume_async", "gmm_ipc_import", "gmm_ipc_import_fd", "gmm_pin", "gmm_alloc",
          "gmm_heap_alloc", "gmm_tag_push", "gmm_trace_begin", "gmm_defer_begin", "watch", "job_create",
          "lease_create", "lease_request"}


def interrupted(act, after=lambda k: None, spared=()):
    """Calls act() again and again, with Ctrl-C at its first, second, ... point in gmm, and after(k) behind each one.

    spared: functions that get none. Returns the number of points.
    """
    for k in range(1, 10000):
        left = k

        def look(frame, event, _argument):
            nonlocal left
            code = frame.f_code
            is_ours = code is act.__code__ or code.co_filename.startswith((str(PACKAGE), contextlib.__file__))
            if is_ours and event in ("call", "c_return") and code.co_name not in spared:
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
    context = gmm.Context("host", host_memory=64 * MIB)
    context.ipc_configure(directory=str(tmp_path))
    yield context
    gc.collect()
    context.close()


def test_python_code_calls_no_function_that_makes_something():
    """Such a call and taking what it makes are one step: Handle._open(), Memory._open(), hand_over(), a Scope."""
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        found += [(file.name, name) for name in re.findall(r"\bnative\.(\w+)\(", text) if name in MAKERS]
    assert not found


def test_heaps_streams_and_events(context):
    context.alloc(1).free()

    def heaps():
        return len(context.snapshot()["heaps"])

    def act():
        context.heap(gmm.Kind.HOST)
        context.stream().close()
        context.event().close()

    def after(k):
        assert heaps() == before, k

    before = heaps()
    assert interrupted(act, after) > 10


def test_a_watcher(context):
    tag = context.tag("watched", gmm.Contents.HOST)
    block = context.alloc(MIB, gmm.Kind.VMM, tag=tag)
    heard = []

    def act():
        with context.watch(tag, losing=heard.append):
            pass

    def after(k):
        with tag.paused():
            pass
        assert not heard, k

    assert interrupted(act, after) > 3
    block.free()


@pytest.mark.parametrize("way", ["pause_async", "resume_async"])
def test_a_ticket(way):
    """A ticket that nobody has would hold the context, whose end tells of the block that is live."""
    told = []

    def act():
        getattr(made[0][0], way)().result()

    def renew(k):
        tag, _block = made.pop()
        told.clear()
        tag.context.close()
        assert any("live" in message for message in told), k
        begin()

    def begin():
        context = gmm.Context("host", host_memory=64 * MIB, log=lambda level, message: told.append(message))
        tag = context.tag("tag", gmm.Contents.HOST)
        made.append((tag, context.alloc(MIB, gmm.Kind.VMM, tag=tag)))
        if way == "resume_async":
            tag.pause()

    made = []
    begin()
    assert interrupted(act, renew) > 10
    made.pop()[0].context.close()


def test_a_pin(context):
    memory = bytearray(1 << 16)
    with context.pin(memory) as pin:
        address = pin.address

    def act():
        context.pin(memory).close()

    def after(k):
        assert context.query(address).state == gmm.State.UNKNOWN, k
        memory.append(0)  # BufferError while a view of it lives
        memory.pop()

    assert interrupted(act, after) > 3


def test_the_current_tag(context):
    tag = context.tag("current")

    def act():
        with tag:
            pass

    def after(k):
        with context.alloc(100) as block:
            assert block.info.tag == gmm.DEFAULT_TAG, k

    assert interrupted(act, after) >= 1
    with tag as entered, context.alloc(100) as block:
        assert entered is tag and block.info.tag == tag


def test_trace(context, tmp_path):
    def act():
        with context.trace(tmp_path / "trace"):
            context.alloc(100).free()

    def after(k):
        with context.trace(tmp_path / "other") as begun:  # BusyError while one runs
            assert begun is context

    assert interrupted(act, after) > 3


def test_defer(context):
    def act():
        with context.defer() as begun:
            assert begun is context

    def after(k):
        context.alloc(MIB).free()
        assert context.trim() > 0, k  # 0 inside defer()

    assert interrupted(act, after) >= 1


def test_paused(context):
    tag = context.tag("paused", gmm.Contents.HOST)
    block = context.alloc(MIB, gmm.Kind.VMM, tag=tag)

    def act():
        with tag.paused() as released:
            assert released >= MIB

    def after(k):
        assert tag.info.paused_bytes == 0, k

    assert interrupted(act, after) > 10
    with pytest.raises(ZeroDivisionError), context.paused("paused"):
        assert tag.info.paused_bytes
        raise ZeroDivisionError
    after("end")

    class Stop(Exception):
        pass

    def stop(done, total):
        raise Stop

    tag.pause()
    with pytest.raises(Stop):
        tag.resume(progress=stop)
    with pytest.raises(ValueError), tag.paused(contents=77):
        pass
    assert tag.info.paused_bytes  # a pause that was refused resumes nothing
    tag.resume()

    @context.paused("paused")
    def decorated():
        return tag.info.paused_bytes

    assert decorated() and decorated()
    block.free()


def test_a_lease_and_its_turn(context):
    context.tag("lease", gmm.Contents.HOST)
    lease = gmm.lease.Lease("lease", "lease", context=context)

    def act():
        with lease.use():
            pass

    def after(k):
        assert lease.info().state == gmm.lease.LeaseState.IDLE, k

    assert interrupted(act, after) > 10
    lease.close()


def test_a_descriptor(context):
    """The descriptor of an export is closed, unless the caller has it."""
    heap = context.heap(gmm.Kind.VMM, exportable=True)
    block = heap.alloc(MIB)
    block.ipc_export_fd()

    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    before, got = descriptors(), []

    def act():
        got.append(block.ipc_export_fd())

    def after(k):
        for fd, _, _ in got:
            os.close(fd)
        got.clear()
        assert descriptors() == before, k

    interrupted(act, after)
    block.free()
    heap.close()
