# SPDX-License-Identifier: Apache-2.0
"""The benchmark of Python's costs: what it measures, what it misses, and its verdict by a clock of the test."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

import gmm

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
    assert "numpy" in run("--repeat", "1")[1]


FAKE_CUPY = """
import types
import numpy
__version__ = "0"
class MemoryPool:
    def malloc(self, size):
        return size
runtime = types.SimpleNamespace(getDeviceCount=lambda: DEVICES)
cuda = types.SimpleNamespace(MemoryPool=MemoryPool, set_allocator=lambda malloc: None, runtime=runtime)
def empty(shape, dtype):
    return shape
"""
# Everything runs, but what it took is said here: a machine that is busy with other tests may slow down either side.
RUN = """
import sys
sys.path.insert(0, FOLDER)
import python_cost
def told(subjects, repeat, number):
    for run in subjects.values():
        run(1)
    return {name: {"cupy": CUPY, "an empty call": 1}.get(name, 100) for name in subjects}
python_cost.best = told
sys.exit(python_cost.main())
"""


@pytest.mark.parametrize("cupy, devices, code", [(101, 1, 0), (100, 1, 0), (99, 1, 1), (101, 0, 3)],
                         ids=["slower", "equal", "faster", "no device"])
def test_the_rows_of_the_device(tmp_path, cupy, devices, code):
    """With a CuPy that costs what it is told: its figures pass, fail, or are missing."""
    try:
        gmm.Context("cuda").close()
    except gmm.Error:
        pytest.skip("needs a CUDA driver, at least that of the tests")
    (tmp_path / "cupy.py").write_text(FAKE_CUPY.replace("DEVICES", str(devices)))
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}", "GMM_BACKEND": "cuda"}
    program = RUN.replace("FOLDER", repr(str(BENCHMARK.parent))).replace("CUPY", str(cupy))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environment)
    assert (done.returncode, done.stderr) == (code, ""), done.stdout
    lines = done.stdout.splitlines()
    tests = [line for line in lines if line.startswith(("ok", "not ok"))]
    assert lines[-1] == f"1..{len(tests)}" and len(tests) == (6 if devices else 1)
    assert all(line.startswith("ok") == (code == 0) for line in tests)
    assert devices or "missing: cupy: RuntimeError: CuPy sees no device" in tests[0]
