# SPDX-License-Identifier: Apache-2.0
"""Buffers, arrays and events through multiprocessing: what the receiver gets, and who keeps the memory."""
import contextlib
import copy
import gc
import multiprocessing
import os
import pickle
import secrets
import socket
import time
import warnings
import weakref

import pytest
from checks import refused, until
from conftest import BACKENDS, need

import gmm
import gmm.multiprocessing as sharing
from gmm import Capability, Kind, State

FORK, SPAWN = (multiprocessing.get_context(method) for method in ("fork", "spawn"))
MIB = 1 << 20
SECONDS = 60


def arrived():
    assert sharing.wait_until_received(SECONDS), f"{sharing.in_transit()} objects never arrived"


def run(process):
    process.start()
    process.join(SECONDS)
    assert process.exitcode == 0


@contextlib.contextmanager
def running(*processes):
    """Processes that must end by themselves."""
    for process in processes:
        process.start()
    yield
    for process in processes:
        process.join(SECONDS)
        assert process.exitcode == 0


# The work of the other process. It imports this module anew under spawn.


def check_and_fill(buffer, size, before, after):
    assert (type(buffer), buffer.state, buffer.nbytes) == (gmm.Buffer, State.IMPORTED, size), buffer
    assert bytes(buffer) == bytes([before]) * size
    buffer.fill(after)


def take_and_fill(connection, size, before, after):
    check_and_fill(connection.recv(), size, before, after)


def put_new(queue, backend, kind, value):
    buffer = gmm.Context(backend).alloc(MIB, kind)
    buffer.fill(value)
    queue.put(buffer)  # the worker ends; the receiver may not have read yet


def pass_on(inbox, outbox):
    outbox.put(inbox.get())
    outbox.put(None)
    inbox.get()


def look_at(array, other):
    assert array.buffer is other.buffer or array.buffer.address == other.buffer.address
    return array.tolist(), array.shape, array.strides, array.readonly


def wait_for_event(queue, connection):
    """Queues a copy behind the sender's event, on a stream of its own."""
    event, buffer = queue.get(timeout=SECONDS)
    context = buffer.context
    stream = context.stream()
    copied = context.alloc(buffer.nbytes, Kind.HOST, stream=stream)
    connection.send("waiting")
    stream.wait(event)
    copied.copy_from(buffer, stream=stream)
    stream.synchronize()
    refused(gmm.InvalidHandleError, lambda: event.record(stream))  # only the process that made it may
    connection.send((bytes(memoryview(copied)[:4]), event.done))


def value_of(buffer, chosen):
    if chosen:
        sharing.use_context(gmm.Context("host", host_memory=1 << 30))
    return bytes(buffer)[0]


def fails_to_get(queue, answers):
    try:
        queue.get()
        answers.put("it came")
    except gmm.IPCPeerGoneError as error:
        answers.put(str(error))


# The tests.


def test_arrays(host):
    array = host.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype="float32", kind=Kind.HOST)
    part = array.T[1:]
    with SPAWN.Pool(1) as pool:
        assert pool.apply(look_at, (part, array)) == (part.tolist(), part.shape, part.strides, False)
    here, there = SPAWN.Pipe()
    here.send(array)
    again = there.recv()
    assert again.buffer is array.buffer and again.tolist() == array.tolist()
    arrived()
    refused(TypeError, lambda: here.send(gmm.asarray(bytearray(3))), match=r"copy\(\)")
    assert sharing.in_transit() == 0


def test_event(context):
    """The receiver's stream waits for what the sender recorded."""
    queue, (here, there) = SPAWN.Queue(), SPAWN.Pipe()
    with context.alloc(MIB, Kind.VMM) as buffer:
        with running(SPAWN.Process(target=wait_for_event, args=(queue, there))):
            event, stream = context.event(ipc=True), context.stream()
            buffer.fill(1)
            stream.call(lambda: time.sleep(0.5))
            buffer.fill(2, stream=stream)
            event.record(stream)
            queue.put((event, buffer))
            for answer in ("waiting", (b"\2\2\2\2", True)):
                assert here.poll(SECONDS) and here.recv() == answer
        here.send(event)
        assert there.recv() is event
        refused(gmm.InvalidHandleError, lambda: here.send(context.event()))


