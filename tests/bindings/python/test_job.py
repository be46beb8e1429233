# SPDX-License-Identifier: Apache-2.0
"""gmm.job with processes: two ranks over a folder pause and resume as one, and die or stop at each step."""
import gc
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
import weakref

import pytest

import gmm
from gmm import job as jobs

SIZE = 3 << 20
#: The keys that each rank sets in an operation.
STEPS = [(0, "in/0"), (0, "go"), (0, "ready/0"), (0, "decision"), (0, "end/0"), (0, "result"),
         (1, "in/1"), (1, "ready/1"), (1, "end/1")]
SECONDS = 5.0


class Faulty(jobs.Folder):
    """Sends this process a signal before it sets a key, or after it."""

    def __init__(self, path, key, number, is_after):
        super().__init__(path)
        self._fault = key, number, is_after

    def set(self, key, value, timeout):
        name, number, is_after = self._fault
        hits = name is not None and key.endswith("/" + name)
        if hits:
            self._fault = None, None, None
        if hits and not is_after:
            os.kill(os.getpid(), number)
        stands = super().set(key, value, timeout)
        if hits and is_after:
            os.kill(os.getpid(), number)
        return stands


def rank_main(folder, rank, key, number, is_after, hears, tells):
    """A rank: it pauses, tells how that ended, and does it again when it is told to."""
    with gmm.Context("host") as context:
        tag = context.tag("weights", gmm.Contents.HOST)
        buffer = context.alloc(SIZE, gmm.Kind.VMM, tag=tag)
        pattern = bytes((i * 7 + rank) & 255 for i in range(4096)) * (SIZE // 4096)
        memoryview(buffer).cast("B")[:] = pattern
        told = {"epochs": []}
        with jobs.Job(Faulty(folder, key, number, is_after), rank=rank, ranks=2, timeout=SECONDS,
                      context=context) as job:
            for turn in range(2):
                start = time.monotonic()
                try:
                    info = job.pause(tag)
                except gmm.Error as error:
                    info = job.info()
                    told.setdefault("errors", []).append(str(error))
                told["epochs"].append([info.state.name, info.failed_rank, time.monotonic() - start])
                told["paused"] = context.tag_info(tag).paused_bytes
                if turn == 0:
                    print(json.dumps(told), file=tells, flush=True)
                    hears.readline()
                    if context.tag_info(tag).paused_bytes:
                        context.resume(tag)
                    told["whole"] = bytes(memoryview(buffer)) == pattern
            if context.tag_info(tag).paused_bytes:
                job.resume(tag)
            told["whole"] = told["whole"] and bytes(memoryview(buffer)) == pattern
        buffer.free()
    print(json.dumps(told), file=tells, flush=True)


class Rank:
    """A rank in a child of fork(), which opens a context of its own: a new interpreter for each takes long to start."""

    def __init__(self, folder, rank, key=None, number=0, is_after=False):
        hears, goes_on = os.pipe()
        told, tells = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other tests have threads
            self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                with open(hears) as source, open(tells, "w") as target:
                    rank_main(folder, rank, key, number, is_after, source, target)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(hears)
        os.close(tells)
        self._told, self._goes_on = open(told), open(goes_on, "w")

    def hear(self):
        line = self._told.readline()
        return json.loads(line) if line else None

    def go_on(self):
        print(file=self._goes_on, flush=True)

    def end(self):
        self._told.close()
        self._goes_on.close()
        return os.waitpid(self.pid, 0)[1]


def start_pair(folder, faulty, key, number, is_after):
    return [Rank(folder, i, *((key, number, is_after) if i == faulty else ())) for i in range(2)]


def test_two_processes_pause_as_one(tmp_path):
    pair = start_pair(str(tmp_path), None, None, 0, False)
    for rank in pair:
        told = rank.hear()
        assert told["epochs"][0][:2] == ["COMMITTED", None] and told["paused"] >= SIZE, told
    for rank in pair:
        rank.go_on()
    for rank in pair:
        told = rank.hear()
        assert told["whole"] and told["epochs"][1][:2] == ["COMMITTED", None], told
        assert rank.end() == 0
    # Those of the last operation.
    assert len(list(tmp_path.iterdir())) == 9


def test_a_rank_that_is_killed_is_named(tmp_path):
    """Killed before or after each key that it sets: the other rank ends in time, names it, and has its contents."""
    runs = []
    for at, (rank, key) in enumerate(STEPS):
        pair = start_pair(str(tmp_path / str(at)), rank, key, signal.SIGKILL, at % 2 == 1)
        runs.append((rank, key, pair))
    for rank, key, pair in runs:
        told = pair[1 - rank].hear()
        state, failed, seconds = told["epochs"][0]
        assert failed == rank or (state == "COMMITTED" and key == "result"), (key, told)
        assert state in ("ABORTED", "COMMITTED"), (key, told)
        assert (state == "COMMITTED") == (told["paused"] != 0), (key, told)
        assert seconds < SECONDS + 30  # the machine may be busy
        if state == "ABORTED":
            assert f"rank {rank}" in told["errors"][0], told
        pair[rank].end()
        os.kill(pair[1 - rank].pid, signal.SIGKILL)
        pair[1 - rank].end()


def test_a_rank_that_stops_follows_the_others(tmp_path):
    """Stopped at each key until the other rank has ended: both come to the same end, and the next pause is whole."""
    runs = []
    for at, (rank, key) in enumerate(STEPS):
        pair = start_pair(str(tmp_path / str(at)), rank, key, signal.SIGSTOP, at % 2 == 0)
        runs.append((rank, key, pair))
    for rank, key, pair in runs:
        told = pair[1 - rank].hear()
        os.kill(pair[rank].pid, signal.SIGCONT)
        again = pair[rank].hear()
        assert again["epochs"][0][0] == told["epochs"][0][0], (key, told, again)
        assert (again["paused"] == 0) == (told["paused"] == 0), (key, told, again)
        for each in pair:
            each.go_on()
        for each in pair:
            last = each.hear()
            assert last["whole"] and last["epochs"][1][0] == "COMMITTED", (key, last)
            assert each.end() == 0


def test_the_arguments_are_checked(context):
    with pytest.raises(gmm.Error):
        jobs.Job(jobs.Folder("."), rank=3, ranks=3, context=context)


def test_an_exchange_that_fails_is_asked_again(context, tmp_path):
    """An exception of the exchange ends nothing: the library asks again until its time is over."""
    class Flaky(jobs.Folder):
        calls = 0

        def set(self, key, value, timeout):
            Flaky.calls += 1
            return super().set(key, value, timeout) if Flaky.calls % 3 == 0 else None

    with jobs.Job(Flaky(tmp_path), rank=0, ranks=1, context=context) as job:
        assert job.info().state == jobs.JobState.IDLE
        with job.paused() as info:
            assert info.state == jobs.JobState.COMMITTED and info.failed_rank is None and info.epoch == 1
        assert job.info().epoch == 2


class Hooked(jobs.Folder):
    """Calls a function before it sets a key of that end."""

    def __init__(self, path, end, function):
        super().__init__(path)
        self.end, self.function, self.calls = end, function, 0

    def set(self, key, value, timeout):
        if key.endswith(self.end):
            self.calls += 1
            self.function()
        return super().set(key, value, timeout)


def raises(error):
    def throw():
        raise error
    return throw


@pytest.mark.parametrize("end, state", [("/in/0", "ABORTED"), ("/decision", "IN_DOUBT"), ("/result", "COMMITTED")])
def test_an_interrupt_of_the_exchange_arrives(context, tmp_path, end, state):
    """The operation ends at once, without another call of the exchange, and the next one is whole."""
    exchange = Hooked(tmp_path, end, raises(KeyboardInterrupt))
    with jobs.Job(exchange, rank=0, ranks=1, timeout=60, context=context) as job:
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            job.pause()
        assert time.monotonic() - begin < 30
        assert exchange.calls == 1 and job.info().state.name == state
        exchange.function = lambda: None
        if state == "IN_DOUBT":
            with pytest.raises(gmm.NotReadyError):
                job.pause()
        with job.paused() as info:
            assert info.state == jobs.JobState.COMMITTED


def test_a_lasting_failure_is_reported_once(context, tmp_path, monkeypatch):
    unraisable = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: unraisable.append(args.exc_value))
    exchange = Hooked(tmp_path, "", raises(OSError("no folder")))
    with jobs.Job(exchange, rank=0, ranks=1, timeout=0.2, context=context) as job:
        for operation in (1, 2):
            with pytest.raises(gmm.NotReadyError):
                job.pause()
            assert exchange.calls > operation and [str(error) for error in unraisable] == ["no folder"] * operation


