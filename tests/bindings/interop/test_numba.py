# SPDX-License-Identifier: Apache-2.0
"""gmm.numba under Numba, on the fake CUDA driver and on a GPU: test_numba_suite.py has kernels."""
import concurrent.futures
import gc
import multiprocessing
import os
import threading
import types

import numpy as np
import pytest
from conftest import FAKE, count, run

os.environ["NUMBA_CUDA_MEMORY_MANAGER"] = "gmm"  # for this process and its children
os.environ.pop("GMM_NUMBA_POOL", None)

cuda = pytest.importorskip("numba.cuda", exc_type=ImportError)
if not cuda.is_available():
    pytest.skip("neither a GPU nor the fake driver", allow_module_level=True)

import numba_child  # noqa: E402
from numba.cuda.cudadrv import driver as numba_driver  # noqa: E402
from numba.cuda.cudadrv.driver import CudaAPIError, device_memory_size, driver  # noqa: E402

import gmm  # noqa: E402
import gmm.numba  # noqa: E402

cuda.set_memory_manager(gmm.numba.MemoryManager)  # also when somebody imported Numba before

SECONDS = 120  # of one wait, on a machine however busy

# Each of these waits, or costs a page table.
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
    return context.memory_manager._frees


def address_of(array):
    return array.device_ctypes_pointer.value


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


@pytest.mark.fake
def test_the_pool_asks_the_driver_for_nothing_in_steady_state(frees):
    for _ in range(200):
        cuda.device_array(1000)
    names = "cuMemAlloc", "cuMemFree", "cuCtxSynchronize", "cuEventSynchronize", "cuEventCreate"
    before = count(*names)
    for _ in range(2000):
        cuda.device_array(1000)
    assert count(*names) == before
    assert len(frees) <= 40  # a few batches


def test_host_memory():
    arrays = {"mapped": cuda.mapped_array(100, dtype=np.int32), "pinned": cuda.pinned_array(100, dtype=np.int32),
              "managed": cuda.managed_array(100, dtype=np.int32)}
    found = {name: gmm.context().query(array.ctypes.data) for name, array in arrays.items()}
    assert {name: info.kind for name, info in found.items()} == {
        "mapped": gmm.Kind.HOST, "pinned": gmm.Kind.HOST, "managed": gmm.Kind.MANAGED}
    assert address_of(arrays["mapped"]) == found["mapped"].device_pointer
    array = np.zeros(100_000)
    with cuda.defer_cleanup():
        with cuda.pinned(array):
            assert gmm.context().query(array.ctypes.data).state == gmm.State.PINNED
        assert gmm.context().query(array.ctypes.data).state == gmm.State.UNKNOWN  # a pin ends at once


def test_an_impossible_pin_raises_numbas_error(context):
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
    context.memory_manager._frees.collect(wait=True)
    cached = sum(gmm.context().stats(kind=kind).cached_bytes for kind in (gmm.Kind.DEVICE, gmm.Kind.VMM))
    assert cached >= 100 << 20
    # Others use the GPU too.
    monkeypatch.setattr(gmm.numba, "driver", types.SimpleNamespace(cuMemGetInfo=lambda: (1 << 30, total)))
    assert context.get_memory_info().free == (1 << 30) + cached


# Reuse of memory.


def test_memory_is_not_given_out_while_a_stream_may_use_it(frees):
    cuda.device_array(1_000_000)
    with Busy():
        used = set()
        for _ in range(100):
            array = cuda.device_array(1_000_000, dtype=np.uint8)
            assert address_of(array) not in used
            used.add(address_of(array))
        del array
        assert len(frees) >= 99 and frees._records  # nothing waited
    frees.collect(wait=True)
    assert len(frees) == 0
    assert address_of(cuda.device_array(1_000_000, dtype=np.uint8)) in used


@pytest.fixture
def no_more_memory():
    """no_more_memory(): the device's quota is what is reserved now, until the end of the test."""
    yield lambda: gmm.context().set_limit(gmm.context().stats(device=0).reserved_bytes, device=0)
    gmm.context().set_limit(None, device=0)


def test_memory_of_another_stream_is_waited_for(context, no_more_memory):
    """Numba's users know no stream order, so an allocation waits for the stream that another library freed it on."""
    size, done = 512 << 20, threading.Event()
    gmm.context().trim()
    with gmm.context().stream() as stream:
        theirs = gmm.context().alloc(size, stream=stream)
        address = theirs.address
        stream.call(lambda: done.wait(0.2) or None)
        stream.call(done.set)
        theirs.free(stream)
        no_more_memory()
        mine = context.memalloc(size)
        assert int(mine.device_pointer) == address and done.is_set()
        del mine


def test_an_allocation_waits_rather_than_fails(context, no_more_memory):
    first = context.memalloc(256 << 20)
    no_more_memory()
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


def test_memory_in_flight_has_a_bound(context):
    """A host that runs ahead of the GPU waits before it has taken all memory, as with NUMBA_CUDA_DEALLOCS_RATIO."""
    manager = context.memory_manager
    context.memalloc(1)
    limit, manager._limit = manager._limit, 100 << 20
    try:
        with Busy() as busy:
            threading.Timer(0.2, busy.go.set).start()
            for _ in range(8):
                context.memalloc(40 << 20)
            assert busy.go.is_set()
    finally:
        manager._limit = limit


def test_a_finalizer_on_a_thread_without_cuda(frees):
    arrays = [cuda.device_array(8 << 20, dtype=np.uint8) for _ in range(20)]
    with concurrent.futures.ThreadPoolExecutor() as threads:
        threads.submit(arrays.clear).result()
        assert int(threads.submit(driver.cuCtxGetCurrent).result()) == 0
    frees.collect(wait=True)
    assert len(frees) == 0


