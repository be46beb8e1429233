# SPDX-License-Identifier: Apache-2.0
"""Checks of torch_check.py: gmm as PyTorch's allocator, and pools with a tag. Also what all of its checks use."""
import gc
import threading

MIB = 1 << 20
SLEEP = 100_000_000  # cycles of torch.cuda._sleep(): about 50 ms


def must(holds, message):
    if not holds:
        raise AssertionError(message)


def raises(kind, words, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except kind as error:
        must(words in str(error), f"the message has no {words!r}: {str(error)[:300]}")
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")


def free_memory():
    import torch

    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def goes_back(size, give, take):
    """Whether the driver has that much more after give(); take() undoes it. Other programs may use the GPU: one of four
    times is enough.
    """
    found = []
    for _ in range(4):
        before = free_memory()
        give()
        found.append(free_memory() - before)
        take()
        if found[-1] >= size:
            return f"{found[-1] / MIB:.0f} MiB went back"
    raise AssertionError(f"of {size / MIB:.0f} MiB {', '.join(f'{gone / MIB:.0f}' for gone in found)} MiB went back")


def info(tensor):
    import gmm

    return gmm.context().query(tensor.data_ptr())


# --- use ---------------------------------------------------------------------------------------------------------


def use_allocates():
    import torch

    import gmm
    import gmm.torch

    allocator = gmm.torch.use()
    must(gmm.torch.use() is allocator, "a second use() made another allocator")
    x = torch.arange(1000, device="cuda")
    must(info(x).kind == gmm.Kind.VMM and info(x).state == gmm.State.ACTIVE, f"{info(x)}")
    must(int(x.sum()) == 499500, "the sum is wrong")
    gmm.torch.use(gmm.Kind.DEVICE)
    y = torch.empty(1000, device="cuda")
    gmm.torch.use(gmm.Kind.VMM)
    must(info(y).kind == gmm.Kind.DEVICE, f"{info(y)}")
    return f"allocator {torch.cuda.memory.get_allocator_backend()}"


def use_gives_back():
    import torch

    from gmm._torch import library as _torch_library

    held = []

    def take():
        held.append(torch.empty(1024 * MIB, dtype=torch.uint8, device="cuda").fill_(1))

    def give():
        held.clear()
        torch.cuda.empty_cache()

    take()
    words = goes_back(1000 * MIB, give, take)
    give()
    must(_torch_library.load().calls()["reset"] >= 1, "the reset hook was not called")
    return f"{words} at empty_cache()"


def _reuse_across_streams(recorded):
    """(whether the same address came back while another stream still read it, whether what that stream read was whole)
    """
    import torch

    size = 32 * MIB
    side = torch.cuda.Stream()
    x = torch.full((size,), 1, dtype=torch.uint8, device="cuda")
    out = torch.empty_like(x)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP)
        out.copy_(x)
    if recorded:
        x.record_stream(side)
    address = x.data_ptr()
    del x
    z = torch.full((size,), 2, dtype=torch.uint8, device="cuda")
    same = z.data_ptr() == address
    torch.cuda.synchronize()
    return same, bool((out == 1).all())


def use_record_stream():
    from gmm._torch import library as _torch_library

    before = _torch_library.load().calls()["record_stream"]
    _reuse_across_streams(True)  # so that both run warm
    same, _ = _reuse_across_streams(False)
    _, whole = _reuse_across_streams(True)
    must(whole, "memory was given out again while a recorded stream read it")
    must(_torch_library.load().calls()["record_stream"] >= before + 2, "the hook was not called")
    return f"without record_stream the address came back at once: {same}"


def use_tag_pauses():
    import torch

    import gmm

    context = gmm.context()
    with context.tag("use-weights", gmm.Contents.HOST):
        w = torch.randn(128 * MIB, device="cuda")
    other = torch.ones(1000, device="cuda")
    must(info(w).tag == context.tag("use-weights").number and info(other).tag == 1, "a tag is wrong")
    total, address = w.double().sum().item(), w.data_ptr()
    torch.cuda.empty_cache()
    words = goes_back(500 * MIB, lambda: context.pause("use-weights"), lambda: context.resume("use-weights"))
    context.pause("use-weights")
    must(bool((other == 1).all()), "memory of another tag was touched")
    context.resume("use-weights")
    must(w.data_ptr() == address and w.double().sum().item() == total, "contents or address differ")
    return words


