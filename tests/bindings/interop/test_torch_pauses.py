# SPDX-License-Identifier: Apache-2.0
"""PyTorch's memory is paused below tensors, gradients and a CUDA graph, in each way that gmm has, on a GPU.

Each way runs one program in a process of its own. tests/bindings/python has the interfaces, on a fake of PyTorch.
"""
import pytest
from conftest import run

from gmm._memory_saver import preload

pytestmark = pytest.mark.gpu

PRELUDE = """
import contextlib, gc, threading
import pytest, torch
import gmm
from conftest import MIB, goes_back
"""

#: region() is where memory is made, pause() and resume() are of that memory.
PROGRAM = """
layers, side_length = 4, 2048
weight_bytes = layers * 4 * side_length ** 2
torch.manual_seed(7)
torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")  # what the BLAS keeps for good is in no region
elsewhere = []
with region():
    model = torch.nn.Sequential(*[torch.nn.Linear(side_length, side_length, device="cuda") for _ in range(layers)])
    inputs, out = (torch.randn(256, side_length, device="cuda") for _ in range(2))
    model(inputs).square().sum().backward()
    thread = threading.Thread(target=lambda: elsewhere.append(torch.full((MIB,), 6, device="cuda")))
    thread.start()
    thread.join()
outside = torch.full((MIB,), 5, device="cuda")
kept = [tensor for parameter in model.parameters() for tensor in (parameter.detach(), parameter.grad)] + [inputs]
addresses, contents = [tensor.data_ptr() for tensor in kept], [tensor.cpu() for tensor in kept]

def step():
    with torch.no_grad():
        out.copy_(torch.relu(model(inputs)) + 1)

stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    step()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
graph.replay()
expected = out.cpu()

goes_back(int(0.95 * (2 if has_gradients else 1) * weight_bytes), pause, resume)
for _ in range(2):
    pause()
    if not everything:
        assert bool((outside == 5).all()) and bool((elsewhere[0] == 6).all())
    resume()
    assert addresses == [tensor.data_ptr() for tensor in kept]
    assert all(torch.equal(tensor.cpu(), content) for tensor, content in zip(kept, contents))
    out.zero_()
    graph.replay()
    assert torch.equal(out.cpu(), expected)
with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
pinned = torch.arange(MIB, dtype=torch.int32).pin_memory()
assert pinned.is_pinned() and torch.equal(pinned.to("cuda", non_blocking=True).cpu(), pinned)
optimizer = torch.optim.Adam(model.parameters())
losses = []
for _ in range(3):
    optimizer.zero_grad()
    losses.append(model(inputs).square().mean())
    losses[-1].backward()
    optimizer.step()
assert losses[0] > losses[1] > losses[2]
"""

TAG = """
import gmm.torch
context, everything, has_gradients = gmm.context(), False, {has_gradients}
tag = context.tag("kept", gmm.Contents.HOST)
pause, resume = tag.pause, tag.resume
"""
POOL = TAG.format(has_gradients=True) + """
pool = gmm.torch.pool(tag)
assert isinstance(pool, torch.cuda.MemPool)
region = pool.use
"""
SAVER = """
from gmm.memory_saver import torch_memory_saver as saver
saver.hook_mode, everything, has_gradients = "{mode}", {everything}, True
region = contextlib.nullcontext if everything else lambda: saver.region(tag="kept", enable_cpu_backup=True)
pause, resume = saver.pause, saver.resume
"""
ALL = {"GMM_PRELOAD": "regions", "TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1"}
#: name: the code, and the environment of the preload library where it is used.
WAYS = {
    "use": ("import gmm.torch\ngmm.torch.use()\n" + TAG.format(has_gradients=False) + "region = lambda: tag\n", None),
    "pool of use": ("import gmm.torch\ngmm.torch.use()\n" + POOL, None),
    "pool": (POOL, None),
    "memory saver, torch": (SAVER.format(mode="torch", everything=False), None),
    "memory saver, preload": (SAVER.format(mode="preload", everything=False), {"GMM_PRELOAD": "regions"}),
    "memory saver from the start": (SAVER.format(mode="preload", everything=True), ALL),
    "vllm": ("""
from gmm.vllm import CuMemAllocator
allocator, everything, has_gradients = CuMemAllocator.get_instance(), False, True
region = lambda: allocator.use_memory_pool(tag="weights")
pause, resume = lambda: allocator.sleep(offload_tags=("weights",)), lambda: allocator.wake_up(["weights"])
""", None),
    "gmm run": ("""
import ctypes
library = ctypes.CDLL(None)
library.gmm_preload_last_error.restype = ctypes.c_char_p
everything, has_gradients, region = True, True, contextlib.nullcontext

def pause(function=library.tms_pause):
    assert function(None) == 0, library.gmm_preload_last_error()

def resume():
    pause(library.tms_resume)
""", {"GMM_PRELOAD": "on", "TMS_INIT_ENABLE_CPU_BACKUP": "1"})}


def run_way(code, environment=None):
    run(PRELUDE + code, **({} if environment is None else {"LD_PRELOAD": preload.find_library(), **environment}))


@pytest.mark.parametrize("way", WAYS)
def test_contents_addresses_and_graphs_outlive_a_pause(way):
    code, environment = WAYS[way]
    run_way(code + PROGRAM, environment)


@pytest.mark.parametrize("allocator", ["pool of use", "pool"])
def test_pools_nest_drop_contents_and_have_limits(allocator):
    run_way(WAYS[allocator][0] + """
lost = context.tag("lost")
with pool.use():
    with gmm.torch.pool(lost).use():
        b = torch.full((256 * MIB,), 5, dtype=torch.uint8, device="cuda")
    a = torch.ones(1000, device="cuda")
assert [context.query(tensor.data_ptr()).tag for tensor in (a, b)] == [tag.number, lost.number]
assert context.query(a.data_ptr()).kind == gmm.Kind.VMM and torch.cuda.memory_allocated() >= 256 * MIB
goes_back(250 * MIB, lost.pause, lost.resume)
b.fill_(1)
assert bool((b == 1).all())
tag = context.tag("limited")
context.set_limit(512 * MIB, tag=tag)
pool = gmm.torch.pool(tag)
with torch.cuda.use_mem_pool(pool):
    first = torch.ones(300 * MIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.empty(400 * MIB, dtype=torch.uint8, device="cuda")
assert int(first[-1]) == 1
del first, pool
gc.collect()
torch.cuda.empty_cache()
assert context.stats(tag=tag).live_bytes == 0
""")


def test_the_memory_of_a_graph_itself():
    run_way(WAYS["memory saver, preload"][0] + """
weight, inputs = (torch.randn(4096, 4096, device="cuda") for _ in range(2))
(inputs @ weight).relu()
graph = torch.cuda.CUDAGraph()
with saver.cuda_graph(graph, tag="graph"):
    out = torch.relu(inputs @ weight) + 1
goes_back(61 * MIB, lambda: saver.pause("graph"), lambda: saver.resume("graph"))
graph.replay()
assert torch.allclose(out, torch.relu(inputs @ weight) + 1)
""", {"GMM_PRELOAD": "regions"})
