# SPDX-License-Identifier: Apache-2.0
"""gmm as an allocator of PyTorch's own kind, without a GPU: the compiled extension over gmm's host backend, asked
through PyTorch's own functions. A device's driver is all that is missing, so the tests name the device and the stream.
"""
import ctypes
import inspect
import os
import pathlib
import random
import subprocess
import sys
import textwrap

os.environ["GMM_BACKEND"] = os.environ.get("TEST_TORCH_BACKEND", "host")

import pytest  # noqa: E402
import torch  # noqa: E402

import gmm  # noqa: E402
from gmm._torch import allocator as torch_allocator  # noqa: E402
from gmm._torch import extension  # noqa: E402
from gmm._torch import library as torch_library  # noqa: E402
from gmm._torch import tagged_pool  # noqa: E402

MIB = 1 << 20


def takes_a_pool():
    """Whether memory_snapshot() does: PyTorch 2.5 shows all segments, those of a pool with a tag among gmm's own."""
    return bool(inspect.signature(torch.cuda.memory_snapshot).parameters)


class Native:
    """PyTorch's allocator, as its C++ code and its Python functions see it."""

    def __init__(self):
        made = extension.native(torch_library.load())
        made.install(1, on_cuda=False)
        made.install(1, on_cuda=False)  # once more changes nothing
        self.cdll = made.cdll

    def malloc(self, size, stream=None):
        out = ctypes.c_void_p()
        if self.cdll.gmm_torch_native_malloc(size, 0, stream, ctypes.byref(out)) != 0:
            raise RuntimeError(self.cdll.gmm_torch_native_error().decode())
        return out.value

    def free(self, address):
        assert self.cdll.gmm_torch_native_free(address) == 0, self.cdll.gmm_torch_native_error()

    @staticmethod
    def stats(name, pool="all"):
        return torch._C._cuda_memoryStats(0)[name][pool]

    @staticmethod
    def segments(pool=None):
        if not takes_a_pool():
            every = torch.cuda.memory_snapshot()
            return [one for one in every if pool is None or tuple(one["segment_pool_id"]) == tuple(pool)]
        return torch.cuda.memory_snapshot(pool)


@pytest.fixture(scope="module")
def native():
    try:
        return Native()
    except RuntimeError as error:
        if "none was found" in str(error):
            pytest.skip(str(error))  # no compiler, or no headers of CUDA's runtime
        raise


def test_it_is_pytorch_s_allocator(native):
    assert torch._C._cuda_getAllocatorBackend() == "gmm"


def test_statistics_have_pytorch_s_names_and_roundings(native):
    torch._C._cuda_resetPeakMemoryStats(0)
    torch._C._cuda_resetAccumulatedMemoryStats(0)
    a, b = native.malloc(1000), native.malloc(5 * MIB + 1)
    assert native.stats("allocated_bytes")["current"] == 1024 + 5 * MIB + 512
    assert native.stats("allocated_bytes", "small_pool")["current"] == 1024
    assert native.stats("requested_bytes")["current"] == 1000 + 5 * MIB + 1
    assert native.stats("allocation")["current"] == 2
    assert native.stats("active_bytes")["current"] == native.stats("allocated_bytes")["current"]
    reserved = native.stats("reserved_bytes")
    assert reserved["current"] == gmm.context().stats(device=0, kind=gmm.Kind.VMM).reserved_bytes >= 5 * MIB
    native.free(b)
    assert native.stats("allocated_bytes") == {"current": 1024, "peak": 1024 + 5 * MIB + 512,
                                               "allocated": 1024 + 5 * MIB + 512, "freed": 5 * MIB + 512}
    torch._C._cuda_resetPeakMemoryStats(0)
    torch._C._cuda_resetAccumulatedMemoryStats(0)
    assert native.stats("allocated_bytes") == {"current": 1024, "peak": 1024, "allocated": 0, "freed": 0}
    native.free(a)
    assert native.stats("allocation")["current"] == 0


def test_the_blocks_are_gmm_s_and_come_back(native):
    address = native.malloc(3 * MIB)
    info = gmm.context().query(address)
    assert (info.kind, info.base, info.size) == (gmm.Kind.VMM, address, 3 * MIB)
    native.free(address)
    assert native.malloc(3 * MIB) == address
    native.free(address)
    with gmm.context().tag("native-tag") as tag:
        address = native.malloc(MIB)
    assert gmm.context().query(address).tag == tag.number
    native.free(address)


