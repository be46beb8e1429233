# SPDX-License-Identifier: Apache-2.0
"""Context.watch(): Python hears before memory loses its pages, and when its contents are back."""
import gc
import threading
import weakref

import pytest
from conftest import need, open_context

import gmm
from gmm import Capability, Contents, Kind, WatchEvent

SIZE = 4 << 20
SECONDS = 60


@pytest.fixture
def kept(context):
    """(tag, buffer): a pausable block with a tag of its own."""
    need(context, Capability.PAUSE, Kind.VMM)
    tag = context.tag("kept", Contents.HOST)
    buffer = context.alloc(SIZE, Kind.VMM, tag=tag, dedicated=True)
    buffer.fill(0x77)
    return tag, buffer


def test_a_watcher_hears_in_order(context, kept):
    tag, buffer = kept
    heard = []
    with context.watch(tag, prepare=heard.append, losing=heard.append, restored=heard.append, failed=heard.append,
                       name="cache") as watcher:
        assert not watcher.closed
        with context.watch(memory=buffer, losing=heard.append, order=-1):
            context.pause(tag)
        context.resume(tag)
    assert watcher.closed
    assert [info.event for info in heard] == [
        WatchEvent.PREPARE, WatchEvent.LOSING, WatchEvent.LOSING, WatchEvent.RESTORED]
    assert [info.address for info in heard] == [0, buffer.address, 0, 0]
    assert heard[1].size == SIZE and heard[1].tag == tag.number and heard[1].generation != context.query(
        buffer).generation
    assert all(info.cause == 0 for info in heard)
    context.pause(tag)
    assert len(heard) == 4  # closed
    context.resume(tag)
    assert bytes(buffer) == b"w" * SIZE


def test_false_and_exceptions_refuse(context, kept, monkeypatch):
    tag, buffer = kept
    failed, unraisable = [], []
    monkeypatch.setattr("sys.unraisablehook", lambda args: unraisable.append(args.exc_value))

    def throw(info):
        raise LookupError(info.event.name)

    with context.watch(tag, failed=failed.append, prepare=lambda info: None, order=-1):
        with context.watch(tag, prepare=lambda info: False, name="says no"):
            with pytest.raises(gmm.BusyError, match="says no"):
                context.pause(tag)
        with context.watch(tag, prepare=throw):
            with pytest.raises(gmm.BusyError):
                context.pause(tag)
    assert [info.event for info in failed] == [WatchEvent.FAILED] * 2 and failed[0].cause == gmm.BusyError().code
    assert [str(error) for error in unraisable] == ["PREPARE"]
    assert context.query(buffer).state == gmm.State.ACTIVE


def test_arguments(context, kept):
    tag, buffer = kept
    with pytest.raises(TypeError, match="prepare"):
        context.watch(tag, prepare=3)
    with pytest.raises(TypeError, match="nothing"):
        context.watch(tag)
    with pytest.raises(TypeError, match="one of the two"):
        context.watch(losing=print)
    with pytest.raises(TypeError, match="one of the two"):
        context.watch(tag, memory=buffer, losing=print)
    with pytest.raises(gmm.InvalidValueError):
        context.watch(budget=print)
    with pytest.raises(gmm.InvalidSizeError):
        context.watch(memory=buffer, size=SIZE + 1, losing=print)
    with pytest.raises(gmm.InvalidKindError):
        context.watch(memory=context.alloc(100), losing=print)


def test_a_budget_that_falls(context):
    heard, came = [], threading.Event()

    def fell(info):
        heard.append(info)
        came.set()

    with context.watch(budget=fell, below=8 << 20, device=0):
        context.set_limit(4 << 20, device=0)
        assert came.wait(SECONDS)
        context.set_limit(None, device=0)
    assert heard[0].event == WatchEvent.BUDGET and heard[0].budget_bytes <= 4 << 20


def test_a_watcher_that_nobody_holds_ends():
    context = open_context("host")
    need(context, Capability.PAUSE, Kind.VMM)

    class Cache:
        def __init__(self):
            self.watcher = context.watch(0, losing=self.forget)  # a cycle

        def forget(self, info):
            pass

    gone = weakref.ref(Cache())
    gc.collect()
    assert gone() is None
    left = context.watch(0, losing=print)
    context.close()
    left.close()
    assert left.closed
