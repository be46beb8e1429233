# SPDX-License-Identifier: Apache-2.0
"""Adds up test results and ends with one line `N passed, N failed, N skipped`.

Usage: summary.py [--failed WORDS]... [--skipped WORDS]... [FILE]...
FILE: a testlog.json of Meson (each case of a TAP or GoogleTest test counts, any other test is one), or a JUnit file (.xml).
Exits with 1 when something failed or nothing passed.
"""

import argparse
import json
import pathlib
import re
import sys
import xml.etree.ElementTree

CASE = re.compile(r"^(not )?ok\b\s*\d*\s*-?\s*([^#]*)(?:#\s*(SKIP|TO" r"DO)\b\s*(.*))?$", re.IGNORECASE)
GOOGLE_CASE = re.compile(r"^\[\s*(OK|FAILED|SKIPPED)\s*\] (\S+)(?:, where .*)? \(\d+ ms\)$")


def shown(comments):
    """What was wrong comes first, the last state at the end."""
    return "".join(comments if len(comments) <= 24 else comments[:12] + ["\n           ..."] + comments[-12:])


def reported(test):
    """What a sanitizer said of a test that died."""
    lines = [line for line in (test.get("stderr") or "").splitlines() if re.search(r"(ERROR|WARNING|SUMMARY): \w*Sanitizer|runtime error:|^    #[0-9] ", line)]
    return "".join("\n           " + line[:200] for line in lines[:12])


class Results:
    def __init__(self):
        self.passed, self.failed, self.skipped = 0, [], []

    def add_meson(self, path):
        for line in path.read_text(encoding="utf-8").splitlines():
            self.add_test(json.loads(line), path.parent.parent.name)

    def add_test(self, test, build):
        name, result = f"{build}: {test['name']}", test["result"]
        lines = (test.get("stdout") or "").splitlines()
        if any(line.startswith("[==========] Running") for line in lines):
            self.add_google(name, result, lines)
            return
        tap = any(re.match(r"^1\.\.\d+", line) for line in lines) or any(CASE.match(line) for line in lines)
        if not tap:
            if result in ("OK", "EXPECTEDFAIL"):
                self.passed += 1
            elif result == "SKIP":
                self.skipped.append(f"{name}: {' '.join(lines[-1:]) or 'no reason given'}")
            else:
                self.failed.append(f"{name}: {result}")
            return
        failed_before, plan, seen, comments = len(self.failed), None, 0, []
        for line in lines:
            match = re.match(r"^1\.\.(\d+)(.*)", line)
            if match:
                plan = int(match.group(1))
                if plan == 0:
                    self.skipped.append(f"{name}: {match.group(2).strip(' #') or 'no reason given'}")
            match = CASE.match(line)
            if not match:
                if line.startswith("#"):
                    comments.append("\n           " + line)
                continue
            seen += 1
            bad, title, directive, reason = match.groups()
            if directive and directive.upper() == "SKIP":
                self.skipped.append(f"{name}: {title.strip()}: {reason}")
            elif bad:
                self.failed.append(f"{name}: {title.strip()}{shown(comments)}")
            else:
                self.passed += 1
            comments = []  # they stand before the case that they explain
        # A test that died says so only by its result.
        if result not in ("OK", "SKIP", "EXPECTEDFAIL") and len(self.failed) == failed_before:
            self.failed.append(f"{name}: {result} after {seen} cases, of {plan if plan is not None else 'an unknown number'}"
                               f"{shown(comments)}{reported(test)}")

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
                self.skipped.append(f"{name}: {title}: {last}")
            else:
                self.failed.append(f"{name}: {title}")
        if result not in ("OK", "SKIP", "EXPECTEDFAIL") and len(self.failed) == failed_before:
            self.failed.append(f"{name}: {result} after: {last}")

    def add_junit(self, path):
        for case in xml.etree.ElementTree.parse(path).iter("testcase"):
            name = f"{case.get('classname')}.{case.get('name')}"
            skip = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                self.failed.append(name)
            elif skip is not None:
                self.skipped.append(f"{name}: {skip.get('message') or 'no reason given'}")
            else:
                self.passed += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--failed", action="append", default=[])
    parser.add_argument("--skipped", action="append", default=[])
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    results = Results()
    results.failed += arguments.failed
    results.skipped += arguments.skipped
    for path in arguments.files:
        try:
            if path.suffix == ".xml":
                results.add_junit(path)
            else:
                results.add_meson(path)
        except (OSError, ValueError, xml.etree.ElementTree.ParseError) as error:
            results.failed.append(f"{path}: the results cannot be read: {error}")
    for line in results.skipped:
        print(f"skipped  {line}")
    for line in results.failed:
        print(f"FAILED   {line}")
    print(f"{results.passed} passed, {len(results.failed)} failed, {len(results.skipped)} skipped")
    return 1 if results.failed or not results.passed else 0


sys.exit(main())
