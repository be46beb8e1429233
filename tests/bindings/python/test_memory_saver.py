# SPDX-License-Identifier: Apache-2.0
"""gmm.memory_saver: regions, pausing, backups and errors, as torch_memory_saver has them.

The fake of PyTorch shows no kernels and no graphs. tests/preload tests the library below.
"""
import os
import types

import pytest
from checks import refused
from drop_in import library, run, run_saver

from gmm import memory_saver
from gmm._memory_saver import preload

MODES = pytest.mark.parametrize("mode", ["preload", "torch"])


@MODES
def test_contents_and_tags(mode):
    run_saver(mode, """
outside = full(4, 1)
with saver.region(tag="weights", enable_cpu_backup=True):
    weights = full(24, 42)
    with saver.region(tag="kv_cache"):
        cache = full(48, 9)
        with saver.region(tag="weights", enable_cpu_backup=True):  # the key of the one that is open
            inner = full(8, 3)
    more = full(8, 4)
whole = used()
saver.pause("kv_cache")
kept = ((weights, 42), (inner, 3), (more, 4), (outside, 1))
assert whole - used() >= 48 and all(holds(*pair) for pair in kept)
saver.pause("weights")
both = used()
assert whole - both >= 88 and holds(outside, 1)
saver.resume("weights")
assert whole - used() >= 48 and all(holds(*pair) for pair in kept)
saver.pause("weights")
assert used() == both
saver.resume()
assert all(holds(*pair) for pair in kept)
cache.fill_(8)
assert holds(cache, 8)
cdll = saver._impl._binary_wrapper.cdll
assert not cdll.tms_get_interesting_region() and cdll.tms_get_current_tag() == b"default"
""")


@MODES
def test_exceptions_inside(mode):
    run_saver(mode, """
try:
    with saver.region(tag="outer", enable_cpu_backup=True):
        cdll = saver._impl._binary_wrapper.cdll
        with contextlib.suppress(KeyError):
            with saver.region(tag="inner"):
                raise KeyError
        assert cdll.tms_get_current_tag() == b"outer" and cdll.tms_get_enable_cpu_backup()
        inside = full(4, 1)
        raise ZeroDivisionError
except ZeroDivisionError:
    pass
after = full(4, 2)
saver.pause()
assert not cdll.tms_get_interesting_region() and holds(after, 2)
saver.resume()
assert holds(inside, 1)

def leaves():
    with saver.region():
        cdll.tms_set_current_tag(b"another")
assert "changed inside" in str(raises(AssertionError, leaves))
assert cdll.tms_get_current_tag() == b"default" and not cdll.tms_get_interesting_region()
""")


@MODES
def test_threads(mode):
    """In regions of one key. test_torch_pauses.py has a backward, which allocates on the thread of the region."""
    run_saver(mode, """
made, inside = [], threading.Barrier(3)
def work(value):
    with saver.region(tag="shared", enable_cpu_backup=True):
        inside.wait()
        made.append((full(4, value), value))
        inside.wait()
threads = [threading.Thread(target=work, args=(value,)) for value in (1, 2, 3)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
before = used()
saver.pause("shared")
assert before - used() >= 12
saver.resume()
assert len(made) == 3 and all(holds(*pair) for pair in made)
""")


@MODES
def test_several_devices(mode):
    run_saver(mode, """
torch.cuda.set_device(1); torch.cuda.set_device(0)
with saver.region(tag="t", enable_cpu_backup=True):
    a, b = full(32, 1), full(32, 2, "cuda:1")
after = full(4, 9, "cuda:1")
saver.pause("t")
assert holds(after, 9)
saver.resume("t")
assert holds(a, 1) and holds(b, 2) and b.device.index == 1
""", {"FAKE_CUDA_DEVICES": "2"})


@MODES
def test_disable_beside_other_regions(mode):
    """PyTorch ends the process when a pool goes while one is in use, of this thread or of another."""
    run_saver(mode, """
inside, leave = threading.Event(), threading.Event()
def stay():
    with saver.region(tag="other"):
        full(4, 1)
        inside.set()
        leave.wait()
thread = threading.Thread(target=stay)
thread.start()
inside.wait()
with saver.region(tag="t"):
    before = used()
    with saver.disable():
        gone = full(64, 3)
        del gone
    assert used() - before >= 64  # not while the other thread may not be disturbed
    again = full(8, 4)
leave.set(); thread.join()
assert used() - before < 64 and holds(again, 4)

def failing():
    with saver.region(tag="t"):
        with saver.disable():
            full(64, 3)
            raise ZeroDivisionError
raised = raises(ZeroDivisionError, failing)  # its traceback knows the frames
assert used() - before < 64
with saver.region(tag="t"):
    del raised
    with saver.disable():
        with saver.region(tag="t"):
            with saver.disable():
                full(64, 5)
            assert used() - before < 64
""")


