# SPDX-License-Identifier: Apache-2.0
"""gmm.kvcached: kvcached's module vmm_ops, and kvcached's own Python code over it."""
import gc
import pathlib
import struct

import conftest
import pytest
import torch
from conftest import MIB

import gmm
from gmm import kvcached

SOURCES = pathlib.Path(__file__).resolve().parents[3] / ".deps" / "kvcached"
DEVICE = "cuda:0" if conftest.GPU else "cpu"
PAGE, LAYERS = 2 * MIB, 3


@pytest.fixture
def context():
    yield gmm.context()
    kvcached.shutdown_kvcached()
    gmm.context().set_limit(None)
    gc.collect()
    assert held(gmm.context()) == 0


def held(context):
    return context.stats(kind=gmm.Kind.VMM).reserved_bytes // PAGE


@pytest.mark.parametrize("contiguous, unified", [(True, False), (False, False), (False, True)])
def test_a_page_is_mapped_in_all_layers_or_in_none(context, contiguous, unified):
    kvcached.init_kvcached(DEVICE, PAGE, contiguous)
    assert not kvcached.kv_tensors_created() and not kvcached.map_to_kv_tensors([0])
    tensors = kvcached.create_kv_tensors(16 * PAGE, 2, DEVICE, LAYERS, unified_pool=unified)
    count = 1 if contiguous else LAYERS
    assert [tensor.shape for tensor in tensors] == [(16 * MIB * LAYERS // count,)] * count
    parts = LAYERS * (1 if unified else 2)
    step = PAGE * (parts if contiguous else 1)
    assert kvcached.map_to_kv_tensors([0, step]) and held(context) == 2 * parts
    for tensor in tensors:
        tensor[step // 2:step].fill_(5)
        if not contiguous and not unified:
            tensor[8 * MIB:10 * MIB].fill_(6)
    context.set_limit(3 * parts * PAGE)
    with pytest.raises(gmm.LimitExceededError):
        kvcached.map_to_kv_tensors([2 * step, 3 * step])
    assert kvcached.map_to_kv_tensors_with_result([0, 2 * step]) == (True, [2 * step])
    assert all(bool((tensor[step // 2:step] == 5).all()) for tensor in tensors)
    assert kvcached.unmap_from_kv_tensors([0, 2 * step, 3 * step]) and held(context) == parts
    for wrong in (-step, step // 2, tensors[0].nbytes):
        with pytest.raises(ValueError, match="offset"):
            kvcached.map_to_kv_tensors([wrong])
    assert kvcached.prepare_unmap_from_kv_tensors([step], "a") and kvcached.abort_unmap_from_kv_tensors("a")
    assert kvcached.commit_unmap_from_kv_tensors("a") and held(context) == parts
    assert kvcached.prepare_unmap_from_kv_tensors([step], "b") and kvcached.commit_unmap_from_kv_tensors("b")
    assert held(context) == 0


def test_pages_are_given_out(context, tmp_path):
    kvcached.init_kvcached(DEVICE, PAGE)
    kvcached.create_kv_tensors(32 * PAGE, 2, DEVICE, LAYERS)
    path, unit = tmp_path / "limits", 2 * LAYERS
    pages = kvcached.PageAllocator(LAYERS, 16 * PAGE, PAGE, ipc_name=str(path))
    pages.start_prealloc_thread()
    assert pages.get_num_reserved_pages() == 5 and held(context) == 5 * unit
    given = [pages.alloc_page().page_id for _ in range(16)]
    assert sorted(given) == list(range(16))
    with pytest.raises(RuntimeError, match="No free pages"):
        pages.alloc_page()
    assert struct.unpack("3q", path.read_bytes()) == (16 * unit * PAGE, 16 * unit * PAGE, 0)
    assert not pages.resize(12 * PAGE)
    pages.free_pages(given[:12])
    assert pages.get_page_state() == {"total_pages": 16, "free_pages": 12, "inuse_pages": 4, "reserved_pages": 10}
    assert pages.resize(6 * PAGE) and held(context) == 4 * unit
    assert pages.resize(18 * PAGE) and pages.get_num_free_pages() == 14
    context.set_limit(4 * unit * PAGE)
    with pytest.raises(RuntimeError, match="limit"):
        pages.alloc_page()
    assert pages.get_avail_physical_pages() == 0 and pages.get_num_free_pages() == 14
    path.write_bytes(struct.pack("3q", 8 * unit * PAGE, 0, 0))
    assert pages.check_and_get_resize_target(18 * PAGE) == 8 * PAGE
    del pages
    gc.collect()
    assert not path.exists()


@pytest.mark.skipif(not SOURCES.exists(), reason="no folder .deps/kvcached")
def test_kvcached_s_manager_runs_on_gmm(context, monkeypatch):
    monkeypatch.syspath_prepend(SOURCES)
    kvcached.use()
    from kvcached.kv_cache_manager import KVCacheManager

    kvcached.init_kvcached(DEVICE, PAGE)
    (tensor,) = kvcached.create_kv_tensors(64 * PAGE, 2, DEVICE, LAYERS)
    manager = KVCacheManager(2048, 16, 1024, LAYERS, async_sched=True)
    before, blocks = manager.available_size(), manager.alloc(1000)
    rows = tensor.view(-1, 16 * 1024 * LAYERS * 2 // 2)  # of a block in all layers
    rows[blocks] = torch.arange(1000, dtype=torch.int16, device=DEVICE)[:, None]
    assert rows[blocks].sum(1, dtype=torch.int64).tolist() == [number * rows.shape[1] for number in range(1000)]
    assert manager.available_size() == before - 1000
    manager.free(blocks)
    manager.trim()
    assert held(context) == 0 and manager.available_size() == before
