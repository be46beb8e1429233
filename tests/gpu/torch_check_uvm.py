# SPDX-License-Identifier: Apache-2.0
"""Checks of torch_check.py: RFC-0023's managed tensors, and training in a quota."""
import copy
import ctypes
import gc
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import threading
import time

from torch_check_cuda import MIB, SLEEP, info, must, raises

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python" / "torch_larger_than_quota.py"

PREFERRED, ACCESSED_BY, LAST_PREFETCH = 2, 3, 4
CPU, NOWHERE = -1, -2


def attribute(tensor, which):
    """What the driver says of the whole range (cuMemRangeGetAttribute): a device, CPU or NOWHERE."""
    driver = ctypes.CDLL("libcuda.so.1")
    out = ctypes.c_int32(-99)
    result = driver.cuMemRangeGetAttribute(ctypes.byref(out), ctypes.c_size_t(4), which,
                                           ctypes.c_uint64(tensor.data_ptr()),
                                           ctypes.c_size_t(tensor.numel() * tensor.element_size()))
    must(result == 0, f"cuMemRangeGetAttribute({which}) answered {result}")
    return out.value


def table(tensor):
    return attribute(tensor, PREFERRED), attribute(tensor, ACCESSED_BY)


def uvm_new_tensors():
    import torch

    import gmm
    import gmm.torch

    gmm.torch.install()
    must(not torch.ones(5).is_managed(), "it is managed before it is enabled")
    torch.cuda.set_enabled_uvm()
    must(torch.cuda.get_enabled_uvm(), "it is not enabled")
    a, b = torch.randn(1000), torch.randn(1000, device="cuda")
    found = []
    thread = threading.Thread(target=lambda: found.extend([torch.ones(10), torch.ones(10, device="cuda")]))
    thread.start()
    thread.join()
    for tensor in (a, b, a + 1, b @ b, b.half(), *found):
        must(tensor.is_managed() and info(tensor).kind == gmm.Kind.MANAGED, f"{tensor.device}: {info(tensor)}")


def uvm_hints_of_new_memory():
    import torch

    gpu, cpu = torch.ones(4 * MIB, device="cuda"), torch.ones(4 * MIB)
    must(table(gpu) == (0, NOWHERE), f"new on the GPU: {table(gpu)}")
    must(table(cpu) == (CPU, 0), f"new on the CPU: {table(cpu)}")
    return "new: GPU preferred, accessed by none; CPU preferred, accessed by the GPU"


def uvm_moves_without_a_copy():
    import torch

    a = torch.arange(2 * MIB, dtype=torch.float32)
    g = a.to("cuda")
    must(g.device == torch.device("cuda", 0) and g.data_ptr() == a.data_ptr() and g.is_managed(),
         f"{g.device} {g.data_ptr():x} {a.data_ptr():x}")
    must(table(g) == (0, NOWHERE) and attribute(g, LAST_PREFETCH) == 0,
         f"to the GPU: {table(g)}, prefetch {attribute(g, LAST_PREFETCH)}")
    must(bool((g == torch.arange(2 * MIB, device="cuda")).all()), "the GPU reads something else")
    g.mul_(2)
    g[0] = -1
    torch.cuda._sleep(SLEEP)
    g[1] = -7
    back = g.cpu()
    must(back.device.type == "cpu" and back.data_ptr() == a.data_ptr(), "back is elsewhere")
    must(back.untyped_storage()._cdata == a.untyped_storage()._cdata, "back is another storage than it was")
    must(a[0].item() == -1 and a[1].item() == -7 and a[-1].item() == 2 * (2 * MIB - 1),
         "the CPU does not see what the GPU wrote")
    must(table(a) == (CPU, 0) and attribute(a, LAST_PREFETCH) == CPU,
         f"to the CPU: {table(a)}, prefetch {attribute(a, LAST_PREFETCH)}")
    a[5] = 99
    must(g[5].item() == 99 and back[5] == 99, "the GPU does not see what the CPU wrote")
    must(g.cuda() is g and a.cuda().data_ptr() == a.data_ptr() and a.to(g).data_ptr() == a.data_ptr(),
         "another way of saying it copies")
    born = torch.full((1000, 10), 3.0, device="cuda")
    home = born[5:7, 2:].cpu()
    must(home.data_ptr() == born[5:7, 2:].data_ptr() and home.stride() == (10, 1) and bool((home == 3).all()),
         "a view from the GPU differs")
    must(home.numpy().base is not None or home.numpy().shape == (2, 8), "no array")


