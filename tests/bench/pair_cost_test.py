# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions of a cached pair by each form of descriptor, with callgrind. A count does not follow the
machine, as a time does.

Usage: pair_cost_test.py PAIRS
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

FEW, MANY = 1000, 5000


def instructions(program, form, pairs):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", program, form,
                               str(pairs)], capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None:
        sys.exit(f"{program} {form} {pairs}: exit code {done.returncode}\n{done.stderr}")
    return int(found[1])


def main():
    program = sys.argv[1]
    names = ("gmm_alloc() with NULL costs at most 1.1 x that with a descriptor",
             "a descriptor of a newer release costs at most 1.25 x one of this release")
    if shutil.which("valgrind") is None:
        for name in names:
            tap.skip(name, "valgrind is not installed")
        tap.finish()
    # The difference of two runs: starting up cancels out.
    cost = {form: (instructions(program, form, MANY) - instructions(program, form, FEW)) / (MANY - FEW)
            for form in ("plain", "null", "newer")}
    lines = [f"{form}: {count:.1f} instructions a pair" for form, count in cost.items()]
    tap.check(cost["null"] <= 1.1 * cost["plain"], names[0], lines)
    tap.check(cost["newer"] <= 1.25 * cost["plain"], names[1], lines)
    print("# " + ", ".join(lines))
    tap.finish()


main()
