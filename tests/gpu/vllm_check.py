# SPDX-License-Identifier: Apache-2.0
"""gmm.vllm with PyTorch on a GPU: CuMemAllocator as vLLM's worker uses it, and the sleep-mode backend.

Needs PyTorch, and gmm on PYTHONPATH; vLLM need not be installed. Usage: vllm_check.py [--only NAME,...]
"""
import sys

from checks import GIB, MIB, free_memory, main, must, raises, run


def allocator_of():
    from gmm.vllm import CuMemAllocator

    return CuMemAllocator.get_instance()


def random_bytes(torch, size, seed):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda", generator=generator)


def released(before, size, what):
    gone = free_memory() - before
    must(gone >= 0.95 * size, f"{what}: the driver has {gone / MIB:.0f} MiB more, not {size / MIB:.0f}")
    return f"{gone / MIB:.0f} MiB went back"


def model_of(torch):
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(2048, 4096), torch.nn.ReLU(),
                               torch.nn.Linear(4096, 2048)).to("cuda").requires_grad_(False)


def sleep_levels():
    """A model's weights are kept at level 1, a cache is not; at level 2 nothing is. Forward gives the same bits
    afterwards.
    """
    import torch

    allocator = allocator_of()
    must(allocator.get_current_usage() == 0, "the allocator does not start empty")
    torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")  # what the BLAS keeps for good is in no pool
    with allocator.use_memory_pool(tag="weights"):
        model = model_of(torch)
    with allocator.use_memory_pool(tag="kv_cache"):
        cache = torch.zeros(GIB, dtype=torch.uint8, device="cuda")
    weights = sum(parameter.nbytes for parameter in model.parameters())
    must(weights + GIB <= allocator.get_current_usage() <= 1.3 * (weights + GIB),
         f"usage is {allocator.get_current_usage()}")
    inputs = torch.randn(32, 2048, device="cuda")
    expected, addresses = model(inputs), [parameter.data_ptr() for parameter in model.parameters()]
    before = free_memory()
    allocator.sleep(offload_tags=("weights",))
    words = released(before, weights + GIB, "sleep")
    allocator.wake_up(["weights"])
    must(torch.equal(model(inputs), expected), "the model computes something else after level 1")
    must(before - free_memory() < weights + 128 * MIB, "the cache was woken with the weights")
    allocator.wake_up(["kv_cache"])
    cache.zero_()
    must(addresses == [parameter.data_ptr() for parameter in model.parameters()], "an address changed")
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    before = free_memory()
    allocator.sleep(offload_tags=())
    released(before, weights + GIB, "sleep at level 2")
    allocator.wake_up()
    model.load_state_dict(state)
    must(torch.equal(model(inputs), expected), "the model computes something else after a reload")
    del model, cache
    torch.cuda.empty_cache()
    must(allocator.get_current_usage() == 0, f"{allocator.get_current_usage()} bytes stayed")
    return words


def default_tag():
    import torch

    allocator = allocator_of()
    with allocator.use_memory_pool():
        kept = random_bytes(torch, 200 * MIB, 1)
    with allocator.use_memory_pool("kv_cache"):
        lost = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
    expected = kept.cpu()
    for _ in range(3):
        allocator.sleep()
        allocator.sleep()
        allocator.wake_up()
        allocator.wake_up()
    must(torch.equal(kept.cpu(), expected), "contents differ")
    lost.fill_(1)


def discard():
    import torch

    allocator = allocator_of()
    with allocator.use_memory_pool("weights"):
        kept = random_bytes(torch, 100 * MIB, 2)
    with allocator.use_memory_pool("kv_cache"):
        cache = torch.ones(512 * MIB, dtype=torch.uint8, device="cuda")
    expected, before = kept.cpu(), free_memory()
    allocator.discard("kv_cache")
    words = released(before, 512 * MIB, "discard")
    must(torch.equal(kept.cpu(), expected), "another tag was touched")
    allocator.wake_up()
    cache.fill_(2)
    return words


def what_was_freed_inside():
    """Weights made in one type and kept in another: the first ones are not held."""
    import torch

    allocator = allocator_of()
    # what the checks before left in PyTorch's cache counts as used, and goes with the next call
    torch.cuda.empty_cache()
    usage = allocator.get_current_usage()
    with allocator.use_memory_pool("weights"):
        wide = [torch.randn(64 * MIB, device="cuda") for _ in range(4)]
        narrow = [tensor.bfloat16() for tensor in wide]
        del wide
    torch.cuda.empty_cache()
    held = allocator.get_current_usage() - usage
    must(512 * MIB <= held <= 640 * MIB, f"{held / MIB:.0f} MiB are held for 512 MiB of weights")
    expected = [tensor.cpu() for tensor in narrow]
    allocator.sleep("weights")
    allocator.wake_up()
    must(all(torch.equal(tensor.cpu(), there) for tensor, there in zip(narrow, expected)), "contents differ")
    return f"{held / MIB:.0f} MiB held for 512 MiB of weights"


def graph_over_sleep():
    """vLLM captures its graphs over weights and cache, which then sleep."""
    import torch

    allocator = allocator_of()
    torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
    with allocator.use_memory_pool("weights"):
        model = model_of(torch)
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
        must(torch.allclose(cache, model(inputs), atol=1e-4), f"replay {seed} computes something else")
    must(float(cache.abs().sum()) > 0, "the graph did nothing")


def out_of_memory():
    import torch

    import gmm

    allocator = allocator_of()
    with allocator.use_memory_pool("weights"):
        kept = random_bytes(torch, 2 * GIB, 3)
    expected = kept.cpu()
    allocator.sleep("weights")
    hog = torch.empty(free_memory() - GIB, dtype=torch.uint8, device="cuda")
    raises(gmm.OutOfMemoryError, allocator.wake_up)
    raises(gmm.OutOfMemoryError, allocator.wake_up, ["weights"])
    del hog
    torch.cuda.empty_cache()
    allocator.wake_up()
    must(torch.equal(kept.cpu(), expected), "contents differ")


def backend():
    import torch

    import gmm.vllm

    allocator = allocator_of()
    must(gmm.vllm.GmmSleepModeBackend.is_supported(), "the backend says that it is not supported")
    sleeper = gmm.vllm.GmmSleepModeBackend()
    with allocator.use_memory_pool("weights"):
        kept = random_bytes(torch, 300 * MIB, 4)
    expected = kept.cpu()
    states = [sleeper.state()]
    sleeper.suspend(1)
    states.append(sleeper.state())
    sleeper.resume(["weights"])
    states.append(sleeper.state())
    must(states == ["RUNNING", "SUSPENDED", "RUNNING"], f"states: {states}")
    must(torch.equal(kept.cpu(), expected), "contents differ")
    try:
        gmm.vllm.register()
    except ImportError:
        return "vLLM is not installed here"
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

    must(SleepModeBackendFactory.get_backend_class("gmm") is gmm.vllm.GmmSleepModeBackend,
         "another class is registered")
    return "registered with vLLM"


CHECKS = [sleep_levels, default_tag, discard, what_was_freed_inside, graph_over_sleep, backend, out_of_memory]
GROUPS = {"vllm": lambda: {check.__name__: check for check in CHECKS}}


def run_all(_group, only):
    return run(__file__, "vllm",
               {name: check for name, check in GROUPS["vllm"]().items() if only is None or name in only})


if __name__ == "__main__":
    sys.exit(main(__file__, GROUPS, run_all))
