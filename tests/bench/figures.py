#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands behind the figures of gmm's benchmarks, judges their rows, and keeps the figures.

Usage: figures.py run  --backend host|cuda -o ROWS [--bench GMM_BENCH] [--peers DIR] [--traces DIR] [--quick]
                       [--only NAME,...] [--seconds N] [--patience F]
       figures.py take ROWS      puts the figures of the rows into measured.jsonl and both READMEs, and draws the
                                 pictures whose commands are all among the rows
       figures.py check          exit code 1 when a README does not agree with measured.jsonl
       figures.py commands --backend host|cuda        prints the commands of `run`, by name

ROWS is a line about the run, then each row as gmm-bench printed it, with the name of its command. `run` needs only
Python and gmm-bench, so rows may come from another machine. It prints one line a command and one line a figure. A
command that fails or takes too long does not end the others: its figures are MISSED, as not measured.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import textwrap
import time

import plot

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/bench"
MEASURED, README, TOP_README = HERE / "measured.jsonl", HERE / "README.md", ROOT / "README.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
SMALL, LARGE = "512,1K,4K,16K,64K,256K,1M", "2M,4M,16M,64M"
ALLOC, HEAP = "gmm", "gmm-heap"  # gmm_alloc() and gmm_heap_alloc()
EXPANDABLE = "pytorch-expandable"
RESERVED = "gmm-heap-reserved"
PICTURED = {name + more for name in ("small", "large", "threads") for more in ("", "-expandable")}
LIMIT, LIMITS = 60, {"threads": 90, "replay": 90, "pause": 90}  # seconds, by how a command's name begins
EXIT_GOOD, EXIT_FAILED = 0, 1


# --- commands -----------------------------------------------------------------------------------------------------
def free_host_gib():
    """Host memory that a run may take: free, and allowed by the control group."""
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
    """gmm and two peers each keep all contents in host memory at once, so a small host has fewer blocks."""
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


def commands(backend, quick, traces="tests/bench/traces"):
    """The arguments of each run, by name."""
    gpu = backend == "cuda"
    short = ["--samples", "5", "--sample-us", "100"] if quick else []
    few = ["--samples", "2"] if quick else []
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
        "latency": ["latency", *few, *quick_to_call],
        "replay": ["replay", traces, *replay, *few],
        **pause_commands(backend, quick),
        "ipc": ["ipc", "--samples", "5" if quick else "60"],
    }
    if gpu:
        # A process has one setting of PyTorch, so its expandable segments have runs of their own, with gmm in each.
        for name in ("small", "large", "threads", "mixed"):
            found[name + "-expandable"] = [*found[name], "--subject", f"{ALLOC},{HEAP},mimalloc,{EXPANDABLE}"]
        found["replay-expandable"] = ["replay", traces, "--subject", f"{ALLOC},{HEAP},{EXPANDABLE}", *few]
    return found


def chosen(names, only):
    """The names that begin with a word of `only`; all without it."""
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
        Figure("recorded traces: peak reserved/requested", "replay", field("reserved_over_requested"), 1.03, True,
               keep=where_is(kind="vmm")),
        on_gpu(f"recorded traces: of the peak with {expandable}", "replay-expandable", field("over_expandable"), 1,
               where_is(kind="vmm"), True),
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


# Those of the project's README, in words for readers who do not know the commands.
TOP_FIGURES = {
    "pair: times faster than PyTorch": "times faster than PyTorch's allocator, one thread",
    "8 threads: times faster than PyTorch": "the same on 8 threads",
    "mixed: times faster than PyTorch": "the same with mixed sizes, replaced at random",
    "pair: times faster than cudaMallocAsync": "times faster than cudaMallocAsync",
    "recorded traces: peak reserved/requested": "GPU memory reserved over requested, recorded training",
    "1,000 x 2 MiB dropped: times faster than a handle a block": "pause and resume: times faster than a handle a block",
    "kept, arena warm: of pinned memcpy's bandwidth": "pause and resume with contents: of a pinned copy's bandwidth",
}


