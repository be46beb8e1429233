# SPDX-License-Identifier: Apache-2.0
"""Buffers through multiprocessing: who gets what, and who keeps it."""
import concurrent.futures
import copy
import gc
import multiprocessing
import os
import pickle
import resource
import secrets
import signal
import socket
import time
import warnings
import weakref

import pytest
from conftest import BACKENDS, need

import gmm
import gmm.multiprocessing as sharing
from gmm import Capability, Kind, State

FORK, SPAWN = (multiprocessing.get_context(method) for method in ("fork", "spawn"))
MIB = 1 << 20
SECONDS = 60


def arrived():
    assert sharing.wait_until_received(SECONDS), f"{sharing.in_transit()} objects never arrived"


def until(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.01)


def run(process):
    process.start()
    process.join(SECONDS)
    assert process.exitcode == 0


# What the other process does. It imports this module anew under spawn.


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
    buffer = inbox.get()
    buffer.fill(buffer.nbytes % 251)
    outbox.put(buffer)
    outbox.put(None)
    inbox.get()


def never_receives(connection):
    connection.poll(SECONDS)
    connection.send("ready")
    signal.pause()


def negate(array):
    assert type(array) is gmm.Array and array.buffer.state == State.IMPORTED
    seen = memoryview(array)
    for at in range(array.shape[0]):
        seen[at, 1] = -seen[at, 1]


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
    with pytest.raises(gmm.InvalidHandleError):
        event.record(stream)  # the maker's to do
    connection.send((bytes(memoryview(copied)[:4]), event.done))


def value_of(buffer):
    return bytes(buffer)[0]


def backend_of_import(buffer, chosen):
    if chosen:
        sharing.use_context(gmm.Context(buffer.context.info.backend_name, host_memory=1 << 30))
    return buffer.context.info.backend_name, buffer.context is gmm.context()


def fails_to_get(queue, answers):
    try:
        queue.get()
        answers.put("it came")
    except gmm.IPCPeerGoneError as error:
        answers.put(str(error))


# The tests.


def test_array(host):
    array = host.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype="float32", kind=Kind.HOST)
    run(SPAWN.Process(target=negate, args=(array,)))
    assert array.tolist() == [[1.0, -2.0, 3.0], [4.0, -5.0, 6.0]]
    with SPAWN.Pool(1) as pool:
        part = array.T[1:]
        assert pool.apply(look_at, (part, array)) == (part.tolist(), part.shape, part.strides, False)
    here, there = SPAWN.Pipe()
    here.send(array)
    again = there.recv()
    assert again.buffer is array.buffer and again.tolist() == array.tolist()
    arrived()


def test_array_of_others(host):
    here, _ = SPAWN.Pipe()
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match=r"copy\(\)"):
        here.send(gmm.asarray(numpy.arange(3)))
    with pytest.raises(TypeError, match="multiprocessing"):
        pickle.dumps(host.array([1, 2]))
    assert sharing.in_transit() == 0


def test_event(context):
    """The receiver's stream waits for what the sender recorded."""
    queue = SPAWN.Queue()
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=wait_for_event, args=(queue, there))
    process.start()
    with context.alloc(MIB, Kind.VMM) as buffer:
        event, stream = context.event(ipc=True), context.stream()
        buffer.fill(1)
        stream.call(lambda: time.sleep(0.5))
        buffer.fill(2, stream=stream)
        event.record(stream)
        queue.put((event, buffer))
        assert here.poll(SECONDS) and here.recv() == "waiting"
        assert here.poll(SECONDS) and here.recv() == (b"\2\2\2\2", True)
        process.join(SECONDS)
        assert process.exitcode == 0
        here.send(event)
        assert there.recv() is event
        with pytest.raises(gmm.InvalidHandleError):
            here.send(context.event())


@pytest.mark.parametrize("kind", [Kind.VMM, Kind.HOST, Kind.DEVICE])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_argument_of_a_process(context, kind, method):
    need(context, Capability.LEGACY_IPC if kind == Kind.DEVICE
         and context.info.backend_name == "cuda" else Capability.EXPORT_FD, kind)
    with context.alloc(MIB + 1000, kind) as buffer:
        buffer.fill(0x11)
        run(multiprocessing.get_context(method).Process(target=check_and_fill, args=(buffer, MIB + 1000, 0x11, 0x22)))
        assert bytes(buffer) == b"\x22" * (MIB + 1000)
        assert sharing.in_transit() == 0


