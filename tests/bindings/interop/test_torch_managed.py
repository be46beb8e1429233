# SPDX-License-Identifier: Apache-2.0
"""gmm.torch's unified memory. Without a GPU managed memory is host memory, and the host plays the second device."""
import copy
import ctypes
import gc
import io
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import threading

import conftest
import pytest
from checks import refused
import torch
from conftest import MIB, run

import gmm
import gmm.torch
from gmm._torch import managed
from gmm._torch import library as torch_library

ROOT = pathlib.Path(__file__).resolve().parents[3]
SLEEP = 100_000_000  # cycles of torch.cuda._sleep(): about 50 ms
on_host = pytest.mark.skipif(conftest.BACKEND != "host", reason="forks, or is the same on each backend")
played = pytest.mark.skipif(conftest.GPU, reason="the host plays the GPU")


@pytest.fixture(autouse=True)
def enabled():
    gmm.torch.install()
    gmm.torch.set_enabled_uvm()
    yield
    gmm.torch.set_enabled_uvm(False)


@pytest.fixture
def gpu(monkeypatch):
    """The GPU. Where there is none, a tensor there is another one over the same memory, on "cpu"."""
    device = torch.device("cuda", 0)
    if not conftest.GPU:
        real, library = managed._empty, torch_library.load()
        join = library.join
        monkeypatch.setattr(managed, "_empty", lambda dtype, device: real(dtype, "cpu"))
        monkeypatch.setattr(managed, "ordinal", lambda device: 0 if device.type == "cuda" else -1)
        monkeypatch.setattr(library, "join", lambda storage, source, device: join(storage, source, -1))
        monkeypatch.setattr(managed, "stream_of", lambda device: 0)
        monkeypatch.setattr(managed, "capturing", lambda device: False)
    return device


def settle():
    """The host writes to managed memory only while the GPU does not."""
    if conftest.GPU:
        torch.cuda.synchronize()


def equal(one, other):
    """Whether two tensors of any devices have the same contents."""
    settle()
    return torch.equal(*(tensor.detach().to("cpu", copy=True) for tensor in (one, other)))


def kind_of(tensor):
    return gmm.context().query(tensor.data_ptr()).kind


def live_bytes():
    gc.collect()
    torch_library.load().host_collect(1)  # what a stream was noted for is free when that is done
    return gmm.context().stats(kind=gmm.Kind.MANAGED).live_bytes


# New tensors.


def test_new_tensors_are_managed_while_enabled():
    made = [torch.empty(5), torch.zeros(2, 3), torch.randn(7), torch.tensor([1.0, 2.0]), torch.arange(10),
            torch.ones(3).half(), torch.eye(4)]
    made += [made[2] + 1, made[1] @ made[1].T, torch.cat([made[0], made[0]]), made[2].clone(),
             torch.nn.Linear(3, 4).weight, torch.stack([made[0]])]
    assert all(gmm.torch.is_managed(tensor) and kind_of(tensor) == gmm.Kind.MANAGED for tensor in made)
    assert gmm.torch.get_enabled_uvm() and torch.cuda.get_enabled_uvm()
    gmm.torch.set_enabled_uvm(False)
    assert not gmm.torch.get_enabled_uvm()
    ordinary = torch.randn(100)
    assert not gmm.torch.is_managed(ordinary) and kind_of(ordinary) != gmm.Kind.MANAGED
    assert all(tensor.is_managed() for tensor in made)  # as they were