@pytest.mark.parametrize("kind, method", [(Kind.VMM, "spawn"), (Kind.HOST, "forkserver"), (Kind.DEVICE, "spawn")])
def test_argument_of_a_process(context, kind, method):
    is_legacy = kind == Kind.DEVICE and context.info.backend_name == "cuda"
    need(context, Capability.LEGACY_IPC if is_legacy else Capability.EXPORT_FD, kind)
    with context.alloc(MIB + 1000, kind) as buffer:
        buffer.fill(0x11)
        run(multiprocessing.get_context(method).Process(target=check_and_fill, args=(buffer, MIB + 1000, 0x11, 0x22)))
        arrived()  # the receipt may still be on its way when the process has ended
        assert bytes(buffer) == b"\x22" * (MIB + 1000)


@pytest.mark.parametrize("default", BACKENDS)
def test_a_forked_child_takes_memory_of_the_host(host, monkeypatch, default):
    """A child cannot open the default context of CUDA that GMM_BACKEND names, as CUDA was started in this process."""
    monkeypatch.setenv("GMM_BACKEND", default)
    here, there = FORK.Pipe()
    with host.alloc(MIB, Kind.VMM) as buffer:
        with running(FORK.Process(target=take_and_fill, args=(there, MIB, 1, 2))):
            buffer.fill(1)
            here.send(buffer)
        assert bytes(buffer) == b"\2" * MIB


def test_the_sender_may_drop_it_at_once_and_holds_it_no_longer(context):
    live = context.stats().live_bytes
    here, there = SPAWN.Pipe()
    buffer = context.alloc(MIB, Kind.VMM)
    buffer.fill(3)
    gone = weakref.ref(buffer)
    here.send(buffer)
    del buffer
    gc.collect()
    assert gone() is not None and sharing.in_transit() == 1
    run(SPAWN.Process(target=take_and_fill, args=(there, MIB, 3, 4)))
    arrived()
    until(lambda: gone() is None and context.stats().live_bytes == live)


@pytest.mark.parametrize("processes", [SPAWN, FORK])
def test_memory_of_a_worker_that_ends_at_once_arrives(processes):
    queue = processes.Queue()
    with running(processes.Process(target=put_new, args=(queue, "host", Kind.VMM, 7))):
        time.sleep(0.3)
        buffer = queue.get(timeout=SECONDS)
    assert bytes(buffer) == b"\7" * MIB and buffer.kind == Kind.VMM
    buffer.close()


def test_the_sender_gets_its_own_object(context):
    """Directly, twice in one message, and by way of two other processes."""
    here, there = SPAWN.Pipe()
    with context.alloc(100, Kind.VMM) as one, context.alloc(200, Kind.VMM) as two:
        here.send({"one": one, "two": two, "again": one})
        got = there.recv()
        assert got["one"] is one and got["two"] is two and got["again"] is one
    to_first, between, back = SPAWN.Queue(), SPAWN.Queue(), SPAWN.Queue()
    with running(*(SPAWN.Process(target=pass_on, args=pair) for pair in ((to_first, between), (between, back)))):
        with context.alloc(5000, Kind.VMM) as buffer:
            to_first.put(buffer)
            assert back.get(timeout=SECONDS) is buffer
            to_first.put(None)
            assert back.get(timeout=SECONDS) is None


@pytest.mark.parametrize("function", [pickle.dumps, copy.copy, copy.deepcopy])
def test_no_other_pickler_takes_memory(host, function):
    for thing, words in ((host.alloc(4096), r"multiprocessing.*ipc_export\(\).*bytes\(\)"),
                         (host.pin(bytearray(4096)), "Pin"), (host.array([1, 2]), "multiprocessing")):
        refused(TypeError, lambda: function(thing), match=words)
    assert sharing.in_transit() == 0


