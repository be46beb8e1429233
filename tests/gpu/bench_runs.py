#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs gmm-bench on a GPU: every command of tests/bench/figures.py, and those that compare with PyTorch's expandable
segments.

Usage: bench_runs.py --bench GMM_BENCH --peers DIR --out DIR [--seconds N] [--patience F] [--quick] [--only NAME,...]

Writes DIR/cuda.json, the rows as figures.py writes and reads them, and DIR/figures.md, its tables. Prints one line a
figure: `ok` or MISSED, the worst value of gmm and of gmm-heap with its row, and the goal. A command that fails or takes
too long does not end the others, and its figures are MISSED as not measured. A PyTorch has one setting in a process, so
its expandable segments have runs of their own, with gmm in each. Exit code 1 when nothing was measured.
"""

import argparse
import datetime
import json
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/bench"))
import figures  # noqa: E402

EXPANDABLE = "pytorch-expandable"
LIMITS = {"threads": 90, "replay": 90, "pause": 90}  # seconds; else LIMIT
LIMIT = 60


def commands(quick):
    """What is run, by name: the lines of figures.py, and the same with expandable segments."""
    all_runs = figures.commands("cuda", quick)
    traces = [f"tests/bench/traces/{name}.trace.gz" for name in figures.TRACES]
    few = ["--samples", "2"] if quick else []
    for name in ("small", "large", "threads", "mixed"):
        all_runs[name + "-expandable"] = [*all_runs[name], "--subject", f"gmm,gmm-heap,mimalloc,{EXPANDABLE}"]
    # The host's allocators have nothing to show in a replay. The kind of PyTorch's default segments is device: they
    # come from cudaMalloc.
    all_runs["replay"] = ["replay", *traces, "--kind", "vmm,device", "--subject",
                          "gmm,gmm-heap,pytorch,cudaMallocAsync", *few]
    all_runs["replay-expandable"] = ["replay", *traces, "--subject", f"gmm,gmm-heap,{EXPANDABLE}", *few]
    return all_runs


def over_expandable(row):
    return row.get("over_expandable")


def all_figures():
    return [
        *figures.figures("cuda"),
        figures.Figure("2 threads: throughput of one", "threads", figures.number("scaling"), 1.7, False,
                       keep=figures.on_threads(2)),
        figures.Figure("pair to 1 MiB: faster than PyTorch, expandable", "small-expandable", figures.faster(EXPANDABLE),
                       15, False),
        figures.Figure("pair above 1 MiB: faster than PyTorch, expandable", "large-expandable",
                       figures.faster(EXPANDABLE), 4, False),
        figures.Figure("8 threads: faster than PyTorch, expandable", "threads-expandable", figures.faster(EXPANDABLE),
                       100, False,
                       keep=figures.on_threads(8)),
        figures.Figure("mixed: faster than PyTorch, expandable", "mixed-expandable", figures.faster(EXPANDABLE), 8,
                       False),
        *(figures.Figure(f"replay of {name}, VMM: peak of PyTorch's, expandable", "replay-expandable", over_expandable,
                         1, True,
                         keep=lambda row, name=name: row["trace"] == name and row["kind"] == "vmm")
                         for name in figures.TRACES),
    ]


def add_over_expandable(rows):
    theirs = {row["trace"]: row["reserved_over_requested"] for row in rows if row["run"] == "replay-expandable"
              and row["subject"] == EXPANDABLE}
    for row in rows:
        if (row["run"] == "replay-expandable" and figures.is_gmm(row) and theirs.get(row["trace"])
                and row["reserved_over_requested"]):
            row["over_expandable"] = row["reserved_over_requested"] / theirs[row["trace"]]


def take(output):
    """The rows in what a command printed: of one that was stopped the last line may be half."""
    rows = []
    for line in output.splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            print(f"not a row: {line[:100]}", file=sys.stderr)
    return rows


def text(output):
    return output.decode("utf-8", "replace") if isinstance(output, bytes) else output or ""


def run_one(name, words, arguments, left):
    """(rows, words on what went wrong or '', stderr)."""
    limit = min(LIMITS.get(name.split("-")[0], LIMIT) * arguments.patience, left)
    if limit < 5:
        return [], "not run: no time was left", ""
    command = [str(arguments.bench.resolve()), *words, "--backend", "cuda", "--json", "--peers", str(arguments.peers)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=limit)
        return take(done.stdout), f"exit code {done.returncode}" if done.returncode != 0 else "", done.stderr
    except subprocess.TimeoutExpired as stopped:
        return take(text(stopped.stdout)), f"stopped after {limit:.0f} s", text(stopped.stderr)


def line_of(figure, rows):
    parts, good = [], True
    for subject in figure.subjects:
        worst = figure.judge(rows, subject)
        if worst is None:
            parts.append(f"{subject}: not measured")
            good = False
            continue
        value, row = worst
        met = value <= figure.goal if figure.most else value >= figure.goal
        good = good and met
        parts.append(f"{subject} {figures.round_text(value)} ({figures.where(row)}){'' if met else ' missed'}")
    goal = f"{'at most' if figure.most else 'at least'} {figure.goal:g}"
    return f"{'ok' if good else 'MISSED':<6}  {figure.words:<64}  {goal:<13}  {'; '.join(parts)}"


def main():
    parser = argparse.ArgumentParser(description="gmm-bench and its figures on a GPU.")
    parser.add_argument("--bench", type=pathlib.Path, required=True)
    parser.add_argument("--peers", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=300, help="how long all commands may take together")
    parser.add_argument("--patience", type=float, default=1, help="each command's limit times this")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only",
                        help="commands by name, or by how their names begin; figures of others are not judged")
    arguments = parser.parse_args()
    arguments.peers = arguments.peers.resolve()
    deadline = time.monotonic() + arguments.seconds
    about = {"backend": "cuda", "machine": figures.machine(),
             "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
             "quick": arguments.quick, "commands": {}, "warnings": [], "device": None}
    rows = []
    for name, words in figures.chosen(commands(arguments.quick), arguments.only).items():
        begin = time.monotonic()
        own, problem, errors = run_one(name, words, arguments, deadline - begin)
        shown = shlex.join(["gmm-bench", *words, "--backend", "cuda"])
        print(f"{'run' if not problem else 'FAILED':<6}  {name:<18}  {time.monotonic() - begin:5.1f} s  {len(own):4} "
              f"rows  {problem}", flush=True)
        print(f"\n===== {name}: {shown}\n{errors}", file=sys.stderr, flush=True)
        about["commands"][name] = shown
        rows += [dict(row, run=name) for row in own]
        # Only one of PyTorch's two can be there, and the other's runs are named so.
        warnings = [re.sub(r"/\S*/", "", line.replace("gmm-bench: ", "")) for line in errors.splitlines()
                    if "one for the process" not in line]
        about["warnings"] += [line for line in dict.fromkeys([*warnings, *([f"{name}: {problem}"] if problem else [])])
                              if line not in about["warnings"]]
    if not rows:
        print("FAILED  no command gave a row")
        return 1
    about["device"] = rows[0]["device"]
    add_over_expandable(rows)
    arguments.out.mkdir(parents=True, exist_ok=True)
    whole = "\n".join(json.dumps(line) for line in [about, *rows]) + "\n"
    (arguments.out / "cuda.json").write_text(whole, encoding="utf-8")
    (arguments.out / "figures.md").write_text(figures.document(whole)[1] + "\n", encoding="utf-8")
    print()
    for figure in all_figures():
        if figures.chosen({figure.run: []}, arguments.only):
            print(line_of(figure, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
