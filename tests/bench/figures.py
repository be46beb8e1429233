#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands behind the figures of gmm's benchmarks, judges them, and writes both into tests/bench/README.md.

Usage: figures.py run   --backend host|cuda -o ROWS [--bench GMM_BENCH] [--peers DIR] [--quick] [--only NAME,...]
       figures.py write ROWS [--readme FILE]         puts the tables of these rows between the marks of their backend
       figures.py show  ROWS                         prints the same
       figures.py merge OLD NEW -o ROWS              what NEW did not run is taken from OLD, and the tables say so

`run` needs only Python, so that rows made on another machine can be written here. The rows are what gmm-bench printed,
each with its command.
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

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRACES = ["gpt_train", "graph_train", "streams_mixed"]
SMALL, LARGE = "512,1K,4K,16K,64K,256K,1M", "2M,4M,16M,64M"
SUBJECTS = ("gmm", "gmm-heap")
EXIT_GOOD, EXIT_FAILED = 0, 1


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
    """gmm and two peers each keep all contents in host memory at once."""
    blocks, size, few = 16, "1G", []
    if backend == "host" or quick:
        size = "32M"
    while size == "1G" and blocks > 1 and free_host_gib() < 3 * blocks + 8:
        blocks //= 2
    if quick:
        few = ["--samples", "2"]
    large = ["pause", "--blocks", str(blocks), "--size", size]
    # The driver clears released memory with the copy engines; a sleeping model has the time for it.
    rest = ["--rest", "200"] if backend == "cuda" else []
    part = ["pause", "--blocks", str(max(blocks // 4, 1)), "--size", size]
    return {
        "pause-small": ["pause", "--blocks", "1000", "--size", "2M", *few],
        "pause-large": [*large, *rest, *few],
        "pause-warm": [*large, "--contents", "host", *rest, *few],
        "pause-cold": [*large, "--contents", "host", "--cold", *few],
        "pause-pageable": ["pause", "--blocks", str(max(blocks // 2, 1)), "--size", size, "--contents", "host",
                           "--pageable", *few],
        "pause-file": [*part, "--contents", "file", *few],
    }


def commands(backend, quick):
    """What is run, by name; the same for everybody but for the threads, and for the memory that is paused."""
    threads = "1,2" if backend == "host" else "1,2,4,8"
    short = ["--samples", "5", "--sample-us", "100"] if quick else []
    few = ["--samples", "2"] if quick else []
    return {
        "small": ["pair", "--size", SMALL, *short],
        "large": ["pair", "--size", LARGE, *short],
        "threads": ["pair", "--kind", "vmm,device", "--threads", threads, "--size", "1K,64K,1M", *short],
        "share": ["pair", "--kind", "vmm,device", "--share", "--size", "1K,64K,1M", *short],
        "mixed": ["mixed", *few],
        "mixed-uniform": ["mixed", "--sizes", "uniform", *few],
        "replay": ["replay", *(f"tests/bench/traces/{name}.trace.gz" for name in TRACES), *few],
        **pause_commands(backend, quick),
    }


def chosen(all_commands, only):
    """Those that `only` names, by whole names or by what they begin with; all without it."""
    words = [word for word in (only or "").split(",") if word]
    return {name: command for name,
            command in all_commands.items() if not words or any(name.startswith(word) for word in words)}


def is_gmm(row):
    return row["subject"] in ("gmm", "gmm-heap")


def over(peer):
    """How many times the peer's time gmm takes: the less the better."""
    return lambda row: row["over"].get(peer)


def faster(peer):
    """How many times faster than the peer: the more the better."""
    return lambda row: 1 / row["over"][peer] if peer in row["over"] else None


def number(name):
    return lambda row: row.get(name)


class Figure:
    def __init__(self, words, run, value, goal, most, backends=("host", "cuda"), keep=lambda row: True,
                 subjects=SUBJECTS):
        self.words, self.run, self.value, self.goal = words, run, value, goal
        self.most, self.backends, self.keep = most, backends, keep
        self.subjects = subjects

    def judge(self, rows, subject):
        """(worst value, its row), or None when no row has the value."""
        found = [(self.value(row), row) for row in rows
                 if row["run"] == self.run and row["subject"] == subject and self.keep(row)
                 and self.value(row) is not None]
        return (max if self.most else min)(found, key=lambda pair: pair[0]) if found else None


def on_threads(count):
    return lambda row: row["threads"] == count and row.get("mode") == "local"


def most_calls(row):
    return max(row["handles"], row["first_handles"]) if row["handles"] is not None else None


def operation(name):
    return lambda row: row["operation"] == name


def pause_figures():
    gpu = ("cuda",)

    def figure(words, run, value, goal, most, backends=gpu, keep=lambda row: True):
        return Figure(words, run, value, goal, most, backends, keep, SUBJECTS[:1])

    return [
        figure("1,000 x 2 MiB dropped: calls of a pause, also the first", "pause-small", most_calls, 100, True,
               ("host", "cuda"), operation("pause")),
        figure("1,000 x 2 MiB dropped: faster than one handle a block", "pause-small", faster("one_handle"), 10, False),
        figure("1,000 x 2 MiB dropped: faster than torch_memory_saver", "pause-small", faster("torch_memory_saver"), 10,
               False),
        figure("16 blocks dropped: of the raw calls at their best", "pause-large", over("raw_best"), 1.2, True),
        figure("kept, arena warm: of pinned memcpy's bandwidth", "pause-warm", faster("pinned_memcpy"), 0.95, False),
        figure("kept, arena cold, pause: faster than cuMemHostAlloc for each use", "pause-cold", faster("host_alloc"),
               5, False, keep=operation("pause")),
        figure("kept, arena cold, pause: faster than torch_memory_saver", "pause-cold", faster("torch_memory_saver"), 5,
               False, keep=operation("pause")),
        figure("kept, pageable: GB/s", "pause-pageable", number("gbps"), 25, False),
        figure("kept in a file: of O_DIRECT's bandwidth", "pause-file", faster("direct_write"), 0.8, False),
    ]


def figures(backend):
    gpu = ("cuda",)
    return [figure for figure in [
        Figure("pair, 512 B to 1 MiB, of mimalloc's of 1 KiB", "small", over("mimalloc-1k"), 2, True),
        Figure("pair, above 1 MiB to 64 MiB, of mimalloc's of 1 KiB", "large", over("mimalloc-1k"), 10, True),
        Figure("2 threads: throughput of one", "threads", number("scaling"), 1.7, False, ("host",), on_threads(2)),
        Figure("8 threads: throughput of one", "threads", number("scaling"), 6.4, False, gpu, on_threads(8)),
        Figure("8 threads: faster than PyTorch", "threads", faster("pytorch"), 100, False, gpu, on_threads(8)),
        Figure("one allocates, another frees: of the local pair", "share", number("over_local"), 3, True,
               keep=lambda row: row["mode"] == "share"),
        Figure("mixed: reserved/requested at the peak", "mixed", number("reserved_over_requested"), 1.25, True),
        Figure("mixed: faster than PyTorch", "mixed", faster("pytorch"), 8, False, gpu),
        *(Figure(f"replay of {name}, VMM: peak reserved/requested", "replay", number("reserved_over_requested"), 1.03,
                 True,
                 keep=lambda row, name=name: row["trace"] == name and row["kind"] == "vmm") for name in TRACES),
        Figure("pair to 1 MiB: faster than PyTorch", "small", faster("pytorch"), 15, False, gpu),
        Figure("pair to 1 MiB: faster than cudaMallocAsync", "small", faster("cudaMallocAsync"), 25, False, gpu),
        Figure("pair to 1 MiB: faster than RMM's pool", "small", faster("rmm-pool"), 5, False, gpu),
        Figure("pair above 1 MiB: faster than PyTorch", "large", faster("pytorch"), 4, False, gpu),
        *pause_figures(),
    ] if backend in figure.backends]


def size_text(size):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:g} {unit}"
        size /= 1024


def time_text(ns):
    if ns < 1000:
        return f"{ns:.1f} ns"
    return f"{ns / 1000:.2f} us" if ns < 1e6 else f"{ns / 1e6:.2f} ms" if ns < 1e9 else f"{ns / 1e9:.2f} s"


def round_text(value):
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def where(row):
    words = [row["kind"]] if "operation" not in row else [row["operation"], f"{row['blocks']} blocks"]
    if row["size"] is not None:
        words.append(size_text(row["size"]))
    if row["threads"] > 1:
        words.append(f"{row['threads']} threads")
    return ", ".join(words)


def table(head, lines):
    return ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |",
            *("| " + " | ".join(line) + " |" for line in lines), ""]


def control_text(rows, row):
    """What a second thread gained the control, beside this row."""
    found = [other["scaling"] for other in rows if other["run"] == row["run"] and other["subject"] == "control"
             and "scaling" in other and
             (other["size"], other["threads"]) == (row["size"], row["threads"])]
    return f"; control {round_text(found[0])}" if found and "scaling" in row else ""


def judged(rows, backend):
    lines = []
    for figure in figures(backend):
        line = [figure.words, f"{'at most' if figure.most else 'at least'} {figure.goal:g}"]
        for subject in SUBJECTS:
            if subject not in figure.subjects:
                line.append("-")
                continue
            worst = figure.judge(rows, subject)
            if worst is None:
                line.append("not measured")
                continue
            value, row = worst
            met = value <= figure.goal if figure.most else value >= figure.goal
            missed = "" if met else " **missed**"
            line.append(f"{round_text(value)} ({where(row)}{control_text(rows, row)}){missed}")
        lines.append([*line, f"`{figure.run}`"])
    return table(["figure", "goal", "gmm, worst row", "gmm-heap, worst row", "command"], lines)


def printed_pairs(rows):
    peers = []
    for row in rows:
        peers += [name for name in row["over"] if name not in peers]
    extra = [name for name in ("scaling", "over_local") if any(name in row for row in rows)]
    lines = [[row["subject"], row["kind"], size_text(row["size"]), row["mode"], str(row["threads"]),
              time_text(row["ns"]), time_text(row["least_ns"]),
              "-" if row["handles"] is None else str(row["handles"]),
              *(round_text(row["over"].get(name)) for name in peers),
              *(round_text(row.get(name)) for name in extra)] for row in rows]
    return table(["subject", "kind", "size", "mode", "threads", "a pair", "least", "calls",
                  *(f"over {name}" for name in peers), *extra], lines)


def printed_held(rows):
    lines = [[row["subject"], row["kind"], row["trace"] or row.get("sizes", "-"), time_text(row["ns"]),
              time_text(row["first_ns"]) if "first_ns" in row else "-",
              f"{row['peak_requested'] / 2**20:,.0f} MiB",
              "-" if row["peak_reserved"] is None else f"{row['peak_reserved'] / 2**20:,.0f} MiB",
              "-" if row["reserved_over_requested"] is None else f"{row['reserved_over_requested']:.3f}",
              f"{row['steady']:.3f}" if "steady" in row else "-",
              "-" if row["handles"] is None else str(row["handles"])] for row in rows]
    return table(["subject", "kind", "of", "an operation", "first pass", "peak requested", "peak reserved", "ratio",
                  "steady", "calls"], lines)


def printed_pauses(rows):
    peers = []
    for row in rows:
        peers += [name for name in row["over"] if name not in peers]
    lines = [[row["subject"], row["operation"], time_text(row["ns"]),
              "-" if row["first_ns"] is None else time_text(row["first_ns"]), time_text(row["least_ns"]),
              "-" if row["gbps"] is None else f"{row['gbps']:.1f}",
              "-" if row["handles"] is None else str(row["handles"]), row["setting"] or "-",
              *(round_text(row["over"].get(name)) for name in peers)] for row in rows]
    return table(["subject", "operation", "time", "first", "least", "GB/s", "calls", "setting",
                  *(f"over {name}" for name in peers)], lines)


def printed_instructions(rows):
    return table(["subject", "kind", "size", "instructions a pair"],
                 [[row["subject"], row["kind"], row["size"], f"{row['instructions']:.0f}"] for row in rows])


PRINTED = {"tests/bench/instructions.sh": printed_instructions, "gmm-bench pair": printed_pairs,
           "gmm-bench pause": printed_pauses}


def document(text):
    """Markdown of a file of rows: its heading line, the judgement, the rows of each command."""
    lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    about, rows = lines[0], lines[1:]
    out = [f"{about['device']}, {about['backend']} backend; {about['machine']}; {about['date']}"
           + ("; quick run" if about["quick"] else "") + ".", ""]
    for warning in about["warnings"]:
        out.append(f"- {warning}")
    if about["warnings"]:
        out.append("")
    for words, names in about.get("older", {}).items():
        out += [f"Of an older run, {words}: {', '.join(f'`{name}`' for name in names)}.", ""]
    out += judged(rows, about["backend"])
    for name, command in about["commands"].items():
        own = [row for row in rows if row["run"] == name]
        out += [f"<details><summary><code>{name}</code>: <code>{command}</code></summary>", ""]
        printed = next((function for start, function in PRINTED.items() if command.startswith(start)), printed_held)
        out += printed(own)
        out += ["</details>", ""]
    return about, "\n".join(out)


def machine():
    cpu = platform.machine()
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    return f"{os.cpu_count()} cores of {cpu}, load {os.getloadavg()[0]:.1f} at the start"


def run(arguments):
    about = {"backend": arguments.backend, "machine": machine(),
             "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"), "quick": arguments.quick,
             "commands": {}, "warnings": [], "device": None}
    rows = []
    for name, words in chosen(commands(arguments.backend, arguments.quick), arguments.only).items():
        command = [*words, "--backend", arguments.backend, *(["--peers", arguments.peers] if arguments.peers else [])]
        shown = shlex.join(["gmm-bench", *words, "--backend", arguments.backend])
        print(f"{name}: {shown}", file=sys.stderr, flush=True)
        done = subprocess.run([str(pathlib.Path(arguments.bench).resolve()), *command, "--json"], capture_output=True,
                              text=True, check=False, cwd=ROOT)
        for line in done.stderr.splitlines():
            line = re.sub(r"/\S*/", "", line.replace("gmm-bench: ", ""))
            if line not in about["warnings"]:
                about["warnings"].append(line)
        if done.returncode != 0:
            print(done.stderr, file=sys.stderr)
            return EXIT_FAILED
        about["commands"][name] = shown
        rows += [dict(json.loads(line), run=name) for line in done.stdout.splitlines()]
    if not rows:
        print("figures.py: --only names no command; there are: "
              + ", ".join(commands(arguments.backend, arguments.quick)), file=sys.stderr)
        return EXIT_FAILED
    about["device"] = rows[0]["device"]
    if arguments.backend == "host" and chosen({"instructions": []}, arguments.only):
        script = [str(ROOT / "tests/bench/instructions.sh"), str(pathlib.Path(arguments.bench).resolve())]
        done = subprocess.run(script, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            about["warnings"].append("no instructions counted: " + (done.stderr.strip().splitlines() or ["failed"])[-1])
        else:
            about["commands"]["instructions"] = "tests/bench/instructions.sh"
            for line in done.stdout.splitlines()[2:]:
                subject, kind, size, count = (word.strip() for word in line.strip("|").split("|"))
                rows.append({"run": "instructions", "subject": subject, "kind": kind, "size": size,
                             "instructions": float(count)})
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text("\n".join(json.dumps(line) for line in [about, *rows]) + "\n", encoding="utf-8")
    return EXIT_GOOD


def write(arguments):
    about, text = document(arguments.rows.read_text(encoding="utf-8"))
    if "Fake" in about["device"]:
        print("figures.py: these rows are of the fake CUDA driver and are no figures", file=sys.stderr)
        return EXIT_FAILED
    begin, end = f"<!-- figures: {about['backend']} -->", f"<!-- end of figures: {about['backend']} -->"
    readme = arguments.readme.read_text(encoding="utf-8")
    if begin not in readme or end not in readme:
        print(f"figures.py: {arguments.readme} has no marks {begin} and {end}", file=sys.stderr)
        return EXIT_FAILED
    before, rest = readme.split(begin, 1)
    arguments.readme.write_text(f"{before}{begin}\n{text.rstrip()}\n{end}{rest.split(end, 1)[1]}", encoding="utf-8")
    return EXIT_GOOD


def merge(arguments):
    old, new = ([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
                for path in (arguments.old, arguments.new))
    about = dict(new[0])
    if old[0]["backend"] != about["backend"]:
        print("figures.py: the rows are of two backends", file=sys.stderr)
        return EXIT_FAILED
    kept = [name for name in old[0]["commands"] if name not in about["commands"]]
    of = {name: words for words, names in old[0].get("older", {}).items() for name in names}
    older = {}
    for name in kept:
        older.setdefault(of.get(name, f"{old[0]['date']}, {old[0]['machine']}"), []).append(name)
    about["older"] = older
    order = list(dict.fromkeys([*old[0]["commands"], *about["commands"]]))
    about["commands"] = {name: (old[0]["commands"] if name in kept else new[0]["commands"])[name] for name in order}
    about["warnings"] = list(dict.fromkeys([*about["warnings"], *(old[0]["warnings"] if kept else [])]))
    rows = [row for row in old[1:] if row["run"] in kept] + new[1:]
    rows.sort(key=lambda row: order.index(row["run"]))
    arguments.output.write_text("\n".join(json.dumps(line) for line in [about, *rows]) + "\n", encoding="utf-8")
    return EXIT_GOOD


def main():
    parser = argparse.ArgumentParser(description="The figures of gmm's benchmarks.")
    parts = parser.add_subparsers(dest="part", required=True)
    running = parts.add_parser("run")
    running.add_argument("--backend", choices=["host", "cuda"], required=True)
    running.add_argument("--bench", default="build/tests/bench/gmm-bench")
    running.add_argument("--peers")
    running.add_argument("--quick", action="store_true")
    running.add_argument("--only", help="commands by name, or by how their names begin")
    running.add_argument("-o", "--output", type=pathlib.Path, required=True)
    merging = parts.add_parser("merge")
    merging.add_argument("old", type=pathlib.Path)
    merging.add_argument("new", type=pathlib.Path)
    merging.add_argument("-o", "--output", type=pathlib.Path, required=True)
    for name in ("write", "show"):
        part = parts.add_parser(name)
        part.add_argument("rows", type=pathlib.Path)
        part.add_argument("--readme", type=pathlib.Path, default=ROOT / "tests/bench/README.md")
    arguments = parser.parse_args()
    if arguments.part == "run":
        return run(arguments)
    if arguments.part == "merge":
        return merge(arguments)
    if arguments.part == "write":
        return write(arguments)
    print(document(arguments.rows.read_text(encoding="utf-8"))[1])
    return EXIT_GOOD


if __name__ == "__main__":
    sys.exit(main())
