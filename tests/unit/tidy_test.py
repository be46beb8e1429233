# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy over lib/, one case a file.

Usage: tidy_test.py SOURCE_ROOT BUILD_ROOT
"""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402


def main():
    root, build = (pathlib.Path(argument) for argument in sys.argv[1:3])
    if shutil.which("clang-tidy") is None:
        tap.skip("clang-tidy", "clang-tidy is not installed")
        tap.finish()

    def tidy(path):
        # GCC's command line is read: clang does not know all of its warnings.
        return subprocess.run(["clang-tidy", "-p", str(build), "--quiet", "--extra-arg=-Wno-unknown-warning-option", str(path)],
                              capture_output=True, text=True, check=False, cwd=root)

    sources = sorted(path for path in (root / "lib").rglob("*.cpp"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, done in zip(sources, pool.map(tidy, sources)):
            tap.check(done.returncode == 0, str(path.relative_to(root)), done.stdout.splitlines()[:30])
    tap.finish()


main()
