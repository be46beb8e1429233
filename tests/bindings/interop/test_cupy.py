# SPDX-License-Identifier: Apache-2.0
"""gmm.cupy with the real CuPy, over the fake driver and on a GPU.

CuPy's own CUDA runtime does not start over the fake driver, so its two questions (the current device, the current
stream) are answered by a stand-in; arrays, pointers, and the allocators that CuPy has set, are CuPy's.
"""
import concurrent.futures
import gc
import os
import weakref

import conftest
import pytest
from allocators import SIZE, Contract, Memory
from conftest import MIB

import gmm

os.environ["FAKE_CUDA_DEVICES"] = "2"
cupy = pytest.importorskip("cupy")
import gmm.cupy  # noqa: E402 # after the check
from cupy.cuda import memory, pinned_memory  # noqa: E402


class StandIn:
    """The current device and stream of CuPy, as the program sets them."""

    def __init__(self, context):
        self.context, self.device, self.destroyed = context, 0, []
        self.null = self.stream = StandInStream(0)

    def new_stream(self):
        return StandInStream(self.context.stream(), self.destroyed)


class StandInStream(cupy.cuda.Stream):
    """A stream of the fake driver as CuPy's class, which ends it with the last reference."""

    done = True

    def __init__(self, stream, destroyed=None):  # pylint: disable=super-init-not-called # it asks the runtime
        self.owned, self.destroyed, self.device_id = stream, destroyed, 0
        self.ptr = stream if isinstance(stream, int) else stream.handle

    def __del__(self):
        if self.destroyed is not None:
            self.destroyed.append(self.ptr)


@pytest.fixture
def context():
    if not conftest.FAKE:
        pytest.skip("the fake driver of the tests is not here")
    made = gmm.Context("cuda")
    yield made
    gc.collect()
    made.close()


@pytest.fixture
def stand_in(context, monkeypatch):
    made = StandIn(context)
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda device=-1: made.stream)
    monkeypatch.setattr(cupy.cuda.device, "get_device_id", lambda: made.device)
    return made


@pytest.fixture(autouse=True)
def as_before():
    """Each test leaves CuPy with the allocators that it found."""
    before = cupy.cuda.get_allocator()
    yield
    assert cupy.cuda.get_allocator() is before
    assert not gmm.cupy._pinned


def buffer_of(array):
    owner = array.data.mem._owner
    return owner[0] if isinstance(owner, tuple) else getattr(owner, "buffer", owner)


class Library:
    kinds = (gmm.Kind.DEVICE, gmm.Kind.VMM, gmm.Kind.MANAGED)
    want, frees_on_any_stream, is_cxx = memory.OutOfMemoryError, False, False

    def __init__(self, context, stand_in):
        self.context, self.stand_in = context, stand_in

    def allocator(self, kind=gmm.Kind.DEVICE, tag=None):
        allocate = gmm.cupy.allocator(kind, tag=tag, context=self.context)

        def take(size, stream=None):
            self.stand_in.stream = self.stand_in.null if stream is None else StandInStream(stream.handle)
            pointers = [allocate(size)]
            return Memory(pointers[0].ptr, lambda stream=None: pointers.clear())

        return take


@pytest.fixture
def library(context, stand_in):
    return Library(context, stand_in)


class TestContract(Contract):
    pass


def test_memory_lives_as_long_as_the_last_array_over_it(context, stand_in):
    with gmm.cupy.use(context=context):
        array = cupy.ndarray((10, 10), "f8")
    buffer, address = weakref.ref(buffer_of(array)), array.data.ptr
    view = array[5:]
    reshaped = view.T
    assert view.data.ptr == address + 400
    del array, view
    assert buffer() is not None and context.stats().live_blocks == 1
    del reshaped
    assert buffer() is None and context.stats().live_blocks == 0


