#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks of gmm.numba that need kernels, for numba_check.py: run with NUMBA_CUDA_MEMORY_MANAGER=gmm.numba. Prints the
Test Anything Protocol.
"""
import concurrent.futures
import gc
import multiprocessing
import os
import pathlib
import subprocess
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "bindings" / "interop"))
sys.path.insert(0, str(ROOT / "tests" / "support"))

import numba_child
import numpy as np
import tap
from numba import cuda
from numba.cuda.cudadrv import driver as numba_driver
from numba.cuda.cudadrv.driver import driver

import gmm

SIZE = 4 << 20


def check(function):
    try:
        function()
        tap.check(True, function.__doc__)
    except BaseException:
        tap.check(False, function.__doc__, traceback.format_exc())


def run(code, **environment):
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


@cuda.jit  # compiled at the first launch: spawned children import this file too
def slow_sum(data, out, milliseconds):
    for _ in range(milliseconds):
        cuda.nanosleep(1_000_000)
    total = 0
    for i in range(cuda.grid(1), data.size, cuda.gridsize(1)):
        total += data[i]
    cuda.atomic.add(out, 0, total)


@cuda.jit
def add(data, what):
    i = cuda.grid(1)
    if i < data.size:
        data[i] += what


def kernels_run_over_every_kind():
    """kernels over device, mapped, managed and pinned memory of the pool"""
    device, mapped, managed = cuda.to_device(np.arange(1000.0)), cuda.mapped_array(1000), cuda.managed_array(1000)
    mapped[:] = managed[:] = np.arange(1000)
    spare = cuda.mapped_array(1000)  # a second one does not start where the page-locked memory starts
    spare[:] = 0
    for array in (device, mapped, managed, spare):
        add[4, 256](array, 1)
    cuda.synchronize()
    for array in (device.copy_to_host(), mapped, managed):
        np.testing.assert_equal(np.asarray(array), np.arange(1.0, 1001.0))
    assert (np.asarray(spare) == 1).all()
    assert gmm.context().query(device.device_ctypes_pointer.value).state == gmm.State.ACTIVE
    caller = np.zeros(3001)[1:]  # starts inside a page
    with cuda.mapped(caller) as view:
        add[12, 256](view, 5)
        cuda.synchronize()
    assert (caller == 5).all()


def memory_is_not_reused_under_a_kernel():
    """an array dropped under a kernel on a stream that no other waits for is not given out, and nobody waits"""
    manager = cuda.current_context().memory_manager
    handle = driver.cuStreamCreate(numba_driver.binding.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
    stream = cuda.external_stream(int(handle))
    ones, nines = np.ones(SIZE, dtype=np.uint8), np.full(SIZE, 9, dtype=np.uint8)
    slow_sum[8, 128](cuda.to_device(ones), cuda.to_device(np.zeros(1, dtype=np.uint64)), 0)
    cuda.synchronize()
    sums, kernels = [], {}  # the kernel that uses an address, by the event behind it
    began = time.perf_counter()
    for _ in range(12):
        array, out = cuda.to_device(ones), cuda.to_device(np.zeros(1, dtype=np.uint64))
        slow_sum[8, 128, stream](array, out, 40)
        sums.append(out)
        kernels[array.device_ctypes_pointer.value] = cuda.event(timing=False)
        kernels[array.device_ctypes_pointer.value].record(stream)
        del array  # the kernel has not begun, or sleeps
        for _ in range(3):
            other = cuda.to_device(nines)
            kernel = kernels.get(other.device_ctypes_pointer.value)
            assert kernel is None or kernel.query(), "memory was given out while a kernel used it"
            del other
    queued = time.perf_counter() - began
    stream.synchronize()
    took = time.perf_counter() - began
    assert [int(out.copy_to_host()[0]) for out in sums] == [SIZE] * 12
    print(f"# cost of queueing: {queued * 1e3:.0f} ms of {took * 1e3:.0f} ms; events of the context: "
          f"{manager._pool.frees._records}")
    assert took > 0.1 and queued < took * 0.8, (queued, took)
    assert manager._pool.frees._records is True, "this driver should record events of a context"
    del stream
    driver.cuStreamDestroy(handle)


def the_pool_is_asked_and_not_the_driver():
    """arrays come and go without a call that allocates or frees memory of the driver"""
    for _ in range(200):
        cuda.device_array(10_000)
    before = gmm.context().stats().backend_calls
    began = time.perf_counter()
    for _ in range(3000):
        cuda.device_array(10_000)
    took = time.perf_counter() - began
    assert gmm.context().stats().backend_calls == before
    builtin = run("import time; from numba import cuda\nfor _ in range(200): cuda.device_array(10_000)\nt = "
                  "time.perf_counter()\n"
                  "for _ in range(3000): cuda.device_array(10_000)\nprint((time.perf_counter() - t) / 3000)",
                  NUMBA_CUDA_MEMORY_MANAGER="default")
    print(f"# cost of device_array and its end: {took / 3000 * 1e6:.1f} us with gmm.numba, {float(builtin) * 1e6:.1f} "
          f"us with Numba's manager")


def nothing_is_freed_inside_defer_cleanup():
    """defer_cleanup, nested and with an exception: nothing goes back inside, all of it after"""
    frees = cuda.current_context().memory_manager._pool.frees
    frees.collect(wait=True)
    arrays = [cuda.device_array(16 << 20, dtype=np.uint8) for _ in range(20)]
    before = gmm.context().stats()
    try:
        with cuda.defer_cleanup():
            with cuda.defer_cleanup():
                arrays.clear()
            assert gmm.context().trim() == 0
            inside = gmm.context().stats()
            assert (inside.backend_calls, inside.live_blocks) == (before.backend_calls, before.live_blocks)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    frees.collect(wait=True)
    assert gmm.context().stats().live_blocks <= before.live_blocks - 20
    assert gmm.context().trim() >= 20 * (16 << 20)


def children_open_what_the_pool_gave():
    """a spawned process opens pooled arrays, slices of them and two at once, and what only gmm can share"""
    arrays = [cuda.to_device(np.arange(start, start + 100)) for start in (0, 1000)]
    vmm, host = gmm.context().alloc(800, gmm.Kind.VMM), gmm.context().alloc(800, gmm.Kind.HOST)
    context = cuda.current_context()
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        began = time.perf_counter()
        got = executor.submit(numba_child.read_array, arrays[1][17:40].get_ipc_handle()).result(timeout=30)
        first = time.perf_counter() - began
        np.testing.assert_equal(got, np.arange(1017, 1040))
        one, two = executor.submit(numba_child.read_both,
                                   *(array.get_ipc_handle() for array in arrays)).result(timeout=4)
        np.testing.assert_equal(one, np.arange(100))
        np.testing.assert_equal(two, np.arange(1000, 1100))
        executor.submit(numba_child.add_one, arrays[0].get_ipc_handle()).result(timeout=4)
        np.testing.assert_equal(arrays[0].copy_to_host(), np.arange(1, 101))
        for buffer in (vmm, host):
            buffer.copy_from(np.arange(100))
            memory = numba_driver.MemoryPointer(context, numba_driver.binding.CUdeviceptr(buffer.address), 800)
            for read in (numba_child.read_handle, numba_child.read_staged):
                got = executor.submit(read, context.get_ipc_handle(memory.view(80)), "int64").result(timeout=4)
                np.testing.assert_equal(got, np.arange(10, 100))
        executor.shutdown()
    print(f"# cost of the first opening, with the start of the process: {first:.2f} s")
    assert first < 8, first  # much else runs at once; Numba's own tests have 4 seconds


def reset_gives_memory_back():
    """reset gives memory back to the driver, and Numba goes on"""
    context = cuda.current_context()
    gc.collect()
    array = cuda.device_array(256 << 20, dtype=np.uint8)
    assert gmm.context().stats(kind=gmm.Kind.DEVICE).reserved_bytes >= 256 << 20
    del array
    context.reset()
    stats = gmm.context().stats(kind=gmm.Kind.DEVICE)
    assert (stats.live_blocks, stats.reserved_bytes) == (0, 0), stats
    np.testing.assert_equal(cuda.to_device(np.arange(10)).copy_to_host(), np.arange(10))


CLOSE = """if True:
    import numpy as np
    from numba import cuda
    for _ in range(2):
        array = cuda.to_device(np.arange(1000.0))
        cuda.close()
        del array
    print(cuda.to_device(np.arange(5.0)).copy_to_host()[-1], flush=True)