# --- rows -------------------------------------------------------------------------------------------------------
def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def save(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def add_over_expandable(rows):
    """Gives gmm's rows of a replay the ratio of their reserved bytes to those of PyTorch's expandable segments."""
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
    """(rows, the problem or '', stderr). The last line of a stopped command may be half a row."""
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


def run(arguments):
    bench, today = pathlib.Path(arguments.bench).resolve(), datetime.datetime.now(datetime.timezone.utc)
    all_commands = commands(arguments.backend, arguments.quick, str(arguments.traces.resolve()))
    names = chosen(all_commands, arguments.only)
    about = {"backend": arguments.backend, "device": None, "machine": machine(), "date": today.strftime("%Y-%m-%d"),
             "quick": arguments.quick, "runs": names}
    deadline, rows, code = time.monotonic() + (arguments.seconds or 0), [], EXIT_GOOD
    peers = ["--peers", str(pathlib.Path(arguments.peers).resolve())] if arguments.peers else []
    for name in names:
        begin = time.monotonic()
        words = [*all_commands[name], "--backend", arguments.backend]
        limit = None
        if arguments.seconds:
            limit = min(LIMITS.get(name.split("-")[0], LIMIT) * arguments.patience, deadline - begin)
        own, problem, errors = run_one([str(bench), *words, "--json", *peers], limit)
        print(f"{'FAILED' if problem else 'run':<6}  {name:<18}  {time.monotonic() - begin:5.1f} s  {len(own):4} rows  "
              f"{problem}".rstrip(), flush=True)
        print(f"\n===== {name}: {shlex.join(['gmm-bench', *words])}\n{errors}", file=sys.stderr, flush=True)
        code = EXIT_FAILED if problem else code
        rows += [dict(row, run=name) for row in own]
    if not rows:
        print("FAILED  no command gave a row; there are: " + ", ".join(all_commands))
        return EXIT_FAILED
    about["device"] = rows[0]["device"]
    add_over_expandable(rows)
    save(arguments.output, [about, *rows])
    print()
    for figure in figures():
        if arguments.backend in figure.backends and set(figure.runs) <= set(names):
            value, place = figure.judge(rows) or (None, None)
            met = "ok" if value is not None and figure.is_met(value) else "MISSED"
            shown = "not measured" if value is None else f"{round_text(value)} ({where(rows, place)})"
            print(f"{met:<6}  {figure.words:<64}  {figure.goal_text():<13}  {shown}")
    return code


# --- measured.jsonl ----------------------------------------------------------------------------------------------
def lines_of(rows):
    """The lines of the picture: kind vmm, or a peer's first kind."""
    found = {}
    for row in rows:
        run = row["run"].removesuffix("-expandable")
        if row["subject"] == "control":
            continue
        if run in ("small", "large"):
            panel, x, y = "one thread", row["size"], row["ns"]
        elif run == "threads" and row["size"] == 1024 and row["mode"] == "local":
            panel, x, y = "blocks of 1 KiB", row["threads"], row["threads"] / row["ns"] * 1e9
        else:
            continue
        found.setdefault((panel, row["subject"]), {}).setdefault(row["kind"], {})[x] = y
    for (panel, subject), kinds in found.items():
        points = kinds.get("vmm") or next(iter(kinds.values()))
        yield {"panel": panel, "subject": subject, "points": sorted(points.items())}


def take(arguments):
    """Replaces the measurements of the commands that the rows are of."""
    about, *rows = read(arguments.rows)
    backend, runs = about["backend"], set(about["runs"])
    if "Fake" in about["device"] or about["quick"]:
        print("figures.py: rows of the fake CUDA driver or of a quick run are no figures", file=sys.stderr)
        return EXIT_FAILED
    new = [dict(about, runs=sorted(runs))]
    for figure in figures():
        if backend in figure.backends and set(figure.runs) & runs and (worst := figure.judge(rows)):
            new.append({"backend": backend, "figure": figure.words, "value": float(f"{worst[0]:.5g}"),
                        "where": where(rows, worst[1])})

    def key(line):
        return line["backend"], line.get("figure")

    taken = {key(line) for line in new if "figure" in line}
    kept = []
    for line in read(MEASURED) if MEASURED.exists() else []:
        if "runs" in line and line["backend"] == backend:
            line["runs"] = [name for name in line["runs"] if name not in runs]
        if line.get("runs", True) and key(line) not in taken:
            kept.append(line)
    save(MEASURED, sorted(kept + new, key=lambda line: (line["backend"] == "cuda", "figure" in line)))
    for path, text in results():
        path.write_text(text, encoding="utf-8")
    if backend == "cuda" and PICTURED <= runs:
        (HERE / "pair-cuda.svg").write_text(plot.draw(list(lines_of(rows)), about["device"]), encoding="utf-8")
    return EXIT_GOOD


# --- words, tables and pictures ---------------------------------------------------------------------------------
def size_text(size):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:g} {unit}"
        size /= 1024