def test_the_end_of_use_restores_what_was_set(context, stand_in):
    before = cupy.cuda.get_allocator()
    outer = gmm.cupy.use(context=context)
    assert cupy.cuda.get_allocator() is outer.allocator
    with gmm.cupy.use(gmm.Kind.MANAGED, context=context) as inner:
        assert cupy.cuda.get_allocator() is inner.allocator
        assert isinstance(cupy.cuda.alloc_pinned_memory(1).mem.buffer, gmm.Buffer)
    assert cupy.cuda.get_allocator() is outer.allocator
    assert isinstance(cupy.cuda.alloc_pinned_memory(1).mem.buffer, gmm.Buffer)
    outer.undo()
    outer.undo()
    assert cupy.cuda.get_allocator() == before
    assert isinstance(cupy.cuda.alloc_pinned_memory(0).mem, pinned_memory.PinnedMemory)
    use = gmm.cupy.use(context=context)
    cupy.cuda.set_allocator(theirs := lambda size: None)  # one that was set since stays
    use.undo()
    assert cupy.cuda.get_allocator() is theirs
    cupy.cuda.set_allocator(before)
    with pytest.raises(RuntimeError, match="end of it"), gmm.cupy.use(context=context):
        raise RuntimeError("end of it")


def test_a_stream_stays_until_gmm_has_forgotten_it(context, stand_in, monkeypatch):
    """Also after the end of the use."""
    forgotten, forget = [], context.forget_stream
    monkeypatch.setattr(context, "forget_stream",
                        lambda stream: forgotten.append((stream, stream in stand_in.destroyed)) or forget(stream))
    with gmm.cupy.use(context=context):
        stand_in.stream = stand_in.new_stream()
        handle = stand_in.stream.ptr
        array = cupy.ndarray((SIZE,))
        assert buffer_of(array).stream == handle
        stand_in.stream = stand_in.new_stream()
        cupy.ndarray((SIZE,))  # looks for streams that are not in use
        stand_in.stream = stand_in.null
        assert handle not in stand_in.destroyed  # the array is on it
    gc.collect()
    del array  # freed on that stream
    gc.collect()
    assert handle not in stand_in.destroyed
    other = context.stream()
    blocks = [context.alloc(SIZE * 8, stream=other) for _ in range(100)]  # may be put behind it
    with gmm.cupy.use(context=context):
        last = stand_in.stream = stand_in.new_stream()
        cupy.ndarray((SIZE,))
        stand_in.stream = stand_in.null
    assert handle in stand_in.destroyed and (handle, False) in forgotten  # in that order
    assert last.ptr not in stand_in.destroyed
    del blocks
    other.close()


def test_memory_of_the_threads_own_stream_may_end_in_another_thread(context, stand_in):
    with gmm.cupy.use(context=context):
        stand_in.stream = StandInStream(gmm.STREAM_PER_THREAD)
        arrays = [cupy.ndarray((SIZE,))]
        address = arrays[0].data.ptr

        def elsewhere():
            arrays.clear()
            return cupy.ndarray((SIZE,)).data.ptr

        with concurrent.futures.ThreadPoolExecutor(1) as other:
            assert other.submit(elsewhere).result() != address  # another thread's own stream
        array = cupy.ndarray((SIZE,))
        address = array.data.ptr
        del array
        assert cupy.ndarray((SIZE,)).data.ptr == address  # the same thread: the same stream
    stand_in.stream = stand_in.null
    assert context.stats().live_blocks == 0


def test_page_locked_memory(context, stand_in):
    numpy = pytest.importorskip("numpy")
    with gmm.cupy.use(context=context):
        pointer = cupy.cuda.alloc_pinned_memory(SIZE)
        array = numpy.frombuffer(pointer, "u1", SIZE)
    info = context.query(pointer.ptr)
    assert (info.kind, info.size) == (gmm.Kind.HOST, SIZE) and array.ctypes.data == pointer.ptr == info.base
    array[:] = 7
    kept = weakref.ref(pointer.mem.buffer)
    del pointer
    gc.collect()
    assert kept() is not None and array.sum() == 7 * SIZE
    del array
    gc.collect()
    assert kept() is None and context.stats(kind=gmm.Kind.HOST).live_blocks == 0
    with pytest.raises(memory.OutOfMemoryError, match="1,099,511,627,776 bytes") as failure:
        gmm.cupy.pinned_allocator(context=context)(1 << 40)
    assert isinstance(failure.value.__cause__, gmm.Error)


