# SPDX-License-Identifier: Apache-2.0
"""libgmm_torch.so.1 without a GPU: the functions that PyTorch calls, called as it calls them."""
import ctypes
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading

os.environ["GMM_BACKEND"] = os.environ.get("TEST_TORCH_BACKEND", "host")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors, and a machine that others use

import pytest  # noqa: E402
import torch  # noqa: E402

import gmm  # noqa: E402
from gmm import _native as native  # noqa: E402
from gmm._torch import allocator as torch_allocator  # noqa: E402
from gmm._torch import library as torch_library  # noqa: E402

MIB = 1 << 20

# How PyTorch holds and calls its functions: as std::function, with a pair and a std::function by value, and expecting
# C++ exceptions.
CALLER = r"""
#include <atomic>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <thread>
#include <utility>
using Pool = std::pair<unsigned long long, unsigned long long>;
using Filter = std::function<bool(void *)>;
extern "C" {
void thrower(const char *message) { throw std::runtime_error(message); }
int begin(uintptr_t address, unsigned long long first, unsigned long long second) {
  std::function<void(int, Pool, Filter)> function = reinterpret_cast<void (*)(int, Pool, Filter)>(address);
  int used = 0;
  function(0, Pool{first, second}, [&used](void *) { return ++used; });
  return used;
}
void end(uintptr_t address, unsigned long long first, unsigned long long second) {
  std::function<void(int, Pool)> function = reinterpret_cast<void (*)(int, Pool)>(address);
  function(0, Pool{first, second});
}
std::atomic<bool> hammering;
std::thread hammer;
void hammer_begin(uintptr_t unroute) {
  hammering = true;
  hammer = std::thread([unroute] {
    while (hammering) reinterpret_cast<void (*)(uint64_t, uint64_t)>(unroute)(1, 1);
  });
}
void hammer_end() {
  hammering = false;
  hammer.join();
}
int started_by_two(uintptr_t start) {  // how many of two threads say that it was them
  std::atomic<int> ready{0}, made{0};
  const auto work = [&] {
    ++ready;
    while (ready < 2) {}
    if (reinterpret_cast<int (*)(int)>(start)(0) == 0) ++made;
  };
  std::thread other(work);
  work();
  other.join();
  return made;
}
int allocation_throws(uintptr_t address, size_t size) {
  std::function<void *(size_t, int, void *)> function = reinterpret_cast<void *(*)(size_t, int, void *)>(address);
  try {
    function(size, 0, nullptr);
  } catch (const std::runtime_error &error) {
    return 1;
  }
  return 0;
}
}
"""


@pytest.fixture(scope="module")
def library():
    return torch_library.load()


@pytest.fixture(scope="module")
def caller(tmp_path_factory):
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("caller")
    (folder / "caller.cpp").write_text(CALLER)
    subprocess.run([compiler, "-std=c++17", "-shared", "-fPIC", "-pthread", "-o", folder / "caller.so",
                    folder / "caller.cpp"], check=True)
    cdll = ctypes.CDLL(str(folder / "caller.so"))
    cdll.begin.argtypes = cdll.end.argtypes = [ctypes.c_size_t, ctypes.c_ulonglong, ctypes.c_ulonglong]
    cdll.hammer_begin.argtypes = cdll.started_by_two.argtypes = [ctypes.c_size_t]
    cdll.allocation_throws.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    return cdll


class Blocks:
    """Allocations that are freed at the end."""

    def __init__(self, cdll):
        self.cdll, self.held = cdll, []

    def alloc(self, size, stream=None):
        address = self.cdll.gmm_torch_alloc(size, 0, stream)
        assert address
        self.held.append((address, size, stream))
        return address

    def free(self, address):
        entry = next(entry for entry in self.held if entry[0] == address)
        self.held.remove(entry)
        self.cdll.gmm_torch_dealloc(entry[0], entry[1], 0, entry[2])


@pytest.fixture
def blocks(library):
    made = Blocks(library.cdll)
    yield made
    for address, _, _ in list(made.held):
        made.free(address)


