# SPDX-License-Identifier: Apache-2.0
"""What gmm.numba shares with other processes, and the other ways to use it."""
import concurrent.futures
import gc
import multiprocessing

import numba_child
import numpy as np
import pytest
from numba_setup import cuda, run

from numba.cuda.cudadrv import driver as numba_driver
from numba.cuda.cudadrv.driver import driver

import gmm
import gmm.numba

SECONDS = 120  # for what must come, on a machine however busy


@pytest.fixture
def context():
    yield cuda.current_context()
    gc.collect()
    cuda.current_context().reset()



@pytest.fixture(scope="module")
def child():
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        executor.submit(numba_child.started).result(timeout=SECONDS)
        yield executor


def test_pooled_arrays_are_shared(child, context):
    arrays = [cuda.to_device(np.arange(start, start + 100)) for start in (0, 1000)]
    handles = [array.get_ipc_handle() for array in arrays]
    assert handles[1]._ipc_handle.offset != handles[0]._ipc_handle.offset
    first, second = child.submit(numba_child.read_both, *handles).result(timeout=SECONDS)
    np.testing.assert_equal(first, np.arange(100))
    np.testing.assert_equal(second, np.arange(1000, 1100))
    piece = arrays[1][17:40]
    np.testing.assert_equal(child.submit(numba_child.read_array, piece.get_ipc_handle()).result(timeout=SECONDS),
                            np.arange(1017, 1040))
    child.submit(numba_child.add_one, arrays[0].get_ipc_handle()).result(timeout=SECONDS)
    np.testing.assert_equal(arrays[0].copy_to_host(), np.arange(1, 101))


def test_foreign_memory_is_shared(child, context):
    pointer = driver.cuMemAlloc(80)
    try:
        memory = numba_driver.MemoryPointer(context, pointer, 80)
        numba_driver.host_to_device(memory, np.arange(10), 80)
        handle = context.get_ipc_handle(memory.view(16))
        np.testing.assert_equal(child.submit(numba_child.read_handle, handle, "int64").result(timeout=SECONDS),
                                np.arange(2, 10))
    finally:
        driver.cuMemFree(pointer)


@pytest.mark.parametrize("read", [numba_child.read_handle, numba_child.read_staged])
@pytest.mark.parametrize("kind", [gmm.Kind.VMM, gmm.Kind.HOST])
def test_memory_without_the_drivers_handle_is_shared(child, context, kind, read):
    buffer = gmm.context().alloc(800, kind)
    buffer.copy_from(np.arange(100))
    memory = numba_driver.MemoryPointer(context, numba_driver.binding.CUdeviceptr(buffer.address), 800)
    handle = context.get_ipc_handle(memory.view(80))
    assert isinstance(handle, gmm.numba.IpcHandle) and handle.size == 720
    with pytest.raises(ValueError, match="original process"):
        handle.open_direct(context)
    del handle
    handle = context.get_ipc_handle(memory.view(80))
    np.testing.assert_equal(child.submit(read, handle, "int64").result(timeout=SECONDS), np.arange(10, 100))


def test_managed_memory_says_that_it_cannot_be_shared(context):
    array = cuda.managed_array(10)
    with pytest.raises(gmm.InvalidKindError, match="(?i)managed"):
        context.get_ipc_handle(array.gpu_data)


# The other ways to use it.


def test_without_pooling_arrays_start_where_the_drivers_allocation_starts():
    code = """if True:
        import numpy as np
        from numba import cuda
        arrays = [cuda.to_device(np.arange(10)) for _ in range(5)]
        print([cuda.current_context().get_ipc_handle(array.gpu_data).offset for array in arrays])
    """
    assert run(code, GMM_NUMBA_POOL="0") == "[0, 0, 0, 0, 0]"
    assert run(code, GMM_NUMBA_POOL="1") != "[0, 0, 0, 0, 0]"


def test_host_only():
    code = """if True:
        import numpy as np, gmm.numba
        from numba import cuda
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
            assert len(context.memory_manager._pool.frees) == 1 and len(context.memory_manager.deallocations) == 1
        context.reset()
        assert gmm.context().stats().live_blocks == 0 and not context.memory_manager.deallocations
        print("ok")
    """
    assert run(code, NUMBA_CUDA_MEMORY_MANAGER="default") == "ok"


def test_pausable_memory():
    code = """if True:
        import numpy as np, gmm.numba
        from numba import cuda
        gmm.numba.use(kind=gmm.Kind.VMM)
        cuda.current_context()
        with gmm.context().tag("weights", gmm.Contents.HOST):
            array = cuda.to_device(np.arange(1000))
        address = array.device_ctypes_pointer.value
        assert gmm.context().pause("weights") > 0 and gmm.context().query(address).state == gmm.State.PAUSED
        gmm.context().resume("weights")
        assert array.copy_to_host()[-1] == 999
        print("ok")
    """
    assert run(code, NUMBA_CUDA_MEMORY_MANAGER="default") == "ok"


def test_a_context_of_ones_own():
    code = """if True:
        import numpy as np, gmm.numba
        from numba import cuda
        own = gmm.Context("cuda")
        gmm.numba.use(own)
        array = cuda.to_device(np.arange(10))
        assert own.stats().live_blocks == 1 and own is not gmm.context()
        assert gmm.numba.use(own) is type(cuda.current_context().memory_manager), "the same once more"
        try:
            gmm.numba.use()
        except RuntimeError as error:
            print(error)
    """
    assert "CUDA with gmm and other arguments already" in run(code, NUMBA_CUDA_MEMORY_MANAGER="default")


def test_use_after_another_manager():
    code = """if True:
        import gmm.numba
        from numba import cuda
        cuda.current_context()
        try:
            gmm.numba.use()
        except RuntimeError as error:
            print(error)
    """
    said = run(code, NUMBA_CUDA_MEMORY_MANAGER="default")
    assert "CUDA with numba.cuda.cudadrv.driver.NumbaCUDAMemoryManager already" in said


def test_use_after_the_environment():
    code = """if True:
        import gmm.numba
        from numba import cuda
        assert type(cuda.current_context().memory_manager) is gmm.numba.use() is gmm.numba.MemoryManager
        print("ok")
    """
    assert run(code, NUMBA_CUDA_MEMORY_MANAGER="gmm") == run(code, NUMBA_CUDA_MEMORY_MANAGER="gmm.numba") == "ok"


def test_the_simulator_is_named():
    code = """if True:
        try:
            import gmm.numba
        except ImportError as error:
            print(error)
    """
    said = run(code, NUMBA_ENABLE_CUDASIM="1")
    assert "simulator" in said and "pip install" not in said


def test_the_host_backend_is_refused():
    code = """if True:
        import numpy as np
        from numba import cuda
        try:
            cuda.to_device(np.arange(10))
        except RuntimeError as error:
            print(error)
    """
    assert "GMM_BACKEND" in run(code, GMM_BACKEND="host")


def test_without_numba():
    code = """if True:
        import sys
        sys.modules["numba"] = None
        try:
            import gmm.numba
        except ImportError as error:
            print(error)
    """
    assert "pip install 'numba-cuda" in run(code)
