# SPDX-License-Identifier: Apache-2.0
"""gmm.numba under Numba, on the fake CUDA driver or a real one."""
import gc
import threading
import types

import numpy as np
import pytest
from numba_setup import count, cuda, needs_fake, run

from numba.cuda.cudadrv import driver as numba_driver
from numba.cuda.cudadrv.driver import CudaAPIError, device_memory_size, driver

import gmm
import gmm.numba

# What an allocator would rather not do: each of these waits, or costs a page table.
EXPENSIVE = ("cuMemAlloc", "cuMemFree", "cuMemAllocManaged", "cuMemFreeHost", "cuMemHostRegister", "cuMemCreate",
             "cuMemUnmap", "cuMemRelease",
             "cuCtxSynchronize", "cuEventSynchronize", "cuCtxRecordEvent", "cuEventRecord", "cuEventQuery")


@pytest.fixture(autouse=True)
def clean():
    cuda.current_context().reset()
    yield
    gc.collect()
    cuda.current_context().reset()


@pytest.fixture
def context():
    return cuda.current_context()


@pytest.fixture
def frees(context):
    return context.memory_manager._pool.frees


def address_of(array):
    return array.device_ctypes_pointer.value


def info_of(array):
    return gmm.context().query(address_of(array))


class Busy:
    """A stream that no other waits for and that is busy until let go: a kernel that runs long."""

    def __init__(self):
        self.stream = gmm.context().stream()
        self.go = threading.Event()
        self.stream.call(lambda: self.go.wait(60) or None)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.go.set()
        self.stream.synchronize()
        self.stream.close()


# Memory.


def test_device_arrays_come_from_the_pool():
    before = gmm.context().stats(kind=gmm.Kind.DEVICE)
    first, second = (cuda.to_device(np.arange(1000)) for _ in range(2))
    one, two = info_of(first), info_of(second)
    assert one.kind == two.kind == gmm.Kind.DEVICE and one.state == gmm.State.ACTIVE and one.size == 8000
    assert one.allocation_base == two.allocation_base and one.base != two.base
    assert gmm.context().stats(kind=gmm.Kind.DEVICE).live_blocks - before.live_blocks == 2
    np.testing.assert_equal(second.copy_to_host(), np.arange(1000))
    np.testing.assert_equal(first[10:20].copy_to_host(), np.arange(10, 20))


def test_memory_belongs_to_the_current_tag():
    with gmm.context().tag("numba test") as tag:
        array = cuda.device_array(10)
    assert info_of(array).tag == tag.number


@needs_fake
def test_the_pool_asks_the_driver_for_nothing_in_steady_state(frees):
    for _ in range(200):
        cuda.device_array(1000)
    before = count("cuMemAlloc", "cuMemFree", "cuCtxSynchronize", "cuEventSynchronize", "cuEventCreate")
    for _ in range(2000):
        cuda.device_array(1000)
    assert count("cuMemAlloc", "cuMemFree", "cuCtxSynchronize", "cuEventSynchronize", "cuEventCreate") == before
    assert len(frees) <= 40  # a few batches


def test_host_memory():
    mapped, pinned = cuda.mapped_array(100, dtype=np.int32), cuda.pinned_array(100, dtype=np.int32)
    managed = cuda.managed_array(100, dtype=np.int32)
    kinds = {}
    for name, array in (("mapped", mapped), ("pinned", pinned), ("managed", managed)):
        array[:] = np.arange(100)
        assert array.sum() == 4950
        info = gmm.context().query(array.ctypes.data)
        assert info.state == gmm.State.ACTIVE
        kinds[name] = info.kind
    assert kinds == {"mapped": gmm.Kind.HOST, "pinned": gmm.Kind.HOST, "managed": gmm.Kind.MANAGED}
    assert mapped.device_ctypes_pointer.value == gmm.context().query(mapped.ctypes.data).device_pointer


def test_write_combined_memory_is_the_drivers(context):
    memory = context.memhostalloc(64, mapped=True, wc=True)
    array = np.ndarray(64, dtype=np.uint8, buffer=memory)
    array[:] = 7
    assert gmm.context().query(array.ctypes.data).state == gmm.State.UNKNOWN
    flags = driver.cuMemHostGetFlags(array.ctypes.data)
    assert flags & numba_driver.binding.CU_MEMHOSTALLOC_WRITECOMBINED
    del array, memory


def test_pins_nest_and_end_at_once():
    array = np.zeros(100_000)
    with cuda.defer_cleanup():
        with cuda.pinned(array):
            assert gmm.context().query(array.ctypes.data).state == gmm.State.PINNED
            with cuda.pinned(array):
                pass
            with cuda.mapped(array[100:200]) as part:
                assert address_of(part) >= array.ctypes.data
            assert gmm.context().query(array.ctypes.data).state == gmm.State.PINNED
        assert gmm.context().query(array.ctypes.data).state == gmm.State.UNKNOWN


def test_what_cannot_be_pinned_says_so_as_numba_does(context):
    array = np.zeros(100_000)
    with cuda.pinned(array[:50_000]):
        with pytest.raises(CudaAPIError) as raised:
            context.mempin(array, array.ctypes.data, array.nbytes)
        assert raised.value.code == numba_driver.binding.CUresult.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
        assert isinstance(raised.value.__cause__, gmm.OverlapError)


