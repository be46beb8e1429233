# SPDX-License-Identifier: Apache-2.0
"""CuPy, RMM and JAX over gmm on a GPU, in the Test Anything Protocol. What is not installed is skipped, and said so.

Needs gmm on PYTHONPATH. Usage: cupy_check.py [cupy|rmm|jax ...]   (none: all three, in one process)
Other programs may use the GPU meanwhile: nothing here looks at its free memory, and at most 2 GiB are taken.
"""
import gc
import os
import pathlib
import sys
import threading
import time
import traceback
import weakref

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import tap  # noqa: E402 # pylint: disable=wrong-import-position

import gmm  # noqa: E402 # pylint: disable=wrong-import-position

MIB = 1 << 20


class Skip(Exception):
    """The check cannot be made here."""


def must(holds, message):
    if not holds:
        raise AssertionError(message)


def raises(kind, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def wait_for(holds, what, seconds=10):
    end = time.monotonic() + seconds
    while not holds():
        must(time.monotonic() < end, what)
        gc.collect()
        time.sleep(0.001)


def live():
    return gmm.context().stats().live_blocks


# --- CuPy -----------------------------------------------------------------------------------------------------------

def cupy_kinds():
    import cupy

    import gmm.cupy

    for kind in (gmm.Kind.DEVICE, gmm.Kind.VMM, gmm.Kind.MANAGED):
        before = live()
        with gmm.cupy.use(kind):
            array = cupy.arange(MIB, dtype="f8")
            total = float((array * 2 + 1).sum())
        info = gmm.context().query(array.data.ptr)
        must(total == MIB * (MIB - 1) + MIB, f"{kind.name}: the sum is {total}")
        must(info.kind == kind and info.base == array.data.ptr and info.size == 8 * MIB, f"{kind.name}: {info}")
        kept = weakref.ref(array.data.mem._owner)
        view = array[10:]
        del array
        must(kept() is not None, "a view did not keep the memory")
        del view
        must(kept() is None and live() == before, f"{kind.name}: {live() - before} blocks stayed")


def cupy_libraries():
    """cuBLAS, cuFFT, sorting and random numbers take workspaces from the allocator."""
    import cupy
    import numpy

    import gmm.cupy

    with gmm.cupy.use():
        rng = numpy.random.default_rng(1)
        left, right = rng.random((300, 200), dtype="f4"), rng.random((200, 100), dtype="f4")
        must(numpy.allclose(cupy.asnumpy(cupy.asarray(left) @ cupy.asarray(right)), left @ right, rtol=1e-3),
             "a product differs")
        signal = rng.random(4096)
        must(numpy.allclose(cupy.asnumpy(cupy.fft.fft(cupy.asarray(signal))), numpy.fft.fft(signal)),
             "a transform differs")
        must((cupy.asnumpy(cupy.sort(cupy.asarray(signal))) == numpy.sort(signal)).all(), "a sorted array differs")
        must(0.4 < float(cupy.random.default_rng(1).random(MIB).mean()) < 0.6, "random numbers are not")


def cupy_stream_order():
    """An array that dies while its stream still works on it is not given to another stream before that is done."""
    import cupy

    import gmm.cupy

    with gmm.cupy.use():
        size, first, second = 4 * MIB, cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
        results = []
        for value in range(100):
            with first:
                source = cupy.full(size, value, dtype="i4")
                for _ in range(4):
                    source += 1
                results.append(source[:: size // 16].copy())
            with second:
                del source
                other = cupy.full(size, -1, dtype="i4")
                del other
        first.synchronize()
        second.synchronize()
        for value, result in enumerate(results):
            must((cupy.asnumpy(result) == value + 4).all(), f"round {value}: {result}")
        results.clear()


def cupy_streams_that_go():
    import cupy

    import gmm.cupy

    with gmm.cupy.use():
        for value in range(100):
            with cupy.cuda.Stream(non_blocking=bool(value % 2)) as stream:
                array = cupy.full(MIB, value, dtype="i4")
                stream.synchronize()
            del stream
            must(int(array[-1]) == value, f"round {value}: {array[-1]}")
            if value % 3:
                del array
    gc.collect()
    gmm.context().trim()


def cupy_threads_own_stream():
    import cupy

    import gmm.cupy

    arrays, failures = [], []

    def work(value):
        try:
            with cupy.cuda.Stream.ptds:
                for _ in range(20):
                    array = cupy.full(MIB, value, dtype="i4")
                    arrays.append(array[:: MIB // 16].copy())
                    arrays.append(array)
                cupy.cuda.Stream.ptds.synchronize()
        except Exception as error:  # pylint: disable=broad-exception-caught
            failures.append(error)

    before = live()
    with gmm.cupy.use():
        threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        must(not failures, str(failures))
        must(all(int(array.min()) == int(array.max()) for array in arrays), "threads wrote over each other")
        arrays.clear()  # here, not in the threads that made them
        must(int(cupy.full(MIB, 9, dtype="i4").sum()) == 9 * MIB, "memory of an ended thread is not good")
    must(live() == before, f"{live() - before} blocks stayed")


def cupy_page_locked():
    import cupy
    import cupyx
    import numpy

    import gmm.cupy

    with gmm.cupy.use():
        host = cupyx.empty_pinned((1000, 1000), dtype="f4")
        info = gmm.context().query(host.ctypes.data)
        must(info.kind == gmm.Kind.HOST, f"the memory is {info}")
        host[:] = numpy.arange(1000, dtype="f4")
        array = cupy.empty(host.shape, dtype="f4")
        stream = cupy.cuda.Stream(non_blocking=True)
        array.set(host, stream=stream)
        back = cupyx.empty_pinned(host.shape, dtype="f4")
        array.get(stream=stream, out=back)
        stream.synchronize()
        must((back == host).all(), "the copies differ")
        must((cupy.asnumpy(cupy.asarray(numpy.arange(MIB))) == numpy.arange(MIB)).all(),
             "a copy of ordinary memory differs")


def cupy_out_of_memory():
    import cupy
    from cupy.cuda.memory import OutOfMemoryError

    import gmm.cupy

    with gmm.cupy.use():
        error = raises(OutOfMemoryError, cupy.empty, 1 << 41, dtype="u1")
        must(isinstance(error.__cause__, gmm.Error), f"the cause is {error.__cause__!r}")
        must(int(cupy.ones(10).sum()) == 10, "nothing works afterwards")
    return str(error)


def cupy_pause():
    import cupy

    import gmm.cupy

    tag = gmm.context().tag("cupy", gmm.Contents.HOST)
    with gmm.cupy.use(gmm.Kind.VMM, tag=tag):
        array = cupy.arange(8 * MIB, dtype="i4")
    address, total = array.data.ptr, int(array.astype("i8").sum())
    cupy.cuda.Device().synchronize()
    went = tag.pause()
    must(went >= array.nbytes and array.data.mem._owner.state == gmm.State.PAUSED, f"{went} bytes went")
    tag.resume()
    must(array.data.ptr == address and int(array.astype("i8").sum()) == total, "the contents differ after the resume")
    return f"{went // MIB} MiB went and came back"


def cupy_protocols():
    """gmm's own buffers as arrays of CuPy, by both protocols, and the other way."""
    import cupy

    for kind in (gmm.Kind.DEVICE, gmm.Kind.VMM, gmm.Kind.MANAGED):
        buffer = gmm.alloc(4096, kind)
        buffer.copy_from(bytes(range(256)) * 16)
        for name, take in (("DLPack", cupy.from_dlpack), ("CUDA Array Interface", cupy.asarray)):
            array = take(buffer)
            must(array.data.ptr == buffer.address, f"{kind.name}, {name}: another address")
            must(int(array.sum(dtype="i8")) == 16 * sum(range(256)), f"{kind.name}, {name}: other values")
            del array
        gc.collect()
        buffer.close()
    if hasattr(gmm, "from_dlpack"):
        array = cupy.arange(1000, dtype="i4")
        for name, take in (("from_dlpack", gmm.from_dlpack), ("asarray", gmm.asarray)):
            made = take(array)
            back = cupy.asarray(made)
            must(back.data.ptr == array.data.ptr, f"{name}: another address")
            must(back.shape == (1000,) and back.dtype == "i4" and int(back.sum()) == 499500,
                 f"{name}: {back.shape} {back.dtype}")


def cupy_other_allocators():
    """After the end CuPy's pool is back, and arrays of both live side by side."""
    import cupy

    import gmm.cupy

    with gmm.cupy.use():
        ours = cupy.arange(1000)
    theirs = cupy.arange(1000)
    must(gmm.context().query(theirs.data.ptr).state == gmm.State.UNKNOWN, "CuPy still allocates here")
    must(isinstance(theirs.data.mem, cupy.cuda.memory.PooledMemory), f"it is {type(theirs.data.mem).__name__}")
    must(int((ours + theirs).sum()) == 999000, "the sum differs")
    with cupy.cuda.using_allocator(gmm.cupy.allocator()):
        must(gmm.context().query(cupy.arange(10).data.ptr).kind == gmm.Kind.DEVICE, "using_allocator() does not count")


def cupy_graph():
    import cupy

    import gmm.cupy

    with gmm.cupy.use():
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
                must(int(result.sum()) == (value + 3) * 2 * MIB, f"launch {value}: {result[:3]}")
            stream.synchronize()
        del graph


def cupy_cost():
    """Printed, not judged: other programs run beside it."""
    import cupy

    import gmm.cupy

    def pair(rounds=20000):
        alloc = cupy.cuda.alloc
        for _ in range(1000):
            alloc(1024)
        best = 1e9
        for _ in range(5):
            begin = time.perf_counter()
            for _ in range(rounds // 5):
                alloc(1024)
            best = min(best, (time.perf_counter() - begin) / (rounds // 5))
        return best * 1e6

    pool = pair()
    with gmm.cupy.use():
        ours = pair()
    return f"alloc and free of 1 KiB: CuPy's pool {pool:.2f} us, gmm {ours:.2f} us"


# --- RMM ------------------------------------------------------------------------------------------------------------

def rmm_buffers():
    import rmm

    import gmm.rmm

    data = bytes(range(256)) * 4096
    for kind in (gmm.Kind.DEVICE, gmm.Kind.VMM, gmm.Kind.MANAGED):
        before = live()
        with gmm.rmm.use(kind):
            buffer = rmm.DeviceBuffer.to_device(data)
        info = gmm.context().query(buffer.ptr)
        must((info.kind, info.base, info.size) == (kind, buffer.ptr, len(data)), f"{kind.name}: {info}")
        must(buffer.tobytes() == data, f"{kind.name}: other bytes")
        del buffer
        must(live() == before, f"{live() - before} blocks stayed")


def rmm_streams():
    import rmm
    from rmm.pylibrmm.stream import Stream

    import gmm.rmm

    streams = [Stream() for _ in range(3)]
    with gmm.rmm.use():
        for number in range(100):
            stream = streams[number % 3]
            data = bytes([number]) * MIB
            buffer = rmm.DeviceBuffer.to_device(data, stream=stream)
            copied = buffer.copy()
            must(copied.tobytes(stream) == data, f"round {number}: other bytes")
    del buffer, copied
    for stream in streams:
        gmm.context().forget_stream(stream)


def rmm_with_cupy():
    """CuPy over RMM over gmm."""
    import cupy
    import rmm
    from rmm.allocators.cupy import rmm_cupy_allocator

    import gmm.rmm

    counted = rmm.mr.StatisticsResourceAdaptor(gmm.rmm.resource())
    before = rmm.mr.get_current_device_resource()
    rmm.mr.set_current_device_resource(counted)
    try:
        with cupy.cuda.using_allocator(rmm_cupy_allocator):
            array = cupy.arange(MIB, dtype="f4")
            must(float(array.sum(dtype="f8")) == MIB * (MIB - 1) / 2, "the sum differs")
        must(gmm.context().query(array.data.ptr).kind == gmm.Kind.DEVICE, "the memory is not gmm's")
        must(counted.allocation_counts.current_bytes == array.nbytes, str(counted.allocation_counts))
    finally:
        rmm.mr.set_current_device_resource(before)


def rmm_without_python():
    """RMM's buffers come and go in C++ alone."""
    import rmm

    import gmm.rmm

    names = []

    def note(frame, event, _argument):
        if event == "call":
            names.append(frame.f_code.co_name)

    def use():
        buffer = rmm.DeviceBuffer(size=MIB)
        del buffer

    with gmm.rmm.use():
        use()
        before = gmm.context().stats().allocations
        sys.setprofile(note)
        use()
        sys.setprofile(None)
        must(gmm.context().stats().allocations == before + 1, "gmm did not allocate")
        must("allocate" not in " ".join(names), f"Python ran: {names}")


def rmm_outlives():
    """A buffer in a cycle of references, whose resource and context nobody else holds."""
    import rmm

    import gmm.rmm

    context = gmm.Context("cuda")
    buffer = rmm.DeviceBuffer(size=MIB, mr=gmm.rmm.resource(context=context))
    cycle = [buffer]
    cycle.append(cycle)
    context.close()
    del buffer, cycle, context
    gc.collect()
    must(rmm.DeviceBuffer(size=MIB).size == MIB, "nothing works afterwards")


def rmm_out_of_memory():
    import rmm

    import gmm.rmm

    with gmm.rmm.use():
        error = raises(MemoryError, rmm.DeviceBuffer, size=1 << 41)
        must(rmm.DeviceBuffer(size=10).size == 10, "nothing works afterwards")
    return str(error)[:200]


# --- JAX ------------------------------------------------------------------------------------------------------------

def jax_device():
    import jax

    try:
        return jax.devices("gpu")[0]
    except RuntimeError as error:
        raise Skip(f"JAX reaches no GPU here: {' '.join(str(error).split())[:120]}") from None


def jax_takes_buffers():
    import jax

    jax_device()
    for kind in (gmm.Kind.DEVICE, gmm.Kind.VMM, gmm.Kind.MANAGED):
        buffer = gmm.alloc(MIB, kind)
        buffer.fill(3)
        array = jax.dlpack.from_dlpack(buffer)
        must(array.unsafe_buffer_pointer() == buffer.address, f"{kind.name}: another address")
        must(int(array.astype("int32").sum()) == 3 * MIB, f"{kind.name}: other values")
        must(next(iter(array.devices())).platform == "gpu", f"{kind.name}: it is on {array.devices()}")
        raises(BufferError, buffer.close)
        kept = weakref.ref(buffer)
        del array, buffer
        wait_for(lambda kept=kept: kept() is None, f"{kind.name}: JAX did not let go of the memory")


def jax_gives_arrays():
    import jax
    import jax.numpy as jnp

    if not hasattr(gmm, "from_dlpack"):
        raise Skip("this build has no gmm.from_dlpack()")
    array = jax.device_put(jnp.arange(1000, dtype="int32"), jax_device()).block_until_ready()
    made = gmm.from_dlpack(array)
    import cupy  # the way to look at device memory

    back = cupy.asarray(made)
    must(back.data.ptr == array.unsafe_buffer_pointer(), "another address")
    must(back.shape == (1000,) and back.dtype == "i4" and int(back.sum()) == 499500,
         f"{back.shape} {back.dtype} {back[:5]}")
    kept = array.unsafe_buffer_pointer()
    del array
    gc.collect()
    # would take the memory over
    others = [jax.device_put(jnp.zeros(1000, dtype="int32"), jax_device()).block_until_ready() for _ in range(4)]
    must(kept not in [other.unsafe_buffer_pointer() for other in others], "JAX gave the memory to another array")
    must(made is not None and int(back.sum()) == 499500 and back.data.ptr == kept, "gmm did not keep JAX's memory")


def jax_donated():
    """Says whether the result of a donated array of gmm lies in gmm's memory. If it does, it keeps that memory."""
    import jax

    jax_device()
    array = gmm.empty(1024, "float32", gmm.Kind.DEVICE)
    array.fill(0)
    kept = weakref.ref(array.buffer)
    result = jax.jit(lambda x: x + 7, donate_argnums=0)(jax.dlpack.from_dlpack(array)).block_until_ready()
    here = result.unsafe_buffer_pointer() == array.address
    must(float(result.sum()) == 7 * 1024, "other values")
    if here:
        must(array.tolist() == [7.0] * 1024, "gmm sees other values")
        del array
        gc.collect()
        must(kept() is not None, "the memory went while JAX has an array there")
    return f"the result lies in {'gmm' if here else 'JAX'}'s memory"


def jax_page_locked():
    """Page-locked memory is CPU memory to JAX."""
    import jax

    buffer = gmm.alloc(MIB, gmm.Kind.HOST)
    buffer.fill(5)
    array = jax.dlpack.from_dlpack(buffer)
    must(array.unsafe_buffer_pointer() == buffer.address and next(iter(array.devices())).platform == "cpu",
         f"it is on {array.devices()}")
    must(int(array.astype("int32").sum()) == 5 * MIB, "other values")


GROUPS = {
    "cupy": [cupy_kinds, cupy_libraries, cupy_stream_order, cupy_streams_that_go, cupy_threads_own_stream,
             cupy_page_locked, cupy_out_of_memory, cupy_pause,
             cupy_protocols, cupy_other_allocators, cupy_cost, cupy_graph],
    "rmm": [rmm_buffers, rmm_without_python, rmm_streams, rmm_with_cupy, rmm_outlives, rmm_out_of_memory],
    "jax": [jax_takes_buffers, jax_gives_arrays, jax_donated, jax_page_locked],
}


def main(groups):
    for group in groups:
        try:
            version = __import__(group).__version__
        except ImportError as error:
            tap.skip(group, f"not installed: {error}")
            continue
        print(f"# {group} {version}", flush=True)
        for check in GROUPS[group]:
            begin = time.monotonic()
            name = check.__name__.replace("_", " ")
            try:
                words = check()
                tap.check(True, f"{name} ({time.monotonic() - begin:.1f} s){': ' + words if words else ''}")
            except Skip as error:
                tap.skip(name, str(error))
            except Exception as error:  # pylint: disable=broad-exception-caught # a line for each, whatever comes
                tap.check(False, f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}",
                          traceback.format_exc().splitlines())
            gc.collect()
    tap.finish()


if __name__ == "__main__":
    main(sys.argv[1:] or list(GROUPS))
