# SPDX-License-Identifier: Apache-2.0
"""Runs the example of a ring of frames: ring_test.py RING [--consumer COMMAND]."""
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import tap  # noqa: E402

for name, arguments, frames, bad in [
    ("VMM memory", ["--frames", "48"], 48, 0),
    ("HOST memory", ["--frames", "9", "--kind", "host"], 9, 0),
    ("a damaged frame is noticed", ["--frames", "10", "--kind", "device", "--damage", "6"], 10, 1),
]:
    done = subprocess.run([sys.executable, *sys.argv[1:], *arguments], capture_output=True, text=True, timeout=200)
    results = [line for line in done.stdout.splitlines() if line.endswith(" bad")]
    good = done.returncode == bad and len(results) == 1 + sys.argv.count("--consumer")
    tap.check(good and all(f": {frames} frames checked, {bad} bad" in line for line in results), name,
              [*done.stdout.splitlines(), *done.stderr.splitlines()])
tap.finish()