@MODES
def test_get_cpu_backup(mode):
    run_saver(mode, """
with saver.region(enable_cpu_backup=True):
    kept = torch.full((10, 20, 30), 1.5, dtype=torch.float32, device="cuda")
    numbers = torch.full((5,), 7, dtype=torch.int64, device="cuda")
kept_bytes = kept.content()
with saver.region(tag="lost"):
    lost = full(2, 1)
outside = full(2, 1)
assert saver.get_cpu_backup(kept) is None
saver.pause()
copy, view = saver.get_cpu_backup(kept), saver.get_cpu_backup(kept, zero_copy=True)
assert copy.shape == view.shape == (10, 20, 30) and copy.dtype is view.dtype is torch.float32
assert copy.device == torch.device("cpu")
assert copy.content() == view.content() == kept_bytes and copy.data_ptr() != view.data_ptr()
assert saver.get_cpu_backup(numbers).tolist() == [7] * 5
assert isinstance(raises(gmm.Error, saver.get_cpu_backup, lost), ValueError)
raises(gmm.UnknownPointerError, saver.get_cpu_backup, outside)
raises(AssertionError, saver.get_cpu_backup, torch.full((2,), 1))
raises(AssertionError, saver.get_cpu_backup, torch.full((2, 3), 1, device="cuda").t())
with saver.region(enable_cpu_backup=True):
    assert saver.get_cpu_backup(torch.empty((0, 3), device="cuda")).shape == (0, 3)
saver.resume()
assert saver.get_cpu_backup(kept) is None and kept.tolist() == copy.tolist()
""")


@MODES
def test_disk_backup(mode, tmp_path):
    folder = tmp_path / "made" / "here"
    run_saver(mode, f"""
folder = {str(folder)!r}
saver.set_disk_backup_dir(folder)
with saver.region(tag="disk", enable_disk_backup=True):
    kept, small = full(8, 6), torch.full((7,), 10, dtype=torch.uint8, device="cuda")
before = used()
saver.pause("disk")
assert before - used() >= 8 and saver.get_cpu_backup(kept) is None
assert len(os.listdir(folder)) == 2  # one an allocation
saver.resume("disk")
assert holds(kept, 6) and holds(small, 10) and saver.get_cpu_backup(kept) is None
saver.pause("disk")
""")
    assert not list(folder.iterdir())  # none outlives the process


@MODES
@pytest.mark.parametrize("backend", ["mmap", "pinned"])
def test_retained_backup(mode, backend):
    run_saver(mode, f"""
with saver.region(tag="a", enable_cpu_backup=True, cpu_backup_backend={backend!r}):
    kept = full(5, 1)
saver.pause("a")
context = saver._impl._library.context
pinned = context.tag_info(context.query(kept.data_ptr()).tag).backup_pinned_bytes
assert (pinned > 0) == ({backend!r} == "pinned")
address = saver.get_cpu_backup(kept, zero_copy=True).data_ptr()
for value in (1, 2, 3):
    saver.retain_cpu_backup = True
    saver.resume("a")
    saver.retain_cpu_backup = False  # has no effect until the next resume
    found = saver.get_cpu_backup(kept, zero_copy=True)
    assert found.data_ptr() == address and holds(found, value) and holds(saver.get_cpu_backup(kept), value)
    kept.fill_(value + 1)
    saver.pause("a")
saver.resume()
assert saver.get_cpu_backup(kept) is None and holds(kept, 4)
""")


@MODES
def test_errors(mode):
    run_saver(mode, """
error = raises(ValueError, enter, saver.region(cpu_backup_backend="mmap"))
assert str(error) == "cpu_backup_backend requires enable_cpu_backup=True"
raises(ValueError, enter, saver.cuda_graph(torch.cuda.CUDAGraph(), cpu_backup_backend="pinned"))
raises(ValueError, enter, saver.region(enable_cpu_backup=True, cpu_backup_backend="paper"))
assert saver._impl is None  # so far nothing was begun
raises(ValueError, setattr, saver, "hook_mode", "telepathy")
error = raises(AssertionError, enter, saver.region(enable_cpu_backup=True, enable_disk_backup=True))
assert str(error) == "enable_cpu_backup and enable_disk_backup are mutually exclusive"
raises(AttributeError, lambda: saver.hook_mode)
raises(NotImplementedError, lambda: saver.memory_margin_bytes)
assert saver.enabled is True
saver.memory_margin_bytes = 0
for kind in (AssertionError, AttributeError, RuntimeError):  # the versions differ
    raises(kind, setattr, saver, "hook_mode", "torch")
backend_of_now = saver._impl._binary_wrapper.cdll.tms_get_cpu_backup_backend
before = backend_of_now()
for backend in ("mmap", "pinned", None):
    with saver.region(enable_cpu_backup=True, cpu_backup_backend=backend):
        full(2, 1)
        assert backend_of_now() == (backend.encode() if backend else before)
    assert backend_of_now() == before
""")


