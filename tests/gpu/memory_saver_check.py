# SPDX-License-Identifier: Apache-2.0
"""gmm.memory_saver with PyTorch on a GPU: torch_memory_saver's documented examples, unchanged but for the import, and
its promises.

Needs PyTorch, and gmm on PYTHONPATH. Usage: memory_saver_check.py [--group preload|torch|start|real] [--only NAME,...]
"""
import contextlib
import multiprocessing
import os
import pathlib
import sys

from checks import GIB, MIB, free_memory, main, must, raises, run


def saver_of(mode):
    from gmm.memory_saver import torch_memory_saver

    if torch_memory_saver._impl is None:
        torch_memory_saver.hook_mode = mode
    return torch_memory_saver


def released(before, size, what):
    gone = free_memory() - before
    must(gone >= 0.95 * size, f"{what}: the driver has {gone / MIB:.0f} MiB more, not {size / MIB:.0f}")
    return f"{gone / MIB:.0f} MiB went back"


def random_bytes(torch, size, seed):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda", generator=generator)


def documented_example(mode):
    import torch

    saver_of(mode)
    from gmm.memory_saver import torch_memory_saver

    # 1. For tensors that wants to be paused, create them within `region`
    with torch_memory_saver.region():
        pauseable_tensor = torch.full((1_000_000_000,), 100, dtype=torch.uint8, device='cuda')

    address, before = pauseable_tensor.data_ptr(), free_memory()

    # 2. After `pause`, CUDA memory is released for those tensors.
    torch_memory_saver.pause()
    words = released(before, 1_000_000_000, "pause")

    # 3. After `resume`, CUDA memory is re-occupied for those tensors.
    torch_memory_saver.resume()

    must(pauseable_tensor.data_ptr() == address, "the address changed")
    must(before - free_memory() < 64 * MIB, "resume took more than there was")
    pauseable_tensor.fill_(3)
    must(bool((pauseable_tensor == 3).all()), "the memory is not usable after resume")
    return words


def documented_tags(mode):
    import torch

    torch_memory_saver = saver_of(mode)
    with torch_memory_saver.region(tag="type1"):
        tensor1 = torch.full((2_000_000_000,), 100, dtype=torch.uint8, device='cuda')
    with torch_memory_saver.region(tag="type2"):
        tensor2 = torch.full((2_000_000_000,), 100, dtype=torch.uint8, device='cuda')
    before = free_memory()
    torch_memory_saver.pause("type1")
    released(before, 2_000_000_000, "pause of type1")
    must(bool((tensor2 == 100).all()), "type2 was touched by the pause of type1")
    torch.cuda.empty_cache()  # PyTorch keeps what the comparison took, as much as the tensor
    torch_memory_saver.pause("type2")
    words = released(before, 4_000_000_000, "both tags")
    torch_memory_saver.resume("type2")
    torch_memory_saver.resume("type1")
    torch_memory_saver.pause("type1")
    torch_memory_saver.resume("type1")
    tensor1.fill_(1), tensor2.fill_(2)
    must(int(tensor1[-1]) == 1 and int(tensor2[-1]) == 2, "the memory is not usable after resume")
    return words


def documented_backup(mode):
    import torch

    torch_memory_saver = saver_of(mode)
    with torch_memory_saver.region(enable_cpu_backup=True):
        tensor1 = torch.full((5_000_000_000,), 42, dtype=torch.uint8, device='cuda')
    torch_memory_saver.pause()
    torch_memory_saver.resume()
    assert tensor1[0] == 42, "content is kept unchanged"
    must(bool((tensor1 == 42).all()), "content differs")


