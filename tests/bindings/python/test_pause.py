# SPDX-License-Identifier: Apache-2.0
"""Pauses, tickets and kept contents: callbacks, exceptions and lifetimes. tests/api tests what the engine does."""
import asyncio
import gc
import threading

import pytest
from checks import refused
from conftest import need, open_context

import gmm
from gmm import Contents, Kind, State

MIB = 1 << 20
SIZE = 4 * MIB
SECONDS = 60  # for what must come, on a machine however busy


class Gate:
    """A progress that stands still until it is let go."""

    def __init__(self):
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self, done, total):
        self.reached.set()
        assert self.open.wait(SECONDS)


class Stop(Exception):
    pass


def throw(done, total):
    raise Stop(f"at {done} of {total}")


def test_progress(kept):
    tag, buffer = kept
    calls = []
    went = tag.pause(progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (SIZE, SIZE) and calls == sorted(calls) and buffer.state == State.PAUSED
    refused(gmm.CancelledError, lambda: tag.resume(progress=lambda done, total: False))
    refused(Stop, lambda: tag.resume_async(progress=throw).result())
    assert buffer.state == State.PAUSED and tag.resume() == went
    with tag.paused() as bytes_that_went:
        assert bytes_that_went == went and buffer.state == State.PAUSED
    with pytest.raises(Stop), tag.paused():
        raise Stop
    assert buffer.state == State.ACTIVE
    with tag.paused():
        with pytest.raises(ValueError), tag.paused(contents=77):
            pass
        assert tag.info.paused_bytes  # a pause that was refused resumes nothing
    refused(Stop, lambda: tag.pause(progress=throw))
    refused(TypeError, lambda: tag.pause(progress=7))
    assert buffer.state == State.ACTIVE and bytes(buffer) == b"\x77" * SIZE


def test_ticket(kept):
    tag, buffer = kept
    calls = []
    ticket = tag.pause_async(progress=lambda done, total: calls.append(threading.get_ident()))
    went = ticket.result(SECONDS)
    assert went >= SIZE and ticket.done and calls and threading.get_ident() not in calls
    assert ticket.info.state.name == "DONE" and (ticket.info.bytes, ticket.info.total_bytes) == (went, SIZE)
    with tag.resume_async() as resumed:
        pass
    assert resumed.closed and resumed.result() == went and buffer.state == State.ACTIVE
    with pytest.raises(Stop), tag.pause_async(progress=throw) as failing:  # the end of the block raises it
        pass
    refused(Stop, failing.result)
    refused(gmm.InvalidTagError, lambda: buffer.context.pause_async(3999))
    tag.pause_async()
    gc.collect()  # nobody refers to it, and it goes on
    assert tag.resume_async().result(SECONDS) == went


def test_a_cancelled_ticket(kept):
    tag, buffer = kept
    gate = Gate()
    with tag.pause_async(progress=gate) as ticket:
        assert gate.reached.wait(SECONDS) and not ticket.done and not ticket.wait(0.01)
        refused(gmm.NotReadyError, lambda: ticket.result(timeout=0.01))
        ticket.cancel()
        gate.open.set()
    refused(gmm.CancelledError, ticket.result)
    ticket.cancel()  # after the end it does nothing
    assert buffer.state == State.ACTIVE


def test_a_part_of_the_memory(kept):
    tag, first = kept
    second = first.context.alloc(SIZE, Kind.VMM, tag=tag, dedicated=True)
    went = tag.pause()
    back = first.resume()
    assert 0 < back < went and (first.state, second.state) == (State.ACTIVE, State.PAUSED) and first.wait_ready(0)
    gate = Gate()
    with tag.resume_async(progress=gate) as rest:
        assert gate.reached.wait(SECONDS) and not second.wait_ready(0.02)
        gate.open.set()
        assert second.wait_ready(SECONDS) and rest.result() == went - back
    refused(gmm.InvalidSizeError, lambda: first.resume(offset=SIZE, size=1))


def test_kept_contents(kept, tmp_path):
    tag, buffer = kept
    context = buffer.context
    buffer.copy_from(bytes(range(256)), offset=SIZE - 256)
    with tag.paused():
        into = bytearray(512)
        assert buffer.backup(offset=SIZE - 512, into=into) is into and into == b"\x77" * 256 + bytes(range(256))
        view = buffer.backup_view()
        assert view.readonly and view.nbytes == SIZE and view[SIZE - 1] == 255 and view[0] == 0x77
        del view
        assert tag.discard_backup() == SIZE and context.discard_backup() == 0
        refused(gmm.InvalidValueError, buffer.backup)
    with tag.paused(contents=Contents.DROP):  # of one pause, whatever the tag says
        assert tag.info.backup_host_bytes == tag.info.backup_zero_bytes == 0 and tag.info.contents == Contents.HOST
    context.prepare_backup(4 * MIB)
    assert context.backup_info.arena_bytes >= 4 * MIB
    context.trim()  # the unused part of the arena goes
    context.set_backup(arena=False, pageable=False, directory=tmp_path, named_files=True, threads=1)
    buffer.fill(3)
    with tag.paused():
        assert tag.info.backup_file_bytes == SIZE and [path.stat().st_size for path in tmp_path.iterdir()] == [SIZE]
    refused(gmm.FileError, lambda: context.set_backup(directory=tmp_path / "nowhere"))
    context.set_backup()
    tag.update(pageable=True)
    assert tag.info.flags == gmm.TagFlags.PAGEABLE
    tag.pause()
    tag.resume(retain=True)
    buffer.fill(0x11)
    assert bytes(buffer.backup_view(size=3)) == b"\3" * 3


def test_await(kept):
    tag, buffer = kept

    async def main():
        gate = Gate()
        asyncio.get_running_loop().call_later(0.01, gate.open.set)
        went = await tag.pause_async(progress=gate)  # ends only if the loop goes on
        assert went >= SIZE and await tag.resume_async() == went
        with pytest.raises(Stop):
            await tag.pause_async(progress=throw)
        gate = Gate()
        ticket = tag.pause_async(progress=gate)
        with pytest.raises(asyncio.TimeoutError):  # a task that gives up takes its pause with it
            await asyncio.wait_for(ticket, 0.05)
        gate.open.set()
        with pytest.raises(gmm.CancelledError):
            await ticket

    asyncio.run(main())
    assert buffer.state == State.ACTIVE


def test_a_context_waits_for_its_tickets():
    context, gate = open_context("host"), Gate()
    tag = context.tag("kept", Contents.HOST)
    buffer = context.alloc(SIZE, Kind.VMM, tag=tag, dedicated=True)
    buffer.fill(1)
    ticket = tag.pause_async(progress=gate)
    assert gate.reached.wait(SECONDS)
    threading.Timer(0.05, gate.open.set).start()
    waiter = threading.Thread(target=ticket.wait)
    waiter.start()
    context.close()
    waiter.join(SECONDS)
    assert not waiter.is_alive() and buffer.closed and ticket.closed and ticket.result() >= SIZE


def test_parts_of_a_block_that_is_born_paused(context):
    need(context, gmm.Capability.PAUSE, Kind.VMM)
    page = 2 * MIB
    buffer = context.alloc(1 << 40, paused=True)
    first, last = (buffer.address, page), (buffer.address + (1 << 40) - page, page)
    assert context.query(buffer).state == State.PAUSED
    assert context.resume_ranges([first, last], zero=True) == 2 * page
    assert context.resume_ranges([first]) == 0
    buffer.fill(7, offset=0, size=page)
    assert context.pause_ranges([first], contents=Contents.HOST) == page
    assert context.resume_range(*first) == page and context.pause_ranges([]) == 0
    assert context.pause_ranges([last, first], contents=Contents.DROP) == 2 * page
    refused(gmm.InvalidValueError, lambda: context.resume_ranges([first, first]), match="overlap")
    buffer.close()


def test_rows_are_taken_and_given_back(context):
    need(context, gmm.Capability.PAUSE, Kind.VMM)
    page = 2 * MIB
    array = context.reserve((1 << 20, 3, 256, 1024), "uint8", tag=context.tag("rows"))  # a row has 3/8 of a page
    assert (array.take(0), array.take(1), array.take(2)) == (page, 0, page)
    array[:3].fill(7)
    assert context.stats(tag="rows").reserved_bytes == 2 * page
    assert array.give_back(1) == 0 and array.take([1, 3, 1000], zero=True) == page
    assert bytes(array[:4]) == 2 * (b"\7" * (3 << 18) + bytes(3 << 18))
    assert array[1:3, ::-1].__dlpack__() is not None
    refused(BufferError, array[3:6].__dlpack__, match="paused")
    for wrong in (-1, 1 << 20, [5, 1 << 20]):
        refused(gmm.InvalidSizeError, lambda: array.take(wrong), match="rows")
    refused(gmm.OverlapError, lambda: array.take([6, 5, 5]), match="row 5 is taken")
    refused(gmm.AlreadyFreedError, lambda: array.give_back([0, 4]), match="row 4 is not")
    stream = context.stream()
    assert array.take(96, stream=stream) == array.give_back(96, stream=stream) == page
    calls = context.stats().backend_calls
    assert array.take(96, stream=stream) == page and context.stats().backend_calls == calls
    array.give_back(96)
    context.set_limit(5 * page, tag="rows")
    refused(gmm.LimitExceededError, lambda: array.take(range(8, 80, 8)))
    assert array.take(8) == page and bytes(array[2]) == b"\7" * (3 << 18)
    assert (array.give_back(0, 2), array.give_back(2), array.give_back([8, 3])) == (0, page, 2 * page)
    context.pause("rows")
    assert context.resume("rows") == page
    assert "Array (1048576, 3, 256, 1024)" in str(array)
    array.free()
    refused(gmm.ClosedError, lambda: array.take(0))
    refused(gmm.InvalidSizeError, lambda: context.reserve(4, page=page + 1))
    refused(gmm.InvalidSizeError, lambda: context.reserve(()))