def test_empty_cache_returns_memory(native):
    native.free(native.malloc(64 * MIB))
    assert native.stats("reserved_bytes")["current"] >= 64 * MIB
    torch._C._cuda_emptyCache()
    assert native.stats("reserved_bytes")["current"] < 64 * MIB


def check_segments(segments):
    for segment in segments:
        blocks = segment["blocks"]
        assert sum(block["size"] for block in blocks) == segment["total_size"]
        at = segment["address"]
        for block in blocks:
            assert block.get("address", at) == at
            at += block["size"]
        live = [block for block in blocks if block["state"] == "active_allocated"]
        assert sum(block["size"] for block in live) == segment["allocated_size"]
        assert sum(block["requested_size"] for block in live) == segment["requested_size"]


def test_a_snapshot_shows_all_that_is_reserved(native):
    held = [native.malloc(size) for size in (100, 70_000, 3 * MIB, 33 * MIB)]
    native.free(held.pop(1))
    segments = native.segments()
    check_segments(segments)
    assert sum(segment["total_size"] for segment in segments) == native.stats("reserved_bytes")["current"]
    live = {block["address"]: block["requested_size"] for segment in segments for block in segment["blocks"]
            if block["state"] == "active_allocated"}
    assert live == dict(zip(held, (100, 3 * MIB, 33 * MIB)))
    for address in held:
        native.free(address)


def split(segments):
    """(blocks, bytes) that are free beside live ones, as a snapshot shows them."""
    free = [block["size"] for segment in segments if segment["active_size"]
            for block in segment["blocks"] if block["state"] == "inactive"]
    return len(free), sum(free)


def test_inactive_blocks_are_counted_as_the_snapshot_shows_them(native):
    def counted():
        return native.stats("inactive_split")["current"], native.stats("inactive_split_bytes")["current"]

    chance = random.Random(5)
    held, seen = [], set()
    torch.cuda.reset_peak_memory_stats(0)
    torch.cuda.reset_accumulated_memory_stats(0)
    before = native.stats("inactive_split")
    for _ in range(60):
        for _ in range(chance.randrange(1, 30)):
            if held and chance.random() < 0.5:
                native.free(held.pop(chance.randrange(len(held))))
            else:
                held.append(native.malloc(chance.choice((100, 5000, 70_000, MIB, 3 * MIB, 9 * MIB))))
        assert counted() == split(native.segments()) == counted()
        seen.add(counted())
    assert len(seen) > 20 and max(seen)[0] > 5
    most, now = native.stats("inactive_split"), native.stats("inactive_split", "large_pool")
    assert most["peak"] == max(before["current"], *(blocks for blocks, _ in seen)) and most == now
    assert most["allocated"] - most["freed"] == most["current"] - before["current"]
    assert native.stats("inactive_split", "small_pool")["peak"] == 0
    torch.cuda.reset_peak_memory_stats(0)
    assert native.stats("inactive_split")["peak"] == counted()[0]
    for address in held:
        native.free(address)
    assert counted() == split(native.segments())
    torch.cuda.empty_cache()
    assert counted() == split(native.segments())


def test_the_history_has_each_event_in_order(native):
    assert native.cdll.gmm_torch_native_record(1, 100) == 0
    try:
        address = native.malloc(2 * MIB)
        native.free(address)
        snapshot = torch.cuda.memory._snapshot()
    finally:
        native.cdll.gmm_torch_native_record(0, 1)
    entries = [entry for entry in snapshot["device_traces"][0] if entry["addr"] == address]
    assert [entry["action"] for entry in entries] == ["alloc", "free_requested", "free_completed"]
    assert all(entry["size"] == 2 * MIB for entry in entries)
    assert snapshot["device_traces"][0][-1]["action"] == "snapshot"
    times = [entry["time_us"] for entry in snapshot["device_traces"][0]]
    assert times == sorted(times)
    from torch.cuda import _memory_viz

    assert len(_memory_viz.trace_plot(snapshot)) > 1000 and len(_memory_viz.segment_plot(snapshot)) > 1000
    assert torch.cuda.memory._snapshot()["device_traces"] == [[]]


