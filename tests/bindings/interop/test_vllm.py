# SPDX-License-Identifier: Apache-2.0
"""gmm.vllm with PyTorch on a GPU: CuMemAllocator as vLLM's worker uses it. tests/bindings/python has the interface."""
import pytest
import torch
from conftest import MIB

import gmm.vllm

GIB = 1 << 30


@pytest.fixture
def allocator():
    return gmm.vllm.CuMemAllocator.get_instance()


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
