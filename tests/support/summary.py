# SPDX-License-Identifier: Apache-2.0
"""Adds up test results and ends with one line `N passed, N failed, N skipped`.

Usage: summary.py [--phase SECONDS:CPU_SECONDS:WORDS]... [--passed WORDS]... [--failed WORDS]... [--skipped WORDS]...
                  [FILE]...
--phase: a row of the table that says where the time went; the ten tests that took longest follow.
FILE: a testlog.json of Meson: each case of a TAP or GoogleTest test counts, any other test is one. Exits with 1 when
something failed or nothing passed. Skipped tests stand in groups of one reason, and failures last.
"""

import argparse
import collections
import json
import pathlib
import re
import sys

import tap

GOOGLE_CASE = re.compile(r"^\[\s*(OK|FAILED|SKIPPED)\s*\] (\S+)(?:, where .*)? \(\d+ ms\)$")


def shown(comments):
    """The first and the last lines: the fault comes first, the last state at the end."""
    lines = comments if len(comments) <= 24 else comments[:12] + ["..."] + comments[-12:]
    return "".join("\n           " + line for line in lines)


def reported(test):
    """A sanitizer's report about a test that died."""
    report = re.compile(r"(ERROR|WARNING|SUMMARY): \w*Sanitizer|runtime error:|^    #[0-9] ")
    lines = [line for line in (test.get("stderr") or "").splitlines() if report.search(line)]
    return "".join("\n           " + line[:200] for line in lines[:12])


class Results:
    def __init__(self):
        self.passed, self.failed = 0, []
        self.skipped = collections.defaultdict(list)  # the tests of each reason
        self.durations = []  # seconds and name

    def add_meson(self, path):
        for line in path.read_text(encoding="utf-8").splitlines():
            self.add_test(json.loads(line), path.parent.parent.name)

    def add_test(self, test, build):
        name, result = f"{build}: {test['name']}", test["result"]
        self.durations.append((float(test.get("duration") or 0), name))
        lines = (test.get("stdout") or "").splitlines()
        if any(line.startswith("[==========] Running") for line in lines):
            self.add_google(name, result, lines)
            return
        output = tap.Output(lines)
        if not output:
            if result in ("OK", "EXPECTEDFAIL"):
                self.passed += 1
            elif result == "SKIP":
                self.skipped[" ".join(lines[-1:])].append(name)
            else:
                self.failed.append(f"{name}: {result}")
            return
        failed_before = len(self.failed)
        if output.plan == 0:
            self.skipped[output.plan_words].append(name)
        for case in output.cases:
            if case.skipped is not None:
                self.skipped[case.skipped].append(f"{name}: {case.name}")
            elif case.passed:
                self.passed += 1
            else:
                self.failed.append(f"{name}: {case.name}{shown(case.comments)}")
        # A test that died says so only by its result.
        if result not in ("OK", "SKIP", "EXPECTEDFAIL") and len(self.failed) == failed_before:
            planned = output.plan if output.plan is not None else "an unknown number"
            self.failed.append(f"{name}: {result} after {len(output.cases)} cases, of {planned}"
                               f"{shown(output.comments)}{reported(test)}")

    def add_google(self, name, result, lines):
        failed_before, last = len(self.failed), ""
        for line in lines:
            match = GOOGLE_CASE.match(line)
            if not match:
                last = line if line.strip() else last
                continue
            verdict, title = match.groups()
            if verdict == "OK":
                self.passed += 1
            elif verdict == "SKIPPED":
                self.skipped[last].append(f"{name}: {title}")
            else:
                self.failed.append(f"{name}: {title}")
        if result not in ("OK", "SKIP", "EXPECTEDFAIL") and len(self.failed) == failed_before:
            self.failed.append(f"{name}: {result} after: {last}")


def print_times(phases, durations):
    print("where the time went:  seconds  processor seconds")
    rows = [(float(wall), float(cpu), words) for wall, cpu, words in (phase.split(":", 2) for phase in phases)]
    for wall, cpu, words in [*rows, (sum(row[0] for row in rows), sum(row[1] for row in rows), "in all")]:
        print(f"{wall:29.0f} {cpu:18.0f}  {words}")
    print("the slowest tests:    seconds")
    for seconds, name in sorted(durations, reverse=True)[:10]:
        print(f"{seconds:29.1f}  {name}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--phase", action="append", default=[])
    parser.add_argument("--passed", action="append", default=[])
    parser.add_argument("--failed", action="append", default=[])
    parser.add_argument("--skipped", action="append", default=[])
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    arguments = parser.parse_intermixed_args()
    results = Results()
    results.passed += len(arguments.passed)
    results.failed += arguments.failed
    for name, _, reason in (words.partition(": ") for words in arguments.skipped):
        results.skipped[reason].append(name)
    for path in arguments.files:
        try:
            results.add_meson(path)
        except (OSError, ValueError) as error:
            results.failed.append(f"{path}: the results cannot be read: {error}")
    if arguments.phase:
        print_times(arguments.phase, results.durations)
    for reason, names in sorted(results.skipped.items(), key=lambda group: -len(group[1])):
        reason = re.sub("^skip(ped)?:? ", "", reason, flags=re.IGNORECASE) or "no reason given"
        print(f"skipped {len(names):4}  {reason} ({names[0]}{', ...' if len(names) > 1 else ''})")
    for line in results.failed:
        print(f"FAILED   {line}")
    print(f"{results.passed} passed, {len(results.failed)} failed, "
          f"{sum(map(len, results.skipped.values()))} skipped")
    return 1 if results.failed or not results.passed else 0


sys.exit(main())