"""


def close_resets_the_device():
    """cuda.close() resets the device, and Numba and gmm start again, where Numba's own manager does"""
    try:
        run(CLOSE, NUMBA_CUDA_MEMORY_MANAGER="default")
    except AssertionError as error:
        print("\n".join(f"# with Numba's own manager: {line}" for line in str(error).splitlines()[-3:]))
        return
    assert run(CLOSE) == "4.0"


def host_only():
    """the manager that leaves host memory to Numba"""
    assert run("""if True:
        import numpy as np, gmm.numba
        from numba import cuda
        gmm.numba.use(host_only=True)
        array, pinned, managed = cuda.to_device(np.arange(1000.0)), cuda.pinned_array(10), cuda.managed_array(10)
        query = gmm.context().query
        assert query(array.device_ctypes_pointer.value).state == gmm.State.ACTIVE
        assert query(pinned.ctypes.data).state == gmm.State.UNKNOWN
        assert array.copy_to_host()[-1] == 999
        print("ok")
    """, NUMBA_CUDA_MEMORY_MANAGER="default") == "ok"


def the_example_runs():
    """examples/python/numba_kernel.py"""
    done = subprocess.run([sys.executable, str(ROOT / "examples" / "python" / "numba_kernel.py")], capture_output=True,
                          text=True, timeout=60,
                          env={key: value for key, value in os.environ.items() if key != "NUMBA_CUDA_MEMORY_MANAGER"})
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    for one in (kernels_run_over_every_kind, memory_is_not_reused_under_a_kernel, the_pool_is_asked_and_not_the_driver,
                nothing_is_freed_inside_defer_cleanup,
                children_open_what_the_pool_gave, reset_gives_memory_back, close_resets_the_device, host_only,
                the_example_runs):
        check(one)
    import importlib.metadata

    versions = ", ".join(f"{name} {importlib.metadata.version(name)}"
                         for name in ("numba", "numba-cuda", "cuda-bindings", "cuda-core", "numpy"))
    print(f"# versions: {versions}, driver {gmm.context().info.driver_version}, {gmm.context().device_info().name}")
    tap.finish()