def test_manage_and_unmanage():
    gmm.torch.set_enabled_uvm(False)
    for ordinary in (torch.randn(6, 5), torch.randn(6, 5).t(), torch.randn(20)[3:17:2],
                     torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
                     torch.randn(3).expand(4, 3), torch.tensor(3.0), torch.randn(4, dtype=torch.complex64).conj()):
        managed = ordinary.manage_memory()
        assert managed is not ordinary and managed.is_managed() and not ordinary.is_managed()
        assert torch.equal(managed, ordinary) and managed.device == ordinary.device
        assert managed.manage_memory() is managed
        back = gmm.torch.unmanage_memory(managed)
        assert not back.is_managed() and torch.equal(back, ordinary)
        assert back.unmanage_memory() is back
    assert torch.empty(0).manage_memory().numel() == 0
    x = torch.randn(5, requires_grad=True)
    (x.manage_memory().unmanage_memory() * 2).sum().backward()
    assert torch.equal(x.grad, torch.full((5,), 2.0))
    with pytest.raises(TypeError, match="plain strided tensor"):
        gmm.torch.manage_memory(torch.eye(3).to_sparse())
    assert not gmm.torch.is_managed(torch.eye(3).to_sparse())
    assert not gmm.torch.is_managed(torch.empty(3, device="meta"))


def test_want_of_memory_is_pytorchs_error():
    with pytest.raises(torch.OutOfMemoryError, match="managed memory for a CPU tensor"):
        torch.empty(1 << 60, dtype=torch.uint8)
    context = gmm.context()
    context.set_limit(context.stats(device=0).reserved_bytes + 4 * MIB, device=0)
    try:
        with pytest.raises(torch.OutOfMemoryError, match="limit"):
            torch.empty(256 * MIB, dtype=torch.uint8)
        assert torch.ones(10).is_managed()  # goes on
    finally:
        context.set_limit(None, device=0)


def test_a_recorded_stream_keeps_memory_of_cpu_tensors():
    """Memory with a note of a stream is reused only when that stream is done: the host waits for no stream."""
    library, go = torch_library.load(), threading.Event()
    library.host_collect(1)
    kept = [torch.empty(3 * MIB, dtype=torch.uint8)]
    address = kept[0].data_ptr()
    with gmm.context().stream() as stream:
        stream.call(go.wait)
        library.check(library.record(address + 100, 0, stream.handle))
        kept.clear()
        others = [torch.empty(3 * MIB, dtype=torch.uint8) for _ in range(3)]
        assert library.host_collect(0) == 0
        go.set()
        assert library.host_collect(1) == 1
        late = [torch.empty(3 * MIB, dtype=torch.uint8) for _ in range(3)]
    assert address not in [one.data_ptr() for one in others] and address in [one.data_ptr() for one in late]
    assert library.record(id(go), 0, None) == 1  # not gmm's: GMM_UNCHANGED


# One memory on two devices.


def test_moving_keeps_the_memory(gpu):
    a = torch.randn(40, 30)
    b = gmm.torch.uvm_to(a, gpu)
    assert b is not a and b.untyped_storage()._cdata != a.untyped_storage()._cdata
    assert b.data_ptr() == a.data_ptr() and b.shape == a.shape and equal(a, b)
    b.mul_(2)
    settle()
    a[0, 0] = 5
    assert equal(a, b) and b[0, 0] == 5
    again = a.to(gpu)
    assert again.untyped_storage()._cdata == b.untyped_storage()._cdata  # one storage on each device
    assert a.cuda().data_ptr() == a.data_ptr()
    assert gmm.torch.uvm_to(a, "cpu") is a and a.cpu() is a
    model = torch.nn.Linear(8, 16)
    before = [(one.data_ptr(), one.untyped_storage()._cdata) for one in model.parameters()]
    after = [(one.data_ptr(), one.untyped_storage()._cdata) for one in model.to(gpu).parameters()]
    assert all(one[0] == other[0] and one[1] != other[1] for one, other in zip(before, after))