def test_the_size_of_an_arrays_memory_is_its_own():
    arrays = [cuda.to_device(np.full(10, 7, dtype=np.uint32)) for _ in range(3)]
    assert device_memory_size is not numba_driver.device_memory_size
    assert numba_driver.device_memory_size(arrays[1]) == 40
    numba_driver.device_memset(arrays[1], 0, numba_driver.device_memory_size(arrays[1]))
    assert [int(array.copy_to_host().sum()) for array in arrays] == [70, 0, 70]


def test_memory_info(context, monkeypatch):
    total = driver.cuMemGetInfo()[1]
    assert 0 < context.get_memory_info().free <= context.get_memory_info().total == total
    context.memalloc(100 << 20)
    context.memory_manager._pool.frees.collect(wait=True)
    cached = sum(gmm.context().stats(kind=kind).cached_bytes for kind in (gmm.Kind.DEVICE, gmm.Kind.VMM))
    assert cached >= 100 << 20
    # Others use the GPU too.
    monkeypatch.setattr(gmm.numba, "driver", types.SimpleNamespace(cuMemGetInfo=lambda: (1 << 30, total)))
    assert context.get_memory_info().free == (1 << 30) + cached


# When memory may be used again.


def test_memory_is_not_given_out_while_a_stream_may_use_it(frees):
    cuda.device_array(1_000_000)
    with Busy():
        used = set()
        for _ in range(100):
            array = cuda.device_array(1_000_000, dtype=np.uint8)
            assert address_of(array) not in used
            used.add(address_of(array))
        del array
        assert len(frees) >= 99
    frees.collect(wait=True)
    assert len(frees) == 0
    assert address_of(cuda.device_array(1_000_000, dtype=np.uint8)) in used


def test_large_memory_comes_back_as_soon_as_it_is_done(frees):
    array = cuda.device_array(64 << 20, dtype=np.uint8)
    address = address_of(array)
    del array
    cuda.synchronize()
    again = cuda.device_array(64 << 20, dtype=np.uint8)
    assert address_of(again) == address


def test_memory_of_another_stream_is_waited_for(context):
    """Numba's users know no stream order, so an allocation waits for the stream that another library freed it on."""
    size = 512 << 20
    gmm.context().trim()
    with gmm.context().stream() as stream:
        theirs = gmm.context().alloc(size, stream=stream)
        address = theirs.address
        done = threading.Event()
        stream.call(lambda: done.wait(0.2) or None)
        stream.call(done.set)
        theirs.free(stream)
        gmm.context().set_limit(gmm.context().stats(device=0).reserved_bytes, device=0)
        try:
            mine = context.memalloc(size)
        finally:
            gmm.context().set_limit(None, device=0)
        assert int(mine.device_pointer) == address and done.is_set()
        del mine


def test_an_allocation_waits_rather_than_fails(context, frees):
    first = context.memalloc(256 << 20)
    gmm.context().set_limit(gmm.context().stats(device=0).reserved_bytes, device=0)
    try:
        with Busy() as busy:
            del first
            timer = threading.Timer(0.2, busy.go.set)
            timer.start()
            second = context.memalloc(256 << 20)
            assert busy.go.is_set()
            with pytest.raises(CudaAPIError) as raised:
                context.memalloc(256 << 20)
            assert raised.value.code == numba_driver.binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY
            assert isinstance(raised.value.__cause__, MemoryError) and "limit" in str(raised.value)
            timer.join()
        del second
    finally:
        gmm.context().set_limit(None, device=0)


def test_what_is_on_its_way_back_has_a_bound(context):
    """A host that runs ahead of the GPU waits before it has taken all memory, as with NUMBA_CUDA_DEALLOCS_RATIO."""
    pool = context.memory_manager._pool
    context.memalloc(1)
    limit, pool._limit = pool._limit, 100 << 20
    try:
        with Busy() as busy:
            threading.Timer(0.2, busy.go.set).start()
            for _ in range(8):
                context.memalloc(40 << 20)
            assert busy.go.is_set()
    finally:
        pool._limit = limit


def test_a_finalizer_on_a_thread_without_cuda(frees):
    arrays = [cuda.device_array(8 << 20, dtype=np.uint8) for _ in range(20)]
    failed = []

    def drop():
        try:
            arrays.clear()
            assert int(driver.cuCtxGetCurrent()) == 0
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    assert not failed
    frees.collect(wait=True)
    assert len(frees) == 0


def test_many_threads(context):
    failed = []

    def work(seed):
        try:
            random = np.random.default_rng(seed)
            kept = []
            for _ in range(150):
                value = int(random.integers(1, 255))
                host = np.full(int(random.integers(1, 20_000)), value, dtype=np.uint8)
                kept.append((cuda.to_device(host), value))
                if len(kept) > 10:
                    array, expected = kept.pop(int(random.integers(len(kept))))
                    if not (array.copy_to_host() == expected).all():
                        raise AssertionError("an array was overwritten")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


