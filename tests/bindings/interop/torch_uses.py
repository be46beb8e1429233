# SPDX-License-Identifier: Apache-2.0
"""The everyday uses of PyTorch's allocator, which test_torch.py tries with gmm and with PyTorch's own.

Each function of USES returns a value that both allocators must agree on, as JSON has it, or raises. Run as a program,
this file prints the values of PyTorch's own allocator, one JSON object a line.
"""
import gc
import json
import os
import pickle
import sys
import tempfile
import threading

import torch

MIB = 1 << 20


def must(condition, words):
    if not condition:
        raise AssertionError(words)


def _blob(mib, device="cuda"):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device=device)


def _settle():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def memory_allocated():
    _settle()
    before = torch.cuda.memory_allocated()
    kept = [torch.empty(1, device="cuda"), _blob(1), _blob(5.3), _blob(64)]
    grown = torch.cuda.memory_allocated() - before
    del kept
    return [grown, torch.cuda.memory_allocated() - before]


def max_memory_allocated_and_reset():
    _settle()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    a = _blob(100)
    del a
    b = _blob(10)
    first = torch.cuda.max_memory_allocated() - before
    torch.cuda.reset_peak_memory_stats()
    second = torch.cuda.max_memory_allocated() - before
    del b
    return [first, second]


def memory_reserved():
    _settle()
    a = _blob(256)
    must(torch.cuda.memory_reserved() >= torch.cuda.memory_allocated(), "reserved is below allocated")
    must(torch.cuda.max_memory_reserved() >= torch.cuda.memory_reserved(), "the peak is below what is reserved")
    held = torch.cuda.memory_reserved()
    del a
    must(torch.cuda.memory_reserved() == held, "a free returned memory to the driver")
    torch.cuda.empty_cache()
    must(torch.cuda.memory_reserved() <= held - 200 * MIB, "empty_cache() returned nothing")
    torch.cuda.reset_peak_memory_stats()
    must(torch.cuda.max_memory_reserved() < held, "the peak stayed after its reset")
    return True


def memory_stats():
    _settle()
    before = torch.cuda.memory_stats()
    kept = [torch.empty(10, device="cuda") for _ in range(5)] + [_blob(3), _blob(30)]
    now = torch.cuda.memory_stats()
    names = [f"{name}.{pool}.current" for name in ("allocation", "active", "allocated_bytes", "active_bytes",
                                                   "requested_bytes") for pool in ("all", "small_pool", "large_pool")]
    del kept
    return [sorted(key for key in now if not key.startswith("reserved_bytes_by")), [now[n] - before[n] for n in names]]


def reset_accumulated_memory_stats():
    _blob(1)
    torch.cuda.reset_accumulated_memory_stats()
    kept = _blob(2)
    stats = torch.cuda.memory_stats()
    del kept
    return [stats["allocation.all.allocated"], stats["allocated_bytes.all.allocated"], stats["allocation.all.freed"]]


def memory_summary():
    text = torch.cuda.memory_summary()
    must("Allocated memory" in text and "GPU reserved memory" in text, text[:200])
    torch.cuda.memory_summary(abbreviated=True)
    return len(text.splitlines())


def list_gpu_processes_and_mem_get_info():
    free, total = torch.cuda.mem_get_info()
    must(0 < free <= total, f"{free} of {total}")
    return total


def memory_snapshot():
    _settle()
    kept = [_blob(7), _blob(0.25), torch.empty(3, device="cuda")]
    segments = torch.cuda.memory_snapshot()
    found = {}
    for segment in segments:
        must(sum(block["size"] for block in segment["blocks"]) == segment["total_size"], f"blocks of {segment}")
        for block in segment["blocks"]:
            found[block["address"]] = block
    told = [found[tensor.data_ptr()] for tensor in kept]
    must(sum(segment["total_size"] for segment in segments) == torch.cuda.memory_reserved(), "not all is shown")
    return [[block["state"], block["requested_size"]] for block in told]


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
        must(len(mine) == 1, f"{len(mine)} entries of the tensor")
        must(any(frame["name"] == "_traced_tensor" for frame in mine[0]["frames"]), f"frames: {mine[0]['frames'][:3]}")
        blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]
                  if block.get("address") == address]
        must(blocks and any(frame["name"] == "_traced_tensor" for frame in blocks[0]["frames"]),
             "the snapshot's block has no frames")
        must(all(a["time_us"] <= b["time_us"] for a, b in zip(entries, entries[1:])), "the entries are not in order")
        actions = sorted({entry["action"] for entry in entries} & {"alloc", "free_requested", "free_completed"})
        from torch.cuda import _memory_viz

        for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
            must(len(plot(snapshot)) > 1000, f"{plot.__name__} is empty")
        must(str(_memory_viz.trace(snapshot)), "the trace's text is empty")
        del kept
        return actions
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def dump_snapshot():
    torch.cuda.memory._record_memory_history(max_entries=100, context=None)
    try:
        kept = _blob(2)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "snapshot.pickle")
            torch.cuda.memory._dump_snapshot(path)
            with open(path, "rb") as file:
                snapshot = pickle.load(file)
        must(snapshot["segments"], "no segment")
        del kept
        return sorted(snapshot)
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def per_process_memory_fraction():
    _settle()
    has_get = hasattr(torch.cuda, "get_per_process_memory_fraction")
    first = torch.cuda.get_per_process_memory_fraction() if has_get else 1
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.1)
    try:
        told = torch.cuda.get_per_process_memory_fraction() if has_get else 0.1
        try:
            _blob(0.15 * total / MIB)
            refused = ""
        except torch.OutOfMemoryError as error:
            refused = type(error).__name__
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return [round(first, 6), round(told, 6), refused]


