# SPDX-License-Identifier: Apache-2.0
"""Context.watch(): the callbacks get the library's fields, and their answers and exceptions reach it."""
import gc
import threading
import weakref

import pytest
from checks import refused
from conftest import open_context

import gmm
from gmm import WatchEvent

SIZE = 4 << 20


def test_each_event_has_its_fields(context, kept):
    tag, buffer = kept
    heard, came = [], threading.Event()
    with context.watch(tag, prepare=heard.append, losing=heard.append, restored=heard.append, failed=heard.append,
                       name="cache") as watcher, context.watch(memory=buffer, losing=heard.append, order=-1):
        context.pause(tag)
        context.resume(tag)
    assert watcher.closed
    assert [info.event for info in heard] == [
        WatchEvent.PREPARE, WatchEvent.LOSING, WatchEvent.LOSING, WatchEvent.RESTORED]
    assert [info.address for info in heard] == [0, buffer.address, 0, 0]
    assert heard[1].size == SIZE and heard[1].tag == tag.number
    assert heard[1].generation != context.query(buffer).generation
    with tag.paused():
        assert len(heard) == 4  # they are closed
    with context.watch(budget=lambda info: (heard.append(info), came.set()), below=8 << 20, device=0):
        context.set_limit(4 << 20, device=0)
        assert came.wait(60)
        context.set_limit(None, device=0)
    assert heard[4].event == WatchEvent.BUDGET and heard[4].budget_bytes <= 4 << 20


def test_false_and_exceptions_refuse(context, kept, unraisable):
    tag, buffer = kept
    failed = []
    with context.watch(tag, failed=failed.append, prepare=lambda info: None, order=-1):
        with context.watch(tag, prepare=lambda info: False, name="says no"):
            refused(gmm.BusyError, lambda: context.pause(tag), match="says no")
        with context.watch(tag, prepare=lambda info: 1 / 0), pytest.raises(gmm.BusyError):
            context.pause(tag)
    assert [info.event for info in failed] == [WatchEvent.FAILED] * 2 and failed[0].cause == gmm.BusyError().code
    assert [type(error) for error in unraisable] == [ZeroDivisionError] and buffer.state == gmm.State.ACTIVE


def test_arguments(context, kept):
    tag, buffer = kept
    refused(TypeError, lambda: context.watch(tag, prepare=3), lambda: context.watch(tag), match="prepare|nothing")
    refused(TypeError, lambda: context.watch(losing=print), lambda: context.watch(tag, memory=buffer, losing=print),
            match="one of the two")
    refused(gmm.InvalidSizeError, lambda: context.watch(memory=buffer, size=SIZE + 1, losing=print))


def test_a_dropped_watcher_ends():
    context = open_context("host")

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
