# SPDX-License-Identifier: Apache-2.0
"""Pauses, tickets and kept contents: callbacks, exceptions and lifetimes. tests/api tests what the engine does."""
import asyncio
import gc
import os
import threading

import pytest
from conftest import need, open_context, run_code

import gmm
from gmm import Capability, Contents, Kind, State

MIB = 1 << 20
SIZE = 4 * MIB
LARGE = 64 * MIB  # is copied in several pieces, between which a progress is called
SECONDS = 60  # for what must come, on a machine however busy


@pytest.fixture
def kept(context):
    """(tag, buffer): a pausable block with a tag of its own and known contents."""
    return keep(context, SIZE)


def keep(context, size):
    need(context, Capability.PAUSE, Kind.VMM)
    tag = context.tag("kept", Contents.HOST)
    buffer = context.alloc(size, Kind.VMM, tag=tag, dedicated=True)
    buffer.fill(0x77)
    buffer.copy_from(bytes(range(256)), offset=size - 256)
    return tag, buffer


def check_contents(buffer):
    assert bytes(buffer) == b"\x77" * (buffer.nbytes - 256) + bytes(range(256))


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


def test_progress(context):
    tag, buffer = keep(context, LARGE)
    told = []
    went = tag.pause(progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (LARGE, LARGE) and told == sorted(told)
    back = []
    assert tag.resume(progress=lambda done, total: back.append((done, total))) == went
    assert back[-1] == (LARGE, LARGE)
    with pytest.raises(gmm.CancelledError):
        tag.pause(progress=lambda done, total: False)
    with pytest.raises(Stop):
        tag.pause(progress=throw)
    assert buffer.state == State.ACTIVE
    with tag.paused() as bytes_that_went:
        assert bytes_that_went == went and buffer.state == State.PAUSED
        with pytest.raises(gmm.CancelledError):
            tag.resume(progress=lambda done, total: False)
        assert buffer.state == State.PAUSED
    check_contents(buffer)
    with pytest.raises(TypeError):
        tag.pause(progress=7)


def test_ticket(kept):
    tag, buffer = kept
    told = []
    ticket = tag.pause_async(progress=lambda done, total: told.append(threading.get_ident()))
    went = ticket.result(SECONDS)
    assert went >= SIZE and ticket.done and told and threading.get_ident() not in told
    assert buffer.state == State.PAUSED and ticket.info.done and ticket.info.bytes == went
    assert ticket.info.total_bytes == SIZE
    with tag.resume_async() as resumed:
        pass
    assert resumed.done and resumed.closed and resumed.result() == went
    check_contents(buffer)
    with tag.resume_async() as nothing:
        assert nothing.result() == 0


def test_a_cancelled_ticket(kept):
    tag, buffer = kept
    gate = Gate()
    with tag.pause_async(progress=gate) as ticket:
        assert gate.reached.wait(SECONDS)
        assert not ticket.done and not ticket.wait(0.01) and ticket.info.result == -50
        with pytest.raises(gmm.NotReadyError) as caught:
            ticket.result(timeout=0.01)
        assert isinstance(caught.value, TimeoutError) and caught.value.code == -50
        ticket.cancel()
        gate.open.set()
    with pytest.raises(gmm.CancelledError):
        ticket.result()
    assert buffer.state == State.ACTIVE
    check_contents(buffer)
    ticket.cancel()  # too late: nothing


def test_a_ticket_that_fails(kept):
    tag, buffer = kept
    with pytest.raises(Stop), tag.pause_async(progress=throw):  # the end of the block tells
        pass
    ticket = tag.pause_async(progress=throw)
    with pytest.raises(Stop):
        ticket.result()
    ticket.close()
    with pytest.raises(Stop):
        ticket.result()
    assert buffer.state == State.ACTIVE
    with pytest.raises(gmm.InvalidTagError):
        buffer.context.pause_async(3999)


def test_a_part_of_the_memory(kept):
    tag, first = kept
    context = first.context
    second = context.alloc(SIZE, Kind.VMM, tag=tag, dedicated=True)
    went = tag.pause()
    back = first.resume()
    assert 0 < back < went and first.state == State.ACTIVE and second.state == State.PAUSED
    assert tag.info.state == State.PARTLY_PAUSED and first.resume() == 0 and first.wait_ready(0)
    check_contents(first)
    gate = Gate()
    with tag.resume_async(progress=gate) as rest:
        assert gate.reached.wait(SECONDS) and not second.wait_ready(0.02)
        gate.open.set()
        assert second.wait_ready(SECONDS) and rest.result() == went - back
    with pytest.raises(gmm.UnknownPointerError):
        context.resume_range(16, 4096)
    with pytest.raises(gmm.InvalidSizeError):
        first.resume(offset=SIZE, size=1)


def test_kept_contents(kept, tmp_path):
    tag, buffer = kept
    context = buffer.context
    tag.pause()
    assert buffer.backup(offset=SIZE - 256) == bytes(range(256))
    into = bytearray(512)
    assert buffer.backup(offset=SIZE - 512, into=into) is into and into == b"\x77" * 256 + bytes(range(256))
    view = buffer.backup_view()
    assert view.readonly and view.nbytes == SIZE and view[SIZE - 1] == 255 and view[0] == 0x77
    del view
    assert buffer.state == State.PAUSED and tag.info.backup_host_bytes == SIZE
    assert tag.discard_backup() == SIZE and context.discard_backup() == 0
    with pytest.raises(gmm.InvalidValueError):
        buffer.backup()
    tag.resume()
    tag.pause(contents=Contents.DROP)  # of one pause, whatever the tag says
    assert tag.info.backup_host_bytes == tag.info.backup_zero_bytes == 0 and tag.info.contents == Contents.HOST
    tag.resume()
    with pytest.raises(ValueError, match="contents"):
        tag.pause(contents=7)
    context.prepare_backup(4 * MIB)
    assert context.backup_info.arena_bytes >= 4 * MIB
    context.trim()  # the unused part of the arena goes
    context.set_backup(arena=False, threads=1)
    buffer.fill(3)
    with tag.paused():
        assert context.backup_info.arena_used == 0 and context.backup_info.pageable_bytes == SIZE
    context.set_backup(arena=False, pageable=False, directory=tmp_path, named_files=True)
    with tag.paused():
        assert tag.info.backup_file_bytes == SIZE and [path.stat().st_size for path in tmp_path.iterdir()] == [SIZE]
    assert bytes(buffer) == b"\x03" * SIZE
    with pytest.raises(gmm.FileError):
        context.set_backup(directory=tmp_path / "nowhere")
    context.set_backup()


def test_retained_contents(context):
    need(context, Capability.PAUSE, Kind.VMM)
    tag = context.tag("kept", Contents.HOST, pageable=True)
    assert tag.info.flags == gmm.TagFlags.PAGEABLE
    buffer = context.alloc(SIZE, Kind.VMM, tag=tag, dedicated=True)
    buffer.fill(0x77)
    tag.pause()
    tag.resume(retain=True)
    buffer.fill(0x11)
    assert buffer.backup() == b"\x77" * SIZE and bytes(buffer.backup_view()[:3]) == b"\x77" * 3
    tag.pause()
    assert tag.resume_async(retain=True).wait() and buffer.backup() == b"\x11" * SIZE


def test_await(kept):
    tag, buffer = kept

    async def main():
        ticks = 0
        gate = Gate()

        async def tick():
            nonlocal ticks
            while ticks < 5:
                ticks += 1
                await asyncio.sleep(0.001)
            gate.open.set()

        ticking = asyncio.ensure_future(tick())
        went = await tag.pause_async(progress=gate)  # ends only when the loop goes on meanwhile
        await ticking
        assert went >= SIZE and await tag.resume_async() == went
        with pytest.raises(Stop):
            await tag.pause_async(progress=throw)
        # A task that gives up takes its pause with it.
        gate = Gate()
        ticket = tag.pause_async(progress=gate)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ticket, 0.05)
        gate.open.set()
        with pytest.raises(gmm.CancelledError):
            await ticket
        return asyncio.current_task() is not None

    assert asyncio.run(main())
    assert buffer.state == State.ACTIVE
    check_contents(buffer)


