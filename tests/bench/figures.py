#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands behind the figures of gmm's benchmarks, and judges their rows by the goals.

Usage: figures.py run   --backend host|cuda -o ROWS [--bench GMM_BENCH] [--peers DIR] [--quick] [--only NAME,...]
                        [--seconds N] [--patience F]
       figures.py commands --backend host|cuda        prints what `run` runs, by name
       figures.py show  ROWS                          prints the judgement and every row, as Markdown
       figures.py write [--readme FILE] [ROWS...]     puts the figures between the marks of the README
       figures.py check [--readme FILE] [ROWS...]     exit code 1 when the README has others
       figures.py merge OLD NEW -o ROWS               takes from OLD the commands that NEW did not run

ROWS is a file of results/: a line about the run, then each row as gmm-bench printed it, with the name of its command.
Without --readme, `write` and `check` take the README of this folder, and the one of the project with a few figures.
`run` needs only Python and gmm-bench, so rows may come from another machine. It prints one line a command and one line
a figure. A command that fails or takes too long does not end the others: its figures are MISSED, as not measured.
The exit code of `run` is 1 when a command failed; the rows of the others are written all the same.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
import textwrap
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/bench"
README, TOP_README = HERE / "README.md", ROOT / "README.md"
RESULTS = [HERE / "results/host.json", HERE / "results/cuda.json"]
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
TRACES = ["gpt_train", "gpt2_small_train", "graph_train", "streams_mixed"]
SMALL, LARGE = "512,1K,4K,16K,64K,256K,1M", "2M,4M,16M,64M"
ALLOC, HEAP = "gmm", "gmm-heap"  # gmm_alloc() and gmm_heap_alloc()
EXPANDABLE = "pytorch-expandable"
RESERVED = "gmm-heap-reserved"
LIMIT, LIMITS = 60, {"threads": 90, "replay": 90, "pause": 90}  # seconds, by how a command's name begins
EXIT_GOOD, EXIT_FAILED = 0, 1


