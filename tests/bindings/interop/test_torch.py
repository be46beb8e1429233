# SPDX-License-Identifier: Apache-2.0
"""gmm as PyTorch's allocator, asked through PyTorch's own functions.

Without a GPU only a device's driver is missing, so the first tests name the device and the stream. On a GPU every
everyday use of torch_uses.py is held against PyTorch's own allocator too.
"""
import concurrent.futures
import ctypes
import inspect
import json
import os
import pickle
import random
import subprocess
import sys
import threading

import conftest
import pytest
import torch
import torch_uses
from conftest import MIB

import gmm
import gmm.torch
from gmm._memory_saver import preload
from gmm._torch import library as torch_library


class Native:
    """PyTorch's allocator, as its C++ code and its Python functions see it."""

    def __init__(self):
        self.library = torch_library.load()
        if conftest.GPU:
            torch.cuda.set_device(0)  # which initializes PyTorch's own allocator
            gmm.torch.use()
            gmm.torch.use()
        else:
            self.library.must(self.library.install(1, 0))
            self.library.must(self.library.install(1, 0))  # once more changes nothing

    @staticmethod
    def malloc(size):
        return torch._C._cuda_cudaCachingAllocator_raw_alloc(size, 0)

    @staticmethod
    def free(address):
        torch._C._cuda_cudaCachingAllocator_raw_delete(address)

    @staticmethod
    def stats(name, pool="all"):
        return torch._C._cuda_memoryStats(0)[name][pool]

    @staticmethod
    def segments(pool=None):
        if not inspect.signature(torch.cuda.memory_snapshot).parameters:
            # PyTorch 2.5 shows all segments, those of a private pool among gmm's own.
            every = torch.cuda.memory_snapshot()
            return [one for one in every if pool is None or tuple(one["segment_pool_id"]) == tuple(pool)]
        return torch.cuda.memory_snapshot(pool)

    def live(self, pool=None):
        """{address: requested size} of the live blocks in a snapshot."""
        return {block["address"]: block["requested_size"] for segment in self.segments(pool)
                for block in segment["blocks"] if block["state"] == "active_allocated"}


@pytest.fixture(scope="module")
def native():
    try:
        return Native()
    except RuntimeError as error:
        if "none was found" in str(error):
            pytest.skip(str(error))  # no compiler, or no headers of CUDA's runtime
        raise


@pytest.fixture
def library():
    return torch_library.load()


def test_statistics_have_pytorch_s_names_and_roundings(native):
    torch._C._cuda_resetPeakMemoryStats(0)
    torch._C._cuda_resetAccumulatedMemoryStats(0)
    assert torch._C._cuda_getAllocatorBackend() == "gmm"
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


def test_the_kind_of_new_memory(native, library):
    def kind_of_a_block():
        address = native.malloc(1000)
        kind = gmm.context().query(address).kind
        native.free(address)
        return kind

    for kind in (gmm.Kind.DEVICE, gmm.Kind.VMM):
        library.set_kind(int(kind))
        assert kind_of_a_block() == kind
    library.set_managed(1)
    managed = kind_of_a_block()
    library.set_managed(0)
    assert managed == gmm.Kind.MANAGED
    assert library.context is gmm.context()
    assert library.attach(gmm.context().handle) == 1  # GMM_UNCHANGED
    with gmm.Context("host") as other:
        assert library.attach(other.handle) < 0


def test_empty_cache_returns_memory(native):
    """A peak between two looks is seen, and goes with its reset."""
    before = native.stats("reserved_bytes")["current"]
    torch._C._cuda_resetPeakMemoryStats(0)
    native.free(native.malloc(256 * MIB))
    torch._C._cuda_emptyCache()
    reserved = native.stats("reserved_bytes")
    assert reserved["current"] <= before and reserved["peak"] >= 256 * MIB
    torch._C._cuda_resetPeakMemoryStats(0)
    assert native.stats("reserved_bytes")["peak"] == native.stats("reserved_bytes")["current"]
    assert sum(native.stats("reserved_bytes", size)["current"]
               for size in ("small_pool", "large_pool")) == native.stats("reserved_bytes")["current"]


def test_peaks_of_kinds_at_different_moments_are_not_added(native, library):
    for kind in (gmm.Kind.DEVICE, gmm.Kind.VMM):
        library.set_kind(int(kind))
        native.free(native.malloc(512 * MIB))
        torch._C._cuda_emptyCache()
    assert native.stats("reserved_bytes")["peak"] <= gmm.context().stats(device=0).peak_reserved_bytes


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
        assert all(one["state"] != "inactive" or other["state"] != "inactive"
                   for one, other in zip(blocks, blocks[1:]))


