#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the rows of a benchmark as a picture, gmm beside its peers.

Usage: plot.py ROWS.json... -o PICTURE.svg [--bench pair|latency|pause] [--kind vmm] [--size 1024] [--title TEXT]
       plot.py --check      exit code 3 when matplotlib is missing (Debian: python3-matplotlib; PyPI: matplotlib)

pair: the price of a pair over sizes, and the pairs a second over threads.
latency: the time of single operations over percentiles, a panel for each pass.
pause: a bar for each subject's pause and resume, a panel for each run.

Rows are one object a line, as `gmm-bench --json` prints them. Where two rows have the same subject, kind, size and
threads, the last one counts. A picture names the rows that it shows by `identifier()`, so a test finds a stale one.
"""

import argparse
import hashlib
import json
import pathlib
import re
import sys

try:
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker
except ImportError:
    pyplot = None

# Told apart by colour and by mark, also without colour vision and in print.
STYLES = {
    "gmm": ("#c1272d", "o", "-"), "gmm-heap": ("#c1272d", "s", "--"), "gmm-prepared": ("#e0736f", "s", "--"),
    "malloc": ("#6e6e6e", "v", "-"), "mimalloc": ("#0072b2", "^", "-"), "jemalloc": ("#56b4e9", "D", "-"),
    "umf": ("#8c564b", "*", "-"),
    "cudaMalloc": ("#4d4d4d", "X", "-"), "cudaMallocAsync": ("#009e73", "P", "-"), "pytorch": ("#e69f00", "<", "-"),
    "pytorch-expandable": ("#e69f00", ">", "--"), "cupy": ("#cc79a7", "h", "-"), "rmm-pool": ("#7a5195", "p", "-"),
    "rmm-arena": ("#7a5195", "*", "--"), "rmm-async": ("#7a5195", "d", ":"), "raw_best": ("#4d4d4d", "X", "-"),
    "one_handle": ("#0072b2", "^", "-"), "torch_memory_saver": ("#e69f00", "<", "-"),
    "torch_memory_saver-retain": ("#e69f00", ">", "--"), "pinned_memcpy": ("#4d4d4d", "X", "-"),
    "host_alloc": ("#0072b2", "^", "-"), "pageable_memcpy": ("#0072b2", "^", "-"),
    "direct_write": ("#4d4d4d", "X", "-"), "gmm-python": ("#e0736f", ".", ":"),
    "gmm-heap-reserved": ("#7f0000", "o", "-"), "gmm-heap-try": ("#7f0000", "s", ":"),
    "vma-virtual": ("#009e73", "P", "-"),
}


def read(paths, bench):
    rows = []
    for path in paths:
        for number, line in enumerate(pathlib.Path(path).read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                sys.exit(f"plot.py: {path}:{number}: {error}")
            if row.get("bench") == bench and row.get("subject") != "control" and row.get("mode", "local") == "local":
                rows.append(row)
    return rows


def identifier(rows):
    """Stands in the picture's metadata."""
    return "rows sha256 " + hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def of_one_kind(rows, kind):
    """The rows of each subject: of the wanted kind where it has that, else of its first one."""
    subjects = {}
    for row in rows:
        subjects.setdefault(row["subject"], {}).setdefault(row["kind"], []).append(row)
    return {subject: kinds.get(kind) or next(iter(kinds.values())) for subject, kinds in subjects.items()}


def series(rows, axis, **fixed):
    points = {row[axis]: row["ns"] for row in rows if all(row[name] == value for name, value in fixed.items())}
    return sorted(points.items())


def size_text(size, _=None):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:g} {unit}"
        size /= 1024


def time_text(ns, _=None):
    for unit in ("ns", "µs", "ms", "s"):
        if ns < 1000 or unit == "s":
            return f"{ns:g} {unit}"
        ns /= 1000


def rate_text(rate, _=None):
    return f"{rate / 1e6:g} M" if rate >= 1e6 else f"{rate / 1e3:g} k"