def test_memory_that_cannot_be_sent(context):
    here, _ = SPAWN.Pipe()
    with context.alloc(MIB, Kind.MANAGED) as managed, pytest.raises(gmm.InvalidKindError, match="VMM, HOST or DEVICE"):
        here.send(managed)
    closed = context.alloc(MIB, Kind.VMM)
    closed.close()
    refused(gmm.ClosedError, lambda: here.send(closed))
    tag = context.tag("asleep")
    with context.alloc(MIB, Kind.VMM, tag=tag) as paused, tag.paused(), pytest.raises(gmm.PausedError):
        here.send(paused)
    assert sharing.in_transit() == 0


def test_memory_that_the_sender_frees_is_gone(context):
    """discard() lets go of memory that no receiver took, as after the death of one."""
    queue, answers = SPAWN.Queue(), SPAWN.Queue()
    with context.alloc(MIB, Kind.VMM) as buffer:
        queue.put(buffer)
        until(lambda: sharing.in_transit() == 1)  # the queue's thread has pickled it
    run(SPAWN.Process(target=fails_to_get, args=(queue, answers)))
    assert answers.get(timeout=SECONDS) != "it came"
    arrived()
    here, there = SPAWN.Pipe()
    for _ in range(2):
        with context.alloc(MIB, Kind.VMM) as other:
            here.send(other)
            assert sharing.in_transit() == 1  # the one before was closed
    kept = context.alloc(MIB, Kind.VMM)
    gone = weakref.ref(kept)
    here.send(kept)
    del kept
    assert not sharing.wait_until_received(0.05) and gone() is not None
    assert sharing.discard() == 1 and sharing.in_transit() == 0 and not there.closed
    gc.collect()
    assert gone() is None


def test_receipts(host, monkeypatch):
    """Wrong ones count for nothing. One that cannot be sent is a warning, unless the sender has ended."""
    from gmm._multiprocessing import transit
    from gmm._multiprocessing.parcel import Parcel, export

    here, _ = SPAWN.Pipe()
    buffer = host.alloc(4096, Kind.HOST)
    here.send(buffer)
    for receipt in (b"", bytes(16), bytes(4096)):
        transit.acknowledge(transit.name, receipt)
    assert not sharing.wait_until_received(0.1) and sharing.in_transit() == 1
    transit.acknowledge(transit.name, *transit.objects)
    arrived()
    monkeypatch.setattr(transit, "REPLY_SECONDS", 0.05)
    address = socket.AF_UNIX, socket.SOCK_DGRAM
    with socket.socket(*address) as silent, socket.socket(*address) as other:
        silent.bind(b"\0gmm-test-" + secrets.token_hex(16).encode())
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                other.sendto(b"", silent.getsockname())
        parcel = Parcel(export(buffer), 4096, "host", 0, host.device_info(0).uuid, silent.getsockname(), bytes(16))
        with pytest.warns(RuntimeWarning, match="could not be told that it has arrived: timed out"):
            received = parcel.open(parcel.import_buffer)
        received.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        transit.acknowledge(parcel.sender, parcel.receipt)


def test_nothing_stays_of_many(host):
    refused(TypeError, lambda: sharing.use_context("host"), match="gmm.Context")
    with SPAWN.Pool(2) as pool:
        for value in range(50):
            if value == 10:  # the pool, the broker and the receipts' socket stand
                fds = len(os.listdir("/proc/self/fd"))
            buffer = host.alloc(4096, Kind.VMM)
            buffer.fill(value)
            assert pool.apply(value_of, (buffer, value == 1)) == value
        arrived()
        del buffer
        gc.collect()
        until(lambda: host.stats().live_blocks == 0)
        # A worker keeps its connection for the next buffer, and one that had none by then may have come.
        until(lambda: len(os.listdir("/proc/self/fd")) <= fds + 2)
