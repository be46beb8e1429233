# SPDX-License-Identifier: Apache-2.0
"""The everyday uses of PyTorch's allocator, which test_torch.py tries with gmm and with PyTorch's own.

Each function of USES returns a value that both allocators must agree on, as JSON has it, or raises. main() prints the
values of PyTorch's own allocator, one JSON object a line.
"""
import gc
import json
import os
import sys

import torch

MIB = 1 << 20


def _blob(mib, device="cuda"):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device=device)


def _settle():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def memory_stats():
    _settle()
    before = torch.cuda.memory_stats()
    kept = [torch.empty(10, device="cuda") for _ in range(5)] + [_blob(3), _blob(30)]
    now = torch.cuda.memory_stats()
    names = [f"{name}.{pool}.current" for name in ("allocation", "active", "allocated_bytes", "active_bytes",
                                                   "requested_bytes") for pool in ("all", "small_pool", "large_pool")]
    del kept
    return [sorted(key for key in now if not key.startswith("reserved_bytes_by")), [now[n] - before[n] for n in names]]


def _traced_tensor():
    return _blob(11)


def record_memory_history():
    torch.cuda.memory._record_memory_history(max_entries=1000)
    try:
        kept = _traced_tensor()
        address = kept.data_ptr()
        gone = _blob(3)
        del gone
        snapshot = torch.cuda.memory._snapshot()
        entries = [entry for device in snapshot["device_traces"] for entry in device]
        mine = [entry for entry in entries if entry["action"] == "alloc" and entry["addr"] == address]
        assert len(mine) == 1, f"{len(mine)} entries of the tensor"
        assert any(frame["name"] == "_traced_tensor" for frame in mine[0]["frames"]), f"frames: {mine[0]['frames'][:3]}"
        blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]
                  if block.get("address") == address]
        assert blocks and any(frame["name"] == "_traced_tensor" for frame in blocks[0]["frames"])
        actions = sorted({entry["action"] for entry in entries} & {"alloc", "free_requested", "free_completed"})
        del kept
        return actions
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def cudnn_benchmark():
    torch.backends.cudnn.benchmark = True
    try:
        torch.manual_seed(1)
        conv = torch.nn.Conv2d(3, 16, 3, padding=1).cuda()
        out = conv(torch.randn(8, 3, 64, 64, device="cuda"))
        out.sum().backward()
        torch.cuda.synchronize()
        return list(out.shape)
    finally:
        torch.backends.cudnn.benchmark = False


def cuda_graph():
    x = torch.zeros(1 << 20, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            y = (x * 2 + 1).relu().sum()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 2 + 1).relu().sum()
    results = []
    for i in range(4):
        noise = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(4)]
        x.fill_(i)
        graph.replay()
        results.append(float(y))
        del noise
    segments = [one for one in torch.cuda.memory_snapshot() if tuple(one["segment_pool_id"]) == tuple(graph.pool())]
    assert segments, "the snapshot shows no segment of the graph's pool"
    graph.reset()
    del y
    _settle()
    left = [one for one in torch.cuda.memory_snapshot() if tuple(one["segment_pool_id"]) != (0, 0)]
    return [results, len(left)]


def profiler_memory():
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        kept = _blob(9)
        del kept
    events = [event for event in profile.events() if getattr(event, "device_memory_usage", 0) or
              getattr(event, "cuda_memory_usage", 0)]
    return len(events) > 0


def _child_reads(queue, answers, use_gmm):
    if use_gmm:
        import gmm.torch

        gmm.torch.use()
    x = queue.get()
    answers.put([int(x.sum()), str(x.device)])
    x.fill_(2)
    torch.cuda.synchronize()
    del x
    gc.collect()
    answers.put("done")


def tensor_to_another_process():
    context = torch.multiprocessing.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    child = context.Process(target=_child_reads, args=(queue, answers, torch.cuda.get_allocator_backend() == "gmm"))
    child.start()
    x = torch.ones(1 << 20, device="cuda", dtype=torch.int32)
    queue.put(x)
    try:
        seen = [answers.get(timeout=40), answers.get(timeout=40)]
    finally:
        child.join(10)
        if child.is_alive():
            child.kill()
    return [seen, int(x.sum())]


def graph_trees_branch():
    """Compiled functions in changing order: the tree checkpoints its pool's state and returns to it."""
    from torch._inductor import cudagraph_trees

    plain = lambda x: (x * 2).cumsum(0), lambda x: (x + 1).flip(0), lambda x: (x - 3).cumsum(0)
    first, second, third = (torch.compile(function, mode="reduce-overhead") for function in plain)
    x = torch.arange(4096, device="cuda", dtype=torch.float32)
    with torch.no_grad():
        for i in range(9):
            torch.compiler.cudagraph_mark_step_begin()
            a = first(x)
            b = second(a) if i % 2 else third(a)
            wanted = plain[0](x)
            assert torch.allclose(a, wanted) and torch.allclose(b, plain[1 if i % 2 else 2](wanted)), f"step {i}"
            del a, b
    return cudagraph_trees.get_container(torch.cuda.current_device()).tree_manager is not None


def training():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
    optimizer, losses = torch.optim.AdamW(model.parameters()), []
    for step in range(20):
        data = torch.randn(64 + step, 512, generator=torch.Generator().manual_seed(step)).cuda()
        loss = (model(data) - data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(f"{loss.item():.9e}")
    return losses


USES = [memory_stats, record_memory_history, cudnn_benchmark, cuda_graph, profiler_memory, tensor_to_another_process,
        graph_trees_branch]


def main():
    torch.cuda.set_device(0)
    names = sys.argv[1:]
    for use in [training, *USES]:
        if names and use.__name__ not in names:
            continue
        try:
            said = [use(), None]
        except Exception as error:  # pylint: disable=broad-exception-caught # a line for each, whatever comes
            said = [None, f"{type(error).__name__}: {error}"[:600]]
        print("RESULT " + json.dumps([use.__name__, *said]), flush=True)
    os._exit(0)  # the end of an allocator is tested elsewhere
