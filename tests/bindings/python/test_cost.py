# SPDX-License-Identifier: Apache-2.0
"""What memory costs from Python: the benchmark runs, says what is missing, and the order of magnitude is right."""
import json
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("numpy")

BENCHMARK = pathlib.Path(__file__).parents[2] / "bench" / "python_cost.py"


def run(*options):
    done = subprocess.run([sys.executable, str(BENCHMARK), *options], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_the_benchmark_says_what_it_measured():
    code, out = run("--json", "--stand-in", "--repeat", "5")
    rows = [json.loads(line) for line in out.splitlines()]
    assert all(row["bench"] == "python-cost" for row in rows)
    figures = [row for row in rows if "ratio" in row]
    missing = [row for row in rows if "missing" in row]
    assert code == (3 if missing else 0)
    assert [row["what"] for row in figures if row["where"] == "host"] == ["alloc, dropped", "alloc, freed", "array"]
    for row in figures:
        assert row["ns"] > 0 and row["ratio"] == row["ns"] / row["peer_ns"]
        assert (row["where"] == "host" or row["peer"] == "cupy") or "stand-in" in row["note"]
    # NumPy takes 4 KiB from malloc: twice that would be something in Python or a driver call in the common way.
    assert all(row["ratio"] < 2 for row in figures if row["where"] == "host"), figures
    assert "numpy" in run("--repeat", "1")[1]