def out_of_memory():
    told = []
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is not None and not hasattr(out_of_memory, "attached"):
        out_of_memory.attached = True
        attach(lambda device, allocated, total, free: told.append(device))
    total = torch.cuda.get_device_properties(0).total_memory
    before = torch.cuda.memory_stats()["num_ooms"]
    try:
        _blob(2 * total / MIB)
        words = "no error"
    except torch.cuda.OutOfMemoryError as error:
        must("CUDA out of memory" in str(error) and "Tried to allocate" in str(error), str(error))
        words = type(error).__name__
    must(_blob(1).numel() == MIB, "nothing works after it")
    return [words, torch.cuda.memory_stats()["num_ooms"] - before, len(told)]


def empty_cache():
    _settle()
    a = _blob(512)
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    del a
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved() < 512 * MIB and free > 0


def caching_allocator_alloc():
    address = torch.cuda.caching_allocator_alloc(3 * MIB)
    must(address != 0, "no memory")
    torch.cuda.caching_allocator_delete(address)
    return True


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


def record_stream():
    size = 32 * MIB
    side = torch.cuda.Stream()
    for _ in range(3):
        x = torch.full((size,), 1, dtype=torch.uint8, device="cuda")
        out = torch.empty_like(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            out.copy_(x)
        x.record_stream(side)
        del x
        noise = torch.full((size,), 2, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        must(bool((out == 1).all()), "memory was given out again while a recorded stream read it")
        del noise
    return True


def streams_and_threads():
    errors = []

    def work(number):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for i in range(200):
                    x = torch.full((1000 + 977 * (i % 37),), float(number), device="cuda")
                    y = x * 2
                    if i % 20 == 0:
                        stream.synchronize()
                        must(bool((y == 2 * number).all()), f"thread {number}, step {i}")
        except Exception as error:  # pylint: disable=broad-exception-caught
            errors.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    must(not errors, "; ".join(errors))
    return True


def free_on_another_stream():
    side = torch.cuda.Stream()
    for i in range(50):
        x = torch.full((MIB,), float(i), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x + 1
        torch.cuda.current_stream().wait_stream(side)
        x.record_stream(side)
        del x
        must(float(y[i]) == i + 1, f"step {i}")
    return True


def backward_counts():
    _settle()
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)).cuda()
    model(torch.randn(64, 512, device="cuda")).sum().backward()
    model.zero_grad(set_to_none=True)
    _settle()
    before = torch.cuda.memory_allocated()
    loss = model(torch.randn(64, 512, device="cuda")).sum()
    loss.backward()
    grown = torch.cuda.memory_allocated() - before
    loss = None
    model.zero_grad(set_to_none=True)
    gc.collect()
    return [grown, torch.cuda.memory_allocated() - before]


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
    must(segments, "the snapshot shows no segment of the graph's pool")
    graph.reset()
    del y
    _settle()
    left = [one for one in torch.cuda.memory_snapshot() if tuple(one["segment_pool_id"]) != (0, 0)]
    return [results, len(left)]


def graphs_share_a_pool():
    pool = torch.cuda.graph_pool_handle()
    x = torch.ones(1 << 18, device="cuda")
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(first, pool=pool):
        a = x * 3
    with torch.cuda.graph(second, pool=pool):
        b = a + 1
    x.fill_(5)
    first.replay()
    second.replay()
    result = [float(a[7]), float(b[7])]
    del a, b, first, second
    _settle()
    return result


def make_graphed_callables():
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 16)).cuda()
    sample = torch.randn(32, 256, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    data = torch.randn(32, 256, device="cuda", requires_grad=True)
    out = graphed(data)
    out.sum().backward()
    expected = torch.nn.functional.linear(
        torch.nn.functional.linear(data, model[0].weight, model[0].bias).relu(), model[2].weight, model[2].bias)
    must(torch.allclose(out, expected, rtol=1e-3, atol=1e-4), "the graph computes something else")
    return list(out.shape)


def mem_pool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = _blob(5)
        y = torch.ones(100, device="cuda")
    z = _blob(5)
    mine = [block for segment in torch.cuda.memory_snapshot() if tuple(segment["segment_pool_id"]) == tuple(pool.id)
            for block in segment["blocks"] if block["state"] == "active_allocated"]
    must({block["address"] for block in mine} == {x.data_ptr(), y.data_ptr()}, f"{len(mine)} blocks in the pool")
    must(z.data_ptr() not in {block["address"] for block in mine}, "a later tensor is in the pool")
    uses = pool.use_count() if hasattr(pool, "use_count") else 1
    shown = len(pool.snapshot()) if hasattr(pool, "snapshot") else 2
    del x, y
    with torch.cuda.use_mem_pool(pool):
        again = torch.ones(100, device="cuda")
    must(float(again.sum()) == 100, "the pool's memory is wrong")
    del again, pool
    return [len(mine), uses, shown]


def graph_in_a_mem_pool():
    pool = torch.cuda.MemPool()
    x = torch.ones(1 << 16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, pool=pool.id):
        y = x * 7
    x.fill_(2)
    graph.replay()
    result = float(y[3])
    del y, graph  # before the pool, which ends the process while a graph uses it
    gc.collect()
    del pool
    return result


def profiler_memory():
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        kept = _blob(9)
        del kept
    events = [event for event in profile.events() if getattr(event, "device_memory_usage", 0) or
              getattr(event, "cuda_memory_usage", 0)]
    return len(events) > 0


def reduce_tensor():
    from torch.multiprocessing.reductions import reduce_tensor as reduce

    x = torch.arange(1000, device="cuda")
    rebuild, arguments = reduce(x)
    must(callable(rebuild) and len(arguments) > 4, f"{rebuild}")
    return True


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
        told = [answers.get(timeout=40), answers.get(timeout=40)]
    finally:
        child.join(10)
        if child.is_alive():
            child.kill()
    return [told, int(x.sum())]


def compile_reduce_overhead():
    import torch._dynamo

    torch.manual_seed(5)
    weight = torch.randn(128, 128, device="cuda", requires_grad=True)

    @torch.compile(mode="reduce-overhead")
    def function(x):
        return torch.nn.functional.gelu(x @ weight).sum(dim=-1)

    results = []
    for i in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.full((32, 128), 0.01 * (i + 1), device="cuda")
        out = function(x)
        out.sum().backward()
        expected = torch.nn.functional.gelu(x @ weight).sum(dim=-1)
        results.append(bool(torch.allclose(out, expected, rtol=1e-3, atol=1e-3)))
        weight.grad = None
    must(all(results), f"{results}")
    from torch._inductor import cudagraph_trees

    manager = cudagraph_trees.get_container(torch.cuda.current_device()).tree_manager
    return [len(results), manager is not None]


def graph_trees_branch():
    """Two compiled functions in changing order: the tree checkpoints its pool's state and returns to it."""

    @torch.compile(mode="reduce-overhead")
    def first(x):
        return (x * 2).cumsum(0)

    @torch.compile(mode="reduce-overhead")
    def second(x):
        return (x + 1).flip(0)

    @torch.compile(mode="reduce-overhead")
    def third(x):
        return (x - 3).cumsum(0)

    x = torch.arange(4096, device="cuda", dtype=torch.float32)
    with torch.no_grad():
        for i in range(9):
            torch.compiler.cudagraph_mark_step_begin()
            a = first(x)
            b = second(a) if i % 2 else third(a)
            wanted = ((x * 2).cumsum(0) + 1).flip(0) if i % 2 else ((x * 2).cumsum(0) - 3).cumsum(0)
            must(torch.allclose(a, (x * 2).cumsum(0)) and torch.allclose(b, wanted), f"step {i}")
            del a, b
    return True


def accelerator_memory():
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None or not hasattr(accelerator, "memory_allocated"):
        return "none"
    before = accelerator.memory_allocated()
    kept = _blob(4)
    grown = accelerator.memory_allocated() - before
    del kept
    accelerator.empty_cache()
    return grown


USES = [memory_allocated, max_memory_allocated_and_reset, memory_reserved, memory_stats,
        reset_accumulated_memory_stats, memory_summary, list_gpu_processes_and_mem_get_info, memory_snapshot,
        record_memory_history, dump_snapshot, per_process_memory_fraction, out_of_memory, empty_cache,
        caching_allocator_alloc, cudnn_benchmark, record_stream, streams_and_threads, free_on_another_stream,
        backward_counts, cuda_graph, graphs_share_a_pool, make_graphed_callables, mem_pool, graph_in_a_mem_pool,
        profiler_memory, reduce_tensor, tensor_to_another_process, accelerator_memory,
        compile_reduce_overhead, graph_trees_branch]


def main():
    torch.cuda.set_device(0)
    for use in USES:
        try:
            said = [use(), None]
        except Exception as error:  # pylint: disable=broad-exception-caught # a line for each, whatever comes
            said = [None, f"{type(error).__name__}: {error}"[:600]]
        print("RESULT " + json.dumps([use.__name__, *said]), flush=True)
    sys.stdout.flush()
    os._exit(0)  # the end of an allocator is tested elsewhere


if __name__ == "__main__":
    main()
