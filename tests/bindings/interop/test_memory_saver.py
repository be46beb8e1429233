# SPDX-License-Identifier: Apache-2.0
"""gmm.memory_saver with PyTorch on a GPU: a documented example of torch_memory_saver, its promises, and its own tests.

The hook mode is that of the process: "preload" where the preload library was loaded before it (`gmm run --regions`),
else "torch". With TMS_INIT_ENABLE=1 only the test of a program that knows no regions runs. tests/bindings/python has
tests of the same on a fake of PyTorch.
"""
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import conftest
import pytest
import torch
from conftest import MIB

import gmm
import gmm.memory_saver
from gmm._memory_saver import preload

ROOT = pathlib.Path(__file__).resolve().parents[3]
GIB = 1 << 30
MODE = "preload" if preload.preloaded() else "torch"
STARTED = os.environ.get("TMS_INIT_ENABLE") == "1"


@pytest.fixture
def saver(request):
    made = gmm.memory_saver.torch_memory_saver
    if made._impl is None:
        made.hook_mode = MODE
    if STARTED and request.node.name != "test_everything_from_the_start":
        pytest.skip("all memory is in the default region")
    return made


def free_memory():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def released(before, size):
    assert free_memory() - before >= 0.95 * size


def random_bytes(size, seed):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda", generator=generator)


@pytest.mark.gpu
def test_the_documented_example(saver):
    torch_memory_saver = saver
    # 1. For tensors that wants to be paused, create them within `region`
    with torch_memory_saver.region():
        pauseable_tensor = torch.full((1_000_000_000,), 100, dtype=torch.uint8, device='cuda')

    address, before = pauseable_tensor.data_ptr(), free_memory()

    # 2. After `pause`, CUDA memory is released for those tensors.
    torch_memory_saver.pause()
    released(before, 1_000_000_000)

    # 3. After `resume`, CUDA memory is re-occupied for those tensors.
    torch_memory_saver.resume()

    assert pauseable_tensor.data_ptr() == address
    assert before - free_memory() < 64 * MIB
    pauseable_tensor.fill_(3)
    assert bool((pauseable_tensor == 3).all())


@pytest.mark.gpu
def test_kept_contents_come_back(saver):
    with saver.region(tag="kept", enable_cpu_backup=True):
        kept = [random_bytes(size, i) for i, size in enumerate((300 * MIB, 6912, 1, 33 * MIB + 5))]
    with saver.region(tag="lost"):
        lost = torch.full((512 * MIB,), 7, dtype=torch.uint8, device="cuda")
    outside = random_bytes(100 * MIB, 9)
    expected, outside_expected = [tensor.cpu() for tensor in kept], outside.cpu()
    addresses = [tensor.data_ptr() for tensor in kept]
    for _ in range(3):
        before = free_memory()
        saver.pause()
        released(before, 845 * MIB)
        # so that the old pages are used by somebody else
        other = torch.full((900 * MIB,), 255, dtype=torch.uint8, device="cuda")
        del other
        torch.cuda.empty_cache()
        saver.resume()
        assert all(torch.equal(tensor.cpu(), there) for tensor, there in zip(kept, expected))
        assert addresses == [tensor.data_ptr() for tensor in kept]
        assert torch.equal(outside.cpu(), outside_expected)
        lost.fill_(1)


@pytest.mark.gpu
def test_a_backup_on_the_host_is_read(saver):
    with saver.region(tag="hosted", enable_cpu_backup=True):
        typed = torch.randn((10, 20, 30), device="cuda")
        large = random_bytes(70 * MIB, 3)
    with saver.region(tag="unhosted"):
        lost = torch.ones(1000, device="cuda")
    expected, expected_large = typed.cpu(), large.cpu()
    assert saver.get_cpu_backup(typed) is None
    saver.pause("hosted")
    saver.pause("unhosted")
    for zero_copy in (False, True):
        assert torch.equal(saver.get_cpu_backup(typed, zero_copy=zero_copy), expected)
        assert torch.equal(saver.get_cpu_backup(large, zero_copy=zero_copy), expected_large)
        assert torch.equal(saver.get_cpu_backup(large[MIB:2 * MIB], zero_copy=zero_copy), expected_large[MIB:2 * MIB])
    with pytest.raises(gmm.Error):
        saver.get_cpu_backup(lost)
    saver.resume()
    assert torch.equal(typed.cpu(), expected)