def test_forgotten_tickets_end(kept):
    tag, buffer = kept
    gate = Gate()
    tag.pause_async(progress=gate)
    gc.collect()
    gate.open.set()
    assert tag.resume_async().result(SECONDS) >= SIZE  # behind the pause that nobody refers to
    check_contents(buffer)


def test_a_context_waits_for_its_tickets():
    context = open_context("host")
    tag = context.tag("kept", Contents.HOST)
    buffer = context.alloc(SIZE, Kind.VMM, tag=tag, dedicated=True)
    gate = Gate()
    ticket = tag.pause_async(progress=gate)
    assert gate.reached.wait(SECONDS)
    threading.Timer(0.05, gate.open.set).start()
    waiter = threading.Thread(target=ticket.wait)
    waiter.start()
    context.close()
    waiter.join(SECONDS)
    assert not waiter.is_alive() and context.closed and buffer.closed and ticket.closed
    assert ticket.done and ticket.result() >= SIZE


def test_exit_with_a_ticket_under_way():
    run_code("""
import gmm, threading, time
context = gmm.Context("host")
tag = context.tag("left", gmm.Contents.HOST)
block = context.alloc(64 << 20, gmm.Kind.VMM, tag=tag)
ticket = tag.pause_async(progress=lambda done, total: time.sleep(0.1))
waiter = threading.Thread(target=tag.resume_async().wait, daemon=True)
waiter.start()
time.sleep(0.05)
""")


def test_fork_with_a_ticket(kept):
    tag, buffer = kept
    ticket = tag.pause_async()
    ticket.wait()
    child = os.fork()
    if child == 0:
        try:
            assert ticket.result() >= SIZE  # known already
            tag.resume_async()
        except gmm.ForkedError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    tag.resume()


def test_garbage_found_by_a_progress(kept):
    """The collector must not free a buffer on the thread that has the tag's locks: it would wait for itself."""
    tag, buffer = kept

    class Ring:
        pass

    def progress(done, total):
        for _ in range(2000):  # more than the collector's threshold
            ring = Ring()
            ring.self = ring

    lost = Ring()
    lost.self, lost.buffer = lost, buffer.context.alloc(MIB, Kind.VMM, tag=tag)
    del lost
    assert tag.pause(progress=progress) > 0
    tag.resume()
    check_contents(buffer)