def contents(mode):
    import torch

    saver = saver_of(mode)
    with saver.region(tag="kept", enable_cpu_backup=True):
        kept = [random_bytes(torch, size, i) for i, size in enumerate((300 * MIB, 6912, 1, 33 * MIB + 5))]
    with saver.region(tag="lost"):
        lost = torch.full((512 * MIB,), 7, dtype=torch.uint8, device="cuda")
    outside = random_bytes(torch, 100 * MIB, 9)
    expected, outside_expected = [tensor.cpu() for tensor in kept], outside.cpu()
    addresses = [tensor.data_ptr() for tensor in kept]
    for _ in range(3):
        before = free_memory()
        saver.pause()
        words = released(before, 845 * MIB, "pause")
        # so that the old pages are used by somebody else
        other = torch.full((900 * MIB,), 255, dtype=torch.uint8, device="cuda")
        del other
        torch.cuda.empty_cache()
        saver.resume()
        must(all(torch.equal(tensor.cpu(), there) for tensor, there in zip(kept, expected)), "kept contents differ")
        must(addresses == [tensor.data_ptr() for tensor in kept], "an address changed")
        must(torch.equal(outside.cpu(), outside_expected), "memory outside of the regions differs")
        lost.fill_(1)
    return words


def backup_on_the_host(mode):
    import torch

    import gmm

    saver = saver_of(mode)
    with saver.region(tag="hosted", enable_cpu_backup=True):
        typed = torch.randn((10, 20, 30), device="cuda")
        large = random_bytes(torch, 70 * MIB, 3)
    with saver.region(tag="unhosted"):
        lost = torch.ones(1000, device="cuda")
    expected, expected_large = typed.cpu(), large.cpu()
    must(saver.get_cpu_backup(typed) is None, "an active tensor has a backup")
    saver.pause("hosted")
    saver.pause("unhosted")
    for zero_copy in (False, True):
        must(torch.equal(saver.get_cpu_backup(typed, zero_copy=zero_copy), expected),
             f"the backup differs, zero_copy={zero_copy}")
        must(torch.equal(saver.get_cpu_backup(large, zero_copy=zero_copy), expected_large),
             f"the large backup differs, zero_copy={zero_copy}")
        must(torch.equal(saver.get_cpu_backup(large[MIB:2 * MIB], zero_copy=zero_copy), expected_large[MIB:2 * MIB]),
             "the backup of a view differs")
    raises(gmm.Error, saver.get_cpu_backup, lost)
    saver.resume()
    must(torch.equal(typed.cpu(), expected), "the contents differ after resume")


def backup_on_disk(mode):
    import tempfile

    import torch

    saver = saver_of(mode)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/tmp")) as folder:
        saver.set_disk_backup_dir(folder)
        with saver.region(tag="disk", enable_disk_backup=True):
            kept = random_bytes(torch, 200 * MIB + 7, 4)
        expected, before = kept.cpu(), free_memory()
        saver.pause("disk")
        words = released(before, 200 * MIB, "pause")
        saver.resume("disk")
        must(torch.equal(kept.cpu(), expected), "kept contents differ")
    return words


def nested_regions(mode):
    import torch

    saver = saver_of(mode)
    with saver.region(tag="outer", enable_cpu_backup=True):
        first = random_bytes(torch, 64 * MIB, 1)
        with saver.region(tag="inner"):
            second = torch.ones(256 * MIB, dtype=torch.uint8, device="cuda")
        third = random_bytes(torch, 3 * MIB, 2)
    expected = first.cpu(), third.cpu()
    before = free_memory()
    saver.pause("inner")
    words = released(before, 256 * MIB, "pause of the inner region")
    must(torch.equal(first.cpu(), expected[0]) and torch.equal(third.cpu(), expected[1]),
         "the outer region was paused with the inner")
    saver.pause("outer")
    saver.resume()
    must(torch.equal(first.cpu(), expected[0]) and torch.equal(third.cpu(), expected[1]), "contents differ")
    second.fill_(2)
    return words