# --- what is run ------------------------------------------------------------------------------------------------
def free_host_gib():
    """Host memory that a run may take: what is free, and what the control group allows."""
    lines = pathlib.Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    for folder, limit, used in (("/sys/fs/cgroup", "memory.max", "memory.current"),
                                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")):
        try:
            words = [(pathlib.Path(folder) / name).read_text(encoding="ascii").strip() for name in (limit, used)]
        except OSError:
            continue
        if all(word.isdigit() for word in words):
            free = min(free, int(words[0]) - int(words[1]))
    return free / 2**30


def pause_commands(backend, quick):
    """gmm and two peers each keep all contents in host memory at once, so blocks are fewer where memory is short."""
    blocks, size = 16, "32M" if backend == "host" or quick else "1G"
    while size == "1G" and blocks > 1 and free_host_gib() < 3 * blocks + 8:
        blocks //= 2
    few = ["--samples", "2"] if quick else []
    # The driver clears released memory with the copy engines. A sleeping model has the time for it, and so have these.
    rest = ["--rest", "200"] if backend == "cuda" else []

    def pause(count, *words):
        return ["pause", "--blocks", str(max(count, 1)), "--size", size, *words, *few]

    return {
        "pause-small": ["pause", "--blocks", "1000", "--size", "2M", *few],
        "pause-large": pause(blocks, *rest),
        "pause-warm": pause(blocks, "--contents", "host", *rest),
        "pause-cold": pause(blocks, "--contents", "host", "--cold"),
        "pause-pageable": pause(blocks // 2, "--contents", "host", "--pageable"),
        "pause-file": pause(blocks // 4, "--contents", "file"),
    }


def commands(backend, quick):
    """What is run, by name."""
    gpu = backend == "cuda"
    short = ["--samples", "5", "--sample-us", "100"] if quick else []
    few = ["--samples", "2"] if quick else []
    traces = ["replay", *(f"tests/bench/traces/{name}.trace.gz" for name in TRACES)]
    # In a replay the host's allocators have nothing to show.
    # Kind device is for PyTorch's default segments, which come from cudaMalloc.
    replay = ["--kind", "vmm,device", "--subject", f"{ALLOC},{HEAP},pytorch,cudaMallocAsync"] if gpu else []
    # A million operations by way of the driver would take minutes.
    quick_to_call = ["--subject", f"{ALLOC},{HEAP},{RESERVED},mimalloc,umf,pytorch"] if gpu else []
    threads = ["--threads", "1,2,4,8" if gpu else "1,2"]
    found = {
        "small": ["pair", "--size", SMALL, *short],
        "large": ["pair", "--size", LARGE, *short],
        "threads": ["pair", "--kind", "vmm,device", *threads, "--size", "1K,64K,1M", *short],
        "share": ["pair", "--kind", "vmm,device", "--share", "--size", "1K,64K,1M", *short],
        "mixed": ["mixed", *few],
        "mixed-uniform": ["mixed", "--sizes", "uniform", *few],
        "latency": ["latency", *few, *quick_to_call],
        "replay": [*traces, *replay, *few],
        **pause_commands(backend, quick),
        "ipc": ["ipc", "--samples", "5" if quick else "60", "--iterations", "150", "--blocks", "4", "--threads", "4"],
    }
    if gpu:
        # A process has one setting of PyTorch, so its expandable segments have runs of their own, with gmm in each.
        for name in ("small", "large", "threads", "mixed"):
            found[name + "-expandable"] = [*found[name], "--subject", f"{ALLOC},{HEAP},mimalloc,{EXPANDABLE}"]
        found["replay-expandable"] = [*traces, "--subject", f"{ALLOC},{HEAP},{EXPANDABLE}", *few]
    return found


def chosen(names, only):
    """Those that `only` names, by whole names or by what they begin with; all without it."""
    words = [word for word in (only or "").split(",") if word]
    return [name for name in names if not words or any(name.startswith(word) for word in words)]


# --- the figures and their goals --------------------------------------------------------------------------------
def over(peer):
    """How many times the peer's time gmm takes: the less the better."""
    return lambda row: row["over"].get(peer)


def faster(peer):
    """How many times faster than the peer: the more the better."""
    return lambda row: 1 / row["over"][peer] if peer in row["over"] else None


def field(name):
    return lambda row: row.get(name)


def most_calls(row):
    return max(row["handles"], row["first_handles"]) if row["handles"] is not None else None


def on_threads(count):
    return lambda row: row["threads"] == count and row["mode"] == "local"


def where_is(**fields):
    return lambda row: all(row[name] == value for name, value in fields.items())


class Figure:
    """A goal for the worst row of some commands and subjects. `runs` and `subjects` are names with blanks between."""

    def __init__(self, words, runs, value, goal, most=False, backends="host cuda", keep=None,
                 subjects=f"{ALLOC} {HEAP}"):
        self.words, self.runs, self.value, self.goal, self.most = words, runs.split(), value, goal, most
        self.backends, self.keep, self.subjects = backends.split(), keep or (lambda row: True), subjects.split()

    def judge(self, rows):
        """(worst value, its row). None unless every command has a row with the value for every subject."""
        found = []
        for run in self.runs:
            for subject in self.subjects:
                own = [(self.value(row), row) for row in rows
                       if (row["run"], row["subject"]) == (run, subject) and self.keep(row)]
                own = [pair for pair in own if pair[0] is not None]
                if not own:
                    return None
                found += own
        return (max if self.most else min)(found, key=lambda pair: pair[0])

    def is_met(self, value):
        return value <= self.goal if self.most else value >= self.goal

    def goal_text(self):
        return f"{'at most' if self.most else 'at least'} {self.goal:g}"


def figures():
    pairs, expandable = "small large", "expandable segments"
    of_pause = where_is(operation="pause")
    dropped, cold = "1,000 x 2 MiB dropped", "kept, arena cold: pause, times faster"

    def on_gpu(words, runs, value, goal, keep=None, most=False, subjects=f"{ALLOC} {HEAP}"):
        return Figure(words, runs, value, goal, most, "cuda", keep, subjects)

    def of_gpu_pause(words, runs, value, goal, keep=None, most=False):
        return on_gpu(words, runs, value, goal, keep, most, ALLOC)

    return [
        Figure("`gmm_alloc()` pair, of mimalloc's of 1 KiB", pairs, over("mimalloc-1k"), 1.8, True, subjects=ALLOC),
        Figure("`gmm_heap_alloc()` pair, of mimalloc's of 1 KiB", pairs, over("mimalloc-1k"), 1.5, True, subjects=HEAP),
        on_gpu("pair: times faster than PyTorch", pairs, faster("pytorch"), 15),
        on_gpu(f"pair: times faster than {expandable}", "small-expandable large-expandable", faster(EXPANDABLE), 15),
        on_gpu("pair: times faster than cudaMallocAsync", pairs, faster("cudaMallocAsync"), 25),
        on_gpu("pair: times faster than RMM's pool", pairs, faster("rmm-pool"), 5),
        Figure("pair: times faster than UMF's disjoint pool", pairs, faster("umf"), 4),
        Figure("2 threads: throughput of 1", "threads", field("scaling"), 1.7, keep=on_threads(2)),
        on_gpu("8 threads: throughput of 1", "threads", field("scaling"), 6.4, on_threads(8)),
        on_gpu("8 threads: times faster than PyTorch", "threads", faster("pytorch"), 100, on_threads(8)),
        on_gpu(f"8 threads: times faster than {expandable}", "threads-expandable", faster(EXPANDABLE), 100,
               on_threads(8)),
        on_gpu("8 threads: times faster than UMF's disjoint pool", "threads", faster("umf"), 100, on_threads(8)),
        Figure("one thread allocates, another frees: of the local pair", "share", field("over_local"), 3, True,
               keep=where_is(mode="share")),
        Figure("mixed: peak reserved/requested", "mixed", field("reserved_over_requested"), 1.2, True),
        on_gpu("mixed: times faster than PyTorch", "mixed", faster("pytorch"), 8),
        on_gpu(f"mixed: times faster than {expandable}", "mixed-expandable", faster(EXPANDABLE), 8),
        Figure("mixed: times faster than UMF's disjoint pool", "mixed", faster("umf"), 2),
        Figure("mixed: times faster than that pool, giving memory back", "mixed", faster("umf-trim"), 2),
        Figure("single operations, heap reserved: above 1 us, of a million", "latency",
               lambda row: (1 - row["within_us"]) * 1e6, 100, True, subjects=RESERVED),
        Figure("single operations, heap reserved: driver calls of a million", "latency", field("handles"), 0, True,
               subjects=RESERVED),
        *(Figure(f"{name}: peak reserved/requested", "replay", field("reserved_over_requested"), 1.03, True,
                 keep=where_is(trace=name, kind="vmm")) for name in TRACES),
        *(on_gpu(f"{name}: of the peak with expandable segments", "replay-expandable", field("over_expandable"), 1,
                 where_is(trace=name, kind="vmm"), True) for name in TRACES),
        Figure(f"{dropped}: calls of a pause, the first too", "pause-small", most_calls, 100, True, keep=of_pause,
               subjects=ALLOC),
        of_gpu_pause(f"{dropped}: times faster than a handle a block", "pause-small", faster("one_handle"), 10),
        of_gpu_pause(f"{dropped}: times faster than torch_memory_saver", "pause-small", faster("torch_memory_saver"),
                     10),
        of_gpu_pause("16 blocks dropped: of the driver's calls at their best", "pause-large", over("raw_best"), 1.2,
                     most=True),
        of_gpu_pause("kept, arena warm: of pinned memcpy's bandwidth", "pause-warm", faster("pinned_memcpy"), 0.95),
        of_gpu_pause(f"{cold} than cuMemHostAlloc", "pause-cold", faster("host_alloc"), 5, of_pause),
        of_gpu_pause(f"{cold} than torch_memory_saver", "pause-cold", faster("torch_memory_saver"), 5, of_pause),
        of_gpu_pause("kept in pageable memory: GB/s", "pause-pageable", field("gbps"), 25),
        of_gpu_pause("kept in a file: of O_DIRECT's bandwidth", "pause-file", faster("direct_write"), 0.8),
        Figure("import by another process: of the calls by hand", "ipc", over("raw"), 1.5, True,
               keep=where_is(operation="import"), subjects=ALLOC),
    ]


# What the README of the project has of them, in words for those who do not know the commands.
TOP_FIGURES = {
    "pair: times faster than PyTorch": "times faster than PyTorch's allocator, one thread",
    "8 threads: times faster than PyTorch": "the same on 8 threads",
    "mixed: times faster than PyTorch": "the same with mixed sizes, replaced at random",
    "pair: times faster than cudaMallocAsync": "times faster than cudaMallocAsync",
    "gpt_train: peak reserved/requested": "GPU memory reserved over requested, training of a GPT",
    "1,000 x 2 MiB dropped: times faster than a handle a block": "pause and resume: times faster than a handle a block",
    "kept, arena warm: of pinned memcpy's bandwidth": "pause and resume with contents: of a pinned copy's bandwidth",
}


# --- rows -------------------------------------------------------------------------------------------------------
def read(path):
    """(what is known about the run, its rows)."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return lines[0], lines[1:]


def save(path, about, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(line) for line in [about, *rows]) + "\n", encoding="utf-8")


def add_over_expandable(rows):
    """Gives gmm's rows of a replay the ratio of what is reserved to what PyTorch's expandable segments reserve."""
    own = [row for row in rows if row["run"] == "replay-expandable" and row["reserved_over_requested"]]
    theirs = {row["trace"]: row["reserved_over_requested"] for row in own if row["subject"] == EXPANDABLE}
    for row in own:
        if row["subject"] in (ALLOC, HEAP) and row["trace"] in theirs:
            row["over_expandable"] = row["reserved_over_requested"] / theirs[row["trace"]]


def machine():
    cpu = platform.machine()
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    return f"{os.cpu_count()} cores of {cpu}, load {os.getloadavg()[0]:.1f} at the start"


def text_of(output):
    return output.decode("utf-8", "replace") if isinstance(output, bytes) else output or ""


def run_one(command, limit):
    """(rows, words on what went wrong or '', stderr). Of a command that is stopped the last line may be half."""
    if limit is not None and limit < 5:
        return [], "not run: no time was left", ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=limit)
        out, err, problem = done.stdout, done.stderr, f"exit code {done.returncode}" if done.returncode != 0 else ""
    except subprocess.TimeoutExpired as stopped:
        out, err, problem = text_of(stopped.stdout), text_of(stopped.stderr), f"stopped after {limit:.0f} s"
    rows = []
    for line in out.splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            problem = problem or f"not a row: {line[:60]}"
    return rows, problem, err


def count_instructions(bench):
    """(rows, words on what went wrong or '')."""
    done = subprocess.run([str(HERE / "instructions.sh"), str(bench)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return [], "no instructions counted: " + (done.stderr.strip().splitlines() or ["failed"])[-1]
    rows = []
    for line in done.stdout.splitlines()[2:]:
        subject, kind, size, count = (word.strip() for word in line.strip("|").split("|"))
        rows.append({"subject": subject, "kind": kind, "size": size, "instructions": float(count)})
    return rows, ""


def run(arguments):
    bench, today = pathlib.Path(arguments.bench).resolve(), datetime.datetime.now(datetime.timezone.utc)
    about = {"backend": arguments.backend, "machine": machine(), "date": today.strftime("%Y-%m-%d"),
             "quick": arguments.quick, "commands": {}, "warnings": [], "device": None}
    deadline, rows, code = time.monotonic() + (arguments.seconds or 0), [], EXIT_GOOD
    all_commands = commands(arguments.backend, arguments.quick)
    names = chosen([*all_commands, *(["instructions"] if arguments.backend == "host" else [])], arguments.only)
    for name in names:
        begin = time.monotonic()
        if name == "instructions":
            shown, own, problem, errors = "tests/bench/instructions.sh", *count_instructions(bench), ""
        else:
            words = [*all_commands[name], "--backend", arguments.backend]
            shown = shlex.join(["gmm-bench", *words])
            peers = ["--peers", str(pathlib.Path(arguments.peers).resolve())] if arguments.peers else []
            limit = None
            if arguments.seconds:
                limit = min(LIMITS.get(name.split("-")[0], LIMIT) * arguments.patience, deadline - begin)
            own, problem, errors = run_one([str(bench), *words, "--json", *peers], limit)
        print(f"{'FAILED' if problem else 'run':<6}  {name:<18}  {time.monotonic() - begin:5.1f} s  {len(own):4} rows  "
              f"{problem}".rstrip(), flush=True)
        print(f"\n===== {name}: {shown}\n{errors}", file=sys.stderr, flush=True)
        if problem and name != "instructions":
            code = EXIT_FAILED
        about["commands"][name] = shown
        rows += [dict(row, run=name) for row in own]
        # Only one of PyTorch's two settings can be there, and the other's runs are named so.
        warnings = [re.sub(r"/\S*/", "", line.replace("gmm-bench: ", "")) for line in errors.splitlines()
                    if "one for the process" not in line]
        about["warnings"] += [line for line in dict.fromkeys([*warnings, *([f"{name}: {problem}"] if problem else [])])
                              if line not in about["warnings"]]
    if not rows:
        print("FAILED  no command gave a row; there are: " + ", ".join(all_commands))
        return EXIT_FAILED
    about["device"] = next((row["device"] for row in rows if "device" in row), None)
    add_over_expandable(rows)
    save(arguments.output, about, rows)
    print()
    for figure in figures():
        if arguments.backend in figure.backends and set(figure.runs) <= set(names):
            worst = figure.judge(rows)
            good = worst is not None and figure.is_met(worst[0])
            words = f"{round_text(worst[0])} ({where(rows, worst[1])})" if worst else "not measured"
            print(f"{'ok' if good else 'MISSED':<6}  {figure.words:<64}  {figure.goal_text():<13}  {words}")
    return code


def merge(arguments):
    (old, old_rows), (new, new_rows) = read(arguments.old), read(arguments.new)
    if old["backend"] != new["backend"]:
        print("figures.py: the rows are of two backends", file=sys.stderr)
        return EXIT_FAILED
    kept = [name for name in old["commands"] if name not in new["commands"]]
    of = {name: words for words, names in old.get("older", {}).items() for name in names}
    older = {}
    for name in kept:
        older.setdefault(of.get(name, f"{old['date']}, {old['machine']}"), []).append(name)
    order = list(dict.fromkeys([*old["commands"], *new["commands"]]))
    about = dict(new, older=older, commands={name: (old if name in kept else new)["commands"][name] for name in order},
                 warnings=list(dict.fromkeys([*new["warnings"], *(old["warnings"] if kept else [])])))
    rows = [row for row in old_rows if row["run"] in kept] + new_rows
    save(arguments.output, about, sorted(rows, key=lambda row: order.index(row["run"])))
    return EXIT_GOOD


# --- words and tables -------------------------------------------------------------------------------------------
def size_text(size):
    if isinstance(size, str):
        return size
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:g} {unit}"
        size /= 1024


def time_text(ns):
    if ns < 0:
        return "-" + time_text(-ns)
    for unit, next_unit in (("ns", 1e3), ("us", 1e6), ("ms", 1e9), ("s", float("inf"))):
        if ns < next_unit:
            return f"{ns * 1000 / next_unit:.3g} {unit}" if unit != "s" else f"{ns / 1e9:.3g} s"


def round_text(value):
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def where(rows, row):
    """Which row it is: its subject, kind, size and threads, and what a second thread gained the control there."""
    words = [row["subject"], row["kind"]]
    if "operation" in row:
        words = [row["operation"], *([f"{row['ranks']} ranks"] if "ranks" in row else []),
                 f"{row['blocks']} blocks" if "blocks" in row else row["kind"]]
    if row["size"] is not None:
        words.append(size_text(row["size"]))
    if row["threads"] > 1:
        words.append(f"{row['threads']} threads")
        words += [f"control {round_text(other['scaling'])}" for other in rows
                  if other["run"] == row["run"] and other["subject"] == "control" and "scaling" in other and
                  (other["size"], other["threads"]) == (row["size"], row["threads"])]
    return ", ".join(words)


def table(head, lines):
    return ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |",
            *("| " + " | ".join(line) + " |" for line in lines), ""]


def mib_text(size):
    return f"{size / 2**20:,.0f} MiB"


COLUMNS = [("subject", "subject", str), ("kind", "kind", str), ("size", "size", size_text), ("trace", "trace", str),
           ("sizes", "sizes", str), ("mode", "mode", str), ("threads", "threads", str), ("operation", "operation", str),
           ("ranks", "ranks", str), ("median", "ns", time_text), ("first", "first_ns", time_text),
           ("least", "least_ns", time_text), ("added", "added_ns", time_text),
           ("messages", "messages", "{:.0f}".format),
           ("pass", "pass", str), ("p99", "p99", time_text), ("p99.9", "p999", time_text),
           ("p99.99", "p9999", time_text), ("worst", "max", time_text), ("p99.99 once", "once_p9999", time_text),
           ("GB/s", "gbps", round_text), ("requested", "peak_requested", mib_text),
           ("reserved", "peak_reserved", mib_text), ("ratio", "reserved_over_requested", "{:.3f}".format),
           ("steady", "steady", "{:.3f}".format),
           ("calls", "handles", str), ("first calls", "first_handles", str), ("setting", "setting", str),
           ("scaling", "scaling", round_text), ("over local", "over_local", round_text),
           ("of expandable", "over_expandable", "{:.3f}".format), ("instructions", "instructions", "{:.0f}".format)]


def printed(rows):
    """A table of the columns that some row of a command has."""
    peers = list(dict.fromkeys(peer for row in rows for peer in row.get("over", {})))
    rows = [dict(row, **{f"over {peer}": ratio for peer, ratio in row.get("over", {}).items()}) for row in rows]
    columns = [column for column in [*COLUMNS, *((f"over {peer}", f"over {peer}", round_text) for peer in peers)]
               if any(row.get(column[1]) not in (None, "") for row in rows)]
    return table([head for head, _, _ in columns],
                 [["-" if row.get(name) in (None, "") else text(row[name]) for _, name, text in columns]
                  for row in rows])


def introduction(about):
    words = [f"{about['device']}, {about['backend']} backend; {about['machine']}; {about['date']}" +
             ("; quick run." if about["quick"] else ".")]
    for run_words, names in about.get("older", {}).items():
        others = [name for name in about["commands"] if name not in names]
        few = min(names, others, key=len)
        words.append(f"Of an older run, {run_words}: {'all but ' if few is others else ''}"
                     f"{', '.join(f'`{name}`' for name in few)}.")
    return words


def show(arguments):
    about, rows = read(arguments.rows)
    lines = [line for words in introduction(about) for line in (words, "")]
    lines += [*(f"- {warning}" for warning in about["warnings"]), ""] if about["warnings"] else []
    judged = []
    for figure in figures():
        if about["backend"] in figure.backends:
            worst = figure.judge(rows)
            words = ["not measured", "-"] if worst is None else [
                round_text(worst[0]) + ("" if figure.is_met(worst[0]) else " **missed**"), where(rows, worst[1])]
            judged.append([figure.words, figure.goal_text(), *words, ", ".join(figure.runs)])
    lines += table(["figure", "goal", "worst row", "which", "command"], judged)
    for name, command in about["commands"].items():
        own = [row for row in rows if row["run"] == name]
        lines += [f"### {name}", f"`{command}`", "", *(printed(own) if own else ["No rows.", ""])]
    print("\n".join(lines))
    return EXIT_GOOD


def cell(figure, backend, rows):
    if backend not in figure.backends:
        return "-"
    worst = figure.judge(rows)
    if worst is None:
        return "not measured"
    return round_text(worst[0]) + ("" if figure.is_met(worst[0]) else " **missed**")


def readme_text(files):
    """The table of this folder's README: a column for each file of rows."""
    lines = [line for about, _ in files for line in textwrap.wrap(
        f"- **{about['backend']}**: {' '.join(introduction(about))}", 118, subsequent_indent="  ",
        break_on_hyphens=False)] + [""]
    return lines + table(["figure", "goal", *(about["backend"] for about, _ in files), "command"],
                         [[figure.words, figure.goal_text(),
                           *(cell(figure, about["backend"], rows) for about, rows in files),
                           ", ".join(f"`{name}`" for name in figure.runs)] for figure in figures()])


def top_text(files):
    """The table of the project's README: a few figures of the GPU."""
    about, rows = next(pair for pair in files if pair[0]["backend"] == "cuda")
    by_words = {figure.words: figure for figure in figures()}
    return table([f"worst of all kinds and sizes, {about['device']}", "measured", "goal"],
                 [[words, cell(by_words[name], "cuda", rows), by_words[name].goal_text()]
                  for name, words in TOP_FIGURES.items()])


def write(arguments):
    """Puts the figures into the READMEs, or only looks whether they are there."""
    files = [read(path) for path in arguments.rows or RESULTS]
    if any("Fake" in about["device"] for about, _ in files):
        print("figures.py: these rows are of the fake CUDA driver and are no figures", file=sys.stderr)
        return EXIT_FAILED
    targets = [(arguments.readme, readme_text)] if arguments.readme else [(README, readme_text), (TOP_README, top_text)]
    for path, text_of_files in targets:
        readme = path.read_text(encoding="utf-8")
        if BEGIN not in readme or END not in readme:
            print(f"figures.py: {path} has no marks {BEGIN} and {END}", file=sys.stderr)
            return EXIT_FAILED
        before, rest = readme.split(BEGIN, 1)
        text = "\n".join(text_of_files(files)).rstrip()
        wanted = f"{before}{BEGIN}\n{text}\n{END}{rest.split(END, 1)[1]}"
        if arguments.part == "write":
            path.write_text(wanted, encoding="utf-8")
        elif wanted != readme:
            print(f"figures.py: {path} is not what the rows say: run `figures.py write`", file=sys.stderr)
            return EXIT_FAILED
    return EXIT_GOOD


def print_commands(arguments):
    for name, words in commands(arguments.backend, False).items():
        print(f"{name:<20}{shlex.join(['gmm-bench', *words, '--backend', arguments.backend])}")
    return EXIT_GOOD


def main():
    parser = argparse.ArgumentParser(description="The figures of gmm's benchmarks.")
    parts = parser.add_subparsers(dest="part", required=True)
    running = parts.add_parser("run")
    running.add_argument("--bench", default="build/tests/bench/gmm-bench")
    running.add_argument("--peers")
    running.add_argument("--quick", action="store_true")
    running.add_argument("--only", help="commands by name, or by how their names begin")
    running.add_argument("--seconds", type=float, help="limit of all commands; each then has a limit of its own too")
    running.add_argument("--patience", type=float, default=1, help="each command's limit times this")
    listing = parts.add_parser("commands")
    for part in (running, listing):
        part.add_argument("--backend", choices=["host", "cuda"], required=True)
    showing = parts.add_parser("show")
    showing.add_argument("rows", type=pathlib.Path)
    for name in ("write", "check"):
        part = parts.add_parser(name)
        part.add_argument("rows", type=pathlib.Path, nargs="*")
        part.add_argument("--readme", type=pathlib.Path)
    merging = parts.add_parser("merge")
    merging.add_argument("old", type=pathlib.Path)
    merging.add_argument("new", type=pathlib.Path)
    for part in (running, merging):
        part.add_argument("-o", "--output", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    return {"run": run, "commands": print_commands, "show": show, "write": write, "check": write,
            "merge": merge}[arguments.part](arguments)


if __name__ == "__main__":
    sys.exit(main())