@pytest.mark.parametrize("end", ["/go", "/decision"])
def test_a_heap_dies_in_the_exchange(context, tmp_path, end):
    """Its end may have to wait for the job, which waits for the exchange."""
    tag = context.tag("weights", gmm.Contents.HOST)
    heap = context.heap(gmm.Kind.VMM, tag=tag)
    heap.alloc(SIZE).free()
    block = context.alloc(SIZE, gmm.Kind.VMM, tag=tag)
    alive, cycle = weakref.ref(heap), [heap]
    cycle.append(cycle)
    before = len(context.snapshot()["heaps"])
    del heap

    def drop():
        nonlocal cycle
        cycle = None
        gc.collect()

    exchange = Hooked(tmp_path, end, drop)
    with jobs.Job(exchange, rank=0, ranks=1, timeout=SECONDS, context=context) as job:
        job.pause(tag)
        assert alive() is None and len(context.snapshot()["heaps"]) == before - 1
        job.resume(tag)
    block.free()


class Values(dict):
    """A store of torch.distributed that has one process."""

    def compare_set(self, key, expected, value):
        return self.setdefault(key, value.encode())

    def check(self, keys):
        return all(key in self for key in keys)


def test_a_store_leaves_no_thread():
    values = Values()
    exchange, store = jobs.Store(values), weakref.ref(values)
    before = set(threading.enumerate())
    assert exchange.get("a", 5) is None and exchange.set("a", "yes", 5) == exchange.get("a", 5) == "yes"
    thread, = set(threading.enumerate()) - before
    del exchange, values
    thread.join(60)
    assert not thread.is_alive() and store() is None


