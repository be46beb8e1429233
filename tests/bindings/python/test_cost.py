# SPDX-License-Identifier: Apache-2.0
"""What memory costs from Python: the benchmark runs, says what is missing, and the order of magnitude is right."""
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
    # NumPy takes 4 KiB from malloc: twice that would be something in Python or a driver call in the common way.
    assert all(row["ratio"] < 2 for row in figures if row["where"] == "host"), figures
    assert "numpy" in run("--repeat", "1")[1]


FAKE_CUPY = """
import time, types
import numpy
__version__ = "0"
def wait(what):
    end = time.perf_counter_ns() + WAIT
    while time.perf_counter_ns() < end:
        pass
    return what
class MemoryPool:
    def malloc(self, size):
        return wait(size)
cuda = types.SimpleNamespace(MemoryPool=MemoryPool, set_allocator=lambda malloc: None, runtime=types.SimpleNamespace(getDeviceCount=lambda: DEVICES))
def empty(shape, dtype):
    return wait(shape)
"""


@pytest.mark.parametrize("wait, devices, code", [(5000, 1, 0), (0, 1, 1), (0, 0, 3)], ids=["slower", "faster", "no device"])
def test_the_rows_of_the_device(tmp_path, wait, devices, code):
    """With a CuPy that costs what it is told: its figures pass, fail, or are missing."""
    try:
        gmm.Context("cuda").close()
    except gmm.Error:
        pytest.skip("needs a CUDA driver, at least that of the tests")
    # No time at all is less than gmm's; a wait of 0 ns still reads the clock twice.
    text = FAKE_CUPY.replace("WAIT", str(wait)).replace("DEVICES", str(devices))
    if wait == 0:
        text = text.replace("return wait(size)", "return size").replace("return wait(shape)", "return shape")
    (tmp_path / "cupy.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}", "GMM_BACKEND": "cuda"}
    done = subprocess.run([sys.executable, str(BENCHMARK), "--repeat", "1"], capture_output=True, text=True, timeout=120, env=environment)
    assert (done.returncode, done.stderr) == (code, ""), done.stdout
    lines = done.stdout.splitlines()
    tests = [line for line in lines if line.startswith(("ok", "not ok"))]
    assert lines[-1] == f"1..{len(tests)}" and len(tests) == (6 if devices else 1)
    assert all(line.startswith("ok") == (code == 0) for line in tests)
    assert devices or "missing: cupy: RuntimeError: CuPy sees no device" in tests[0]