def test_a_forked_child_leaves_the_parents_memory_alone():
    code = """if True:
        import os, numpy as np
        from numba import cuda
        arrays = [cuda.to_device(np.arange(5_000_000)) for _ in range(3)]
        child = os.fork()
        if child == 0:
            arrays.clear()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(arrays[2].copy_to_host()[-1])
    """
    assert run(code) == "4999999"


@needs_fake
def test_older_drivers_wait_for_the_context():
    code = """if True:
        import ctypes, numpy as np
        from numba import cuda
        library = ctypes.CDLL("libcuda.so.1")
        cuda.current_context()
        for _ in range(30):
            cuda.device_array(1000)
        print(library.fake_cuda_count(b"cuCtxRecordEvent"), library.fake_cuda_count(b"cuCtxSynchronize"))
    """
    recorded, waited = map(int, run(code, FAKE_CUDA_VERSION="12040").split())
    assert recorded == 0 and 1 <= waited <= 3


# defer_cleanup.


@needs_fake
def test_nothing_expensive_happens_inside_defer_cleanup(frees):
    arrays = [cuda.device_array(10 << 20, dtype=np.uint8) for _ in range(30)]
    live = gmm.context().stats().live_blocks
    with cuda.defer_cleanup():
        before = count(*EXPENSIVE)
        with cuda.defer_cleanup():
            arrays.clear()
        assert gmm.context().trim() == 0
        assert count(*EXPENSIVE) == before
        assert len(frees) == 30
        assert gmm.context().stats().live_blocks == live
    frees.collect(wait=True)
    assert gmm.context().stats().live_blocks == live - 30


def test_defer_cleanup_ends_with_an_exception(context, frees):
    array = cuda.device_array(64 << 20, dtype=np.uint8)
    with pytest.raises(ZeroDivisionError):
        with cuda.defer_cleanup():
            with cuda.defer_cleanup():
                del array
                1 / 0
    assert not frees.deferred
    cuda.synchronize()
    frees.collect()
    assert len(frees) == 0
    assert gmm.context().trim() >= 64 << 20  # gmm's own deferral has ended too


def test_reset_inside_defer_cleanup_is_put_off(context):
    array = cuda.device_array(64 << 20, dtype=np.uint8)
    with cuda.defer_cleanup():
        context.reset()
        assert gmm.context().stats(kind=gmm.Kind.DEVICE).reserved_bytes >= 64 << 20
    assert gmm.context().stats(kind=gmm.Kind.DEVICE).reserved_bytes == 0
    del array


@needs_fake
def test_a_capture_inside_defer_cleanup_stays_good(context):
    """As with Numba's own manager, whose cuMemFree() would end the capture."""
    binding = numba_driver.binding
    arrays = [cuda.device_array(1000) for _ in range(40)]
    with gmm.context().stream() as stream, cuda.defer_cleanup():
        driver.cuStreamBeginCapture(stream.handle, binding.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
        arrays.clear()
        cuda.device_array(1000)
        graph = driver.cuStreamEndCapture(stream.handle)
    driver.cuGraphDestroy(graph)


@needs_fake
def test_blocks_that_a_capture_keeps_back_are_not_lost(frees):
    binding = numba_driver.binding
    arrays = [cuda.device_array(1000) for _ in range(40)]
    with gmm.context().stream() as stream:
        driver.cuStreamBeginCapture(stream.handle, binding.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        arrays.clear()
        assert len(frees) == 40
        with pytest.raises(CudaAPIError):  # the driver ends a capture when a context is asked for its work
            driver.cuStreamEndCapture(stream.handle)
    frees.collect(wait=True)
    assert len(frees) == 0


# reset.


def test_reset_ends_arrays_that_live(context):
    array, other, mapped = cuda.to_device(np.arange(10)), cuda.to_device(np.arange(10)), cuda.mapped_array(10)
    view = other[3:]  # as with Numba's own manager, a slice keeps its memory
    context.reset()
    assert gmm.context().stats().live_blocks == 1
    np.testing.assert_equal(view.copy_to_host(), np.arange(3, 10))
    del array, other, view, mapped
    context.reset()
    assert gmm.context().stats().live_blocks == 0 and gmm.context().stats(kind=gmm.Kind.DEVICE).reserved_bytes == 0
    np.testing.assert_equal(cuda.to_device(np.arange(10)).copy_to_host(), np.arange(10))


def test_reset_before_initialize():
    manager = gmm.numba.MemoryManager(context=None)
    manager.reset()
    assert manager.interface_version == 1 and not manager._pool.is_open


@needs_fake
def test_close_and_start_again():
    """cuda.close() resets the device and takes gmm's memory along."""
    code = """if True:
        import numpy as np, gmm
        from numba import cuda
        for i in range(3):
            kept = cuda.to_device(np.arange(1000))
            pinned = cuda.pinned_array(10)
            context = gmm.context()
            assert kept.copy_to_host()[-1] == 999
            cuda.close()
            del kept, pinned
        assert cuda.to_device(np.arange(5)).copy_to_host()[-1] == 4
        assert gmm.context() is not context
        print("ok")
    """
    assert run(code) == "ok"
