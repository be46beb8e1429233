# SPDX-License-Identifier: Apache-2.0
"""The examples with other libraries, each with the Python of its environment in .deps/.

An example that prints "skipped: ..." and ends with 0 is skipped. So is one whose environment is missing.
"""
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
ENVIRONMENTS = {"interop": {"cupy", "jax", "numba", "rmm"}, "torch": {"torch"}, "sycl": {"dpctl"}}
# The tour needs no other library, and is a test of its own.
EXAMPLES = [path for path in sorted((ROOT / "examples" / "python").glob("*.py")) if path.name != "tour.py"]


def environment_of(example):
    """The one that has most of what the example imports."""
    text = example.read_text(encoding="utf-8")
    imports = set(re.findall(r"^\s*(?:import|from)\s+(?:gmm\.)?(\w+)", text, re.MULTILINE))
    return max(ENVIRONMENTS, key=lambda name: len(ENVIRONMENTS[name] & imports))


@pytest.mark.parametrize("example", [*EXAMPLES, ROOT / "examples" / "communicator" / "reduce.py"],
                         ids=lambda path: path.name)
def test_example(example):
    folder = ROOT / ".deps" / environment_of(example)
    if not (folder / "ready").exists():
        pytest.skip(f"no environment .deps/{folder.name}")
    done = subprocess.run([folder / "bin" / "python", example], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
                          env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines, done.stdout
    print(f"# {lines[-1]}")
    if lines[-1].startswith("skipped: "):
        pytest.skip(lines[-1].removeprefix("skipped: "))