def fill_through_a_pipe(processes, context):
    here, there = processes.Pipe()
    process = processes.Process(target=take_and_fill, args=(there, MIB, 1, 2))
    process.start()
    with context.alloc(MIB, Kind.VMM) as buffer:
        buffer.fill(1)
        here.send(buffer)
        process.join(SECONDS)
        assert process.exitcode == 0 and bytes(buffer) == b"\2" * MIB


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_through_a_pipe(context, method):
    if method == "fork" and context.info.backend_name == "cuda":
        pytest.skip("CUDA does not work in a child after fork")
    fill_through_a_pipe(multiprocessing.get_context(method), context)


def test_forked_child_takes_host_memory_where_its_default_is_cuda(host, monkeypatch):
    """CUDA was started in this process, so the child cannot open the default context that GMM_BACKEND names."""
    if "cuda" not in BACKENDS:
        pytest.skip("no CUDA device")
    monkeypatch.setenv("GMM_BACKEND", "cuda")
    fill_through_a_pipe(FORK, host)


def test_sender_may_forget_at_once_and_keeps_no_longer(context):
    """The memory is there for the receiver, and goes when the receiver is done."""
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
    until(lambda: gone() is None)
    until(lambda: context.stats().live_bytes == live)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_worker_may_end_at_once(method):
    """What a worker sent as its last act arrives, and lives on without the worker."""
    processes = multiprocessing.get_context(method)
    queue = processes.Queue()
    process = processes.Process(target=put_new, args=(queue, "host", Kind.VMM, 7))
    process.start()
    time.sleep(0.3)
    buffer = queue.get(timeout=SECONDS)
    process.join(SECONDS)
    assert process.exitcode == 0
    assert bytes(buffer) == b"\7" * MIB and buffer.kind == Kind.VMM
    buffer.fill(8)
    assert value_of(buffer) == 8
    buffer.close()


def test_own_process_gets_the_same_object(context):
    queue = SPAWN.Queue()
    buffer = context.alloc(4096, Kind.HOST)
    queue.put(buffer)
    assert queue.get(timeout=SECONDS) is buffer
    queue.put(buffer)
    queue.put(buffer)
    del buffer
    gc.collect()
    first, second = queue.get(timeout=SECONDS), queue.get(timeout=SECONDS)
    assert first is second and first.state == State.ACTIVE and sharing.in_transit() == 0
    first.close()


def test_receiver_sends_it_on_and_back(context):
    to_first, between, back = SPAWN.Queue(), SPAWN.Queue(), SPAWN.Queue()
    first = SPAWN.Process(target=pass_on, args=(to_first, between))
    second = SPAWN.Process(target=pass_on, args=(between, back))
    first.start()
    second.start()
    with context.alloc(5000, Kind.VMM) as buffer:
        to_first.put(buffer)
        assert back.get(timeout=SECONDS) is buffer
        assert bytes(buffer) == bytes([5000 % 251]) * 5000
        to_first.put(None)
        first.join(SECONDS)
        second.join(SECONDS)
        assert (first.exitcode, second.exitcode) == (0, 0)


def test_executor_and_pool(context):
    with context.alloc(4096, Kind.HOST) as buffer:
        buffer.fill(0x42)
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=SPAWN) as executor:
            assert executor.submit(value_of, buffer).result(SECONDS) == 0x42
        with SPAWN.Pool(1) as pool:
            assert pool.map(value_of, [buffer, buffer]) == [0x42, 0x42]
        arrived()


def test_two_buffers_of_one_message(context):
    here, there = SPAWN.Pipe()
    with context.alloc(100, Kind.VMM) as one, context.alloc(200, Kind.VMM) as two:
        one.fill(1)
        two.fill(2)
        here.send({"one": one, "two": two, "again": one})
        got = there.recv()
        assert got["one"] is one and got["two"] is two and got["again"] is one


def test_chosen_context(host):
    with host.alloc(4096, Kind.VMM) as buffer, concurrent.futures.ProcessPoolExecutor(1, mp_context=SPAWN) as executor:
        assert executor.submit(backend_of_import, buffer, True).result(SECONDS)[0] == "host"
        assert executor.submit(backend_of_import, buffer, False).result(SECONDS) == ("host", False)
    with pytest.raises(TypeError, match="gmm.Context"):
        sharing.use_context("host")


@pytest.mark.parametrize("function", [pickle.dumps, copy.copy, copy.deepcopy])
def test_no_pickle_elsewhere(host, function):
    with host.alloc(4096) as buffer, pytest.raises(TypeError, match=r"multiprocessing.*ipc_export\(\).*bytes\(\)"):
        function(buffer)
    with host.pin(bytearray(4096)) as pin, pytest.raises(TypeError, match="Pin"):
        function(pin)
    assert sharing.in_transit() == 0