def round_text(value):
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def where(rows, row):
    """The row's subject, kind, size and threads, and the control's gain by further threads."""
    words = [row["operation"]] if "operation" in row else [row["subject"]]
    words.append(f"{row['blocks']} blocks" if "blocks" in row else row["kind"])
    words += [row["trace"]] if row["trace"] else []
    words += [size_text(row["size"])] if row["size"] is not None else []
    if row["threads"] > 1:
        words.append(f"{row['threads']} threads")
        words += [f"control {round_text(other['scaling'])}" for other in rows
                  if (other["run"], other["subject"]) == (row["run"], "control") and "scaling" in other and
                  (other["size"], other["threads"]) == (row["size"], row["threads"])]
    return ", ".join(words)


def table(head, lines):
    return ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |",
            *("| " + " | ".join(line) + " |" for line in lines)]


def cell(figure, backend, lines):
    value = next((line["value"] for line in lines if (line["backend"], line.get("figure")) == (backend, figure.words)),
                 None)
    if backend not in figure.backends:
        return "-"
    if value is None:
        return "not measured"
    return round_text(value) + ("" if figure.is_met(value) else " **missed**")


def readme_text(lines):
    """The table of this folder's README: a column for each backend."""
    text = []
    for line in lines:
        if "runs" in line:
            words = f"- **{line['backend']}**, {line['device']}; {line['machine']}; {line['date']}: "
            text += textwrap.wrap(words + ", ".join(f"`{name}`" for name in line["runs"]) + ".", 118,
                                  subsequent_indent="  ", break_on_hyphens=False)
    return [*text, "", *table(["figure", "goal", "host", "cuda", "command"], [
        [figure.words, figure.goal_text(), cell(figure, "host", lines), cell(figure, "cuda", lines),
         ", ".join(f"`{name}`" for name in figure.runs)] for figure in figures()])]


def top_text(lines):
    """The table of the project's README: a few figures of the GPU."""
    by_words = {figure.words: figure for figure in figures()}
    device = next(line["device"] for line in lines if line["backend"] == "cuda" and "runs" in line)
    return table([f"worst of all kinds and sizes, {device}", "measured", "goal"],
                 [[words, cell(by_words[name], "cuda", lines), by_words[name].goal_text()]
                  for name, words in TOP_FIGURES.items()]) + [""]


def results():
    """(path, text) of each README, whose tables are made of measured.jsonl."""
    lines = read(MEASURED)
    for path, text_of_lines in ((README, readme_text), (TOP_README, top_text)):
        before, rest = path.read_text(encoding="utf-8").split(BEGIN, 1)
        text = "\n".join(text_of_lines(lines)).rstrip()
        yield path, f"{before}{BEGIN}\n{text}\n{END}{rest.split(END, 1)[1]}"


def check(_):
    wrong = [path for path, text in results() if path.read_text(encoding="utf-8") != text]
    for path in wrong:
        print(f"figures.py: {path} does not agree with measured.jsonl: run `figures.py take`", file=sys.stderr)
    return EXIT_FAILED if wrong else EXIT_GOOD


def print_commands(arguments):
    for name, words in commands(arguments.backend, False).items():
        print(f"{name:<20}{shlex.join(['gmm-bench', *words, '--backend', arguments.backend])}")
    return EXIT_GOOD


def main():
    parser = argparse.ArgumentParser(description="The figures of gmm's benchmarks.")
    parts = parser.add_subparsers(dest="part", required=True)
    running = parts.add_parser("run")
    running.add_argument("-o", "--output", type=pathlib.Path, required=True)
    running.add_argument("--bench", default="build/tests/bench/gmm-bench")
    running.add_argument("--peers")
    running.add_argument("--traces", type=pathlib.Path, default=HERE / "traces", help="a folder of traces")
    running.add_argument("--quick", action="store_true", help="few and short samples, to try it")
    running.add_argument("--only", help="commands by name, or by how their names begin")
    running.add_argument("--seconds", type=float, help="limit of all commands; each then has a limit of its own too")
    running.add_argument("--patience", type=float, default=1, help="each command's limit times this")
    listing = parts.add_parser("commands")
    for part in (running, listing):
        part.add_argument("--backend", choices=["host", "cuda"], required=True)
    parts.add_parser("take").add_argument("rows", type=pathlib.Path)
    parts.add_parser("check")
    arguments = parser.parse_args()
    return {"run": run, "take": take, "check": check, "commands": print_commands}[arguments.part](arguments)


if __name__ == "__main__":
    sys.exit(main())