def test_views_keep_their_shape(gpu):
    a = torch.arange(60.0).reshape(3, 4, 5)
    for view in (a[1], a[:, 2:], a.t() if a.dim() == 2 else a.transpose(0, 2), a[..., ::2],
                 a.as_strided((2, 2), (20, 3), 7), a.expand(2, 3, 4, 5)):
        moved = view.uvm_to(gpu)
        assert (moved.data_ptr(), moved.size(), moved.stride(), moved.storage_offset()) == (
            view.data_ptr(), view.size(), view.stride(), view.storage_offset())
        assert moved.untyped_storage().nbytes() == a.untyped_storage().nbytes() and equal(moved, view)
    c = torch.randn(5, dtype=torch.complex64)
    assert equal(c.conj().uvm_to(gpu), c.conj()) and c.conj().uvm_to(gpu).data_ptr() == c.data_ptr()


@pytest.mark.parametrize("first", ["source", "moved"])
def test_memory_lives_until_the_last_tensor_of_either_device(gpu, first):
    before = live_bytes()
    pair = [torch.full((4 * MIB,), 7, dtype=torch.uint8)]
    pair.append(pair[0].to(gpu))
    del pair[first == "moved"]
    view = pair[0][100:200]
    others = [torch.zeros(4 * MIB, dtype=torch.uint8) for _ in range(4)]  # would take the memory if it were free
    assert bool((pair[0] == 7).all())
    pair.clear()
    del others
    assert live_bytes() - before >= 4 * MIB and bool((view == 7).all())
    gmm.torch.set_enabled_uvm(False)  # it is freed as it was made
    del view
    assert live_bytes() == before


def test_resize_and_shared_memory_do_not_pull_the_memory_away(gpu):
    source = torch.full((1000,), 3.0)
    moved = source.to(gpu)
    with pytest.raises(RuntimeError, match="tensors on another device share"):
        source.share_memory_()
    source.untyped_storage().resize_(16000)  # leaves the other with the old memory
    torch.zeros(1000), torch.zeros(1000)
    assert bool((moved == 3).all())
    with pytest.raises(RuntimeError, match="not resizable"):
        moved.untyped_storage().resize_(16000)
    alone = torch.ones(10)
    alone.share_memory_()
    assert alone.is_shared()


@played
def test_to_moves_where_it_can_and_copies_elsewhere(gpu, monkeypatch):
    """Every form of .to(), by position and by name."""
    a, calls = torch.randn(4, 4), []
    monkeypatch.setattr(managed, "move", lambda *arguments: calls.append(arguments[1:]) or a)
    for form, options, is_asynchronous in (
            ((gpu,), {}, False), ((gpu, torch.float32), {}, False), ((), {"device": gpu, "non_blocking": True}, True),
            ((gpu, torch.float32, True, False), {}, True), ((gpu, None, True), {}, True),
            ((gpu, torch.float32, False, False), {}, False)):
        assert a.to(*form, **options) is a and calls == [(gpu, is_asynchronous)]
        calls.clear()
    for form in ((torch.float32, False, False), (a, False, False), ("cpu",), (torch.float32,)):
        assert a.to(*form) is a
    for form in ((torch.float32, False, True), (a, False, True), ("cpu", torch.float32, False, True), (torch.float64,)):
        assert a.to(*form).data_ptr() != a.data_ptr()
    for form, options in (((gpu, torch.float64), {}), ((gpu, torch.float32, False, True), {}),
                          ((gpu,), {"copy": True}), ((gpu,), {"memory_format": torch.channels_last})):
        with pytest.raises((RuntimeError, AssertionError)):  # PyTorch's own copy, which needs a GPU
            a.to(*form, **options)
    for form, options in ((("cpu", torch.float32, False, False, False), {}),
                          (("cpu", torch.float32, False, True), {"copy": True})):
        with pytest.raises(TypeError):
            a.to(*form, **options)
    for switch in (gmm.torch.set_uvm_move_on_copy, gmm.torch.set_enabled_uvm):
        switch(False)
        with pytest.raises((RuntimeError, AssertionError)):
            a.to(gpu)
        switch(True)
    assert not calls