def begin_to_pool(pool):
    if hasattr(torch._C, "_cuda_beginAllocateCurrentThreadToPool"):
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
    else:  # PyTorch 2.5: every thread
        torch._C._cuda_beginAllocateToPool(0, pool)


def end_to_pool(pool):
    if hasattr(torch._C, "_cuda_endAllocateToPool"):
        torch._C._cuda_endAllocateToPool(0, pool)
    else:
        torch._C._cuda_endAllocateCurrentStreamToPool(0, pool)


class Pool:
    """A private pool that the calling thread allocates to inside a with block.

    number: at most 256. memory_snapshot() of PyTorch 2.11 frees the id's numbers, which Python keeps up to there.
    """

    def __init__(self, number):
        self.id = (0, number)

    def __enter__(self):
        begin_to_pool(self.id)
        return self

    def __exit__(self, *_):
        end_to_pool(self.id)

    def release(self):
        torch._C._cuda_releasePool(0, self.id)


def test_a_private_pool_has_segments_of_its_own(native):
    with Pool(201) as pool:
        a, b = native.malloc(1000), native.malloc(4 * MIB)
    outside = native.malloc(1000)
    segments = native.segments(pool.id)
    check_segments(segments)
    assert [tuple(segment["segment_pool_id"]) for segment in segments] == [pool.id] * 2
    live = {block["address"] for segment in segments for block in segment["blocks"]
            if block["state"] == "active_allocated"}
    assert live == {a, b}
    everything = native.segments()
    check_segments(everything)
    assert sum(segment["total_size"] for segment in everything) == native.stats("reserved_bytes")["current"]
    assert torch._C._cuda_checkPoolLiveAllocations(0, pool.id, {a, b})
    assert not torch._C._cuda_checkPoolLiveAllocations(0, pool.id, {a})
    native.free(b)
    assert torch._C._cuda_checkPoolLiveAllocations(0, pool.id, {a})
    torch._C._cuda_emptyCache()
    assert len(native.segments(pool.id)) == 2  # a graph may still use them
    for address in (a, outside):
        native.free(address)
    pool.release()
    torch._C._cuda_emptyCache()
    assert native.segments(pool.id) == []


def test_a_second_begin_and_a_lonely_end_are_errors(native):
    with Pool(202) as pool:
        with pytest.raises(RuntimeError, match="already recording"):
            begin_to_pool(pool.id)
    with pytest.raises(RuntimeError, match="not currently recording"):
        end_to_pool(pool.id)
    pool.release()
    pool.release()


def test_a_pool_returns_to_its_checkpoint(native):
    with Pool(203) as pool:
        a, b = native.malloc(1000), native.malloc(3 * MIB)
        state = torch._C._cuda_getCheckpointState(0, pool.id)
        c = native.malloc(2000)
    native.free(a)
    native.free(c)
    assert torch._C._cuda_checkPoolLiveAllocations(0, pool.id, {b})
    # The block b stays with whoever holds it. The storage becomes the owner of a.
    storage = torch._C._construct_storage_from_data_pointer(a, torch.device("cuda", 0), 1000)
    torch._C._cuda_setCheckpointPoolState(0, state, [], [storage._cdata])
    assert torch._C._cuda_checkPoolLiveAllocations(0, pool.id, {a, b})
    assert native.stats("allocation")["current"] == 2
    check_segments(native.segments(pool.id))
    with pool:
        again = native.malloc(2000)
    assert again == c  # it did not take the memory of a
    native.free(again)
    native.free(b)
    del storage
    assert native.stats("allocation")["current"] == 0
    pool.release()
    pool.release()


def test_out_of_memory_has_pytorch_s_words(native):
    before = torch._C._cuda_memoryStats(0)["num_ooms"]
    with pytest.raises(RuntimeError, match=r"CUDA out of memory\. Tried to allocate .*GiB\. GPU 0 has a total"):
        native.malloc(1 << 50)
    assert torch._C._cuda_memoryStats(0)["num_ooms"] == before + 1


