# SPDX-License-Identifier: Apache-2.0
"""The figures are what the rows say: the judgement, the table of the README, and the pictures.

Usage: figures_test.py SOURCE_ROOT
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

ROOT = pathlib.Path(sys.argv[1])
HERE = ROOT / "tests/bench"
sys.path.insert(0, str(HERE))
import plot  # noqa: E402

MARKS = "before\n<!-- figures -->\nstale table\n<!-- end of figures -->\nafter\n"
# Stands in for gmm-bench: `large` fails after a row, `mixed` prints half a row and hangs.
STAND_IN = """#!/usr/bin/env python3
import json, sys, time
words = sys.argv[1:]
row = {"bench": words[0], "subject": "gmm", "device": "d", "kind": "vmm", "size": 512, "threads": 1, "mode": "local"}
print(json.dumps(dict(row, ns=1.0, handles=0, over={"mimalloc-1k": 1.25})), flush=True)
if words[0] == "mixed":
    print('{"bench": ', end="", flush=True)
    time.sleep(60)
sys.exit(3 if "2M,4M,16M,64M" in words else 0)
"""


def figures(*words):
    return subprocess.run([sys.executable, HERE / "figures.py", *map(str, words)], capture_output=True, text=True,
                          check=False)


def row(subject, size, run="small", **more):
    values = {"run": run, "bench": "pair", "subject": subject, "backend": "host", "device": "Host", "kind": "vmm",
              "size": size, "threads": 1, "trace": None, "ns": 10.0, "least_ns": 9.0, "gbps": None,
              "reserved_over_requested": None, "handles": 0, "mode": "local", "over": {}}
    return dict(values, **more)


def known(path, rows, **more):
    """A file of rows whose figures are known."""
    about = {"backend": "host", "device": "Host", "machine": "m", "date": "d", "quick": False,
             "commands": {name: "gmm-bench" for name in dict.fromkeys(row["run"] for row in rows)}, "warnings": []}
    path.write_text("\n".join(json.dumps(line) for line in [dict(about, **more), *rows]))
    return path


def line_of(text, start):
    return [line for line in text.splitlines() if line.startswith(f"| {start}")]


def test_judgement(folder):
    rows = [row("gmm", 512, over={"mimalloc-1k": 1.5}), row("gmm", 2 << 20, "large", over={"mimalloc-1k": 3.25}),
            row("gmm-heap", 512, over={"mimalloc-1k": 1.25}), row("mimalloc", 512, over={"mimalloc-1k": 99.0})]
    path = known(folder / "known.json", rows, warnings=["warning: w"])
    shown = figures("show", path).stdout
    lines = line_of(shown, "`gmm_alloc()` pair")
    tap.check(len(lines) == 1 and "| at most 1.8 | 3.25 **missed** | gmm, vmm, 2 MiB |" in lines[0],
              "the worst row is held against the goal", lines)
    lines = line_of(shown, "`gmm_heap_alloc()` pair")
    tap.check(len(lines) == 1 and "| not measured |" in lines[0], "rows of one command do not stand for another's",
              lines)
    tap.check("- warning: w" in shown and "| mimalloc | vmm | 512 B |" in shown, "warnings and all rows are shown",
              shown.splitlines())
    rows.append(row("gmm", 2 << 20, "pause-small", bench="pause", handles=9, first_handles=99, operation="pause",
                    blocks=1000, first_ns=None, setting=""))
    lines = line_of(figures("show", known(path, rows)).stdout, "1,000 x 2 MiB dropped: calls")
    tap.check(len(lines) == 1 and "| at most 100 | 99 | pause, 1000 blocks, 2 MiB |" in lines[0],
              "the first pause counts too", lines)
    return path


def test_readme(folder, path):
    readme = folder / "README.md"
    readme.write_text(MARKS)
    tap.check(figures("check", path, "--readme", readme).returncode == 1, "an old table is found")
    done = figures("write", path, "--readme", readme)
    text = readme.read_text()
    tap.check(done.returncode == 0 and text.startswith("before\n") and text.endswith("after\n") and
              "stale" not in text and "| 3.25 **missed** |" in text, "the table is put between the marks",
              [*text.splitlines(), done.stderr])
    tap.check(figures("check", path, "--readme", readme).returncode == 0, "it is found to be what the rows say")
    fake = known(folder / "fake.json", [row("gmm", 512)], device="Fake CUDA device for tests")
    done = figures("write", fake, "--readme", readme)
    tap.check(done.returncode == 1 and "no figures" in done.stderr and readme.read_text() == text,
              "rows of the fake driver are no figures", [done.stderr])
    readme.write_text("no marks\n")
    done = figures("write", path, "--readme", readme)
    tap.check(done.returncode == 1 and "has no marks" in done.stderr, "a README without the marks is left alone",
              [done.stderr])


def test_merge(folder):
    old = known(folder / "old.json", [row("gmm", 512), row("gmm", 512, "share", ns=1.0)])
    new = known(folder / "new.json", [row("gmm", 512, "share", ns=2.0)], date="later")
    done = figures("merge", old, new, "-o", folder / "merged.json")
    lines = [json.loads(line) for line in (folder / "merged.json").read_text().splitlines()]
    tap.check(done.returncode == 0 and lines[0]["older"] == {"d, m": ["small"]} and
              [(line["run"], line["ns"]) for line in lines[1:]] == [("small", 10.0), ("share", 2.0)] and
              list(lines[0]["commands"]) == ["small", "share"],
              "of two runs the newer rows count, and the older are told", [done.stderr, *map(str, lines)])
    shown = figures("show", folder / "merged.json").stdout
    tap.check("Of an older run, d, m: `small`." in shown, "what is of the older run is named", shown.splitlines()[:5])
    old = known(folder / "old.json", [row("gmm", 512, run) for run in ("small", "large", "share")])
    figures("merge", old, new, "-o", folder / "merged.json")
    shown = figures("show", folder / "merged.json").stdout
    tap.check("Of an older run, d, m: all but `share`." in shown, "or what is not, where that is shorter",
              shown.splitlines()[:5])


def test_run(folder):
    bench, rows = folder / "bench", folder / "run.json"
    bench.write_text(STAND_IN)
    bench.chmod(0o755)
    words = ["run", "--backend", "cuda", "--bench", bench, "-o", rows, "--only", "small,large,mixed"]
    done = figures(*words, "--seconds", "60", "--patience", "0.1")
    lines = done.stdout.splitlines()
    tap.check(done.returncode == 1 and rows.exists() and
              any(re.match(r"run +small .* 1 rows", line) for line in lines) and
              any(re.match(r"FAILED +large .* 1 rows +exit code 3", line) for line in lines) and
              any(re.match(r"FAILED +mixed .* 1 rows +stopped after 6 s", line) for line in lines),
              "a command that fails or hangs does not end the others", [*lines, done.stderr])
    tap.check(any(re.match(r"ok +`gmm_alloc\(\)` pair.* 1.25 \(gmm, vmm, 512 B\)", line) for line in lines) and
              any(re.match(r"MISSED +pair: times faster than PyTorch .*not measured", line) for line in lines),
              "the figures are judged, and what was not measured is missed", lines)
    done = figures(*words[:-1], "nothing")
    tap.check(done.returncode == 1 and "no command gave a row" in done.stdout, "a name of no command fails",
              [done.stdout, done.stderr])


def test_pictures(folder):
    text = (ROOT / "README.md").read_text(encoding="utf-8") + (HERE / "README.md").read_text(encoding="utf-8")
    for path in sorted(HERE.glob("*.svg")):
        bench, backend = path.stem.split("-")
        rows = plot.read([HERE / f"results/{backend}.json"], bench)
        tap.check(plot.identifier(rows) in path.read_text(encoding="utf-8"), f"{path.name} shows the rows",
                  [f"ROWS=tests/bench/results/{backend}.json tests/bench/figures.sh {backend} draws it"])
        tap.check(f"{path.name})" in text, f"a README shows {path.name}")
    script = [sys.executable, HERE / "plot.py"]
    if subprocess.run([*script, "--check"], capture_output=True, check=False).returncode == 3:
        tap.skip("the pictures are drawn", "matplotlib is not installed")
        return
    for bench in ("pair", "latency", "pause"):
        picture = folder / f"{bench}.svg"
        done = subprocess.run([*script, "--bench", bench, HERE / "results/host.json", "-o", picture],
                              capture_output=True, text=True, check=False)
        tap.check(done.returncode == 0 and ">gmm</text>" in picture.read_text(), f"the picture of {bench} is drawn",
                  done.stderr.splitlines())
    (folder / "none.json").write_text("")
    done = subprocess.run([*script, folder / "none.json", "-o", folder / "none.svg"], capture_output=True, text=True,
                          check=False)
    tap.check(done.returncode == 1 and "no rows" in done.stderr, "no picture of nothing", done.stderr.splitlines())


def main():
    done = figures("check")
    tap.check(done.returncode == 0, "both READMEs have the figures of results/", [done.stderr])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        path = test_judgement(folder)
        test_readme(folder, path)
        test_merge(folder)
        test_run(folder)
        test_pictures(folder)
    tap.finish()


main()