@pytest.mark.fake
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


@pytest.mark.fake
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


def test_reset_inside_defer_cleanup_is_put_off(context):
    array = cuda.device_array(64 << 20, dtype=np.uint8)
    with cuda.defer_cleanup():
        context.reset()
        assert gmm.context().stats(kind=gmm.Kind.DEVICE).reserved_bytes >= 64 << 20
    assert gmm.context().stats(kind=gmm.Kind.DEVICE).reserved_bytes == 0
    del array


@pytest.mark.fake
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


# Other processes.


@pytest.fixture(scope="module")
def child():
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        executor.submit(int).result(timeout=SECONDS)
        yield executor


@pytest.mark.parametrize("is_staged", [False, True])
@pytest.mark.parametrize("kind", [gmm.Kind.VMM, gmm.Kind.HOST])
def test_memory_without_the_drivers_handle_is_shared(child, context, kind, is_staged):
    buffer = gmm.context().alloc(800, kind)
    buffer.copy_from(np.arange(100))
    memory = numba_driver.MemoryPointer(context, numba_driver.binding.CUdeviceptr(buffer.address), 800)
    handle = context.get_ipc_handle(memory.view(80))
    assert isinstance(handle, gmm.numba.IpcHandle) and handle.size == 720
    with pytest.raises(ValueError, match="original process"):
        handle.open_direct(context)
    del handle
    handle = context.get_ipc_handle(memory.view(80))
    found = child.submit(numba_child.read, handle, "int64", is_staged).result(timeout=SECONDS)
    np.testing.assert_equal(found, np.arange(10, 100))


# The other ways to use it.


PROGRAMS = {
    "a forked child leaves the memory alone": """
arrays = [cuda.to_device(np.arange(5_000_000)) for _ in range(3)]
child = os.fork()
if child == 0:
    arrays.clear()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert arrays[2].copy_to_host()[-1] == 4999999
""",
    "cuda.close() resets the device, and takes the memory along": """
for i in range(3):
    kept = cuda.to_device(np.arange(1000))
    pinned = cuda.pinned_array(10)
    context = gmm.context()
    assert kept.copy_to_host()[-1] == 999
    cuda.close()
    del kept, pinned
assert cuda.to_device(np.arange(5)).copy_to_host()[-1] == 4
assert gmm.context() is not context
""",
    "host only": """
manager = gmm.numba.use(host_only=True)
assert issubclass(manager, gmm.numba.HostOnlyMemoryManager)
assert issubclass(manager, cuda.HostOnlyCUDAMemoryManager)
context = cuda.current_context()
device, pinned = cuda.to_device(np.arange(10)), cuda.pinned_array(10)
mapped, managed = cuda.mapped_array(10), cuda.managed_array(10)
query = gmm.context().query
assert query(device.device_ctypes_pointer.value).state == gmm.State.ACTIVE
assert {query(array.ctypes.data).state for array in (pinned, mapped, managed)} == {gmm.State.UNKNOWN}
with cuda.defer_cleanup():
    del device, mapped
    assert len(context.memory_manager._frees) == 1 and len(context.memory_manager.deallocations) == 1
context.reset()
assert gmm.context().stats().live_blocks == 0 and not context.memory_manager.deallocations
""",
    "memory that can be paused": """
gmm.numba.use(kind=gmm.Kind.VMM)
cuda.current_context()
with gmm.context().tag("weights", gmm.Contents.HOST) as tag:
    array = cuda.to_device(np.arange(1000))
with tag.paused() as released:
    assert released > 0 and gmm.context().query(array.device_ctypes_pointer.value).state == gmm.State.PAUSED
assert array.copy_to_host()[-1] == 999
""",
    "a context of its own": """
own = gmm.Context("cuda")
gmm.numba.use(own)
array = cuda.to_device(np.arange(10))
assert own.stats().live_blocks == 1 and own is not gmm.context()
assert gmm.numba.use(own) is type(cuda.current_context().memory_manager), "the same once more"
with pytest.raises(RuntimeError, match="CUDA with gmm and other arguments already"):
    gmm.numba.use()
""",
}


@pytest.mark.parametrize("code", PROGRAMS.values(), ids=PROGRAMS)
def test_other_uses(code):
    if "cuda.close()" in code and not FAKE:
        pytest.skip("asks the fake driver")
    manager = "default" if "gmm.numba.use(" in code else "gmm"
    run("import os, numpy as np, pytest, gmm.numba\nfrom numba import cuda\n" + code, NUMBA_CUDA_MEMORY_MANAGER=manager)


@pytest.mark.parametrize("code, environment, wanted", [
    ("from numba import cuda; cuda.current_context(); import gmm.numba; gmm.numba.use()",
     {"NUMBA_CUDA_MEMORY_MANAGER": "default"}, "CUDA with numba.cuda.cudadrv.driver.NumbaCUDAMemoryManager already"),
    ("import gmm.numba", {"NUMBA_ENABLE_CUDASIM": "1"}, "simulator"),
    ("from numba import cuda; cuda.device_array(10)", {"GMM_BACKEND": "host"}, "GMM_BACKEND"),
    ("import sys; sys.modules['numba'] = None; import gmm.numba", {}, "pip install 'numba-cuda")])
def test_an_impossible_use_names_its_reason(code, environment, wanted):
    said = run(f"""if True:
        try:
            exec({code!r})
        except (ImportError, RuntimeError) as error:
            print(error)
    """, **environment)
    assert wanted in said