def test_manage_in_to(gpu):
    for enabled in (False, True):
        gmm.torch.set_enabled_uvm(enabled)
        plain = torch.from_numpy(torch.arange(6.0).numpy().copy()).requires_grad_()
        made = plain.to(manage=True)
        assert made.is_managed() and torch.equal(made, plain) and not plain.is_managed()
        assert made.to(manage=True) is made and made.to("cpu", manage=True) is made
        moved = plain.to(gpu, manage=True)
        assert moved.is_managed() and equal(moved, plain)
        same = made.to(gpu, manage=True)
        assert same.data_ptr() == made.data_ptr()  # managed already: a move
        other = plain.to(torch.float64, manage=True)
        assert other.is_managed() and other.dtype is torch.float64
        assert made.to(copy=True, device="cpu", manage=True).data_ptr() != made.data_ptr()
        (moved * 2).sum().backward()
        assert bool((plain.grad == 2).all())
        assert torch.empty(0).to(manage=True).numel() == 0
        assert made.to("cpu", manage=False).is_managed() != enabled  # the default is whether UVM is enabled
        refused(TypeError, lambda: torch.eye(3).to_sparse().to(manage=True), match="plain strided")
        refused(RuntimeError, lambda: plain.to("nowhere", manage=True))


def test_tensors_that_cannot_move_raise(gpu, monkeypatch):
    gmm.torch.set_enabled_uvm(False)
    with pytest.raises(ValueError, match="not managed"):
        gmm.torch.uvm_to(torch.randn(3), gpu)
    gmm.torch.set_enabled_uvm()
    refused(ValueError, lambda: gmm.torch.uvm_to(torch.randn(3), "meta"), match="managed memory is on")
    refused(TypeError, lambda: gmm.torch.uvm_to(torch.eye(3).to_sparse(), gpu), match="plain strided")
    with pytest.raises(ValueError, match="resolve_neg"):
        gmm.torch.uvm_to(torch.randn(3, dtype=torch.complex64).conj().imag, gpu)
    if not torch.cuda.is_available():
        monkeypatch.delenv("GMM_BACKEND", raising=False)
        refused(RuntimeError, gmm.torch.use, lambda: gmm.torch.pool("tagged"), torch.cuda.set_enabled_uvm,
                torch.cuda.memory.set_enabled_uvm, match="no CUDA device")


# Autograd.


def test_gradients_flow_through_moves(gpu):
    x = torch.randn(6, requires_grad=True)
    y = x.to(gpu)
    assert y.requires_grad and not y.is_leaf and y.data_ptr() == x.data_ptr()
    (y * y).sum().backward()
    assert torch.allclose(x.grad, 2 * x.detach())
    assert torch.autograd.gradcheck(lambda v: v.to(gpu).pow(3).cpu(),
                                    torch.randn(4, dtype=torch.float64, requires_grad=True))
    assert torch.autograd.gradgradcheck(lambda v: v.to(gpu).pow(3).cpu(),
                                        torch.randn(4, dtype=torch.float64, requires_grad=True))
    with torch.no_grad():
        assert not x.to(gpu).requires_grad


def test_a_write_on_either_side_is_seen_by_autograd(gpu):
    x = torch.randn(6)
    y = x.to(gpu)
    w = torch.randn(6, device=y.device, requires_grad=True)
    product = (w * y).sum()
    x.add_(1)
    assert x._version == y._version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


# Saving, copying, other processes.


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value)), saved],
                         ids=["deepcopy", "pickle", "save"])