def test_a_snapshot_shows_all_that_is_reserved(native):
    held = [native.malloc(size) for size in (100, 70_000, 3 * MIB, 33 * MIB)]
    native.free(held.pop(1))
    segments = native.segments()
    check_segments(segments)
    assert sum(segment["total_size"] for segment in segments) == native.stats("reserved_bytes")["current"]
    assert native.live() == dict(zip(held, (100, 3 * MIB, 33 * MIB)))
    for address in held:
        native.free(address)


def test_a_snapshot_has_no_paused_memory(native, tmp_path):
    with gmm.context().tag("of the snapshot", gmm.Contents.HOST) as tag:
        address = native.malloc(3 * MIB)
    with tag.paused():
        check_segments(native.segments())
        assert address not in native.live()
    torch.cuda.memory._dump_snapshot(tmp_path / "snapshot")
    segments = pickle.loads((tmp_path / "snapshot").read_bytes())["segments"]
    assert address in {block["address"] for segment in segments for block in segment["blocks"]}
    native.free(address)


def test_threads_that_free_each_others_blocks_lose_none(native):
    held, before = [], native.stats("allocation")["current"]

    def work(seed):
        chance = random.Random(seed)
        for _ in range(5000):
            if len(held) > 2000 or (len(held) > 500 and chance.random() < 0.5):
                native.free(held.pop(chance.randrange(400)))
            else:
                held.append(native.malloc(chance.choice((100, 700, 5000))))

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    live = native.live()
    assert set(held) <= live.keys() and len(live) == len(held) + before
    for address in held:
        native.free(address)
    assert native.stats("allocation")["current"] == before


class Pool:
    """A private pool that the calling thread allocates to inside a with block. PyTorch 2.5 has other functions for it.

    number: at most 256. memory_snapshot() of PyTorch 2.11 frees the id's numbers, which Python keeps up to there.
    """

    def __init__(self, number):
        self.id = (0, number)

    def begin(self):
        name = "CurrentThreadToPool" if hasattr(torch._C, "_cuda_beginAllocateCurrentThreadToPool") else "ToPool"
        getattr(torch._C, f"_cuda_beginAllocate{name}")(0, self.id)

    def end(self):
        name = "ToPool" if hasattr(torch._C, "_cuda_endAllocateToPool") else "CurrentStreamToPool"
        getattr(torch._C, f"_cuda_endAllocate{name}")(0, self.id)

    def __enter__(self):
        self.begin()
        return self

    def __exit__(self, *_):
        self.end()

    def release(self):
        torch._C._cuda_releasePool(0, self.id)


