# SPDX-License-Identifier: Apache-2.0
"""The edges of life: closing, views, the collector, the interpreter's end, fork. threads.py has races."""
import concurrent.futures
import gc
import sys
import threading
import time
import weakref

import pytest
from checks import refused
from conftest import open_context, run_code

import gmm
from gmm import Kind
from gmm import _native as native

MIB = 1 << 20


def live_blocks(context):
    gc.collect()
    return context.stats().live_blocks


def test_a_closed_buffer_never_reaches_the_library(host):
    buffer = host.alloc(MIB)
    for end in (buffer.free, buffer.free, buffer.close):
        end()
    assert buffer.closed and buffer.nbytes == MIB and buffer.state == gmm.State.FREE
    assert host.stats().frees == 1 and "closed" in repr(buffer)
    other = host.alloc(MIB)  # very likely at the same address
    refused(gmm.ClosedError, lambda: buffer.address, lambda: buffer.fill(1), lambda: memoryview(buffer),
            lambda: host.query(buffer), lambda: other.copy_from(buffer), buffer.__dlpack__)
    assert gmm.ClosedError.__bases__ == (gmm.InvalidHandleError, ValueError)


def test_handles_of_another_context_and_after_their_end(host):
    with open_context("host") as other:
        tag, stream, heap, event = host.tag("weights"), host.stream(), host.heap("vmm"), host.event()
        refused(gmm.InvalidTagError, lambda: other.alloc(1, tag=tag), lambda: other.pause(tag),
                lambda: other.stats(tag=tag),
                lambda: other.set_limit(1, tag=tag), lambda: other.heap("vmm", tag=tag),
                lambda: gmm.lease.Lease("another", [tag], context=other), match='"weights" belongs to another context')
        refused(gmm.InvalidHandleError, lambda: other.synchronize(stream), lambda: event.record(other.stream()),
                lambda: other.stream().wait(event), match="of another context|not a stream of this context")
    for each in (stream, heap, event):
        each.close()
    tag.destroy()
    refused(gmm.ClosedError, stream.synchronize, lambda: heap.alloc(1), event.record, match="is closed")
    refused(gmm.InvalidTagError, lambda: host.alloc(1, tag=tag), match="does not exist")


def test_a_closed_context_closes_all_of_it():
    context = open_context("host")
    buffer, stream = context.alloc(MIB), context.stream()
    context.close()
    context.close()
    assert context.closed and buffer.closed
    refused(gmm.ClosedError, lambda: context.alloc(1), context.stats, lambda: buffer.address, stream.synchronize,
            context.stream, match="closed")
    buffer.close()
    stream.close()


def test_dropped_memory_is_freed(host):
    for _ in range(10):
        host.alloc(MIB)
    context = open_context("host")
    context.set_oom_handler(lambda info, context=context: context.trim() > 0)
    pinned, buffer = bytearray(8192), host.alloc(MIB, Kind.HOST)
    gone = [weakref.ref(buffer), weakref.ref(context)]
    # The collector finalizes a buffer and a pin while a view in the same cycle still looks at them.
    for made in (buffer, host.pin(pinned)):
        cycle = [made, memoryview(made)]
        cycle.append(cycle)
    del buffer, cycle, made, context
    assert live_blocks(host) == 0 and [one() for one in gone] == [None, None]
    host.pin(pinned).close()  # it is pinned no more


def test_a_call_under_way_releases_the_gil_and_refuses_a_close(host):
    stream, go, buffer = host.stream(), threading.Event(), host.alloc(MIB)
    stream.call(lambda: go.wait(60))  # runs on a thread of the backend
    waiter = threading.Thread(target=stream.synchronize)
    waiter.start()
    while not host._users:
        time.sleep(0.001)
    refused(RuntimeError, host.close, host.reset, stream.close, match="use it")
    assert waiter.is_alive() and not buffer.closed
    go.set()
    waiter.join()


def test_views_keep_memory(host):
    buffer, dropped, stream = host.alloc(4096), memoryview(host.alloc(4096)), host.stream()
    view = memoryview(buffer)
    refused(BufferError, buffer.free, host.close, host.reset, match="views")
    view[0], dropped[4095] = 7, 1
    del view
    assert bytes(buffer)[0] == 7 and live_blocks(host) == 2
    buffer.free()
    del dropped
    ordered = host.alloc(4096, stream=stream)
    stream.close()
    ordered.fill(1)  # on the default stream, as its own is closed
    ordered.close()
    assert live_blocks(host) == 0


def test_a_stream_that_frees_the_memory_itself(context):
    """External streams are asked by Python code, which may do anything, and so may other threads."""
    class Stream:
        def __init__(self, act):
            self.act = act

        def __cuda_stream__(self):
            self.act()
            return 0, 0

    buffer, reused, views = context.alloc(4096), [], []
    buffer.free(Stream(lambda: (buffer.free(), reused.append(context.alloc(4096)))))
    assert buffer.closed and not reused[0].closed and context.stats().live_blocks == 1
    reused[0].free()
    kept = context.alloc(4096, Kind.HOST)
    refused(BufferError, lambda: kept.free(Stream(lambda: views.append(memoryview(kept)))), match="views")
    assert not kept.closed
    views.clear()


