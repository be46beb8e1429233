# SPDX-License-Identifier: Apache-2.0
"""gmm.lease: processes that share a device too small for two of them, and what a lease does in one process."""
import asyncio
import gc
import os
import signal
import sys
import threading
import weakref

import drop_in
import pytest
from checks import refused, until
from conftest import run_code

import gmm
import gmm.lease
from gmm.lease import Lease, LeaseState

MIB = 1 << 20
CARD_MIB = 64
PART_MIB = 40  # two do not fit


def card(folder):
    """The environment of processes that share one device of CARD_MIB."""
    return {"GMM_IPC_DIR": str(folder), "GMM_HOST_CARD": str(folder / "card"),
            "FAKE_CUDA_LEDGER": str(folder / "ledger"), "FAKE_CUDA_MEMORY": str(CARD_MIB * MIB)}


def members(context):
    return {entry.name for entry in gmm.lease.status(context=context)}


# One process: leases over two tags of one context.


@pytest.fixture
def shared(tmp_path):
    """shared(name, mib, **options): a lease over a tag of its name, with a block of so much, idle."""
    context = gmm.Context("host", host_devices=1, host_memory=CARD_MIB * MIB, leak_report=False)
    context.ipc_configure(directory=str(tmp_path))
    blocks = []

    def party(name, mib=PART_MIB, residency=0.001, **options):
        context.tag(name, gmm.Contents.HOST)
        lease = Lease(name, [name], context=context, residency=residency, **options)
        with lease.use(mib * MIB) as resumed:
            assert resumed == 0 and lease.info().state == LeaseState.IN_USE
            blocks.append(context.alloc(mib * MIB, gmm.Kind.VMM, tag=name))
        return lease

    yield party
    blocks.clear()
    gc.collect()
    context.close()


def test_the_turns_of_one_process(shared, host, tmp_path):
    host.ipc_configure(directory=str(tmp_path))
    refused(gmm.NotReadyError, lambda: gmm.lease.status(context=host), match="no server runs")
    first, second = shared("first"), shared("second")
    assert repr(second) == "<gmm.lease.Lease 'second', idle, 40 MiB active, 0 bytes paused>"
    with first.use() as resumed:
        assert resumed == PART_MIB * MIB and second.info().paused_bytes == resumed
        refused(gmm.NotReadyError, lambda: second.request(timeout=0.5), match=r"Lease\.request\(\).*first")
    with pytest.raises(ZeroDivisionError), second.use():
        raise ZeroDivisionError
    assert second.info().state == LeaseState.IDLE and second.release() is False
    assert members(first.context) == {"first", "second"}
    for _ in range(2):
        second.close()
    assert second.closed and repr(second) == "<gmm.lease.Lease 'second' closed>"
    refused(gmm.ClosedError, second.request)
    child = os.fork()
    if child == 0:
        os._exit(0 if repr(first) == "<gmm.lease.Lease 'first'>" else 1)
    assert os.waitpid(child, 0)[1] == 0
    entry, = gmm.lease.status(context=first.context)
    assert entry.state == LeaseState.IDLE and entry.process == os.getpid() and len(entry.uuid) == 16
    assert entry.offered_bytes == first.info().active_bytes and entry.server == first.info().server


def test_the_arguments_are_checked(shared):
    context = shared("first").context
    refused(ValueError, lambda: Lease("a b", context=context))
    refused(TypeError, lambda: Lease("a", asked=3, context=context))
    refused(gmm.InvalidTagError, lambda: Lease("a", ["nobody made it"], context=context))
    with Lease("a", {"first": 3}, context=context) as lease:
        refused(OverflowError, lambda: lease.offer("first", -1), lambda: lease.request(-1))
        refused(ValueError, lambda: lease.offer("first", 0xffffffff), lambda: lease.request({9: 1}),
                lambda: lease.request(timeout=1e6))
        with Lease("b", context=context) as other:
            refused(gmm.OfferedError, lambda: other.offer("first"))
        lease.withdraw("first")
        assert lease.info().active_bytes == 0
    with Lease("c", "first", context=context) as lease:  # one name, not its letters
        assert lease.info().active_bytes >= PART_MIB * MIB