def use_graphs():
    import torch

    from gmm._torch import library as _torch_library

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 10)).cuda()
    x = torch.randn(64, 256, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(x).square().mean().backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    model.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = model(x).square().mean()
        loss.backward()
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=graph.pool()):
        doubled = torch.cat([loss.reshape(1)] * 4) * 2
    noise = []
    for i in range(5):
        noise = [torch.full((size,), float("nan"), device="cuda")
                 for size in (64 * 512, 64 * 256, 512 * 256, 10 * 512, 64 * 10, 1)] * 3
        x.copy_(torch.randn(64, 256, device="cuda"))
        graph.replay()
        second.replay()
        grads = [p.grad.clone() for p in model.parameters()]
        expected = model(x).square().mean()
        wanted = torch.autograd.grad(expected, list(model.parameters()))
        must(torch.allclose(loss, expected, rtol=1e-4) and torch.allclose(doubled, 2 * expected.expand(4), rtol=1e-4),
             f"loss of replay {i} differs")
        must(all(torch.allclose(a, b, rtol=1e-3, atol=1e-6) for a, b in zip(grads, wanted)),
             f"a gradient of replay {i} differs")
        if i == 2:
            torch.cuda.empty_cache()
    calls = _torch_library.load().calls()
    must(calls["begin_pool"] >= 2 and calls["end_pool"] >= 2, f"{calls}")
    del noise, graph, second, loss, doubled
    gc.collect()
    must(_torch_library.load().calls()["release_pool"] >= 2, "the pools were not released")
    return f"{calls}"