def uvm_waits_only_when_asked():
    import torch

    g = torch.zeros(MIB, device="cuda")
    g.add_(0)  # the driver loads a kernel at its first use, and may wait for the GPU then
    g.to("cpu", non_blocking=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(8 * SLEEP)
    g.add_(1)
    done = torch.cuda.Event()
    done.record()
    begin = time.monotonic()
    h = g.to("cpu", non_blocking=True)
    early = done.query()
    quick = time.monotonic() - begin
    torch.cuda.synchronize()
    must(not early, f"non_blocking waited ({quick * 1000:.1f} ms)")
    torch.cuda._sleep(8 * SLEEP)
    g.add_(1)
    done.record()
    h = torch.cuda.uvm_to(g, "cpu")
    must(done.query() and h[0].item() == 2, "a move to the CPU did not wait")
    return f"non_blocking took {quick * 1000:.2f} ms"


def uvm_copies_when_it_must():
    import torch

    a = torch.randn(1000)
    for g in (a.to("cuda", torch.float64), a.to("cuda", copy=True)):
        must(g.is_cuda and g.data_ptr() != a.data_ptr() and torch.allclose(g.cpu().float(), a), "it is no copy")
    sparse = torch.eye(4).to_sparse().to("cuda")
    must(sparse.is_cuda and sparse.layout is torch.sparse_coo, "a sparse tensor did not go")
    torch.cuda.set_uvm_move_on_copy(False)
    try:
        copied = a.to("cuda")
        moved = torch.cuda.uvm_to(a, "cuda")
    finally:
        torch.cuda.set_uvm_move_on_copy(True)
    must(copied.data_ptr() != a.data_ptr() and moved.data_ptr() == a.data_ptr(),
         "set_uvm_move_on_copy(False) moves, or uvm_to() copies")


def uvm_lifetimes():
    """The CPU tensor goes first, then the GPU's while a kernel still reads it; then other CPU tensors ask for memory.
    """
    import torch

    import gmm
    from gmm._torch import library as _torch_library

    collect = _torch_library.load().cdll.gmm_torch_host_collect
    gc.collect(), torch.cuda.synchronize(), collect(1)
    before = gmm.context().stats(tag="torch-cpu").live_bytes
    for _ in range(3):
        a = torch.full((8 * MIB,), 7, dtype=torch.uint8)
        g = a.cuda()
        del a
        others = [torch.zeros(8 * MIB, dtype=torch.uint8) for _ in range(3)]
        torch.cuda._sleep(SLEEP)
        out = g.clone()
        del g
        others += [torch.zeros(8 * MIB, dtype=torch.uint8) for _ in range(3)]
        torch.cuda.synchronize()
        must(bool((out == 7).all()), "memory was given out again while a kernel read it")
        g = torch.full((8 * MIB,), 9, dtype=torch.uint8, device="cuda")
        h = g.cpu()
        del g
        more = [torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
        torch.cuda.synchronize()
        must(bool((h == 9).all()), "memory was given out again while the CPU had it")
        del h, more, others, out
    torch.cuda.synchronize()
    collect(1)
    after = gmm.context().stats(tag="torch-cpu").live_bytes
    must(after == before, f"{(after - before) / MIB:.0f} MiB of CPU tensors stayed")
    fresh = torch.ones(2 * MIB)
    must(table(fresh) == (CPU, 0), f"memory that was moved and freed keeps its hints: {table(fresh)}")


def uvm_asynchronous_copies():
    import torch

    a = torch.full((16 * MIB,), 4, dtype=torch.uint8)
    g = torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP)
    g.copy_(a, non_blocking=True)
    del a
    others = [torch.zeros(16 * MIB, dtype=torch.uint8) for _ in range(3)]
    torch.cuda.synchronize()
    must(bool((g == 4).all()) and others, "the source of an asynchronous copy was given out again")


def uvm_autograd():
    import torch

    x = torch.randn(100, requires_grad=True)
    w = torch.randn(100, device="cuda", requires_grad=True)
    y = (x.cuda() * w).pow(2)
    loss = y.cpu().sum() + (w.cpu() * x).sum()
    loss.backward()
    xs, ws = x.detach().clone(), w.detach().to("cpu", copy=True)
    must(x.grad.device.type == "cpu" and torch.allclose(x.grad, 2 * xs * ws * ws + ws, rtol=1e-4, atol=1e-5),
         "the gradient on the CPU differs")
    must(w.grad.is_cuda and torch.allclose(w.grad.cpu(), 2 * xs * xs * ws + xs, rtol=1e-4, atol=1e-5),
         "the gradient on the GPU differs")
    a = torch.randn(10)
    leaf = torch.randn(10, device="cuda", requires_grad=True)
    product = (leaf * a.cuda()).sum()
    a.add_(1)
    raises(RuntimeError, "inplace", product.backward)


def uvm_models():
    import io

    import torch

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    addresses = [p.data_ptr() for p in model.parameters()]
    model.to("cuda")
    must([p.data_ptr() for p in model.parameters()] == addresses and all(p.is_cuda for p in model.parameters()),
         "the model was copied")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.randn(256, 32)
    y = x.sum(1, keepdim=True)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    must(losses[-1] < 0.5 * losses[0], f"the loss went from {losses[0]} to {losses[-1]}")
    state, file = model.state_dict(), io.BytesIO()
    torch.save(state, file)
    for where in ("cuda", "cpu"):
        file.seek(0)
        loaded = torch.load(file, map_location=where)
        must(all(torch.equal(loaded[k].cpu(), state[k].cpu()) and loaded[k].device.type == where for k in state),
             f"what was saved and loaded on {where} differs")
    must(all(p.is_cuda for p in model.parameters()), "the model has left the GPU")
    model.cpu()
    must([p.data_ptr() for p in model.parameters()] == addresses, "the model was copied on its way back")
    return f"loss {losses[0]:.3f} -> {losses[-1]:.3f}"


def uvm_graph():
    import torch

    x = torch.randn(128, 128).cuda()
    w = torch.randn(128, 128, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x @ w
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.relu(x @ w) * 2
    for _ in range(3):
        home = x.cpu()
        home.copy_(torch.randn(128, 128))
        torch.ones(128, 128, device="cuda").mul_(float("nan"))
        x.data = home.cuda()
        graph.replay()
        must(torch.allclose(y, torch.relu(x @ w) * 2, rtol=1e-3, atol=1e-3), "a replay differs")


def uvm_manage():
    import torch

    import gmm

    g = torch.randn(1000, device="cuda")
    plain = g.unmanage_memory()
    must(not plain.is_managed() and plain.is_cuda and info(plain).kind == gmm.Kind.VMM and torch.equal(plain, g),
         f"{info(plain)}")
    again = plain.manage_memory()
    must(again.is_managed() and again.cpu().data_ptr() == again.data_ptr() and torch.equal(again, g), f"{info(again)}")
    h = torch.randn(1000).unmanage_memory()
    must(not h.is_managed() and h.cuda().data_ptr() != h.data_ptr(), "ordinary memory of the CPU was moved")
    raises(ValueError, "not managed", torch.cuda.uvm_to, h, "cuda")


def uvm_forms():
    """.to() by position and with manage, and tensors that are pinned, copied or unpickled."""
    import torch

    a = torch.arange(1000.0)
    for form in (("cuda", torch.float32, True, False), ("cuda", None, False, False)):
        g = a.to(*form)
        must(g.is_cuda and g.data_ptr() == a.data_ptr(), f"{form} copied")
    must(a.to("cuda", torch.float32, False, True).data_ptr() != a.data_ptr(), "copy by position was ignored")
    plain = torch.from_numpy(a.numpy().copy())
    must(not plain.is_managed() and not plain.to("cuda", manage=False).is_managed(), "manage=False gave managed memory")
    g = plain.to("cuda", manage=True)
    must(g.is_cuda and g.is_managed() and torch.equal(g.cpu(), a), "manage=True did not")
    must(a.pin_memory() is a and plain.pin_memory().is_managed(), "pinned memory is not managed")
    for tensor in (torch.ones(1000, pin_memory=True), torch.zeros_like(a, pin_memory=True)):
        g = tensor.cuda(non_blocking=True)
        must(tensor.is_managed() and g.data_ptr() == tensor.data_ptr() and g.sum().item() in (0, 1000),
             "a factory's pinned memory is not managed")
    for tensor in (a, a.cuda(), torch.nn.Parameter(torch.randn(5, 5, device="cuda"))):
        for copied in (copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor))):
            must(copied.is_managed() and copied.device == tensor.device and torch.equal(copied, tensor)
                 and copied.data_ptr() != tensor.data_ptr(), f"a copy on {tensor.device} is not managed")
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(a), batch_size=500, pin_memory=True)
    total = sum(batch.to("cuda", non_blocking=True).sum().item() for batch, in loader)
    must(total == 499500, f"the sum is {total}")