def test_copied_and_saved_tensors_are_managed(gpu, way):
    parameter = torch.nn.Parameter(torch.randn(4, 3)).to(gpu)
    for value in (torch.arange(5), parameter.detach(), torch.tensor(3.0), torch.randn(2, dtype=torch.complex64)):
        made = way(value)
        assert made.is_managed() and made.data_ptr() != value.data_ptr() and torch.equal(made, value)
    whole = torch.arange(12.0).view(3, 4)
    copied, part, turned = way([whole, whole[1:], whole.t()])
    assert torch.equal(copied, whole) and torch.equal(part, whole[1:]) and turned.stride() == (1, 4)
    storages = {tensor.untyped_storage()._cdata for tensor in (copied, part, turned)}
    assert len(storages) == 1 or way not in (copy.deepcopy, saved)  # a plain pickle shares no storages
    model = torch.nn.Linear(5, 5).to(gpu)
    state = way(model.state_dict())
    assert all(torch.equal(state[name], value) and state[name].is_managed()
               for name, value in model.state_dict().items())
    model.load_state_dict({name: torch.zeros_like(value) for name, value in state.items()})
    assert bool((model.weight == 0).all()) and way(torch.empty(0)).shape == (0,)
    gmm.torch.set_enabled_uvm(False)
    assert not way(torch.ones(3)).is_managed()


def test_pinned_tensors_are_managed():
    base, pinned = torch.arange(6.0).view(2, 3), {"pin_memory": True}
    assert base.pin_memory() is base
    numbers = torch.from_numpy(base.numpy().copy())
    assert not numbers.is_managed() and numbers.pin_memory().is_managed()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(base), pin_memory=torch.cuda.is_available())
    assert all(batch.is_managed() for batch, in loader)
    for owner, name, *arguments in (
            (torch, "empty", 2, 3), (torch, "ones", 2), (torch, "randint", 3, (4,)), (torch, "eye", 3),
            (torch, "zeros_like", base), (torch, "empty_like", base), (base, "new_zeros", 4),
            (base, "new_full", (2,), 1.5)):
        assert getattr(owner, name)(*arguments, **pinned).is_managed(), name
    for made, values in ((torch.tensor([1, 2], **pinned), [1, 2]), (torch.full((2,), 7, **pinned), [7, 7]),
                         (torch.zeros(2, device="cpu", requires_grad=True, **pinned), [0, 0])):
        assert made.is_managed() and made.tolist() == values
    assert made.requires_grad and torch.zeros_like(base.t(), **pinned).stride() == (1, 3)
    assert torch.empty_strided((2, 3), (1, 2), **pinned).stride() == (1, 2)
    assert torch.empty(2, device="meta", **pinned).is_meta
    with pytest.raises(TypeError):
        torch.empty("two", **pinned)
    gmm.torch.set_enabled_uvm(False)
    if not torch.cuda.is_available():  # PyTorch's own answer
        with pytest.raises(RuntimeError):
            torch.empty(2, **pinned)


@on_host
def test_code_that_knows_factories_by_identity_works(tmp_path):
    path = tmp_path / "program.py"  # torch.jit.script() reads the source
    path.write_text("""
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
def scripted(size: int):
    return torch.ones(size) + torch.zeros([size])
def traced(x):
    return x + torch.ones(x.shape[0])
torch.jit.script(scripted)
compiled = torch.compile(traced, backend="eager", fullgraph=True)
compiled(torch.ones(2))
import gmm.torch
gmm.torch.install()
gmm.torch.set_enabled_uvm()
def later(size: int):
    return torch.ones(size) + torch.empty([size]).fill_(1.0)
def unseen(x):
    return x + torch.ones(x.shape[0]) + torch.zeros_like(x)
assert torch.jit.script(later)(2).tolist() == [2.0] * 2
assert compiled(torch.ones(2)).tolist() == compiled(torch.ones(3)).tolist()[:2] == [2.0] * 2
assert torch.compile(unseen, backend="eager", fullgraph=True)(torch.ones(3)).tolist() == [2.0] * 3
with torch.device("meta"):
    assert torch.empty(2).is_meta and torch.tensor([1.0]).is_meta and torch.arange(3).is_meta
torch.set_default_device("meta")
assert torch.zeros(2).is_meta and not torch.zeros(2, device="cpu", pin_memory=True).is_meta
torch.set_default_device(None)
with FakeTensorMode():
    fake = torch.empty(3)
    assert type(fake) is not torch.Tensor and type(torch.ones_like(fake)) is not torch.Tensor
assert torch.empty(3, pin_memory=True).is_managed()
""")
    subprocess.run([sys.executable, str(path)], check=True)


