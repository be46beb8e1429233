# SPDX-License-Identifier: Apache-2.0
"""What happens at the edges of life: closing, threads, exit, fork."""
import gc
import os
import subprocess
import sys
import threading
import time
import weakref

import pytest
from conftest import open_context, run_code

import gmm
from gmm import Kind
from gmm import _native as native
from gmm._core.buffer import Buffer, import_desc

MIB = 1 << 20
FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()


def live_blocks(context):
    gc.collect()
    return context.stats().live_blocks


def test_free_twice(host):
    buffer = host.alloc(MIB)
    buffer.free()
    buffer.free()
    buffer.close()
    assert buffer.closed and buffer.nbytes == MIB and buffer.state == gmm.State.FREE
    assert host.stats().frees == 1 and "closed" in repr(buffer)


def test_use_after_close_never_reaches_the_library(host):
    buffer = host.alloc(MIB)
    address = buffer.address
    buffer.close()
    other = host.alloc(MIB)  # very likely the same address
    for call in (lambda: buffer.address, lambda: buffer.fill(1), lambda: buffer.info, lambda: memoryview(buffer),
                 lambda: buffer.ipc_export(),
                 lambda: host.query(buffer), lambda: other.copy_from(buffer), lambda: buffer.move(0),
                 lambda: buffer.__dlpack__()):
        with pytest.raises(gmm.ClosedError) as caught:
            call()
        assert caught.value.code == gmm.InvalidHandleError.code and isinstance(caught.value, ValueError)
    assert host.query(address).state in (gmm.State.ACTIVE, gmm.State.FREE)
    other.close()


def test_dropped_buffers_are_freed(host):
    for _ in range(10):
        host.alloc(MIB)
    assert live_blocks(host) == 0


def test_buffers_in_cycles_are_freed(host):
    class Owner:
        pass

    owner = Owner()
    owner.buffer, owner.self = host.alloc(MIB), owner
    gone = weakref.ref(owner.buffer)
    del owner
    assert live_blocks(host) == 0 and gone() is None


def test_context_in_a_cycle_with_its_callbacks():
    context = open_context("host")
    buffer = context.alloc(MIB)
    context.set_oom_handler(lambda info: context.trim() > 0)
    gone = weakref.ref(context)
    del context
    gc.collect()
    assert gone() is not None and not buffer.closed  # the buffer holds its context
    del buffer
    gc.collect()
    assert gone() is None


def test_free_on_another_thread(host):
    buffers = [host.alloc(4096) for _ in range(200)]
    explicit, dropped = buffers[:100], buffers[100:]
    del buffers

    def free():
        for buffer in explicit:
            buffer.free()
        dropped.clear()

    thread = threading.Thread(target=free)
    thread.start()
    thread.join()
    assert live_blocks(host) == 0