def test_a_private_pool_divides_segments_of_its_own(native):
    with Pool(201) as pool:
        a, b, c, d = (native.malloc(size) for size in (100, MIB // 2, 3 * MIB, 5 * MIB))
    outside = native.malloc(1000)
    assert b == a + 512 and d == c + 3 * MIB
    segments = native.segments(pool.id)
    check_segments(segments)
    assert [tuple(segment["segment_pool_id"]) for segment in segments] == [pool.id] * 2
    assert native.live(pool.id).keys() == {a, b, c, d}
    everything = native.segments()
    check_segments(everything)
    assert sum(segment["total_size"] for segment in everything) == native.stats("reserved_bytes")["current"]
    assert torch._C._cuda_checkPoolLiveAllocations(0, pool.id, {a, b, c, d})
    assert not torch._C._cuda_checkPoolLiveAllocations(0, pool.id, {a, c, d})
    for address in (b, d, a, c):
        native.free(address)
        check_segments(native.segments(pool.id))
    assert torch._C._cuda_checkPoolLiveAllocations(0, pool.id, set())
    torch._C._cuda_emptyCache()
    assert len(native.segments(pool.id)) == 2  # a graph may still use them
    native.free(outside)
    pool.release()
    torch._C._cuda_emptyCache()
    assert native.segments(pool.id) == []


def test_a_second_begin_and_a_lonely_end_are_errors(native):
    with Pool(202) as pool:
        with pytest.raises(RuntimeError, match="already recording"):
            pool.begin()
    with pytest.raises(RuntimeError, match="not currently recording"):
        pool.end()
    pool.release()
    pool.release()


def test_a_pool_returns_to_its_checkpoint(native):
    with Pool(203) as pool:
        a, b = native.malloc(1000), native.malloc(3 * MIB)
        state = torch._C._cuda_getCheckpointState(0, pool.id)
        c, newer = native.malloc(2000), native.malloc(64 * MIB)
    for address in (a, c, newer):
        native.free(address)
    assert torch._C._cuda_checkPoolLiveAllocations(0, pool.id, {b})
    # The holder of block b keeps it. The storage becomes the owner of a.
    storage = torch._C._construct_storage_from_data_pointer(a, torch.device("cuda", 0), 1000)
    torch._C._cuda_setCheckpointPoolState(0, state, [], [storage._cdata])
    assert torch._C._cuda_checkPoolLiveAllocations(0, pool.id, {a, b})
    assert native.stats("allocation")["current"] == 2
    check_segments(native.segments(pool.id))
    with pool:
        again = native.malloc(2000), native.malloc(64 * MIB)
    assert again == (c, newer)  # it did not take the memory of a
    for address in (*again, b):
        native.free(address)
    del storage
    assert native.stats("allocation")["current"] == 0
    pool.release()
    pool.release()
    torch._C._cuda_emptyCache()
    pool.begin(), pool.end()
    with pytest.raises(RuntimeError, match="memory of the checkpoint is gone"):
        torch._C._cuda_setCheckpointPoolState(0, state, [], [])
    pool.release()
    pool.release()


def test_a_pools_block_waits_for_the_stream_that_recorded_it(native, library):
    go = threading.Event()
    with Pool(204) as pool:
        state = torch._C._cuda_getCheckpointState(0, pool.id)
        address = native.malloc(2 * MIB)
    with gmm.context().stream() as stream:
        stream.call(go.wait)
        library.check(library.record(address, 0, stream.handle))
        native.free(address)
        assert native.stats("allocation")["current"] == 0 < native.stats("active")["current"]
        with pool:  # no call of the driver while its stream is held up: it might wait
            other = native.malloc(2 * MIB)
            assert other != address
            library.check(library.record(other, 0, stream.handle))
            native.free(other)  # as in a capture, without its event
        go.set()
        stream.synchronize()
        torch._C._cuda_setCheckpointPoolState(0, state, [], [])
    assert native.stats("active")["current"] == 0
    check_segments(native.segments(pool.id))
    with pool:
        assert {native.malloc(2 * MIB), native.malloc(2 * MIB)} == {address, other}
    for block in (address, other):
        native.free(block)
    for _ in range(3):
        pool.release()
    torch._C._cuda_emptyCache()


def test_out_of_memory_has_pytorch_s_words(native):
    observed, before = [], torch._C._cuda_memoryStats(0)["num_ooms"]
    if conftest.GPU:
        torch._C._cuda_attach_out_of_memory_observer(lambda device, *sizes: observed.append(device))
    with pytest.raises(RuntimeError, match=r"CUDA out of memory\. Tried to allocate .*GiB\. GPU 0 has a total"):
        native.malloc(1 << 50)
    assert torch._C._cuda_memoryStats(0)["num_ooms"] == before + 1 and observed == [0] * conftest.GPU
    context = gmm.context()
    fraction = (context.stats(device=0).reserved_bytes + 4 * MIB) / context.device_info(0).total_memory
    torch._C._cuda_setMemoryFraction(fraction, 0)
    try:
        if hasattr(torch._C, "_cuda_getMemoryFraction"):
            assert abs(torch._C._cuda_getMemoryFraction(0) - fraction) < 1e-6
        with pytest.raises(RuntimeError, match="gmm: .*limit"):
            native.malloc(256 * MIB)
    finally:
        torch._C._cuda_setMemoryFraction(1.0, 0)


# The C functions beside the allocator.


def test_a_slot_allocates_with_its_tag_and_gives_null_where_pytorch_asks_again(library):
    context, slot = gmm.context(), library.slot
    tag = context.tag("slot-limit")
    address = slot(tag.number, int(gmm.Kind.VMM))
    assert address == slot(tag.number, int(gmm.Kind.VMM)) != slot(tag.number, int(gmm.Kind.DEVICE))
    allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(address)
    deallocate = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(
        ctypes.cast(library.cdll.gmm_torch_dealloc, ctypes.c_void_p).value)
    context.set_limit(8 * MIB, tag=tag)
    first = allocate(6 * MIB, 0, None)
    assert context.query(first).tag == tag.number
    assert allocate(6 * MIB, 0, None) is None
    deallocate(first, 6 * MIB, 0, None)
    second = allocate(7 * MIB, 0, None)
    assert second
    deallocate(second, 7 * MIB, 0, None)


# The compiler.


@pytest.fixture
def cxx(tmp_path, monkeypatch):
    """cxx(script): from now on the script is the compiler. Its calls are counted in tmp_path/count."""
    def make(script):
        path = tmp_path / "c++"
        path.write_text(f"#!/bin/sh\necho x >>{tmp_path}/count\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))

    return make


def test_the_words_of_a_compiler_that_fails(tmp_path, cxx):
    cxx("echo 'no such thing' >&2\nexit 1")
    with pytest.raises(RuntimeError, match=r"gmm_torch.cpp did not compile[^$]*no such thing"):
        torch_library.build(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.so"))


def test_callers_that_start_at_once_compile_once(tmp_path, cxx):
    cxx('while [ "$1" != -o ]; do shift; done\nsleep 0.3\necho made >"$2"')
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        answers = set(threads.map(torch_library.build, [tmp_path / "cache"] * 3))
    assert [path.read_text() for path in answers] == ["made\n"]
    assert (tmp_path / "count").read_text() == "x\n"


def test_files_that_were_built_ahead_serve_a_machine_without_a_compiler(tmp_path, cxx, monkeypatch):
    cxx('while [ "$1" != -o ]; do shift; done\necho made >"$2"')
    built = subprocess.run([sys.executable, "-m", "gmm.torch", "build", tmp_path / "ahead"], capture_output=True,
                           text=True, check=True).stdout.strip()
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    monkeypatch.setenv("CUDA_HOME", "/nonexistent")
    assert str(torch_library.build(tmp_path / "ahead")) == built
    with pytest.raises(RuntimeError, match=r"/nonexistent/c\+\+[^$]*python -m gmm.torch build FOLDER"):
        torch_library.build(tmp_path / "empty")


# On a GPU.


def results(*names, **environment):
    """The results of uses in a process of its own: {name: (value, error)}. No name means all of them."""
    unset = {name: "" for name in os.environ if "ALLOC_CONF" in name}
    lines = conftest.run("import torch_uses\ntorch_uses.main()", *names, timeout=120,
                         **{**unset, **environment}).splitlines()
    return {name: (value, error) for name, value, error in (
        json.loads(line[7:]) for line in lines if line.startswith("RESULT "))}


@pytest.fixture(scope="module")
def theirs():
    """With PyTorch's own allocator."""
    found = results()
    assert found.keys() == {use.__name__ for use in (torch_uses.training, *torch_uses.USES)}
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("use", torch_uses.USES, ids=lambda use: use.__name__)
def test_an_everyday_use_gives_what_it_gives_with_pytorchs_own(native, theirs, use):
    wanted, error = theirs[use.__name__]
    try:
        value = json.loads(json.dumps(use()))
    except Exception:
        if error is not None:
            pytest.skip(f"it fails with PyTorch's own allocator too: {error}")
        raise
    assert error is not None or value == wanted


@pytest.mark.gpu
@pytest.mark.parametrize("value", ["on", "regions", "off"])
def test_a_training_under_gmm_run_has_the_same_losses(theirs, value):
    assert results("training", LD_PRELOAD=preload.find_library(), GMM_PRELOAD=value)["training"] == theirs["training"]


@pytest.mark.gpu
def test_use_after_the_first_tensor_is_refused():
    conftest.run("""
import pytest, torch, gmm.torch
x = torch.ones(5, device="cuda")
with pytest.raises(RuntimeError, match="above the line that makes the first CUDA tensor"):
    gmm.torch.use()
""")


def test_a_tensor_over_reserved_addresses():
    with gmm.Context("host") as context:
        cache = gmm.torch.reserve((1 << 20, 2, 16, 8, 128), torch.bfloat16, context=context, tag="cache")
        assert cache.gmm.take([3, 40], 2, zero=True) == 4 * MIB
        part, cache[40] = cache[3:5], 5
        assert torch.equal(torch.from_dlpack(cache.gmm[40]), cache[40]) and bool((cache[40] == 5).all())
        with pytest.raises(MemoryError):
            cache.gmm.take(50, 1 << 19)
        assert cache.gmm.give_back([40, 41]) == 2 * MIB
        del cache
        assert not part.any()
        del part
        assert context.stats().live_blocks == 0
        with pytest.raises(RuntimeError, match="type cpu"):
            gmm.torch.reserve(4, device="cuda", context=context)


@pytest.mark.gpu
def test_a_graph_finds_rows_that_were_taken_again():
    cache = gmm.torch.reserve((1 << 20, 1 << 19), device="cuda", tag="graph")  # a row is a page; more than any GPU has
    cache.gmm.take([1, 1 << 19])
    graph, out = torch.cuda.CUDAGraph(), torch.zeros(1 << 19, device="cuda")
    with torch.cuda.graph(graph):
        out.copy_(cache[1] + cache[1 << 19])
    for number in range(3):
        cache[1], cache[1 << 19] = number, 2
        graph.replay()
        assert bool((out == number + 2).all())
        assert cache.gmm.give_back([1, 1 << 19]) == 4 * MIB
        cache.gmm.take([1 << 19, 1])
