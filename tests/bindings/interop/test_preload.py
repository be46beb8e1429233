# SPDX-License-Identifier: Apache-2.0
"""PyTorch under `gmm run`, unchanged, on a GPU."""
import pytest
from conftest import run

from gmm._memory_saver import preload

#: A small training, the same each time.
LOSSES = """
import torch
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(20):
    data = torch.randn(64 + step, 512, generator=torch.Generator().manual_seed(step)).cuda()
    loss = (model(data) - data).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss.item():.9e}")
"""

PAUSES = """
import ctypes, torch
library = ctypes.CDLL(None)
library.gmm_preload_active.restype = ctypes.c_bool
library.tms_last_error.restype = ctypes.c_char_p
weights, given = (torch.randn(1024, 1024, device="cuda") for _ in range(2))
assert library.gmm_preload_active()
with torch.cuda.stream(torch.cuda.Stream()):
    (given @ weights).relu()  # cuBLAS gets its workspace
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = (given @ weights).relu().clone()
graph.replay()
torch.cuda.synchronize()
first = result.clone()
for function in (library.tms_pause, library.tms_resume):
    assert function(None) == 0, library.tms_last_error()
result.zero_()
graph.replay()
torch.cuda.synchronize()
assert torch.equal(result, first) and torch.equal(first, (given @ weights).relu())
try:
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError:
    print("out of memory")
torch.ones(1000, device="cuda").sum().item()
pinned = torch.arange(1 << 20, dtype=torch.int32).pin_memory()
moved = pinned.to("cuda", non_blocking=True)
torch.cuda.synchronize()
assert pinned.is_pinned() and torch.equal(moved.cpu(), pinned)
"""


@pytest.fixture
def preloaded():
    return {"LD_PRELOAD": preload.find_library(), "GMM_PRELOAD": "on"}


@pytest.mark.gpu
@pytest.mark.parametrize("value", ["on", "regions", "off"])
def test_the_same_losses(preloaded, value):
    assert run(LOSSES, **{**preloaded, "GMM_PRELOAD": value}) == run(LOSSES)


@pytest.mark.gpu
def test_everything_pauses_below_a_graph(preloaded):
    assert run(PAUSES, **{**preloaded, "TMS_INIT_ENABLE_CPU_BACKUP": "1"}) == "out of memory"