def test_the_context_is_the_default_one(library, blocks):
    assert library.context is gmm.context()
    before = gmm.context().stats().live_bytes
    address = blocks.alloc(100_000)
    info = gmm.context().query(address)
    assert (info.kind, info.base, info.size, info.state) == (gmm.Kind.VMM, address, 100_000, gmm.State.ACTIVE)
    assert gmm.context().stats().live_bytes == before + 100_000
    blocks.free(address)
    assert gmm.context().stats().live_bytes == before
    assert library.cdll.gmm_torch_attach(gmm.context().handle) == 1  # GMM_UNCHANGED
    with gmm.Context("host") as other:
        assert library.cdll.gmm_torch_attach(other.handle) < 0


def test_freed_memory_comes_back_at_once(blocks):
    address = blocks.alloc(5 * MIB)
    blocks.free(address)
    assert blocks.alloc(5 * MIB) == address


def test_the_thread_s_tag_and_pause(blocks):
    context = gmm.context()
    with context.tag("torch-test", gmm.Contents.HOST) as tag:
        address = blocks.alloc(MIB)
    native.gmm_fill(context, address, 7, MIB, None)
    assert context.query(address).tag == tag.number
    assert context.pause(tag) >= MIB and context.query(address).state == gmm.State.PAUSED
    context.resume(tag)
    with context.alloc(MIB, gmm.Kind.HOST) as out:
        context.copy(out, address, MIB)
        context.synchronize()
        assert bytes(memoryview(out)) == b"\7" * MIB


def test_kinds(library, blocks):
    library.cdll.gmm_torch_set_kind(int(gmm.Kind.DEVICE))
    try:
        assert gmm.context().query(blocks.alloc(1000)).kind == gmm.Kind.DEVICE
        library.cdll.gmm_torch_set_managed(1)
        assert gmm.context().query(blocks.alloc(1000)).kind == gmm.Kind.MANAGED
    finally:
        library.cdll.gmm_torch_set_managed(0)
        library.cdll.gmm_torch_set_kind(int(gmm.Kind.VMM))


def test_pytorch_takes_every_hook(library):
    before = library.calls()
    allocator = torch_allocator.make_allocator()
    assert isinstance(allocator.allocator(), torch._C._cuda_CUDAAllocator)
    assert library.calls() == before  # they are set, not called
    hooks = [name for name in dir(allocator.allocator()) if name.startswith("set_")]
    source = pathlib.Path(torch_allocator.__file__).read_text()
    assert all(f"hooks.{name}(" in source for name in hooks) and len(hooks) == 8


def test_a_pool_routes_the_thread_that_began_it(library, caller, blocks):
    context = gmm.context()
    outer, inner = context.tag("outer"), context.tag("inner")
    slots = [library.slot(tag.number, int(gmm.Kind.VMM)) for tag in (outer, inner)]
    assert slots[0][0] != slots[1][0] and library.slot(outer.number, int(gmm.Kind.VMM)) == slots[0]
    library.check(library.cdll.gmm_torch_route(0, 901, slots[0][0]))
    library.check(library.cdll.gmm_torch_route(0, 902, slots[1][0]))
    begin, end = library.address("gmm_torch_begin_pool"), library.address("gmm_torch_end_pool")
    tags, elsewhere = [], []

    def here():
        return context.query(blocks.alloc(1000)).tag

    assert caller.begin(begin, 0, 901) == 0
    tags.append(here())
    caller.begin(begin, 17, 0)  # a graph's own pool
    tags.append(here())
    caller.begin(begin, 0, 902)
    tags.append(here())
    thread = threading.Thread(target=lambda: elsewhere.append(here()))
    thread.start()
    thread.join()
    caller.end(end, 17, 0)
    caller.end(end, 0, 902)
    tags.append(here())
    caller.end(end, 0, 901)
    tags.append(here())
    assert tags == [outer.number, outer.number, inner.number, outer.number, 1] and elsewhere == [1]
    library.cdll.gmm_torch_unroute(0, 901)
    caller.begin(begin, 0, 901)
    assert here() == 1
    caller.end(end, 0, 901)
    library.cdll.gmm_torch_unroute(0, 902)