def test_what_cannot_be_sent(context):
    here, _ = SPAWN.Pipe()
    with context.alloc(MIB, Kind.MANAGED) as managed, pytest.raises(gmm.InvalidKindError, match="VMM, HOST or DEVICE"):
        here.send(managed)
    closed = context.alloc(MIB, Kind.VMM)
    closed.close()
    with pytest.raises(gmm.ClosedError):
        here.send(closed)
    tag = context.tag("asleep")
    with context.alloc(MIB, Kind.VMM, tag=tag) as paused, tag.paused(), pytest.raises(gmm.PausedError):
        here.send(paused)
    assert sharing.in_transit() == 0


def test_what_the_sender_frees_is_gone(context):
    queue, answers = SPAWN.Queue(), SPAWN.Queue()
    with context.alloc(MIB, Kind.VMM) as buffer:
        queue.put(buffer)
        until(lambda: sharing.in_transit() == 1)  # the queue's thread has pickled it
    run(SPAWN.Process(target=fails_to_get, args=(queue, answers)))
    assert answers.get(timeout=SECONDS) != "it came"
    arrived()


def test_a_killed_receiver(context):
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=never_receives, args=(there,))
    process.start()
    buffer = context.alloc(MIB, Kind.VMM)
    gone = weakref.ref(buffer)
    here.send(buffer)
    del buffer
    assert here.recv() == "ready"
    os.kill(process.pid, signal.SIGKILL)
    process.join(SECONDS)
    assert not sharing.wait_until_received(0.05) and sharing.in_transit() == 1 and gone() is not None
    assert sharing.discard() == 1 and sharing.in_transit() == 0
    gc.collect()
    assert gone() is None


def test_closed_buffers_do_not_stay(context):
    here, _ = SPAWN.Pipe()
    with context.alloc(MIB, Kind.VMM) as buffer:
        here.send(buffer)
    assert sharing.in_transit() == 1
    with context.alloc(MIB, Kind.VMM) as other:
        here.send(other)
        assert sharing.in_transit() == 1  # the first was let go
    assert sharing.discard() == 1


def test_receipts_of_others_count_for_nothing(host):
    from gmm._multiprocessing import transit

    here, _ = SPAWN.Pipe()
    with host.alloc(4096, Kind.VMM) as buffer:
        here.send(buffer)
        name = transit.transit.name
        for receipt in (b"", bytes(16), bytes(4096)):
            transit.acknowledge(name, receipt)
        transit.acknowledge(b"\0gmm-nobody", bytes(16))
        assert not sharing.wait_until_received(0.1) and sharing.in_transit() == 1
        (known,) = transit.transit.objects
        transit.acknowledge(name, known)
        arrived()


def test_a_receipt_that_cannot_be_sent_is_told(host, monkeypatch):
    """The receiver has its memory, and a warning.

    A sender that has ended needs no receipt: there is no warning then.
    """
    from gmm._multiprocessing import transit
    from gmm._multiprocessing.parcel import Parcel, export

    monkeypatch.setattr(transit, "REPLY_SECONDS", 0.05)
    address = socket.AF_UNIX, socket.SOCK_DGRAM
    with socket.socket(*address) as silent, socket.socket(*address) as other:
        silent.bind(b"\0gmm-test-" + secrets.token_hex(16).encode())
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                other.sendto(b"", silent.getsockname())
        buffer = host.alloc(4096, Kind.HOST)
        parcel = Parcel(export(buffer), 4096, "host", 0, host.device_info(0).uuid, silent.getsockname(), bytes(16))
        with pytest.warns(RuntimeWarning, match="could not be told that it has arrived: timed out"):
            received = parcel.open()
        received.fill(7)
        received.close()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.warns(RuntimeWarning, match="Too many open files"):
                parcel.acknowledge()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parcel.acknowledge()


def test_many(host):
    """Nothing is lost, and nothing stays."""
    with SPAWN.Pool(2) as pool:
        for value in range(50):
            if value == 10:  # the pool, the broker and the receipts' socket stand
                fds = len(os.listdir("/proc/self/fd"))
            buffer = host.alloc(4096, Kind.VMM)
            buffer.fill(value)
            assert pool.apply(value_of, (buffer,)) == value
        arrived()
        del buffer
        gc.collect()
        until(lambda: host.stats().live_blocks == 0)
        # A worker keeps its connection for the next buffer, and one that had none by then may have come.
        until(lambda: len(os.listdir("/proc/self/fd")) <= fds + 2)