PROGRAM = """
import torch
x = torch.ones(1 << 20)
y = x.to("cuda")
assert torch.cuda.get_enabled_uvm() and x.is_managed() and y.is_managed() and y.data_ptr() == x.data_ptr()
y.add_(1)
assert float(y.cpu().sum()) == 2 << 20
"""

CONTEXT = """
import sys, torch, gmm, gmm.torch
if sys.argv[1] == "use":
    gmm.torch.use()
else:
    gmm.torch.install()
if hasattr(torch.cuda, "_use_uvm"):
    assert torch.cuda._use_uvm is gmm.torch.use_uvm
with gmm.torch.use_uvm():
    x = torch.full((1 << 20,), 3.0, device="cuda")
y = torch.ones(10, device="cuda")
assert gmm.torch.is_managed(x) and not gmm.torch.is_managed(y)
assert gmm.context().query(x.data_ptr()).kind == gmm.Kind.MANAGED
import ctypes
assert ctypes.c_float.from_address(x.data_ptr() + 4000).value == 3.0  # the host reads the same memory
x.add_(1)
torch.cuda.synchronize()
assert ctypes.c_float.from_address(x.data_ptr() + 4000).value == 4.0
"""


def uvm_in_other_processes():
    """A program that knows PyTorch alone, by the variable and PyTorch's entry point; and torch.cuda._use_uvm()."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        about = folder / "gmm-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: gmm\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text("[torch.backends]\ngmm = _gmm_torch_autoload:load\n")
        autoload = EXAMPLE.parents[2] / "bindings" / "python" / "_gmm_torch_autoload.py"
        (folder / autoload.name).write_text(autoload.read_text())
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
        for code, words, variables in ((PROGRAM, [], {"PYTORCH_ENABLE_UNIFIED_MEMORY": "1"}), (CONTEXT, ["use"], {}),
                                       (CONTEXT, ["install"], {})):
            done = subprocess.run([sys.executable, "-c", code, *words], env={**environment, **variables},
                                  capture_output=True, text=True, timeout=40, check=False)
            must(done.returncode == 0, f"{words or 'the variable alone'}: {done.stderr[-600:]}")


def uvm_workers():
    import torch

    import gmm.torch

    managed = torch.utils.data.TensorDataset(torch.arange(64.0))
    said = raises(RuntimeError, "spawn", iter,
                  torch.utils.data.DataLoader(managed, num_workers=1, multiprocessing_context="fork"))
    plain = torch.utils.data.TensorDataset(gmm.torch.unmanage_memory(torch.arange(64.0)))
    total = 0.0
    for batch, in torch.utils.data.DataLoader(plain, batch_size=16, num_workers=1, multiprocessing_context="fork"):
        total += batch.to("cuda").sum().item()
    must(total == 2016, f"the sum is {total}")
    source = torch.ones(10)
    moved = source.cuda()
    raises(RuntimeError, "tensors on another device share the memory", source.share_memory_)
    must(moved.sum().item() == 10, "the tensor broke")
    return said[:100]


# --- quota --------------------------------------------------------------------------------------------------------


def quota_trains():
    done = subprocess.run([sys.executable, str(EXAMPLE), "--quota", "256", "--steps", "4"],
                          capture_output=True, text=True, timeout=55, check=False)
    for line in (done.stdout + done.stderr[-2000:]).splitlines():
        print(f"# {line}", flush=True)
    must("OutOfMemoryError" in done.stdout, "the ordinary model fitted the quota")
    must("loss" in done.stdout and "did not fall" not in done.stdout, "the managed model did not train")
    must(done.returncode == 0, f"exit code {done.returncode}")
    return done.stdout.splitlines()[-1]


UVM = [uvm_new_tensors, uvm_hints_of_new_memory, uvm_moves_without_a_copy, uvm_waits_only_when_asked,
       uvm_copies_when_it_must, uvm_lifetimes,
       uvm_asynchronous_copies, uvm_autograd, uvm_models, uvm_graph, uvm_manage, uvm_forms,
       uvm_in_other_processes, uvm_workers]
QUOTA = [quota_trains]