def test_a_slot_gives_null_where_pytorch_asks_again(library):
    context = gmm.context()
    tag = context.tag("slot-limit")
    _, allocate, deallocate = library.slot(tag.number, int(gmm.Kind.VMM))
    allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(allocate)
    deallocate = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(deallocate)
    context.set_limit(8 * MIB, tag=tag)
    first = allocate(6 * MIB, 0, None)
    assert context.query(first).tag == tag.number
    assert allocate(6 * MIB, 0, None) is None
    deallocate(first, 6 * MIB, 0, None)
    second = allocate(7 * MIB, 0, None)
    assert second
    deallocate(second, 7 * MIB, 0, None)


def test_want_of_memory_is_thrown_through_c(library, caller):
    context = gmm.context()
    library.cdll.gmm_torch_set_errors(ctypes.cast(caller.thrower, ctypes.c_void_p), None)
    context.set_limit(context.stats(device=0).reserved_bytes + 4 * MIB, device=0)
    try:
        assert caller.allocation_throws(library.address("gmm_torch_alloc"), 256 * MIB) == 1
        assert caller.allocation_throws(library.address("gmm_torch_alloc"), 1 << 60) == 1
    finally:
        context.set_limit(None, device=0)
        torch_allocator.set_errors()


def run_code(code, *arguments):
    """Runs a program in a fresh interpreter, which has no PyTorch. What it does to the library stays there."""
    head = ("import ctypes, sys\nimport gmm\nfrom gmm._torch import library\nlibrary = library.load()\n"
            "cdll, context, MIB = library.cdll, library.context, 1 << 20\n")
    done = subprocess.run([sys.executable, "-c", head + code, *map(str, arguments)],
                          env={**os.environ, "GMM_BACKEND": "host"}, capture_output=True,
                          text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), f"exit code {done.returncode}\n{done.stdout}{done.stderr}"


def test_the_error_says_why_the_allocation_failed():
    """Memory is looked for elsewhere before the error is raised; what fails there is another matter."""
    run_code("""
said = []
throw = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(said.append)
cdll.gmm_torch_set_errors(ctypes.cast(throw, ctypes.c_void_p), None)
library.check(cdll.gmm_torch_host_start(0))
address = cdll.gmm_torch_host_alloc(MIB)
with context.stream() as stream:
    library.check(cdll.gmm_torch_record(address, 0, stream.handle))
cdll.gmm_torch_host_free(address)  # it is kept, as nothing can be learnt of that stream
assert cdll.gmm_torch_host_collect(1) == 0
context.set_limit(context.stats(device=0).reserved_bytes + 4 * MIB, device=0)
assert cdll.gmm_torch_alloc(256 * MIB, 0, None) is None
(message,) = said
assert message.startswith(b"CUDA out of memory. gmm: allocation: "), message
assert b"limit" in message and b"tream 0x" not in message, message
""")


def test_two_threads_make_one_heap(caller):
    run_code("""
caller = ctypes.CDLL(sys.argv[1])
caller.started_by_two.argtypes = [ctypes.c_size_t]
for _ in range(100):
    assert caller.started_by_two(library.address("gmm_torch_host_start")) == 1
    cdll.gmm_torch_forget()
    library.check(cdll.gmm_torch_attach(context.handle))
""", caller._name)


