# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of this folder, or those named, and writes their results in the Test Anything Protocol."""
import compileall
import importlib.util
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).parent


class TapWriter:
    def __init__(self, out):
        self.out = out
        self.count = 0

    def line(self, text):
        print(text, file=self.out, flush=True)

    def case(self, passed, name, details="", skipped=None):
        self.count += 1
        for detail in details.splitlines():
            self.line(f"# {detail}")
        skip = "" if skipped is None else f" # SKIP {skipped}"
        self.line(f"{'ok' if passed else 'not ok'} {self.count} - {name.replace('#', '')}{skip}")

    def pytest_collectreport(self, report):
        if report.failed:
            self.case(False, f"{report.nodeid}: collecting", report.longreprtext)

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.split("::", 1)[-1]
        if report.skipped:
            self.case(True, name, skipped=report.longrepr[2] if isinstance(report.longrepr, tuple) else "")
        elif report.when == "call" or report.failed:
            if report.duration >= 1:
                self.line(f"# {report.duration:.1f} s")
            for line in report.capstdout.splitlines():
                if line.startswith("# "):  # a figure
                    self.line(line)
            self.case(report.passed, name if report.when == "call" else f"{name}: {report.when}",
                      "" if report.passed else f"{report.longreprtext}\n{report.capstderr}")


if __name__ == "__main__":
    out = sys.stdout
    sys.stdout = sys.stderr
    writer = TapWriter(out)
    # The many interpreters that tests start need not compile gmm each. They write no bytecode themselves, so that the
    # folders of the sources stay as they are.
    for folder in importlib.util.find_spec("gmm").submodule_search_locations:
        compileall.compile_dir(folder, quiet=2)
    tests = sys.argv[1:] or [str(HERE)]
    options = ["-p", "no:cacheprovider", "-p", "no:terminal", "-o", "python_files=test_*.py"]
    status = pytest.main([*options, *tests], plugins=[writer])
    writer.line(f"1..{writer.count}")
    sys.exit(int(status))