def test_signals_in_the_middle_of_a_request(shared):
    """Ctrl-C ends the request. A handler may close the lease."""
    first, second = shared("first"), shared("second")
    with first.use():
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        refused(KeyboardInterrupt, second.request)
        assert second.info().state == LeaseState.IDLE

    def look(frame, event, _argument):
        if event == "call" and frame.f_code.co_name == "_begin":
            sys.setprofile(None)
            second.close()

    sys.setprofile(look)
    try:
        refused(gmm.ClosedError, second.request)
    finally:
        sys.setprofile(None)
    assert second.closed


def test_a_request_in_the_background(shared):
    """Its cancel, the end of its lease, and the end of the context end it."""
    first, second, third = shared("first"), shared("second"), shared("third", 1)
    with first.use():
        async def wait():
            waiting = second.request_async()
            until(lambda: "waiting" in repr(waiting))
            first.release()
            return await waiting

        assert asyncio.run(wait()) == PART_MIB * MIB and second.release()
        first.request()
        ticket = second.request_async()
        ticket.cancel()
        refused(gmm.CancelledError, lambda: ticket.result(60))
        ticket = second.request_async()
        second.close()
        refused(gmm.CancelledError, lambda: ticket.result(60))
        ticket = third.request_async(CARD_MIB // 2 * MIB)
        first.context.close()
    assert first.closed and third.closed and ticket.done


def test_asked(shared, unraisable):
    asks, inside = [], []

    def asked(ask):
        asks.append(ask)
        for call in (first.request, first.close):
            try:
                call()
            except gmm.BusyError as error:
                inside.append(error)
        gc.collect()
        first.release()
        raise ZeroDivisionError

    first = shared("first", asked=asked)
    second = shared("second", priority=2)
    first.request()
    with second.use():
        assert asks[0].name == "second" and asks[0].priority == 2 and asks[0].process == os.getpid()
        assert asks[0].bytes >= PART_MIB * MIB and asks[0].waiting_ms >= 0
    assert len(inside) == 2 * len(asks) and first.info().asked == len(asks) == len(unraisable)


@pytest.mark.parametrize("ends_inside", [False, True])
def test_a_dropped_lease_ends(shared, ends_inside):
    """Also when the last reference goes in its own callback, on its own thread."""
    first, second = shared("first"), shared("second")
    context, began, box = first.context, threading.Event(), {}
    first.close()

    def asked(ask):
        if ends_inside:
            box.clear()
            gc.collect()
        began.set()

    box["lease"] = Lease("dropped", ["first"], context=context, asked=asked)
    gone = weakref.ref(box["lease"])
    box["lease"].request()
    ticket = second.request_async()
    assert began.wait(60)
    box.clear()
    gc.collect()
    # Its memory is no offer any more, so the request of the other one waits for nothing that comes.
    until(lambda: gone() is None and members(context) == {"second"})
    ticket.cancel()
    ticket.close()


def test_a_lease_and_its_ticket_die_in_one_cycle(shared, unraisable):
    """In any order."""
    first = shared("first")
    for at in range(4):
        cycle = [Lease(f"dying{at}", context=first.context)]
        cycle.append(cycle[0].request_async())
        assert cycle[1].wait(60)
        cycle[:] = cycle[::-1 if at % 2 else 1] + [cycle]
        del cycle
        gc.collect()
    until(lambda: members(first.context) == {"first"})
    assert not unraisable


# The one line.


def test_use_in_the_default_context(tmp_path):
    """The interpreter ends with a lease that is asked all the time, and with a request under way."""
    run_code(f"""
import os, threading, time
os.environ.update({card(tmp_path)!r}, GMM_BACKEND="host")
import gmm, gmm.lease, pytest
card = gmm.Context(host_memory=64 << 20)  # its size: the machine's free memory changes
lease = gmm.lease.use(name="plain", amounts=1 << 20)
assert lease.info().state == gmm.lease.LeaseState.IN_USE and lease.context is gmm.context()
block = gmm.alloc(1 << 20, gmm.Kind.VMM, tag="weights")
assert gmm.context().tag_info("weights").contents == gmm.Contents.HOST
assert lease.info().active_bytes >= 1 << 20
with pytest.raises(gmm.BusyError, match="plain"):
    gmm.lease.use(name="again")
lease.close()
asked = threading.Event()
gmm.lease.use("again", "weights", asked=lambda ask: (asked.set(), time.sleep(0.2)))
assert gmm.lease._used.info().active_bytes >= 1 << 20
other = gmm.Context()
waiting = gmm.lease.Lease("waiting", context=other).request_async(other.device_info().free_memory + 1)
assert asked.wait(20), waiting
""")


def test_ctrl_c_at_the_end_of_use():
    """Nobody has the lease: it is closed, and the next one can come."""
    run_code("""
import sys
import gmm.lease, pytest
def look(frame, event, argument):
    if event == "c_return" and argument.__name__ == "__exit__" and frame.f_code.co_name == "use":
        sys.setprofile(None)
        raise KeyboardInterrupt
sys.setprofile(look)
with pytest.raises(KeyboardInterrupt):
    gmm.lease.use("lost", "weights")
with gmm.lease.use("next", "weights") as lease:
    assert lease.info().state == gmm.lease.LeaseState.IN_USE
""")


DROP_IN = """
from gmm.lease import LeaseState
import gmm.lease, remote

def other():  # another process of the device, which wants nearly all of it
    return remote.Remote('''
import gmm, gmm.lease
MIB = 1 << 20
context = gmm.Context("cuda")
lease = gmm.lease.Lease("other", [context.tag("weights", gmm.Contents.HOST)], residency=0.001, context=context)
''')

def request(peer, mib=0):
    peer(f"lease.request({mib} * MIB)")

def state():
    return lease.info().state
"""

VLLM = "from gmm.vllm import CuMemAllocator\nallocator = CuMemAllocator.get_instance()\n"
# Its model and cache, of the tags that vLLM uses.
ENGINE = """
lease = gmm.lease.use("engine", residency=0.001)
with allocator.use_memory_pool(tag="weights"):
    weights = full(16, 42)
with allocator.use_memory_pool(tag="kv_cache"):
    cache = full(20, 9)
"""


def run_drop_in(tmp_path, prelude, code, **options):
    drop_in.run(code, environment=card(tmp_path),
                prelude=drop_in.PRELUDE + prelude + DROP_IN, **options)


@pytest.mark.parametrize("mode", ["preload", "torch"])
def test_use_with_torch_memory_saver(tmp_path, mode):
    """The memory of regions from before is offered at once. at_once: it goes in the call."""
    run_drop_in(tmp_path, drop_in.SAVER.format(mode=mode), """
with saver.region(tag="weights", enable_cpu_backup=True):
    weights = full(16, 42)
with saver.region(tag="kv_cache", enable_cpu_backup=True):
    cache = full(20, 9)
with saver.region(tag="not offered", enable_cpu_backup=True):
    alone = full(2, 7)
whole = used()
saver.pause("kv_cache")
lease = gmm.lease.use("generator", ["weights", "kv_cache"], residency=0.001)
assert state() == LeaseState.IN_USE and 16 * MIB <= lease.info().active_bytes < 20 * MIB
saver.resume("kv_cache")
assert holds(weights, 42) and holds(cache, 9) and lease.info().active_bytes >= 36 * MIB
peer = other()
error = raises(remote.Failure, peer, "lease.request(60 * MIB, timeout=0.3)")
assert str(error).startswith("NotReadyError") and "generator" in str(error)  # memory in use is an offer
saver.pause()                           # the lease is idle, and nobody wants the memory
assert state() == LeaseState.IDLE and whole - 2 >= used() >= whole - 4, (whole, used())
saver.resume()
assert state() == LeaseState.IN_USE and used() == whole and holds(alone, 7)
saver.pause("not offered")
saver.pause("kv_cache")                 # a part goes at once
assert state() == LeaseState.IN_USE and whole - used() >= 22
saver.pause("weights")
request(peer, 50)
assert lease.info().paused_bytes >= 16 * MIB
threading.Timer(0.3, peer, ["lease.release()"]).start()
saver.resume("weights")                 # waits for the other one; the cache stays paused
assert state() == LeaseState.IN_USE and holds(weights, 42) and lease.info().active_bytes < 20 * MIB
saver.resume()
assert holds(cache, 9) and holds(alone, 7)
lease.close()
saver.pause("weights")                  # as without a lease
assert whole - used() >= 16 - 2
saver.resume()
lease = gmm.lease.use("generator", ["weights"], at_once=True)
saver.pause("weights")
assert state() == LeaseState.IDLE and whole - used() >= 16 - 2
saver.resume("weights")
assert state() == LeaseState.IN_USE and holds(weights, 42)
""", preload=mode == "preload")


def test_use_with_vllm(tmp_path):
    """A holder of a part that wants more gives up the part, with its contents, though its tag keeps none."""
    run_drop_in(tmp_path, VLLM, ENGINE + """
peer = other()
allocator.sleep(())
request(peer, 60)                        # it takes all of it, later than the call
assert state() == LeaseState.IDLE and lease.info().active_bytes == 0
peer("lease.release()")
allocator.wake_up(["weights"])
assert state() == LeaseState.IN_USE and lease.info().active_bytes < 20 * MIB
weights.fill_(5)
went = []
def take():
    request(peer, 55)
    went.append(lease.info().paused_bytes)
    peer("lease.release()")
thread = threading.Thread(target=take)
thread.start()
while not any(entry.state == LeaseState.WAITING for entry in gmm.lease.status()):
    pass
assert state() == LeaseState.IN_USE and holds(weights, 5) and not went
allocator.wake_up()
assert went[0] >= 36 * MIB and holds(weights, 5) and lease.info().active_bytes >= 36 * MIB
thread.join()
""")


def test_ctrl_c_at_each_point_of_a_transition(tmp_path):
    """The memory is in use with its contents, or the lease is idle and all of it sleeps.

    Each handler catches a failure as it catches an interrupt.
    """
    # Small blocks, as their contents are copied and compared at each point.
    run_drop_in(tmp_path, VLLM, ENGINE.replace("16", "2").replace("20", "4") + """
turns = allocator._library.turns

def each(operation, check):
    k, left = 0, 0
    while left <= 0:
        k += 1
        left = k
        def look(frame, event, argument):
            nonlocal left
            left -= event in ("call", "c_return") and frame.f_code.co_filename.endswith(("turns.py", "lease.py"))
            if left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt
        sys.setprofile(look)
        with contextlib.suppress(KeyboardInterrupt):
            operation()
        sys.setprofile(None)
        asleep, active = turns._asleep(), lease.info().active_bytes
        seen = (k, asleep, active, state())
        assert state() == (LeaseState.IDLE if len(asleep) == 2 else LeaseState.IN_USE), seen
        # Memory that sleeps is no offer, other memory is one.
        assert len(asleep) == 2 or len(asleep) == (active < 4 * MIB), seen
        assert allocator._tags["weights"] in asleep or holds(weights, 42), seen
        check()
    assert k > 20

def wake():
    allocator.wake_up()
    assert state() == LeaseState.IN_USE and lease.info().active_bytes >= 6 * MIB and holds(weights, 42)

def sleep():
    allocator.sleep(("weights", "kv_cache"))
    assert state() == LeaseState.IDLE

each(sleep, wake)
each(lambda: allocator.discard("kv_cache"), wake)
sleep()
each(lambda: allocator.wake_up(["weights"]), sleep)
""")