def test_one_buffer_freed_by_many_threads(host):
    for _ in range(50):
        buffer = host.alloc(4096)
        failures = []

        def free(buffer=buffer):
            try:
                buffer.free()
            except BaseException as error:  # anything at all is a failure here
                failures.append(error)

        threads = [threading.Thread(target=free) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures and buffer.closed
    assert host.stats().frees == 50


def test_many_threads_allocate(host):
    failures = []

    def work(seed):
        try:
            held = []
            for i in range(300):
                buffer = host.alloc(256 * (1 + (i * 7 + seed) % 50), Kind.HOST)
                memoryview(buffer)[0] = seed
                held.append(buffer)
                if len(held) > 20:
                    old = held.pop(0)
                    assert memoryview(old)[0] == seed
                    old.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert live_blocks(host) == 0


def test_gil_is_released(host):
    """While one thread waits in the library, another goes on."""
    stream = host.stream()
    go = threading.Event()
    stream.call(lambda: go.wait(60))  # runs on a thread of the backend
    waiter = threading.Thread(target=stream.synchronize)
    waiter.start()
    while not host._users:
        time.sleep(0.001)
    for _ in range(100):
        time.sleep(0.0001)  # the interpreter comes back each time
    assert waiter.is_alive() and not go.is_set()
    go.set()
    waiter.join()
    stream.close()


def test_close_is_refused_while_a_call_is_under_way(host):
    context = open_context("host")
    stream = context.stream()
    go = threading.Event()
    stream.call(lambda: go.wait(60))
    waiter = threading.Thread(target=stream.synchronize)
    waiter.start()
    while not context._users:
        time.sleep(0.001)
    with pytest.raises(RuntimeError, match="use it"):
        context.close()
    go.set()
    waiter.join()
    context.close()


def test_views_keep_memory(host):
    buffer = host.alloc(4096)
    view = memoryview(buffer)
    with pytest.raises(BufferError, match="views"):
        buffer.free()
    with pytest.raises(BufferError, match="views"):
        host.close()
    with pytest.raises(BufferError, match="views"):
        host.reset()
    view[0] = 7
    view.release()
    assert bytes(buffer)[0] == 7
    buffer.free()
    assert buffer.closed


def test_buffer_of_a_view_lives_on(host):
    view = memoryview(host.alloc(4096))
    gc.collect()
    view[4095] = 1
    assert host.stats().live_blocks == 1
    del view
    assert live_blocks(host) == 0


def test_buffer_on_a_closed_stream(host):
    stream = host.stream()
    buffer = host.alloc(4096, stream=stream)
    stream.close()
    buffer.fill(1)
    buffer.close()
    assert live_blocks(host) == 0


def test_wrong_types(host):
    stream = host.stream()
    from gmm import _native

    for call in (lambda: _native.gmm_alloc(stream, 1, None), lambda: _native.gmm_alloc(None, 1, None),
                 lambda: _native.gmm_stream_synchronize(host, host),
                 lambda: host.query("x"), lambda: host.alloc("x"), lambda: stream.call(3), lambda: host.free(1.5),
                 lambda: host.pin(3)):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(OverflowError):
        host.alloc(-1)
    with pytest.raises(BufferError):
        host.pin(b"read only")
    with pytest.raises(gmm.InvalidSizeError):
        host.alloc(16).fill(0, offset=8, size=9)


def test_exceptions_of_callbacks(host):
    with pytest.raises(ZeroDivisionError):
        host.snapshot(lambda piece: 1 / 0)

    def stop(info):
        raise KeyError(info.requested_bytes)

    with open_context("host", host_memory=64 * MIB) as context:
        context.set_oom_handler(stop)
        with pytest.raises(KeyError, match=str(128 * MIB)):
            context.alloc(128 * MIB, Kind.VMM)
        context.alloc(MIB).close()


def test_exception_on_a_stream_is_reported(host, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda arguments: reported.append(arguments.exc_type))
    stream = host.stream()
    stream.call(lambda: 1 / 0)
    stream.synchronize()
    assert reported == [ZeroDivisionError]


def test_exit_with_everything_alive():
    run_code("""
import gmm, threading, time
context = gmm.Context("host", log=lambda level, message: None)
buffers = [context.alloc(4096, kind) for kind in context.device_info().kinds for _ in range(10)]
view = memoryview(buffers[0])
capsule = buffers[1].__dlpack__()
pin = context.pin(bytearray(8192))
stream = context.stream()
event = stream.record()
heap = context.heap(gmm.Kind.VMM)
block = heap.alloc(100)
context.set_oom_handler(lambda info: context is None)
other = gmm.alloc(100)
""")


def test_exit_while_the_backend_calls_back():
    run_code("""
import gmm, time
context = gmm.Context("host")
stream = context.stream()
for _ in range(1000):
    stream.call(lambda: time.sleep(0.001))
""")


def test_exit_with_a_daemon_thread_inside():
    run_code("""
import gmm, threading, time
context = gmm.Context("host")
def work():
    while True:
        context.alloc(4096).close()
threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
""")


def test_exit_order():
    """Objects that die in the interpreter's own end, after the modules."""
    run_code("""
import builtins, gmm
builtins.kept = gmm.Context("host")
builtins.buffer = builtins.kept.alloc(100)
class Late:
    def __del__(self):
        self.buffer.close()
late = Late()
late.buffer = gmm.alloc(10)
""")


def test_fork():
    output = run_code("""
import os, sys, warnings
warnings.simplefilter("ignore")  # Python 3.12 warns of threads at a fork
os.environ["GMM_LOG"] = "error"  # the child takes the host backend, and warns where there is a GPU
import gmm
context = gmm.context()
buffer = context.alloc(100)
backend = context.info.backend_name
child = os.fork()
if child == 0:
    try:
        buffer.fill(1)
    except gmm.ForkedError as error:
        code = 0 if error.code == -28 else 1
    else:
        code = 2
    buffer.close() if code else None
    try:
        if gmm.context() is context or not gmm.alloc(10).address:
            code = 3
    except gmm.NoBackendError:
        # A driver that ran before the fork is of no use to the child, and says so.
        code = code if backend == "cuda" else 4
    sys.stdout.flush()
    os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
buffer.fill(2)
print(bytes(buffer)[0])
""")
    assert output == "0\n2\n"


def test_errors_are_python_errors_too():
    assert issubclass(gmm.OutOfMemoryError, MemoryError) and issubclass(gmm.InvalidSizeError, ValueError)
    assert issubclass(gmm.IPCTimeoutError, TimeoutError) and issubclass(gmm.NotSupportedError, NotImplementedError)
    classes = [value for value in vars(gmm).values() if isinstance(value, type) and issubclass(value, gmm.Error)]
    codes = {value.code: value for value in classes if value not in (gmm.Error, gmm.ClosedError)}
    from gmm import _native

    constants = [name for name in dir(_native) if name.startswith("GMM_ERROR_")]
    assert len(codes) == len(constants) > 30
    assert issubclass(gmm.NotReadyError, TimeoutError)
    assert all(_native.gmm_result_name(code) == made.name for code, made in codes.items())


def test_no_backend_is_an_error():
    with pytest.raises(gmm.NoBackendError):
        gmm.Context("sycl")
    with pytest.raises(ValueError, match="metal"):
        gmm.Context("metal")
    done = subprocess.run([sys.executable, "-c", "import gmm; gmm.Context()"],
                          env={**os.environ, "GMM_BACKEND": "nonsense"}, capture_output=True, text=True)
    assert done.returncode == 1 and "gmm.InvalidValueError" in done.stderr


@pytest.mark.skipif(FREE_THREADED, reason="this Python has no GIL to keep")
def test_a_cached_allocation_keeps_the_interpreter(host):
    """A block of the thread's cache comes with the GIL held; any other allocation releases it."""
    code = """
import sys, threading, time
import gmm
context = gmm.Context("host")
context.alloc(1000).free()
turns, stop = [0], []
def other():  # wants the interpreter all the time, and gives it back at once
    while not stop:
        turns[0] += 1
        time.sleep(0)
sys.setswitchinterval(1000)  # from here on a thread gives it away only by itself; one that waits keeps its interval
thread = threading.Thread(target=other, daemon=True)
thread.start()
before = turns[0]
for _ in range(100000):
    context.alloc(1000).free()
assert turns[0] == before, turns[0] - before
stop.append(1)
thread.join()
"""
    assert run_code(code) == ""
    # A callback of an allocation runs, as the interpreter was left for it.
    host.set_limit(1 << 20, device=1)
    asked = []
    host.set_oom_handler(lambda info: asked.append(threading.current_thread()) or False)
    with pytest.raises(gmm.OutOfMemoryError):
        host.alloc(1 << 40)
    assert asked == [threading.current_thread()]


SUBINTERPRETER = """
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
REFUSED = '''
try:
    import gmm
except ImportError as error:
    assert "subinterpreter" in str(error), error
else:
    raise AssertionError("gmm was imported")
'''
def refused():
    interpreter = interpreters.create()
    failure = interpreters.run_string(interpreter, REFUSED)
    assert failure is None, failure
    interpreters.destroy(interpreter)
"""


def test_a_subinterpreter_is_refused_and_breaks_nothing():
    run_code(SUBINTERPRETER + """
import gmm
with gmm.Context("host") as context:
    buffer = context.alloc(100)
    refused()
    buffer.fill(1)
    assert bytes(buffer) == bytes([1]) * 100
    try:
        context.alloc(1 << 60)
    except gmm.Error as error:
        assert type(error).__module__.startswith("gmm"), type(error)
    assert gmm.asarray(buffer).nbytes == 100
    refused()
    buffer.free()
""")


def test_a_subinterpreter_that_comes_first_is_refused():
    run_code(SUBINTERPRETER + """
refused()
import gmm
with gmm.Context("host") as context, context.alloc(100) as buffer:
    buffer.fill(1)
    assert bytes(buffer) == bytes([1]) * 100
""")


def test_an_import_holds_its_context_until_it_has_the_memory(tmp_path):
    """Without a GIL another thread may close the context as soon as the import's call has returned."""
    contexts = [gmm.Context("host", host_memory=64 * MIB) for _ in range(2)]
    for context in contexts:
        context.ipc_configure(directory=str(tmp_path))
    exporter, importer = contexts
    with exporter, importer, exporter.alloc(MIB, Kind.VMM) as block:
        handle = block.ipc_export()

        def import_and_close(*arguments):
            made = native.gmm_ipc_import(*arguments)
            with pytest.raises(RuntimeError, match="cannot close"):
                importer.close()
            return made

        buffer = Buffer()
        buffer._open(native.MEMORY_IMPORTED, None, None, importer, handle, import_and_close, importer, handle,
                     import_desc(0, None))
        assert buffer.nbytes == MIB
        buffer.free()


def test_a_stream_that_frees_the_memory_itself(context):
    """Foreign streams are asked by Python code, which may do anything, and so may other threads meanwhile."""
    class Stream:
        def __init__(self, act):
            self.act = act

        def __cuda_stream__(self):
            self.act()
            return 0, 0

    buffer = context.alloc(4096)
    reused = []
    buffer.free(Stream(lambda: (buffer.free(), reused.append(context.alloc(4096)))))
    # Not freed under the other's hands.
    assert buffer.closed and not reused[0].closed and context.stats().live_blocks == 1
    reused[0].free()
    views = []
    buffer = context.alloc(4096, Kind.HOST)
    with pytest.raises(BufferError, match="views"):
        buffer.free(Stream(lambda: views.append(memoryview(buffer))))
    assert not buffer.closed
    views.clear()
    buffer.free()


def test_a_cycle_with_a_view_gives_its_memory_back(context):
    """The collector finalizes the buffer while the view in the same cycle still looks at it."""
    for _ in range(3):
        cycle = [context.alloc(4096, Kind.HOST)]
        cycle += [memoryview(cycle[0]), cycle]
        del cycle
        gc.collect()
        assert context.stats().live_blocks == 0
    pinned = bytearray(8192)
    cycle = [context.pin(pinned)]
    cycle += [memoryview(cycle[0]), cycle]
    del cycle
    gc.collect()
    context.pin(pinned).close()  # which it is not any more
