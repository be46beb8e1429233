# SPDX-License-Identifier: Apache-2.0
"""gmm.vllm with PyTorch on a GPU: CuMemAllocator as vLLM's worker uses it, and the sleep-mode backend."""
import pytest
import torch
from conftest import MIB

import gmm
import gmm.vllm

GIB = 1 << 30


@pytest.fixture
def allocator():
    return gmm.vllm.CuMemAllocator.get_instance()


def random_bytes(size, seed):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda", generator=generator)


def free_memory():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def released(before, size):
    assert free_memory() - before >= 0.95 * size


def model_of():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(2048, 4096), torch.nn.ReLU(),
                               torch.nn.Linear(4096, 2048)).to("cuda").requires_grad_(False)


@pytest.mark.gpu
def test_levels_of_sleep(allocator):
    """A model's weights are kept at level 1, a cache is not; at level 2 nothing is. Forward gives the same bits
    afterwards.
    """
    assert allocator.get_current_usage() == 0
    torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")  # what the BLAS keeps for good is in no pool
    with allocator.use_memory_pool(tag="weights"):
        model = model_of()
    with allocator.use_memory_pool(tag="kv_cache"):
        cache = torch.zeros(GIB, dtype=torch.uint8, device="cuda")
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert weights + GIB <= allocator.get_current_usage() <= 1.3 * (weights + GIB)
    inputs = torch.randn(32, 2048, device="cuda")
    expected, addresses = model(inputs), [parameter.data_ptr() for parameter in model.parameters()]
    before = free_memory()
    allocator.sleep(offload_tags=("weights",))
    released(before, weights + GIB)
    allocator.wake_up(["weights"])
    assert torch.equal(model(inputs), expected)
    assert before - free_memory() < weights + 128 * MIB
    allocator.wake_up(["kv_cache"])
    cache.zero_()
    assert addresses == [parameter.data_ptr() for parameter in model.parameters()]
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    before = free_memory()
    allocator.sleep(offload_tags=())
    released(before, weights + GIB)
    allocator.wake_up()
    model.load_state_dict(state)
    assert torch.equal(model(inputs), expected)
    del model, cache
    torch.cuda.empty_cache()
    assert allocator.get_current_usage() == 0


@pytest.mark.gpu
def test_the_default_tag(allocator):
    with allocator.use_memory_pool():
        kept = random_bytes(200 * MIB, 1)
    with allocator.use_memory_pool("kv_cache"):
        lost = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
    expected = kept.cpu()
    for _ in range(3):
        allocator.sleep()
        allocator.sleep()
        allocator.wake_up()
        allocator.wake_up()
    assert torch.equal(kept.cpu(), expected)
    lost.fill_(1)


@pytest.mark.gpu
def test_discard(allocator):
    with allocator.use_memory_pool("weights"):
        kept = random_bytes(100 * MIB, 2)
    with allocator.use_memory_pool("kv_cache"):
        cache = torch.ones(512 * MIB, dtype=torch.uint8, device="cuda")
    expected, before = kept.cpu(), free_memory()
    allocator.discard("kv_cache")
    released(before, 512 * MIB)
    assert torch.equal(kept.cpu(), expected)
    allocator.wake_up()
    cache.fill_(2)


@pytest.mark.gpu
def test_memory_freed_inside_is_not_held(allocator):
    """Weights made in one type and kept in another: the first ones are not held."""
    # what the checks before left in PyTorch's cache counts as used, and goes with the next call
    torch.cuda.empty_cache()
    usage = allocator.get_current_usage()
    with allocator.use_memory_pool("weights"):
        wide = [torch.randn(64 * MIB, device="cuda") for _ in range(4)]
        narrow = [tensor.bfloat16() for tensor in wide]
        del wide
    torch.cuda.empty_cache()
    held = allocator.get_current_usage() - usage
    assert 512 * MIB <= held <= 640 * MIB
    expected = [tensor.cpu() for tensor in narrow]
    allocator.sleep("weights")
    allocator.wake_up()
    assert all(torch.equal(tensor.cpu(), there) for tensor, there in zip(narrow, expected))


@pytest.mark.gpu
def test_a_graph_over_sleep(allocator):
    """vLLM captures its graphs over weights and cache, which then sleep."""
    torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
    with allocator.use_memory_pool("weights"):
        model = model_of()
    with allocator.use_memory_pool("kv_cache"):
        cache = torch.zeros(32, 2048, device="cuda")
    inputs = torch.randn(32, 2048, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            cache.copy_(model(inputs))
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cache.copy_(model(inputs))
    for seed in range(3):
        allocator.sleep("weights")
        allocator.wake_up()
        cache.zero_()
        inputs.copy_(torch.randn(32, 2048, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        assert torch.allclose(cache, model(inputs), atol=1e-4)
    assert float(cache.abs().sum()) > 0


@pytest.mark.gpu
def test_want_of_memory_at_a_wake_up(allocator):
    with allocator.use_memory_pool("weights"):
        kept = random_bytes(2 * GIB, 3)
    expected = kept.cpu()
    allocator.sleep("weights")
    hog = torch.empty(free_memory() - GIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(gmm.OutOfMemoryError):
        allocator.wake_up()
    with pytest.raises(gmm.OutOfMemoryError):
        allocator.wake_up(["weights"])
    del hog
    torch.cuda.empty_cache()
    allocator.wake_up()
    assert torch.equal(kept.cpu(), expected)


@pytest.mark.gpu
def test_the_backend(allocator):
    assert gmm.vllm.GmmSleepModeBackend.is_supported()
    sleeper = gmm.vllm.GmmSleepModeBackend()
    with allocator.use_memory_pool("weights"):
        kept = random_bytes(300 * MIB, 4)
    expected = kept.cpu()
    states = [sleeper.state()]
    sleeper.suspend(1)
    states.append(sleeper.state())
    sleeper.resume(["weights"])
    states.append(sleeper.state())
    assert states == ["RUNNING", "SUSPENDED", "RUNNING"]
    assert torch.equal(kept.cpu(), expected)
    pytest.importorskip("vllm")
    gmm.vllm.register()
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

    assert SleepModeBackendFactory.get_backend_class("gmm") is gmm.vllm.GmmSleepModeBackend