def test_a_fork_while_a_pool_is_made(library, caller):
    """The thread that holds the lock is not there in the child, and neither are the parent's pools."""
    slot, _, _ = library.slot(1, int(gmm.Kind.VMM))
    caller.hammer_begin(library.address("gmm_torch_unroute"))
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                signal.alarm(10)  # ends it
                library.cdll.gmm_torch_unroute(1, 1)
                os._exit(0 if library.cdll.gmm_torch_route(1, 1, slot) == gmm.InvalidValueError.code else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        caller.hammer_end()


def test_fraction_reset_and_base(library, blocks):
    context, cdll = gmm.context(), library.cdll
    cdll.gmm_torch_memory_fraction.argtypes = [ctypes.c_double, ctypes.c_int]
    cdll.gmm_torch_memory_fraction.restype = None
    cdll.gmm_torch_base_alloc.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)]
    cdll.gmm_torch_base_alloc.restype = ctypes.c_void_p
    blocks.free(blocks.alloc(100 * MIB))
    before = context.stats().reserved_bytes
    cdll.gmm_torch_reset()
    assert before - context.stats().reserved_bytes >= 90 * MIB
    info = context.device_info(0)
    cdll.gmm_torch_memory_fraction((context.stats(device=0).reserved_bytes + 8 * MIB) / info.total_memory, 0)
    try:
        with pytest.raises(MemoryError):
            context.alloc(64 * MIB, gmm.Kind.VMM)
    finally:
        cdll.gmm_torch_memory_fraction(1.0, 0)
    context.alloc(64 * MIB, gmm.Kind.VMM).close()
    address, size = blocks.alloc(1000), ctypes.c_size_t()
    info = context.query(address)
    assert cdll.gmm_torch_base_alloc(address + 5, ctypes.byref(size)) == info.allocation_base
    assert size.value == info.allocation_size


def test_a_recorded_stream_keeps_memory_of_cpu_tensors(library):
    """Memory with a note of a stream is reused only when that stream is done: the host waits for no stream."""
    context, cdll = gmm.context(), library.cdll
    library.check(cdll.gmm_torch_host_start(0))
    go = threading.Event()
    address = cdll.gmm_torch_host_alloc(3 * MIB)
    with context.stream() as stream:
        stream.call(go.wait)
        library.check(cdll.gmm_torch_record(address + 100, 0, stream.handle))
        cdll.gmm_torch_host_free(address)
        others = [cdll.gmm_torch_host_alloc(3 * MIB) for _ in range(3)]
        assert cdll.gmm_torch_host_collect(0) == 0
        go.set()
        assert cdll.gmm_torch_host_collect(1) == 1
        late = [cdll.gmm_torch_host_alloc(3 * MIB) for _ in range(3)]
        for other in others + late:
            cdll.gmm_torch_host_free(other)
    assert address not in others and address in late
    assert cdll.gmm_torch_record(id(go), 0, None) == 1  # not gmm's: GMM_UNCHANGED


def test_a_recorded_stream_reads_memory_of_cuda_tensors_whole(library, blocks):
    """The next user gets the memory at once, on its own stream, which is ordered behind the recorded one."""
    context = gmm.context()
    go = threading.Event()
    size = 3 * MIB
    with context.stream() as stream, context.alloc(size, gmm.Kind.HOST) as out:
        address = blocks.alloc(size)
        native.gmm_fill(context, address, 1, size, None)
        context.synchronize()
        stream.call(go.wait)
        context.copy(out, address, size, stream=stream)
        library.check(library.cdll.gmm_torch_record(address + 100, 0, stream.handle))
        blocks.free(address)
        for _ in range(3):
            native.gmm_fill(context, blocks.alloc(size), 2, size, None)
        go.set()
        stream.synchronize()
        context.synchronize()
        assert bytes(memoryview(out)) == b"\1" * size


@pytest.mark.skipif(os.environ["GMM_BACKEND"] == "cuda", reason="inside of this test")
def test_the_same_on_the_fake_driver():
    try:
        gmm.Context("cuda").close()
    except gmm.Error:
        pytest.skip("no driver, and no fake one")
    # In one process, as the import of PyTorch takes most of its time. What runs in processes of its own, or asks
    # PyTorch's functions alone, is the same on each backend.
    leave_out = ("test_torch_managed and (loader or fork or variable or compiler or identity or without_cuda) or "
                 "test_torch_native and compil")
    files = ["test_torch_allocator.py", "test_torch_managed.py", "test_torch_native.py"]
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", f"not ({leave_out})",
                           *(str(pathlib.Path(__file__).parent / file) for file in files)],
                          env={**os.environ, "TEST_TORCH_BACKEND": "cuda"}, capture_output=True, text=True,
                          timeout=200, check=False)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout[-6000:] + done.stderr[-2000:]