def test_cuda_graph():
    run_saver("preload", """
graph, pool, stream = torch.cuda.CUDAGraph(), object(), object()
with saver.region(tag="around"):
    with saver.cuda_graph(graph, pool, stream, "relaxed", tag="graph", enable_cpu_backup=True):
        inner = full(16, 3)
    after = full(4, 5)
assert graph.arguments == {"pool": pool, "stream": stream, "capture_error_mode": "relaxed"}
assert graph.memory.segments.live == 1  # the graph's own pool, not that of the region around
before = used()
saver.pause("around")
assert holds(inner, 3)
saver.pause("graph")
assert before - used() >= 20
saver.resume()
assert holds(inner, 3)
""")
    run_saver("torch", """
assert "preload" in str(raises(AssertionError, enter, saver.cuda_graph(torch.cuda.CUDAGraph())))
""")


@pytest.mark.parametrize("mode, name", [("preload", "PYTORCH_CUDA_ALLOC_CONF"), ("torch", "PYTORCH_ALLOC_CONF")])
def test_expandable_segments_are_refused(mode, name):
    run_saver(mode, """
assert "expandable_segments" in str(raises(RuntimeError, saver.pause))
assert saver._impl is None
""", {name: "max_split_size_mb:64,expandable_segments:True"})


def test_wrong_preload():
    path = library()
    run_saver("torch", "saver.pause()")  # needs none
    for value in ("", f"{path}:{path}"):
        out = run("""
from gmm.memory_saver import torch_memory_saver as saver
print(raises(AssertionError, saver.pause))
""", environment={"LD_PRELOAD": value})
        assert "invalid LD_PRELOAD" in out and path in out and "process_id=" in out


# Without PyTorch.


def test_configure_subprocess(tmp_path, monkeypatch):
    fake = tmp_path / "libgmm_preload.so"
    fake.touch()
    monkeypatch.setenv("GMM_PRELOAD_LIBRARY", str(fake))
    monkeypatch.setenv("LD_PRELOAD", "/other/lib.so")
    with pytest.raises(ZeroDivisionError), memory_saver.configure_subprocess():
        assert os.environ["LD_PRELOAD"] == f"{fake}:/other/lib.so"
        raise ZeroDivisionError
    assert os.environ["LD_PRELOAD"] == "/other/lib.so"
    monkeypatch.delenv("LD_PRELOAD")
    with pytest.raises(AssertionError), memory_saver.configure_subprocess():
        os.environ["LD_PRELOAD"] = "changed"
    assert "LD_PRELOAD" not in os.environ


def test_find_library(tmp_path, monkeypatch):
    monkeypatch.setenv("GMM_PRELOAD_LIBRARY", str(tmp_path / "not there"))
    refused(RuntimeError, preload.find_library, match="names no file")
    monkeypatch.delenv("GMM_PRELOAD_LIBRARY")
    monkeypatch.setattr(preload, "NAME", "libgmm_that_nobody_has.so")
    refused(RuntimeError, preload.find_library, match="GMM_PRELOAD_LIBRARY")


def test_registered_hook_mode(monkeypatch):
    """configure_subprocess() has nothing to do for it."""
    monkeypatch.setattr(memory_saver, "_hook_modes", dict(memory_saver._hook_modes))
    calls = []
    memory_saver.register_hook_mode("mine", lambda: types.SimpleNamespace(pause=lambda tag: calls.append(tag)),
                                    uses_preload=False)
    refused(ValueError, lambda: memory_saver.register_hook_mode("mine", object), match="already registered")
    saver = memory_saver.TorchMemorySaver()
    monkeypatch.setattr(memory_saver, "torch_memory_saver", saver)
    monkeypatch.setenv("LD_PRELOAD", "as it is")
    saver.hook_mode = "mine"
    with memory_saver.configure_subprocess():
        saver.pause("a")
    assert calls == ["a"] and os.environ["LD_PRELOAD"] == "as it is"
