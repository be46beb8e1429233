# SPDX-License-Identifier: Apache-2.0
"""Runs the examples with other libraries, each with the Python of its environment in .deps/. Writes TAP.

An example that prints "skipped: ..." and ends with 0 is skipped. So is one whose environment is missing.
"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import tap  # noqa: E402 # pylint: disable=wrong-import-position

TOUR = {"tour.py", "replay.py"}  # needs no other library, and is a test of its own
ENVIRONMENTS = {"interop": {"cupy", "jax", "numba", "rmm"}, "torch": {"torch"}, "sycl": {"dpctl"}}


def environment_of(example):
    """The one that has most of what the example imports."""
    text = example.read_text(encoding="utf-8")
    imports = set(re.findall(r"^\s*(?:import|from)\s+(?:gmm\.)?(\w+)", text, re.MULTILINE))
    return max(ENVIRONMENTS, key=lambda name: len(ENVIRONMENTS[name] & imports))


def main():
    communicator = ROOT / "examples" / "communicator" / "reduce.py"
    for example in [*sorted((ROOT / "examples" / "python").glob("*.py")), communicator]:
        if example.name in TOUR:
            continue
        environment = environment_of(example)
        folder = ROOT / ".deps" / environment
        if not (folder / "ready").exists():
            tap.skip(example.name, f"no environment .deps/{environment}")
            continue
        try:
            done = subprocess.run([folder / "bin" / "python", example], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=300, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, check=False)
        except subprocess.TimeoutExpired as expired:
            tap.check(False, f"{example.name}: no end after {expired.timeout} s")
            continue
        lines = done.stdout.splitlines()
        if done.returncode == 0 and lines and lines[-1].startswith("skipped: "):
            tap.skip(example.name, lines[-1].removeprefix("skipped: "))
        else:
            ended = lines[-1] if lines and done.returncode == 0 else f"exit {done.returncode}"
            tap.check(done.returncode == 0 and bool(lines), f"{example.name}: {ended}", lines[-30:])
    tap.finish()


if __name__ == "__main__":
    main()