@pytest.mark.gpu
def test_a_backup_on_disk(saver, tmp_path):
    saver.set_disk_backup_dir(str(tmp_path))
    with saver.region(tag="disk", enable_disk_backup=True):
        kept = random_bytes(200 * MIB + 7, 4)
    expected, before = kept.cpu(), free_memory()
    saver.pause("disk")
    released(before, 200 * MIB)
    saver.resume("disk")
    assert torch.equal(kept.cpu(), expected)


@pytest.mark.gpu
def test_nested_regions(saver):
    with saver.region(tag="outer", enable_cpu_backup=True):
        first = random_bytes(64 * MIB, 1)
        with saver.region(tag="inner"):
            second = torch.ones(256 * MIB, dtype=torch.uint8, device="cuda")
        third = random_bytes(3 * MIB, 2)
    expected = first.cpu(), third.cpu()
    before = free_memory()
    saver.pause("inner")
    released(before, 256 * MIB)
    assert torch.equal(first.cpu(), expected[0]) and torch.equal(third.cpu(), expected[1])
    saver.pause("outer")
    saver.resume()
    assert torch.equal(first.cpu(), expected[0]) and torch.equal(third.cpu(), expected[1])
    second.fill_(2)


@pytest.mark.gpu
def test_frees_while_paused(saver):
    with saver.region(tag="freed", enable_cpu_backup=True):
        keep = random_bytes(30 * MIB, 5)
        tensors = [torch.ones(40 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
    expected = keep.cpu()
    saver.pause("freed")
    del tensors[:2]
    torch.cuda.empty_cache()
    saver.resume("freed")
    del tensors
    torch.cuda.empty_cache()
    with saver.region(tag="freed", enable_cpu_backup=True):
        again = random_bytes(100 * MIB, 6)
    expected_again = again.cpu()
    saver.pause("freed")
    saver.pause("freed")
    saver.resume("freed")
    assert torch.equal(keep.cpu(), expected) and torch.equal(again.cpu(), expected_again)


@pytest.mark.gpu
def test_autograd_inside_a_region(saver):
    """Backward in a region: the gradients are in it, whichever thread autograd has."""
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
    assert name.startswith("gradients")
    for parameter in model.parameters():
        assert library.query(parameter.grad.data_ptr()).tag == tag
        assert library.query(parameter.data_ptr()).tag != tag
    before = free_memory()
    saver.pause("gradients")
    released(before, sum(parameter.nbytes for parameter in model.parameters()))
    saver.resume("gradients")
    assert all(torch.allclose(parameter.grad.cpu(), there) for parameter, there in zip(model.parameters(), expected))


@pytest.mark.gpu
def test_a_graph_over_regions(saver):
    """A graph captured over memory that is paused and resumed afterwards."""
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
        assert torch.allclose(out, torch.relu(inputs @ weight) + 1)
    assert float(out.abs().sum()) > 0


@pytest.mark.gpu
def test_a_graph_whose_memory_is_paused(saver):
    """A graph whose own memory is paused: torch_memory_saver.cuda_graph()."""
    inputs, out = torch.randn(64 * MIB // 4, device="cuda"), torch.empty(64 * MIB // 4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    if MODE == "torch":
        with pytest.raises(AssertionError, match="preload"):
            saver.cuda_graph(graph).__enter__()
        return
    with saver.cuda_graph(graph, tag="cuda_graph"):
        step = inputs * 2
        step = step + 1
        other = step.sin()
        out.copy_(step * 3 + other)
    before = free_memory()
    saver.pause("cuda_graph")
    released(before, 128 * MIB)
    saver.resume("cuda_graph")
    inputs.uniform_()
    graph.replay()
    torch.cuda.synchronize()
    expected = inputs * 2 + 1
    assert torch.allclose(out, expected * 3 + expected.sin())


@pytest.mark.gpu
def test_disable(saver):
    with saver.region(tag="on"):
        inside = torch.ones(32 * MIB, dtype=torch.uint8, device="cuda")
        with saver.disable():
            apart = torch.full((32 * MIB,), 5, dtype=torch.uint8, device="cuda")
            taken = free_memory()
            gone = torch.ones(GIB, dtype=torch.uint8, device="cuda")
            del gone
        assert free_memory() >= taken - 64 * MIB
    saver.pause("on")
    assert bool((apart == 5).all())
    saver.resume("on")
    inside.fill_(1)


@pytest.mark.gpu
def test_want_of_memory_at_a_resume(saver):
    """Resume without room: an error, everything kept, and a retry works."""
    with saver.region(tag="short", enable_cpu_backup=True):
        tensors = [random_bytes(512 * MIB, i) for i in range(4)]
    expected = [tensor.cpu() for tensor in tensors]
    torch.cuda.empty_cache()
    saver.pause("short")
    hog = torch.empty(free_memory() - GIB, dtype=torch.uint8, device="cuda")
    for _ in range(2):
        with pytest.raises(gmm.OutOfMemoryError):
            saver.resume("short")
    assert torch.equal(saver.get_cpu_backup(tensors[3]), expected[3])
    del hog
    torch.cuda.empty_cache()
    saver.resume("short")
    assert all(torch.equal(tensor.cpu(), there) for tensor, there in zip(tensors, expected))


@pytest.mark.gpu
def test_work_in_flight_is_waited_for(saver):
    """Pause waits for kernels that still use the memory, on a stream that does not block."""
    with saver.region(tag="busy", enable_cpu_backup=True):
        tensor = torch.zeros(64 * MIB, dtype=torch.int32, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(500):
            tensor.add_(1)
    saver.pause("busy")
    saver.resume("busy")
    assert bool((tensor == 500).all())


@pytest.mark.gpu
def test_several_devices(saver):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    tensors = []
    for index in range(2):
        with torch.cuda.device(index), saver.region(tag="devices", enable_cpu_backup=True):
            tensors.append(torch.full((GIB,), index + 1, dtype=torch.uint8, device=f"cuda:{index}"))
    before = [torch.cuda.mem_get_info(index)[0] for index in range(2)]
    saver.pause("devices")
    assert all(torch.cuda.mem_get_info(index)[0] - before[index] > 0.9 * GIB for index in range(2))
    saver.resume("devices")
    assert all(bool((tensor == index + 1).all()) for index, tensor in enumerate(tensors))


@pytest.mark.gpu
@pytest.mark.skipif(not STARTED, reason="TMS_INIT_ENABLE is not set")
def test_everything_from_the_start(saver):
    """TMS_INIT_ENABLE: a training engine that knows nothing of regions."""
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
    released(before, 4 * sum(parameter.nbytes for parameter in model.parameters()))
    with saver.disable():
        apart = torch.full((GIB,), 53, dtype=torch.uint8, device="cuda")
        assert float(apart[::4096].float().mean()) == 53
        del apart
    saver.resume()
    assert all(torch.equal(value.cpu(), state[name]) for name, value in model.state_dict().items())
    losses = [step() for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]
    with saver.region(tag="grad_buffer"):
        buffer = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
    saver.pause("grad_buffer")
    assert torch.isfinite(model(inputs)).all()
    saver.resume("grad_buffer")
    buffer.fill_(1)


@pytest.mark.gpu
def test_the_real_package_over_gmm():
    """The package torch_memory_saver itself, whose hook mode "gmm" is gmm."""
    wheels = sorted(ROOT.glob(".gpu/wheels/torch_memory_saver-*.whl"))
    if not wheels or STARTED:
        pytest.skip("its wheel is not in .gpu/wheels" if not wheels else "all memory is in the default region")
    sys.path.insert(0, str(wheels[-1]))
    import torch_memory_saver as package

    assert wheels[-1].name in package.__file__
    gmm.memory_saver.add_hook_mode(package)
    saver = package.torch_memory_saver
    saver.hook_mode = "gmm"
    with saver.region(tag="real", enable_cpu_backup=True):
        kept = random_bytes(300 * MIB, 8)
    expected, before = kept.cpu(), free_memory()
    saver.pause("real")
    released(before, 300 * MIB)
    assert torch.equal(saver.get_cpu_backup(kept), expected)
    saver.retain_cpu_backup = True
    saver.resume("real")
    assert torch.equal(kept.cpu(), expected)
    assert torch.equal(saver.get_cpu_backup(kept), expected)


# torch_memory_saver's own tests, unchanged, with gmm under that name.

#: Where its repository may lie, as PyPI has no tests of it: TMS_SOURCE=REPOSITORY tests/gpu/pack.sh brings it.
SOURCES = (ROOT / ".deps" / "torch_memory_saver", ROOT / ".gpu" / "torch_memory_saver")
#: Tests that cannot pass: the start of a name, and the reason.
SKIPPED = {
    "test_cpu_backup[": "reaches into _impl._mem_pools and asks the CUDA runtime of upstream's library about the "
                        "address of a backup; test_cpu_backup_in_public is the rest of it",
}

#: Files that cannot be loaded, and the reason.
LEFT_OUT = {"test_merge_cuda_wheels.py": "about a script of upstream's releases, not about the package"}

CONFTEST = f"""
import pytest

collect_ignore = {list(LEFT_OUT)!r}

def pytest_collection_modifyitems(items):
    for item in items:
        for name, reason in {SKIPPED!r}.items():
            if item.name.startswith(name):
                item.add_marker(pytest.mark.skip(reason=reason))
"""

#: cpu_backup.run() with all of its steps but the one about private members. Files that were left out stand here too.
IN_PUBLIC = '''
import pytest
import test_examples
from examples import cpu_backup


def run(hook_mode):
    cpu_backup._assert_cpu_backup_released_on_allocation_free = lambda **arguments: None
    cpu_backup.run(hook_mode)


@pytest.mark.parametrize("hook_mode", test_examples._HOOK_MODES)
def test_cpu_backup_in_public(hook_mode):
    test_examples._test_core(run, hook_mode=hook_mode)
''' + "".join(f'''

@pytest.mark.skip(reason={reason!r})
def {name[:-len(".py")]}():
    pass
''' for name, reason in LEFT_OUT.items())

#: examples/__init__.py, which upstream has not. The examples sleep for people who watch the memory meanwhile: seconds,
#: many times.
BRIEFLY = """
import time

_sleep = time.sleep
time.sleep = lambda seconds: _sleep(min(seconds, 0.05))
"""



def take_tests(source, folder):
    """Copies the folder of the tests from a checkout or a git directory."""
    if (source / "test").is_dir():
        shutil.copytree(source / "test", folder / "test")
        return
    archive = subprocess.run(["git", "-C", source, "archive", "HEAD", "test"], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")


@pytest.mark.skipif(MODE != "torch" or STARTED, reason="it starts processes of both modes itself")
def test_upstreams_own_tests(tmp_path):
    """Without a GPU only those that need none. They compare the device's free memory."""
    sources = [source for source in SOURCES if source.is_dir()]
    if not sources:
        pytest.skip("torch_memory_saver's repository is not here: TMS_SOURCE=REPOSITORY tests/gpu/pack.sh brings it")
    take_tests(sources[0], tmp_path)
    tests = tmp_path / "test"
    (tests / "conftest.py").write_text(CONFTEST)
    (tests / "test_in_public.py").write_text(IN_PUBLIC)
    (tests / "examples" / "__init__.py").write_text(BRIEFLY)
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(tests), environment.get("PYTHONPATH")]))
    chosen = [tests] if conftest.GPU else [tests / name for name in ("test_configure_subprocess.py", "test_utils.py")]
    done = subprocess.run([sys.executable, "-m", "gmm.memory_saver", "--folder", tmp_path / "named", "run", "--",
                           sys.executable, ROOT / "tests" / "bindings" / "python" / "run.py", f"--rootdir={tests}",
                           *chosen], env=environment, cwd=tests, capture_output=True, text=True, timeout=250,
                          check=False)
    passed = [line for line in done.stdout.splitlines() if line.startswith("ok ") and "# SKIP" not in line]
    assert done.returncode == 0 and len(passed) >= 10, done.stdout[-6000:] + done.stderr[-3000:]
