# SPDX-License-Identifier: Apache-2.0
"""gmm.torch.use() as an allocator of PyTorch's own kind on a GPU: every everyday use of torch_native_uses.py, held
against PyTorch's own allocator, then what only gmm has, then GPT-2 small's step time and peak memory.

Needs PyTorch with CUDA, a C++ compiler, and gmm on PYTHONPATH. Prints a line `ok` or `not ok` for each check, in the
Test Anything Protocol, with the traceback of each failure. Two processes, one with each allocator, run the uses at the
same time; a use that fails with PyTorch's own allocator too is skipped with that reason. At most 120 s.

    torch_native_check.py [--only NAME...] [--no-training] [--seconds 85]
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
sys.path.insert(0, str(HERE))
import tap  # noqa: E402

MIB = 1 << 20


# What only gmm has. Each returns words for its line.


def native_is_used():
    import torch

    from gmm._torch import allocator

    assert allocator.is_native(), "the pluggable allocator is in use: see the warning above"
    return f"backend {torch.cuda.get_allocator_backend()!r}"


def statistics_agree_with_gmm():
    import torch

    import gmm

    kept = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
    stats = gmm.context().stats(device=0)
    assert torch.cuda.memory_reserved() <= stats.reserved_bytes, (torch.cuda.memory_reserved(), stats.reserved_bytes)
    assert torch.cuda.memory_allocated() >= 40 * MIB
    del kept
    return f"{stats.reserved_bytes / MIB:.0f} MiB reserved"


def tagged_pool():
    import torch

    import gmm
    import gmm.torch

    pool = gmm.torch.pool("native-weights")
    assert isinstance(pool, torch.cuda.MemPool), type(pool)
    with torch.cuda.use_mem_pool(pool):
        weights = torch.full((8 * MIB,), 3, dtype=torch.uint8, device="cuda")
    assert gmm.context().query(weights.data_ptr()).tag == pool.tag, "the tensor has another tag"
    address = weights.data_ptr()
    shown = [block for segment in pool.snapshot() for block in segment["blocks"]]
    assert [block["address"] for block in shown] == [address], shown
    count = pool.use_count()
    gmm.context().pause("native-weights")
    gmm.context().resume("native-weights")
    assert weights.data_ptr() == address
    weights.fill_(4)
    assert int(weights[5]) == 4
    del weights, pool
    return f"use_count {count}"


def graph_in_a_tagged_pool():
    import torch

    import gmm.torch

    pool = gmm.torch.pool("native-graph")
    x = torch.ones(1 << 18, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, pool=pool.id):
        y = x * 5
    x.fill_(2)
    graph.replay()
    assert float(y[9]) == 10, float(y[9])
    del graph, y
    return ""


def tag_of_a_thread():
    import torch

    import gmm

    with gmm.context().tag("native-scope") as tag:
        x = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    assert gmm.context().query(x.data_ptr()).tag == getattr(tag, "number", tag), "the tensor has another tag"
    return ""


def cost_of_a_tensor():
    import time as clock

    import torch

    def pairs(count):
        begin = clock.perf_counter()
        for _ in range(count):
            torch.empty(4096, device="cuda", dtype=torch.uint8)
        return (clock.perf_counter() - begin) / count * 1e9

    pairs(2000)
    return f"{min(pairs(5000) for _ in range(5)):.0f} ns for torch.empty() and its free"


OWN = [native_is_used, statistics_agree_with_gmm, tagged_pool, graph_in_a_tagged_pool, tag_of_a_thread]


def tell(name, good, value, words=""):
    print("RESULT " + json.dumps([name, good, value, words]), flush=True)


def child(allocator, names):
    warnings.simplefilter("default")
    begin = time.monotonic()
    import torch

    torch._C._set_print_stack_traces_on_fatal_signal(True)
    os.environ["TEST_ALLOCATOR"] = allocator
    torch.cuda.set_device(0)  # which initializes PyTorch's own allocator
    if allocator == "gmm":
        import gmm.torch

        gmm.torch.use()
    import torch_native_uses

    torch.zeros(1, device="cuda")
    tell("start", True, torch.__version__, f"{time.monotonic() - begin:.1f} s")
    uses = torch_native_uses.USES + ([*OWN, cost_of_a_tensor] if allocator == "gmm" else [cost_of_a_tensor])
    for use in uses:
        if names and use.__name__ not in names:
            continue
        begin = time.monotonic()
        print(f"BEGIN {use.__name__}", flush=True)
        try:
            value, good = use(), True
        except BaseException as error:  # pylint: disable=broad-exception-caught # a line for each, whatever comes
            for line in traceback.format_exc().splitlines()[-25:]:
                print(f"# {allocator}: {line}")
            value, good = f"{type(error).__name__}: {error}"[:600], False
        tell(use.__name__, good, value, f"{time.monotonic() - begin:.1f} s")
        if not good and "CUDA error" in str(value):
            break  # nothing works in this process any more
    sys.stdout.flush()
    os._exit(0)  # what was asked for is printed; the end of an allocator is tested elsewhere


class Side:
    """The process with one allocator, and what it told. After a crash another process goes on behind the use."""

    def __init__(self, allocator, names, cache, seconds):
        self.told, self.lines = {}, []
        self.allocator, self.names = allocator, names
        self.environment = {key: value for key, value in os.environ.items()
                            if key not in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")}
        self.environment["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(cache, allocator)
        self.end = time.monotonic() + seconds
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        left = self.names
        while left and time.monotonic() < self.end:
            command = [sys.executable, "-X", "faulthandler", os.path.abspath(__file__), "--child", self.allocator,
                       "--only", *left]
            with subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, errors="replace") as process:
                late = threading.Timer(max(0.0, self.end - time.monotonic()), process.kill)
                late.start()
                current = self._read(process.stdout)
                process.wait()
                late.cancel()
            if process.returncode == 0 or current is None:
                return
            self.told.setdefault(current, (False, f"the process ended with {process.returncode}", ""))
            left = left[left.index(current) + 1:]

    def _read(self, lines):
        current = None
        for line in lines:
            if line.startswith("RESULT "):
                name, good, value, words = json.loads(line[7:])
                self.told[name] = (good, value, words)
            elif line.startswith("BEGIN "):
                current = line.split()[1]
            else:
                self.lines.append(line.rstrip("\n"))
        return current

    def wait(self):
        self.thread.join(max(1.0, self.end - time.monotonic()) + 5)


def flat(words):
    return " ".join(str(words).split()).replace("#", "")[:240]


def compare(names, seconds):
    import torch_native_uses

    with tempfile.TemporaryDirectory() as cache:
        uses = [use.__name__ for use in torch_native_uses.USES]
        own = [check.__name__ for check in OWN]
        wanted = {"gmm": [*uses, *own, "cost_of_a_tensor"], "torch": [*uses, "cost_of_a_tensor"]}
        sides = {allocator: Side(allocator, [name for name in wanted[allocator] if not names or name in names], cache,
                                 seconds) for allocator in wanted}
        for side in sides.values():
            side.wait()
    ours, theirs = sides["gmm"], sides["torch"]
    for allocator, side in sides.items():
        for line in side.lines[-400:]:
            print(line if line.startswith("# ") else f"# {allocator}: {line}")
    print(f"# PyTorch {ours.told.get('start', ('', '?'))[1]}", flush=True)
    nothing = (False, None, "")
    for use in torch_native_uses.USES:
        name = use.__name__
        if names and name not in names:
            continue
        mine, other = ours.told.get(name, nothing), theirs.told.get(name, nothing)
        if not other[0] and not mine[0]:
            reason = "not reached" if other[1] is None else flat(other[1])
            if mine[1] is None:
                tap.check(False, f"{name}: not reached")
            else:
                tap.skip(name, f"it fails with PyTorch's own allocator too: {reason}")
            continue
        if not mine[0]:
            tap.check(False, f"{name}: {flat(mine[1]) if mine[1] is not None else 'not reached'}")
            continue
        same = mine[1] == other[1] or not other[0]
        tap.check(same, f"{name} ({mine[2]}, PyTorch's own {other[2] or 'failed'})",
                  [f"gmm:   {flat(mine[1])}", f"torch: {flat(other[1])}"])
    for check in OWN:
        name = check.__name__
        if names and name not in names:
            continue
        good, value, words = ours.told.get(name, (False, "not reached", ""))
        tap.check(good, f"{name} ({words}) {flat(value)}")
    costs = [side.told.get("cost_of_a_tensor", (False, "?", ""))[1] for side in (ours, theirs)]
    print(f"# gmm: {costs[0]}; PyTorch's own: {costs[1]}", flush=True)


def train(seconds):
    command = [sys.executable, str(HERE / "train_gpt2.py"), "--blocks", "5", "--steps", "8", "--seconds", str(seconds),
               "--slower", "1.01"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 20, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("ok "):
            tap.check(True, line.split(" - ", 1)[1])
        elif line.startswith("not ok "):
            tap.check(False, line.split(" - ", 1)[1])
        elif line.startswith("# "):
            print(line, flush=True)
    for line in done.stderr.splitlines()[-20:]:
        print(f"# {line}", flush=True)
    if not done.stdout.strip():
        tap.check(False, f"the training ended with {done.returncode}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="the names of some uses")
    parser.add_argument("--no-training", action="store_true")
    parser.add_argument("--seconds", type=float, default=85)
    parser.add_argument("--child", choices=["gmm", "torch"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.only)
    compare(arguments.only, arguments.seconds)
    if not arguments.no_training and not arguments.only:
        try:
            train(35)
        except subprocess.TimeoutExpired:
            tap.check(False, "GPT-2 small: it took too long")
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