@pytest.mark.skipif(conftest.BACKEND == "host", reason="a child has a copy of the host's memory")
def test_a_fork_beside_managed_tensors_warns():
    held = torch.ones(3)
    with pytest.warns(RuntimeWarning, match="spawn"):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0 and held.is_managed()


@on_host
def test_a_forked_child_goes_on_with_ordinary_memory():
    assert run("""
import gc, os, torch, gmm.torch
gmm.torch.install()
gmm.torch.set_enabled_uvm()
parent = torch.full((1000,), 2.0)
pid = os.fork()
if pid == 0:
    os.dup2(1, 2)  # a complaint is no good
    child = torch.ones(1000) + parent
    assert bool((child == 3).all()) and not gmm.torch.get_enabled_uvm() and not child.is_managed()
    gmm.torch.set_enabled_uvm()
    own = torch.ones(1000)  # of a context of its own
    assert own.is_managed() and own.data_ptr() != parent.data_ptr() and bool((own + parent == 3).all())
    del child, own, parent  # which was never the child's to free: nothing to complain about
    gc.collect()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0 and bool((parent == 2).all())
""") == ""


@on_host
@pytest.mark.parametrize("value, backend, answer", [("1", "host", "True True True"), ("0", "host", "False"),
                                                    ("", "host", "False"), ("1", "", "False False True")])
def test_an_unmodified_program_is_switched_on_by_the_variable_alone(tmp_path, value, backend, answer):
    """By gmm's entry point, as its wheel has it. Without a GPU and without the host backend UVM stays off."""
    if not backend and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    about = tmp_path / "gmm-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: gmm\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[torch.backends]\ngmm = _gmm_torch_autoload:load\n")
    shutil.copy(ROOT / "bindings" / "python" / "_gmm_torch_autoload.py", tmp_path)
    assert run("""
import sys, torch
if hasattr(torch.cuda, "get_enabled_uvm"):
    x = torch.ones(3)
    print(torch.cuda.get_enabled_uvm(), x.is_managed(), x.to("cpu") is x)
else:
    print("gmm" in sys.modules)  # cheap, and silent
""", PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
               PYTORCH_ENABLE_UNIFIED_MEMORY=value, GMM_BACKEND=backend) == answer


# On a GPU.

PREFERRED, ACCESSED_BY, LAST_PREFETCH = 2, 3, 4
CPU, NOWHERE = -1, -2


def attribute(tensor, which):
    """The driver's answer for the whole range (cuMemRangeGetAttribute): a device, CPU or NOWHERE."""
    out = ctypes.c_int32(-99)
    assert conftest.DRIVER.cuMemRangeGetAttribute(
        ctypes.byref(out), ctypes.c_size_t(4), which, ctypes.c_uint64(tensor.data_ptr()),
        ctypes.c_size_t(tensor.numel() * tensor.element_size())) == 0
    return out.value


def hints(tensor):
    return attribute(tensor, PREFERRED), attribute(tensor, ACCESSED_BY)


@pytest.mark.gpu
def test_hints_follow_the_tensor():
    assert hints(torch.ones(4 * MIB, device="cuda")) == (0, NOWHERE)
    a = torch.arange(2 * MIB, dtype=torch.float32)
    assert hints(a) == (CPU, 0)
    g = a.to("cuda")
    assert hints(g) == (0, NOWHERE) and attribute(g, LAST_PREFETCH) == 0 and g.data_ptr() == a.data_ptr()
    assert bool((g == torch.arange(2 * MIB, device="cuda")).all())
    torch.cuda._sleep(SLEEP)
    g[1] = -7
    back = g.cpu()
    assert back.untyped_storage()._cdata == a.untyped_storage()._cdata and a[1].item() == -7
    assert hints(a) == (CPU, 0) and attribute(a, LAST_PREFETCH) == CPU
    born = torch.full((1000, 10), 3.0, device="cuda")
    home = born[5:7, 2:].cpu()
    assert home.data_ptr() == born[5:7, 2:].data_ptr() and home.stride() == (10, 1) and bool((home == 3).all())


