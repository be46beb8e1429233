# SPDX-License-Identifier: Apache-2.0
"""PyTorch under `gmm run`, unchanged: the same losses, graphs that replay over memory that was paused, out of memory as
PyTorch expects it.

Usage: preload_torch.py losses | preload_torch.py on|regions FILE_WITH_THE_LOSSES   (see preload_check.sh)
"""

import ctypes
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

CASES = []


def case(function):
    CASES.append(function)
    return function


def losses():
    """A small training, the same each time."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    found = []
    for step in range(20):
        data = torch.randn(64 + step, 512, generator=torch.Generator().manual_seed(step)).cuda()
        loss = (model(data) - data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(f"{loss.item():.9e}")
    return found


class Saver:
    """torch_memory_saver's functions, as its Python side calls them."""

    def __init__(self):
        self.library = ctypes.CDLL(None)
        for name in ("gmm_preload_active", "tms_get_interesting_region"):
            getattr(self.library, name).restype = ctypes.c_bool
        self.library.tms_last_error.restype = ctypes.c_char_p
        self.library.tms_set_interesting_region.argtypes = [ctypes.c_bool]
        self.library.tms_set_enable_cpu_backup.argtypes = [ctypes.c_bool]

    def enter(self, tag, backup):
        self.library.tms_set_current_tag(tag.encode())
        self.library.tms_set_interesting_region(True)
        self.library.tms_set_enable_cpu_backup(backup)

    def leave(self):
        self.library.tms_set_current_tag(b"default")
        self.library.tms_set_interesting_region(False)
        self.library.tms_set_enable_cpu_backup(False)

    def pause(self, tag=None):
        code = self.library.tms_pause(tag.encode() if tag else None)
        assert code == 0, (code, self.library.tms_last_error())

    def resume(self, tag=None):
        code = self.library.tms_resume(tag.encode() if tag else None)
        assert code == 0, (code, self.library.tms_last_error())


def used():
    torch.cuda.synchronize()
    left, total = torch.cuda.mem_get_info()
    return total - left


@case
def the_same_losses(saver, mode, expected):
    assert losses() == expected
    assert saver.library.gmm_preload_active() == (mode == "on")


@case
def weights_sleep_and_wake(saver, mode, expected):
    pool = torch.cuda.MemPool()
    saver.enter("weights", True)
    with torch.cuda.use_mem_pool(pool):
        weights = [torch.randn(16 << 20, device="cuda") for _ in range(8)]
    saver.leave()
    sums = [w.double().sum().item() for w in weights]
    where = [w.data_ptr() for w in weights]
    before = used()
    saver.pause("weights")
    assert used() <= before - (500 << 20), (before, used())
    saver.resume("weights")
    assert [w.data_ptr() for w in weights] == where and [w.double().sum().item() for w in weights] == sums


@case
def backward_stays_in_the_region(saver, mode, expected):
    """The threads of autograd allocate gradients: in the region of the thread that asked."""
    pool = torch.cuda.MemPool()
    saver.enter("gradients", True)
    with torch.cuda.use_mem_pool(pool):
        parameter = torch.randn(64 << 20, device="cuda", requires_grad=True)
        (parameter * 2).sum().backward()
    saver.leave()
    before = used()
    saver.pause("gradients")
    assert used() <= before - (500 << 20), (before, used())
    saver.resume("gradients")
    assert parameter.grad.eq(2).all().item()


@case
def graphs_replay(saver, mode, expected):
    weights = torch.randn(1024, 1024, device="cuda")
    given = torch.randn(1024, 1024, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        (given @ weights).relu()  # cuBLAS gets its workspace
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    saver.enter("graph", True)
    with torch.cuda.graph(graph):
        result = (given @ weights).relu().clone()
    saver.leave()
    graph.replay()
    torch.cuda.synchronize()
    first = result.clone()
    saver.pause("graph")
    saver.resume("graph")
    if mode == "on":
        saver.pause()
        saver.resume()
    result.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result, first) and torch.equal(first, (given @ weights).relu())


@case
def out_of_memory_is_an_exception(saver, mode, expected):
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        pass
    else:
        raise AssertionError("no exception")
    torch.ones(1000, device="cuda").sum().item()
    torch.cuda.empty_cache()


@case
def host_memory(saver, mode, expected):
    pinned = torch.arange(1 << 20, dtype=torch.int32).pin_memory()
    assert pinned.is_pinned()
    moved = pinned.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(moved.cpu(), pinned)


def main():
    torch.use_deterministic_algorithms(False)
    if sys.argv[1] == "losses":
        print("\n".join(losses()))
        return 0
    saver = Saver()
    with open(sys.argv[2], encoding="utf-8") as file:
        expected = file.read().split()
    for function in CASES:
        try:
            function(saver, sys.argv[1], expected)
            tap.check(True, function.__name__)
        except Exception as error:  # pylint: disable=broad-except
            tap.check(False, function.__name__, f"{type(error).__name__}: {str(error)[:600]}")
    return tap.end()


sys.exit(main())