def test_memory_of_a_threads_own_stream_that_ends_elsewhere(context):
    """The other thread's own stream may not have it before the work of the first thread is done."""
    def alloc():
        return context.alloc(4096, stream=gmm.STREAM_PER_THREAD)

    def elsewhere():
        buffers.pop()
        buffers.pop().close()
        mine = [alloc(), alloc()]
        return {buffer.address for buffer in mine}

    buffers = [alloc(), alloc()]
    addresses = {buffer.address for buffer in buffers}
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        assert not addresses & other.submit(elsewhere).result()
    buffer = alloc()
    address = buffer.address
    del buffer
    assert alloc().address == address  # the same thread: the same stream


def test_exceptions_of_callbacks(host, unraisable):
    refused(ZeroDivisionError, lambda: host.snapshot(lambda piece: 1 / 0))
    host.set_limit(64 * MIB)
    host.set_oom_handler(lambda info: [][info.requested_bytes])
    refused(IndexError, lambda: host.alloc(128 * MIB))
    host.alloc(1000).close()
    stream = host.stream()
    stream.call(lambda: 1 / 0)  # nobody waits for it in Python
    stream.synchronize()
    assert [type(error) for error in unraisable] == [ZeroDivisionError]


ENDINGS = {
    "with everything alive": """
import builtins, numpy as np
context = gmm.Context("host", log=lambda level, message: None)
buffers = [context.alloc(4096, kind) for kind in context.device_info().kinds for _ in range(10)]
kept = [memoryview(buffers[0]), buffers[1].__dlpack__(), context.pin(bytearray(8192)), gmm.alloc(100), context]
kept += [gmm.from_dlpack(np.arange(5)), np.from_dlpack(context.zeros(4)), gmm.asarray(bytearray(4)), gmm.zeros(3)]
kept += [context.stream().record(), context.heap(gmm.Kind.VMM).alloc(100)]
context.set_oom_handler(lambda info: context is None)
builtins.kept = kept  # dies in the interpreter's own end, after the modules
class Late:
    def __del__(self):
        buffers[2].close()
late = Late()
""",
    "while the backend calls back": """
stream = gmm.Context("host").stream()
for _ in range(1000):
    stream.call(lambda: time.sleep(0.001))
""",
    "with a daemon thread inside": """
context = gmm.Context("host")
def work():
    while True:
        context.alloc(4096).close()
threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
""",
    "with a ticket under way": """
context = gmm.Context("host")
tag = context.tag("left", gmm.Contents.HOST)
block = context.alloc(64 << 20, gmm.Kind.VMM, tag=tag)
ticket = tag.pause_async(progress=lambda done, total: time.sleep(0.1))
threading.Thread(target=tag.resume_async().wait, daemon=True).start()
time.sleep(0.05)
"""}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_interpreter_ends(ending):
    run_code("import gmm, threading, time\n" + ENDINGS[ending])


def test_fork():
    assert run_code("""
import os, warnings
warnings.simplefilter("ignore")  # Python 3.12 warns of threads at a fork
os.environ["GMM_LOG"] = "error"  # the child takes the host backend, and warns where there is a GPU
import gmm, pytest
context = gmm.context()
buffer = context.alloc(100)
child = os.fork()
if child == 0:
    with pytest.raises(gmm.ForkedError) as caught:
        buffer.fill(1)
    assert caught.value.code == -28
    try:
        assert gmm.context() is not context and gmm.alloc(10).address
    except gmm.NoBackendError:  # a driver that ran before the fork is of no use to the child, and says so
        assert context.info.backend_name == "cuda"
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
buffer.fill(2)
print(bytes(buffer)[0])
""") == "0\n2\n"


def test_no_backend_is_an_error():
    refused(gmm.NoBackendError, lambda: gmm.Context("sycl"))
    refused(ValueError, lambda: gmm.Context("metal"), match="no backend 'metal'; the backends are 'auto', 'host'")


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="this Python has no GIL to keep")
def test_a_cached_allocation_keeps_the_gil():
    """A block of the thread's cache comes with the GIL held; any other allocation releases it."""
    run_code("""
import sys, threading, time
import gmm
context = gmm.Context("host")
context.alloc(1000).free()
rounds, stop = [0], []
def other():  # wants the interpreter all the time, and gives it back at once
    while not stop:
        rounds[0] += 1
        time.sleep(0)
sys.setswitchinterval(1000)  # from here on a thread gives it away only by itself; one that waits keeps its interval
thread = threading.Thread(target=other, daemon=True)
thread.start()
before = rounds[0]
for _ in range(100000):
    context.alloc(1000).free()
assert rounds[0] == before, rounds[0] - before
stop.append(1)
thread.join()
""")


def test_a_subinterpreter_is_refused_and_breaks_nothing():
    run_code("""
import gmm
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
interpreter = interpreters.create()
failure = interpreters.run_string(interpreter, '''
try:
    import gmm
except ImportError as error:
    assert "subinterpreter" in str(error), error
else:
    raise AssertionError("gmm was imported")
''')
assert failure is None, failure
interpreters.destroy(interpreter)
with gmm.Context("host") as context, context.alloc(100) as buffer:
    buffer.fill(1)
    assert bytes(buffer) == bytes([1]) * 100 and gmm.asarray(buffer).nbytes == 100
""")


def test_a_context_stays_open_until_an_object_has_what_was_made(host):
    """Without a GIL another thread may close the context as soon as the function's call has returned."""
    def create():
        made = native.gmm_stream_create(host, None)
        refused(RuntimeError, host.close, match="cannot close")
        return made

    with native.Handle() as stream:
        stream._open("stream", host, create)