def test_impossible_requests_are_refused(context, stand_in):
    with pytest.raises(ValueError, match="VMM or MANAGED"):
        gmm.cupy.use(gmm.Kind.HOST, context=context)
    with gmm.Context("host") as host, pytest.raises(RuntimeError, match="host backend"):
        gmm.cupy.use(context=host)
    for use in list(gmm.cupy._pinned):
        use.undo()


@pytest.mark.fake
def test_each_device_has_its_own_memory(context, stand_in):
    with gmm.cupy.use(context=context):
        arrays = []
        for stand_in.device in (0, 1, 0):
            arrays.append(cupy.ndarray((SIZE,)))
    assert [context.query(array.data.ptr).device for array in arrays] == [0, 1, 0]
    assert [array.data.device_id for array in arrays] == [0, 1, 0]
    del arrays


# On a GPU.


@pytest.fixture
def live():
    """The live blocks that a test adds to those before it."""
    gc.collect()
    before = gmm.context().stats().live_blocks
    return lambda: gmm.context().stats().live_blocks - before


@pytest.mark.gpu
@pytest.mark.parametrize("kind", Library.kinds)
def test_kernels_over_each_kind(kind, live):
    with gmm.cupy.use(kind):
        array = cupy.arange(MIB, dtype="f8")
        total = float((array * 2 + 1).sum())
        if kind != gmm.Kind.MANAGED:  # which may exceed the device
            with pytest.raises(memory.OutOfMemoryError) as raised:
                cupy.empty(1 << 41, dtype="u1")
            assert isinstance(raised.value.__cause__, gmm.Error)
            del raised
    info = gmm.context().query(array.data.ptr)
    assert total == MIB * (MIB - 1) + MIB and (info.kind, info.base, info.size) == (kind, array.data.ptr, 8 * MIB)
    del array
    assert live() == 0


@pytest.mark.gpu
def test_libraries_take_their_workspaces_from_the_allocator():
    numpy = pytest.importorskip("numpy")
    with gmm.cupy.use():
        rng = numpy.random.default_rng(1)
        left, right, signal = rng.random((300, 200), dtype="f4"), rng.random((200, 100), dtype="f4"), rng.random(4096)
        assert numpy.allclose(cupy.asnumpy(cupy.asarray(left) @ cupy.asarray(right)), left @ right, rtol=1e-3)
        assert numpy.allclose(cupy.asnumpy(cupy.fft.fft(cupy.asarray(signal))), numpy.fft.fft(signal))
        assert (cupy.asnumpy(cupy.sort(cupy.asarray(signal))) == numpy.sort(signal)).all()
        assert 0.4 < float(cupy.random.default_rng(1).random(MIB).mean()) < 0.6


@pytest.mark.gpu
def test_arrays_of_both_allocators_and_a_graph():
    with gmm.cupy.use():
        ours = cupy.arange(1000)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            source = cupy.zeros(MIB, dtype="i4")
            result = cupy.empty_like(source)
            result[...] = (source + 3) * 2  # compiles the kernels
            stream.begin_capture()
            result[...] = (source + 3) * 2
            graph = stream.end_capture()
            for value in range(3):
                source.fill(value)
                graph.launch()
                assert int(result.sum()) == (value + 3) * 2 * MIB
            stream.synchronize()
        del graph
    theirs = cupy.arange(1000)
    assert isinstance(theirs.data.mem, memory.PooledMemory) and int((ours + theirs).sum()) == 999000