def draw_lines(axes, subjects, points_of):
    order = list(STYLES)
    for subject in sorted(subjects, key=lambda name: order.index(name) if name in STYLES else len(order)):
        points = points_of(subjects[subject])
        if not points:
            continue
        color, marker, line = STYLES.get(subject, ("#999999", ".", ":"))
        first = subject.startswith("gmm")
        axes.plot(*zip(*points), color=color, marker=marker, linestyle=line, label=subject, markersize=6,
                  linewidth=2.4 if first else 1.5, zorder=3 if first else 2)
    axes.grid(True, which="major", color="#e3e3e3", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def save(figure, rows, path):
    """Of an SVG a path is one line, and text is text: both keep the file small and its changes readable."""
    if path.suffix != ".svg":
        figure.savefig(path, dpi=160)
        return
    figure.savefig(path, metadata={"Date": None, "Creator": None, "Identifier": identifier(rows)})
    text = re.sub(r' d="([^"]*)"', lambda match: f' d="{" ".join(match[1].split())}"', path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")


def draw(rows, kind, size, title, path):
    threads = sorted({row["threads"] for row in rows})
    panels = 2 if len(threads) > 1 else 1
    figure, panes = pyplot.subplots(1, panels, figsize=(6.2 * panels, 4.6), squeeze=False, layout="constrained")

    # Runs that compare threads give each a stream of its own, a single one too.
    # Runs over sizes take the default stream.
    threaded = {row.get("run") for row in rows if row["threads"] > 1}
    alone = [row for row in rows if row.get("run") not in threaded] or rows
    left = panes[0][0]
    draw_lines(left, of_one_kind(alone, kind), lambda own: series(own, "size", threads=1))
    left.set_xscale("log", base=2)
    left.set_yscale("log")
    left.xaxis.set_major_locator(ticker.LogLocator(base=2, subs=(1,), numticks=9))
    left.xaxis.set_major_formatter(size_text)
    left.yaxis.set_major_formatter(time_text)
    left.yaxis.set_minor_formatter(ticker.NullFormatter())
    left.set_xlabel("size of the block")
    left.set_ylabel("one alloc and free (less is better)")
    left.set_title("one thread", fontsize=10)

    if panels == 2:
        right = panes[0][1]
        sizes = sorted({row["size"] for row in rows if row["threads"] > 1})
        chosen = size if size in sizes else sizes[0]
        beside = of_one_kind([row for row in rows if row.get("run") in threaded], kind)
        draw_lines(right, beside, lambda own: [(count, count / ns * 1e9)
                                               for count, ns in series(own, "threads", size=chosen)])
        right.set_yscale("log")
        right.set_xscale("log", base=2)
        right.xaxis.set_major_locator(ticker.FixedLocator(threads))
        right.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        right.xaxis.set_minor_locator(ticker.NullLocator())
        right.yaxis.set_major_locator(ticker.LogLocator(base=10, subs=(1, 2, 5)))
        right.yaxis.set_major_formatter(rate_text)
        right.yaxis.set_minor_formatter(ticker.NullFormatter())
        right.set_xlabel("threads, each with its own stream")
        right.set_ylabel("pairs a second in all (more is better)")
        right.set_title(f"blocks of {size_text(chosen)}", fontsize=10)

    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6), frameon=False)
    devices = sorted({f"{row['backend']} backend, {row['device']}" for row in rows})
    figure.suptitle(title or f"gmm (kind {kind}) beside other allocators: {'; '.join(devices)}", fontsize=11)
    save(figure, rows, path)


PERCENTILES = {"p50": "50%", "p90": "90%", "p99": "99%", "p999": "99.9%", "p9999": "99.99%", "p99999": "99.999%",
               "max": "worst"}


def draw_latency(rows, kind, title, path):
    passes = list(dict.fromkeys(row["pass"] for row in rows))
    figure, panes = pyplot.subplots(1, len(passes), figsize=(5.6 * len(passes), 4.6), squeeze=False, sharey=True,
                                    layout="constrained")
    places = range(len(PERCENTILES))
    for pane, of_pass in zip(panes[0], passes):
        own = of_one_kind([row for row in rows if row["pass"] == of_pass], kind)
        draw_lines(pane, own, lambda each: [(at, each[-1][name]) for at, name in zip(places, PERCENTILES)])
        pane.axhline(1000, color="#4d4d4d", linewidth=0.8, linestyle=":")
        pane.set_yscale("log")
        pane.yaxis.set_major_formatter(time_text)
        pane.yaxis.set_minor_formatter(ticker.NullFormatter())
        pane.set_xticks(list(places), list(PERCENTILES.values()), fontsize=8)
        pane.set_xlabel("of all operations")
        pane.set_title(f"{of_pass} million operations", fontsize=10)
    panes[0][0].set_ylabel("one alloc or free takes at most (less is better)")
    handles, labels = panes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5), frameon=False)
    devices = sorted({f"{row['backend']} backend, {row['device']}" for row in rows})
    figure.suptitle(title or f"single operations, gmm (kind {kind}) beside others: {'; '.join(devices)}", fontsize=11)
    save(figure, rows, path)


