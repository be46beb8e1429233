# SPDX-License-Identifier: Apache-2.0
"""gmm.memory_saver with PyTorch on a GPU, where kernels and graphs are, and torch_memory_saver's own tests.

The hook mode is that of the process: "preload" where the preload library was loaded before it (`gmm run --regions`),
else "torch". With TMS_INIT_ENABLE=1 only the test of a program that knows no regions runs. All else is tested on a fake
of PyTorch, in tests/bindings/python.
"""
import contextlib
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


@pytest.mark.gpu
def test_gradients_of_a_region_are_in_it(saver):
    """On any thread that autograd uses."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, device="cuda") for _ in range(8)])
    inputs = torch.randn(64, 1024, device="cuda")
    model(inputs).square().sum().backward()  # the same outside, for comparison
    expected = [parameter.grad.cpu() for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    with saver.region(tag="gradients", enable_cpu_backup=True):
        model(inputs).square().sum().backward()
    before = free_memory()
    saver.pause("gradients")
    released(before, sum(parameter.nbytes for parameter in model.parameters()))
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())  # they are not in it
    saver.resume("gradients")
    assert all(torch.allclose(parameter.grad.cpu(), there) for parameter, there in zip(model.parameters(), expected))


@pytest.mark.gpu
@pytest.mark.parametrize("own", [False, True], ids=["a graph over a region", "the graph's own memory"])
def test_a_graph_goes_on_after_a_pause(saver, own):
    graph = torch.cuda.CUDAGraph()
    if own and MODE == "torch":
        with pytest.raises(AssertionError, match="preload"):
            saver.cuda_graph(graph).__enter__()
        return
    with contextlib.nullcontext() if own else saver.region(tag="graphed", enable_cpu_backup=True):
        weight, inputs, out = (torch.randn(4096, 4096, device="cuda") for _ in range(3))

    def step():
        out.copy_(torch.relu(inputs @ weight) + 1)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    with saver.cuda_graph(graph, tag="graphed") if own else torch.cuda.graph(graph):
        step()
    for seed in range(3):
        before = free_memory()
        saver.pause("graphed")
        released(before, 64 * MIB)
        saver.resume("graphed")
        inputs.copy_(torch.randn(4096, 4096, generator=torch.Generator().manual_seed(seed)))
        out.zero_()
        graph.replay()
        assert torch.allclose(out, torch.relu(inputs @ weight) + 1)


@pytest.mark.gpu
@pytest.mark.skipif(not STARTED, reason="TMS_INIT_ENABLE is not set")
def test_everything_from_the_start(saver):
    """TMS_INIT_ENABLE: a training program that knows nothing of regions."""
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

    step()
    state = {name: value.clone().cpu() for name, value in model.state_dict().items()}
    before = free_memory()
    saver.pause()
    released(before, 4 * sum(parameter.nbytes for parameter in model.parameters()))
    with saver.disable():
        assert float(torch.full((GIB,), 53, dtype=torch.uint8, device="cuda")[::4096].float().mean()) == 53
    saver.resume()
    assert all(torch.equal(value.cpu(), state[name]) for name, value in model.state_dict().items())
    losses = [step() for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]


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

#: examples/__init__.py, which upstream has not. The examples sleep for people who watch the memory: seconds,
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