def use_out_of_memory():
    import torch

    import gmm

    context, total = gmm.context(), torch.cuda.mem_get_info()[1]
    torch.cuda.empty_cache()
    held = context.stats(device=0).reserved_bytes
    torch.cuda.set_per_process_memory_fraction((held + 512 * MIB) / total)
    try:
        kept = torch.empty(128 * MIB, dtype=torch.uint8, device="cuda")
        said = raises(torch.OutOfMemoryError, "out of memory", torch.empty, 1024 * MIB, dtype=torch.uint8,
                      device="cuda")
        must(int(kept.fill_(1)[-1]) == 1, "what was there is not usable")
        hoard = [torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")]
        asked = []

        def handler(what):
            asked.append(what.requested)
            return bool(hoard) and not hoard.clear()

        context.set_oom_handler(handler)
        retried = torch.ones(300 * MIB, dtype=torch.uint8, device="cuda")
        must(asked and int(retried[-1]) == 1, "the handler was not asked")
        raises(torch.OutOfMemoryError, "out of memory", torch.empty, 600 * MIB, dtype=torch.uint8, device="cuda")
    finally:
        context.set_oom_handler(None)
        torch.cuda.set_per_process_memory_fraction(1.0)
    must(torch.ones(1024 * MIB, dtype=torch.uint8, device="cuda")[-1].item() == 1, "the limit stayed")
    return said[:120]


def use_pool_is_routed():
    import torch

    import gmm
    import gmm.torch

    context = gmm.context()
    pool, inner = gmm.torch.pool("routed"), gmm.torch.pool("routed-inner")
    elsewhere = []
    with torch.cuda.use_mem_pool(pool):
        a = torch.full((256 * MIB,), 3, dtype=torch.uint8, device="cuda")
        thread = threading.Thread(target=lambda: elsewhere.append(torch.ones(10, device="cuda")))
        thread.start()
        thread.join()
        with inner.use():
            b = torch.ones(1000, device="cuda")
        c = torch.ones(1000, device="cuda")
    d = torch.ones(1000, device="cuda")
    must([info(t).tag for t in (a, b, c, d, elsewhere[0])] == [pool.tag, inner.tag, pool.tag, 1, 1], "a tag is wrong")
    words = goes_back(250 * MIB, lambda: context.pause("routed", contents=gmm.Contents.HOST),
                      lambda: context.resume("routed"))
    must(bool((a == 3).all()), "contents differ")
    return words


# --- pool ---------------------------------------------------------------------------------------------------------


def pool_has_a_tag():
    import torch

    import gmm
    import gmm.torch

    pool = gmm.torch.pool("weights")
    must(isinstance(pool, torch.cuda.MemPool), "it is no MemPool")
    with torch.cuda.use_mem_pool(pool):
        inside = torch.ones(10 * MIB, device="cuda")
    outside = torch.ones(10, device="cuda")
    must(info(inside).tag == pool.tag and info(inside).kind == gmm.Kind.VMM, f"{info(inside)}")
    must(info(outside).state == gmm.State.UNKNOWN, "memory outside of the pool is gmm's")
    must(torch.cuda.memory_allocated() >= 40 * MIB, "PyTorch's statistics do not see it")


def pool_pauses():
    import torch

    import gmm
    import gmm.torch

    context = gmm.context()
    kept, lost = context.tag("kept", gmm.Contents.HOST), context.tag("lost")
    pools = [gmm.torch.pool(kept), gmm.torch.pool(lost)]
    with pools[0].use():
        a = torch.randn(128 * MIB, device="cuda")
    with torch.cuda.use_mem_pool(pools[1]):
        b = torch.full((256 * MIB,), 5, dtype=torch.uint8, device="cuda")
    total, addresses = a.double().sum().item(), (a.data_ptr(), b.data_ptr())
    torch.cuda.empty_cache()
    words = goes_back(500 * MIB, kept.pause, kept.resume)
    kept.pause()
    must(bool((b == 5).all()), "the other tag was touched")
    torch.cuda.empty_cache()
    words += ", then " + goes_back(250 * MIB, lost.pause, lost.resume)
    context.resume("kept")
    must((a.data_ptr(), b.data_ptr()) == addresses and a.double().sum().item() == total, "contents or addresses differ")
    b.fill_(1)
    must(bool((b == 1).all()), "the memory is not usable after resume")
    return words


def pool_graph_pauses():
    import torch

    import gmm
    import gmm.torch

    context = gmm.context()
    pool = gmm.torch.pool(context.tag("graphs", gmm.Contents.HOST))
    with pool.use():
        w = torch.randn(512, 512, device="cuda")
        x = torch.randn(64, 512, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.tanh(x @ w)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        y = torch.tanh(x @ w) + 1
    graph.replay()
    expected = (torch.tanh(x @ w) + 1).clone()
    must(torch.allclose(y, expected, rtol=1e-4, atol=1e-4), "a replay differs")
    context.pause("graphs")
    must(info(w).state == gmm.State.PAUSED, "it is not paused")
    context.resume("graphs")
    y.zero_()
    graph.replay()
    must(torch.allclose(y, expected, rtol=1e-4, atol=1e-4), "a replay after resume differs")
    del graph


def pool_out_of_memory():
    import torch

    import gmm
    import gmm.torch

    context = gmm.context()
    tag = context.tag("limited")
    context.set_limit(512 * MIB, tag=tag)
    pool = gmm.torch.pool(tag)
    with torch.cuda.use_mem_pool(pool):
        first = torch.ones(300 * MIB, dtype=torch.uint8, device="cuda")
        raises(torch.OutOfMemoryError, "out of memory", torch.empty, 400 * MIB, dtype=torch.uint8, device="cuda")
        must(int(first[-1]) == 1, "what was there is not usable")
    del first, pool
    gc.collect()
    torch.cuda.empty_cache()
    left = context.stats(tag=tag).live_bytes
    must(left == 0, f"{left / MIB:.0f} MiB are left of a pool that is gone")


USE = [use_allocates, use_gives_back, use_record_stream, use_tag_pauses, use_graphs, use_out_of_memory,
       use_pool_is_routed]
POOL = [pool_has_a_tag, pool_pauses, pool_graph_pauses, pool_out_of_memory]