def free_while_paused(mode):
    import torch

    saver = saver_of(mode)
    with saver.region(tag="freed", enable_cpu_backup=True):
        keep = random_bytes(torch, 30 * MIB, 5)
        tensors = [torch.ones(40 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
    expected = keep.cpu()
    saver.pause("freed")
    del tensors[:2]
    torch.cuda.empty_cache()
    saver.resume("freed")
    del tensors
    torch.cuda.empty_cache()
    with saver.region(tag="freed", enable_cpu_backup=True):
        again = random_bytes(torch, 100 * MIB, 6)
    expected_again = again.cpu()
    saver.pause("freed")
    saver.pause("freed")
    saver.resume("freed")
    must(torch.equal(keep.cpu(), expected) and torch.equal(again.cpu(), expected_again), "contents differ")


def autograd_inside(mode):
    """Backward in a region: the gradients are in it, whichever thread autograd has."""
    import torch

    saver = saver_of(mode)
    torch.manual_seed(0)
    # what the BLAS allocates for good is not the region's
    torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, device="cuda") for _ in range(8)])
    inputs = torch.randn(64, 1024, device="cuda")
    model(inputs).square().sum().backward()  # the same outside, for comparison
    expected = [parameter.grad.cpu() for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    with saver.region(tag="gradients", enable_cpu_backup=True):
        model(inputs).square().sum().backward()
    library = saver._impl._library
    tag = library.query(next(model.parameters()).grad.data_ptr()).tag
    name = library.tag_info(tag).name.decode()
    must(name.startswith("gradients"), f"a gradient has the tag {name!r}")
    for parameter in model.parameters():
        must(library.query(parameter.grad.data_ptr()).tag == tag, "a gradient escaped the region")
        must(library.query(parameter.data_ptr()).tag != tag, "a parameter is in the region")
    before = free_memory()
    saver.pause("gradients")
    words = released(before, sum(parameter.nbytes for parameter in model.parameters()), "pause of the gradients")
    saver.resume("gradients")
    must(all(torch.allclose(parameter.grad.cpu(), there) for parameter, there in zip(model.parameters(), expected)),
         "the gradients differ")
    return words


def graph_over_regions(mode):
    """A graph captured over memory that is paused and resumed afterwards."""
    import torch

    saver = saver_of(mode)
    torch.manual_seed(1)
    with saver.region(tag="graphed", enable_cpu_backup=True):
        weight, inputs, out = (torch.randn(1024, 1024, device="cuda") for _ in range(3))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            out.copy_(torch.relu(inputs @ weight) + 1)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.copy_(torch.relu(inputs @ weight) + 1)
    for seed in range(3):
        saver.pause("graphed")
        saver.resume("graphed")
        inputs.copy_(torch.randn(1024, 1024, generator=torch.Generator().manual_seed(seed)))
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        must(torch.allclose(out, torch.relu(inputs @ weight) + 1), f"replay {seed} computes something else")
    must(float(out.abs().sum()) > 0, "the graph did nothing")


def graph_of_its_own(mode):
    """A graph whose own memory is paused: torch_memory_saver.cuda_graph()."""
    import torch

    saver = saver_of(mode)
    inputs, out = torch.randn(64 * MIB // 4, device="cuda"), torch.empty(64 * MIB // 4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    if mode == "torch":
        must("preload" in str(raises(AssertionError, saver.cuda_graph(graph).__enter__)), "another message")
        return "refused, as torch_memory_saver does"
    with saver.cuda_graph(graph, tag="cuda_graph"):
        step = inputs * 2
        step = step + 1
        other = step.sin()
        out.copy_(step * 3 + other)
    before = free_memory()
    saver.pause("cuda_graph")
    words = released(before, 128 * MIB, "pause of the graph's memory")
    saver.resume("cuda_graph")
    inputs.uniform_()
    graph.replay()
    torch.cuda.synchronize()
    expected = inputs * 2 + 1
    must(torch.allclose(out, expected * 3 + expected.sin()), "the replay computes something else")
    return words


def disabled(mode):
    import torch

    saver = saver_of(mode)
    with saver.region(tag="on"):
        inside = torch.ones(32 * MIB, dtype=torch.uint8, device="cuda")
        with saver.disable():
            apart = torch.full((32 * MIB,), 5, dtype=torch.uint8, device="cuda")
            taken = free_memory()
            gone = torch.ones(GIB, dtype=torch.uint8, device="cuda")
            del gone
        must(free_memory() >= taken - 64 * MIB, "what was freed inside disable() has not gone back")
    saver.pause("on")
    must(bool((apart == 5).all()), "memory of disable() was paused")
    saver.resume("on")
    inside.fill_(1)


def out_of_memory(mode):
    """Resume without room: an error, everything kept, and a retry works."""
    import torch

    import gmm

    saver = saver_of(mode)
    with saver.region(tag="short", enable_cpu_backup=True):
        tensors = [random_bytes(torch, 512 * MIB, i) for i in range(4)]
    expected = [tensor.cpu() for tensor in tensors]
    torch.cuda.empty_cache()
    saver.pause("short")
    hog = torch.empty(free_memory() - GIB, dtype=torch.uint8, device="cuda")
    error = raises(gmm.OutOfMemoryError, saver.resume, "short")
    raises(gmm.OutOfMemoryError, saver.resume, "short")
    must(torch.equal(saver.get_cpu_backup(tensors[3]), expected[3]), "the backup differs after the failure")
    del hog
    torch.cuda.empty_cache()
    saver.resume("short")
    must(all(torch.equal(tensor.cpu(), there) for tensor, there in zip(tensors, expected)), "contents differ")
    return f"said: {str(error)[:150]}"


def work_in_flight(mode):
    """Pause waits for kernels that still use the memory, on a stream that does not block."""
    import torch

    saver = saver_of(mode)
    with saver.region(tag="busy", enable_cpu_backup=True):
        tensor = torch.zeros(64 * MIB, dtype=torch.int32, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(500):
            tensor.add_(1)
    saver.pause("busy")
    saver.resume("busy")
    must(bool((tensor == 500).all()), "some of the work was lost")


def several_devices(mode):
    import torch

    saver = saver_of(mode)
    count = torch.cuda.device_count()
    if count < 2:
        return "one device here: not shown"
    tensors = []
    for index in range(2):
        with torch.cuda.device(index), saver.region(tag="devices", enable_cpu_backup=True):
            tensors.append(torch.full((GIB,), index + 1, dtype=torch.uint8, device=f"cuda:{index}"))
    before = [torch.cuda.mem_get_info(index)[0] for index in range(2)]
    saver.pause("devices")
    must(all(torch.cuda.mem_get_info(index)[0] - before[index] > 0.9 * GIB for index in range(2)),
         "a device kept its memory")
    saver.resume("devices")
    must(all(bool((tensor == index + 1).all()) for index, tensor in enumerate(tensors)), "contents differ")
    return "2 devices"


def _in_a_subprocess(queue):
    try:
        import torch

        from gmm.memory_saver import torch_memory_saver

        with torch_memory_saver.region(enable_cpu_backup=True):
            tensor = torch.full((100 * MIB,), 6, dtype=torch.uint8, device="cuda")
        before = free_memory()
        torch_memory_saver.pause()
        gone = free_memory() - before
        torch_memory_saver.resume()
        queue.put((gone, tensor[::4096].tolist() == [6] * (100 * MIB // 4096)))
    except BaseException as error:
        queue.put((0, repr(error)))
        raise


def subprocesses(mode):
    """multiprocessing's children under configure_subprocess(), started from a process without the library."""
    from gmm.memory_saver import configure_subprocess

    if mode == "preload":
        return "shown by the group torch: a process without the library starts one with it"
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    with configure_subprocess():
        process = context.Process(target=_in_a_subprocess, args=(queue,))
        process.start()
    gone, same = queue.get(timeout=120)
    process.join(60)
    must(process.exitcode == 0 and same is True and gone >= 95 * MIB,
         f"exit code {process.exitcode}, {gone / MIB:.0f} MiB went back, contents same: {same}")
    must("LD_PRELOAD" not in os.environ, "LD_PRELOAD stayed")


def everything_from_the_start():
    """TMS_INIT_ENABLE: a training engine that knows nothing of regions."""
    import torch

    saver = saver_of("preload")
    torch.manual_seed(3)
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048, device="cuda") for _ in range(4)])
    optimizer = torch.optim.Adam(model.parameters())
    inputs = torch.randn(256, 2048, device="cuda")

    def step():
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    torch.use_deterministic_algorithms(True)
    step()
    state = {name: value.clone().cpu() for name, value in model.state_dict().items()}
    before = free_memory()
    saver.pause()
    words = released(before, 4 * sum(parameter.nbytes for parameter in model.parameters()), "pause of everything")
    with saver.disable():
        apart = torch.full((GIB,), 53, dtype=torch.uint8, device="cuda")
        must(float(apart[::4096].float().mean()) == 53, "disable() does not work while the rest is paused")
        del apart
    saver.resume()
    must(all(torch.equal(value.cpu(), state[name]) for name, value in model.state_dict().items()), "the model differs")
    losses = [step() for _ in range(3)]
    must(losses[0] > losses[1] > losses[2], f"training does not go on: {losses}")
    with saver.region(tag="grad_buffer"):
        buffer = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
    saver.pause("grad_buffer")
    must(torch.isfinite(model(inputs)).all(), "the default tag was paused with another")
    saver.resume("grad_buffer")
    buffer.fill_(1)
    return words


def mode_of_the_real_package():
    """The package torch_memory_saver itself, whose hook mode "gmm" is gmm."""
    import torch

    wheels = sorted(pathlib.Path(__file__).resolve().parents[2].glob(".gpu/wheels/torch_memory_saver-*.whl"))
    if not wheels:
        return "its wheel is not in .gpu/wheels: not shown"
    sys.path.insert(0, str(wheels[-1]))
    import torch_memory_saver as package

    from gmm.memory_saver import add_hook_mode

    must(wheels[-1].name in package.__file__, f"another package: {package.__file__}")
    add_hook_mode(package)
    saver = package.torch_memory_saver
    saver.hook_mode = "gmm"
    with saver.region(tag="real", enable_cpu_backup=True):
        kept = random_bytes(torch, 300 * MIB, 8)
    expected, before = kept.cpu(), free_memory()
    saver.pause("real")
    words = released(before, 300 * MIB, "pause")
    must(torch.equal(saver.get_cpu_backup(kept), expected), "the backup differs")
    saver.retain_cpu_backup = True
    saver.resume("real")
    must(torch.equal(kept.cpu(), expected), "the contents differ")
    must(torch.equal(saver.get_cpu_backup(kept), expected), "the retained backup differs")
    return words


COMMON = [documented_example, documented_tags, documented_backup, contents, backup_on_the_host, backup_on_disk,
          nested_regions, free_while_paused,
          autograd_inside, graph_over_regions, graph_of_its_own, disabled, work_in_flight, several_devices,
          subprocesses, out_of_memory]
GROUPS = {
    "preload": lambda: {check.__name__: (lambda check=check: check("preload")) for check in COMMON},
    "torch": lambda: {check.__name__: (lambda check=check: check("torch")) for check in COMMON},
    "start": lambda: {"everything_from_the_start": everything_from_the_start},
    "real": lambda: {"mode_of_the_real_package": mode_of_the_real_package},
}
ENVIRONMENT = {"start": {"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1",
                         "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}}


def run_all(group, only):
    from gmm.memory_saver import configure_subprocess

    failed = 0
    for name in [group] if group else ["preload", "torch", "start", "real"]:
        checks = {check: function for check, function in GROUPS[name]().items() if only is None or check in only}
        with contextlib.nullcontext() if name in ("torch", "real") else configure_subprocess():
            failed += run(__file__, name, checks, ENVIRONMENT.get(name, {}))
    return failed


if __name__ == "__main__":
    sys.exit(main(__file__, GROUPS, run_all))