def test_a_store_after_a_thread_that_did_not_start(monkeypatch):
    exchange = jobs.Store(Values())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("no thread")))
        assert exchange.set("a", "yes", 5) is None
    assert exchange.set("a", "yes", 5) == "yes"


def test_a_store_that_does_not_answer():
    """What was given up before it began does not run any more."""
    values, gate = Values(), threading.Event()
    exchange = jobs.Store(values)
    values.check = lambda keys: gate.wait(60)
    assert exchange.get("a", 0.05) is None
    assert exchange.set("b", "late", 0.05) is None
    gate.set()
    del values.check
    assert exchange.set("c", "yes", 60) == "yes" and exchange.get("b", 60) is None and "b" not in values


def test_a_store_after_ctrl_c():
    exchange, k, left = jobs.Store(Values()), 0, 0
    assert exchange.set("a", "yes", 60) == "yes"

    def look(frame, event, _argument):
        nonlocal left
        if event in ("call", "c_return") and frame.f_code.co_filename in (jobs.__file__, threading.__file__):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    while left <= 0:
        k += 1
        left = k
        sys.setprofile(look)
        try:
            exchange.get("a", 5)
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        assert exchange.get("a", 5) == "yes", k
    assert k > 5


def test_the_example_runs():
    program = pathlib.Path(__file__).parents[3] / "examples" / "job" / "job.py"
    done = subprocess.run([sys.executable, program], env={**os.environ, "GMM_BACKEND": "host"}, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("epoch 1: 2 ranks released 64 MiB; held: 0"), done.stdout
    assert second.startswith("epoch 3: refused by rank 1:") and "cache" in second, done.stdout