def pause_panels(rows):
    """What was measured -> subject -> operation -> row. In the order of the rows; gmm first."""
    panels = {}
    for row in rows:
        contents = {"drop": "dropped", "file": "kept in a file"}.get(row["contents"], f"kept in memory, {row['arena']}")
        what = f"{row['blocks']} × {size_text(row['size'])}, {contents}"
        panels.setdefault(what, {}).setdefault(row["subject"], {})[row["operation"]] = row
    return {what: dict(sorted(subjects.items(), key=lambda pair: not pair[0].startswith("gmm")))
            for what, subjects in panels.items()}


def draw_pause(rows, title, path):
    panels = pause_panels(rows)
    across = min(len(panels), 3)
    down = -(-len(panels) // across)
    figure, panes = pyplot.subplots(down, across, figsize=(4.4 * across, 3.1 * down), squeeze=False,
                                    layout="constrained")
    for pane in panes.flat[len(panels):]:
        pane.remove()
    for pane, (what, subjects) in zip(panes.flat, panels.items()):
        names = list(subjects)
        for at, name in enumerate(names):
            color = STYLES.get(name, ("#999999",))[0]
            for shift, operation, alpha in ((-0.2, "pause", 1), (0.2, "resume", 0.55)):
                row = subjects[name].get(operation)
                if row is None:
                    continue
                pane.barh(at + shift, row["ns"], 0.38, color=color, alpha=alpha)
                words = operation + " " + time_text(float(f"{row['ns']:.3g}"))
                if row["gbps"] is not None:
                    words += f", {row['gbps']:.3g} GB/s"
                pane.annotate(words, (row["ns"], at + shift), xytext=(3, 0), textcoords="offset points", va="center",
                              fontsize=7)
        pane.set_yticks(range(len(names)), names, fontsize=8)
        pane.invert_yaxis()
        pane.set_xscale("log")
        times = [row["ns"] for both in subjects.values() for row in both.values()]
        # Room for the words at the longest bar.
        pane.set_xlim(min(times) / 3, max(times) * (max(times) / min(times) * 3) ** 0.9)
        pane.xaxis.set_major_locator(ticker.LogLocator(base=10, numticks=6))
        pane.xaxis.set_major_formatter(time_text)
        pane.xaxis.set_minor_formatter(ticker.NullFormatter())
        pane.tick_params(axis="x", labelsize=7)
        pane.grid(True, axis="x", which="major", color="#e3e3e3", linewidth=0.8)
        pane.set_axisbelow(True)
        for side in ("top", "right"):
            pane.spines[side].set_visible(False)
        pane.set_title(what, fontsize=9)
    devices = sorted({f"{row['backend']} backend, {row['device']}" for row in rows})
    figure.suptitle(title or f"pause and resume, gmm beside others (less is better): {'; '.join(devices)}", fontsize=11)
    save(figure, rows, path)


def main():
    if sys.argv[1:] == ["--check"]:
        return 0 if pyplot else 3
    parser = argparse.ArgumentParser(description="Draws rows of `gmm-bench COMMAND --json`.")
    parser.add_argument("rows", nargs="+")
    parser.add_argument("-o", "--output", required=True, type=pathlib.Path)
    parser.add_argument("--bench", choices=["pair", "latency", "pause"], default="pair")
    parser.add_argument("--kind", default="vmm")
    parser.add_argument("--size", type=int, default=1024, help="of the picture over threads")
    parser.add_argument("--title")
    arguments = parser.parse_args()
    if pyplot is None:
        print("plot.py: matplotlib is missing: apt-get install python3-matplotlib, or pip install matplotlib",
              file=sys.stderr)
        return 3
    rows = read(arguments.rows, arguments.bench)
    if not rows:
        print(f"plot.py: no rows of `gmm-bench {arguments.bench}` in " + ", ".join(arguments.rows), file=sys.stderr)
        return 1
    matplotlib.rcParams["svg.hashsalt"] = "gmm"  # the same rows, the same file
    matplotlib.rcParams["svg.fonttype"] = "none"  # letters are text, not outlines
    matplotlib.rcParams["font.sans-serif"] = ["DejaVu Sans", "Verdana", "Arial"]
    if arguments.bench == "pause":
        draw_pause(rows, arguments.title, arguments.output)
        return 0
    if arguments.bench == "latency":
        draw_latency(rows, arguments.kind, arguments.title, arguments.output)
        return 0
    draw(rows, arguments.kind, arguments.size, arguments.title, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