def test_a_pool_with_a_tag_is_a_mem_pool(native, monkeypatch):
    monkeypatch.setattr(torch_allocator, "_allocator", torch_allocator.NativeAllocator())
    context = gmm.context()
    tag = context.tag("native-pool")
    slot, _, _ = torch_library.load().slot(tag.number, int(gmm.Kind.VMM))
    route = tagged_pool._Route((0, 204), slot)
    with Pool(204) as pool:
        address = native.malloc(3 * MIB)
        assert context.query(address).tag == tag.number
    outside = native.malloc(MIB)
    assert context.query(outside).tag != tag.number
    shown = native.segments(pool.id)
    if takes_a_pool():
        assert [block["address"] for segment in shown for block in segment["blocks"]] == [address]
    native.free(address)
    native.free(outside)
    pool.release()
    assert native.segments(pool.id) == []
    del route


def test_a_pool_of_the_fallback_answers_as_a_mem_pool(native):
    tag = gmm.context().tag("fallback-pool")
    slot, _, _ = torch_library.load().slot(tag.number, int(gmm.Kind.VMM))
    pool = tagged_pool.RoutedPool(tag.number, slot)
    with tag:
        address = native.malloc(MIB)
    assert pool.use_count() == 1
    assert [segment["address"] for segment in pool.snapshot()] == [address]
    check_segments(pool.snapshot())
    native.free(address)
    assert pool.snapshot() == []


def run_python(code, **environment):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False,
                          env={**os.environ, **environment}, timeout=120)


#: A process that compiles as extension.build() does. It spares the import of PyTorch, which takes 2 s.
BUILD = f"""
        import functools, pathlib
        from gmm._torch import compiler
        build = functools.partial(compiler.build, "native_allocator", compiler.Installed(
            pathlib.Path({str(pathlib.Path(torch.__file__).resolve().parent)!r}), {str(torch.__version__)!r},
            {torch.version.cuda or ""!r}, {bool(torch.compiled_with_cxx11_abi())}))
"""


def test_a_compiler_that_fails_is_asked_once_and_its_words_are_kept(tmp_path):
    counter = tmp_path / "count"
    compiler = tmp_path / "c++"
    compiler.write_text(f"#!/bin/sh\necho x >>{counter}\necho 'no such thing' >&2\nexit 1\n")
    compiler.chmod(0o755)
    code = BUILD + """
        try:
            build()
        except RuntimeError as error:
            print(error)
    """
    for _ in range(2):
        done = run_python(code, GMM_TORCH_CACHE=str(tmp_path / "cache"), CXX=str(compiler))
        assert "no such thing" in done.stdout and "native_allocator.cpp did not compile" in done.stdout, done
    assert counter.read_text() == "x\n"


def test_processes_that_start_at_once_compile_once(tmp_path):
    counter = tmp_path / "count"
    compiler = tmp_path / "c++"
    # Writes the file that -o names, after the other processes have had their turn to start.
    compiler.write_text(f'#!/bin/sh\necho x >>{counter}\nwhile [ "$1" != -o ]; do shift; done\n'
                        f'while [ "$(ls {tmp_path}/ready.* | wc -l)" -lt 3 ]; do sleep 0.05; done\necho made >"$2"\n')
    compiler.chmod(0o755)
    code = BUILD + f"""
        import os, sys
        assert "torch" not in sys.modules
        open(r"{tmp_path}/ready.%d" % os.getpid(), "w").close()
        print(build())
    """
    environment = {**os.environ, "GMM_TORCH_CACHE": str(tmp_path / "cache"), "CXX": str(compiler)}
    processes = [subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], env=environment,
                                  stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert len(answers) == 1 and pathlib.Path(answers.pop()).read_text() == "made\n"
    assert counter.read_text() == "x\n"


def test_without_a_compiler_the_pluggable_allocator_serves_and_a_warning_says_why():
    done = run_python("""
        import warnings
        from gmm._torch import allocator, extension, library
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert allocator._native(library.load()) is None
        print(len(caught), caught[0].message)
    """, CXX="/nonexistent/c++", GMM_TORCH_CACHE="/tmp")
    assert done.stdout.startswith("1 ") and "CUDAPluggableAllocator" in done.stdout, done
    assert "/nonexistent/c++" in done.stdout, done