@pytest.mark.gpu
def test_a_move_to_the_host_waits_unless_it_is_asked_not_to():
    g, done = torch.zeros(MIB, device="cuda"), torch.cuda.Event()
    g.add_(0)  # the driver loads a kernel at its first use, and may wait for the GPU then
    g.to("cpu", non_blocking=True)
    for waits in (False, True):
        torch.cuda.synchronize()
        torch.cuda._sleep(8 * SLEEP)
        g.add_(1)
        done.record()
        h = torch.cuda.uvm_to(g, "cpu") if waits else g.to("cpu", non_blocking=True)
        assert done.query() == waits
    assert h[0].item() == 2


@pytest.mark.gpu
def test_other_types_and_copies_on_the_gpu():
    a = torch.randn(1000)
    for g in (a.to("cuda", torch.float64), a.to("cuda", copy=True), a.to("cuda", torch.float32, False, True)):
        assert g.is_cuda and g.data_ptr() != a.data_ptr() and torch.allclose(g.cpu().float(), a)
    assert torch.eye(4).to_sparse().to("cuda").layout is torch.sparse_coo
    torch.cuda.set_uvm_move_on_copy(False)
    assert not torch.cuda.get_uvm_move_on_copy()
    copied, moved = a.to("cuda"), torch.cuda.uvm_to(a, "cuda")
    torch.cuda.set_uvm_move_on_copy(True)
    assert copied.data_ptr() != a.data_ptr() and moved.data_ptr() == a.data_ptr()
    g = torch.randn(1000, device="cuda")
    plain = g.unmanage_memory()
    assert not plain.is_managed() and plain.is_cuda and kind_of(plain) == gmm.Kind.VMM and torch.equal(plain, g)
    again = plain.manage_memory()
    assert again.is_managed() and again.cpu().data_ptr() == again.data_ptr() and torch.equal(again, g)


@pytest.mark.gpu
def test_memory_is_not_given_out_while_either_side_uses_it():
    """One tensor goes while a kernel still reads its memory; then others ask for memory."""
    collect = torch_library.load().host_collect
    gc.collect()
    torch.cuda.synchronize(), collect(1)
    before = gmm.context().stats(tag="torch-cpu").live_bytes

    def full(value):
        return torch.full((8 * MIB,), value, dtype=torch.uint8)

    out = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    for read in (lambda: out.copy_(full(7).cuda()), lambda: out.copy_(full(7), non_blocking=True)):
        for _ in range(3):
            torch.cuda._sleep(SLEEP)
            read()
            others = [full(0) for _ in range(3)]
            torch.cuda.synchronize()
            assert bool((out == 7).all())
    del others, out
    torch.cuda.synchronize(), collect(1)
    assert gmm.context().stats(tag="torch-cpu").live_bytes == before
    assert hints(torch.ones(2 * MIB)) == (CPU, 0)  # memory that was moved and freed has its hints again


@pytest.mark.gpu
def test_a_pool_of_managed_memory():
    """Of one thread's with block, without UVM for all."""
    gmm.torch.set_enabled_uvm(False)
    with gmm.torch.pool(kind=gmm.Kind.MANAGED).use():
        x = torch.full((1 << 20,), 3.0, device="cuda")
    assert gmm.torch.is_managed(x) and not gmm.torch.is_managed(torch.ones(10, device="cuda"))
    x.add_(1)
    torch.cuda.synchronize()
    assert ctypes.c_float.from_address(x.data_ptr() + 4000).value == 4.0  # the host reads the same memory
