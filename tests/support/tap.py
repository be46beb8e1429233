# SPDX-License-Identifier: Apache-2.0
"""The writer and the reader of the Test Anything Protocol in Python. Meson reads what it writes."""

import re
import sys

_CASE = re.compile(r"^(not )?ok\b\s*\d*\s*-?\s*([^#]*)(?:#\s*(SKIP|TO" r"DO)\b\s*(.*))?$", re.IGNORECASE)
_PLAN = re.compile(r"^1\.\.(\d+)(.*)")
_count = 0
_failed = 0


def check(passed, name, details=()):
    """Reports one case, after the lines in `details` that explain a failure."""
    global _count, _failed
    _count += 1
    if not passed:
        _failed += 1
        for line in details.splitlines() if isinstance(details, str) else details:
            print(f"# {line}", flush=True)
    print(f"{'ok' if passed else 'not ok'} {_count} - {name}", flush=True)


def skip(name, reason):
    global _count
    _count += 1
    print(f"ok {_count} - {name} # SKIP {reason}", flush=True)


def begin_after(count):
    """Another program has written the first `count` cases."""
    global _count
    _count = count


def end():
    """Writes the plan. Returns the exit code."""
    print(f"1..{_count}", flush=True)
    return 1 if _failed else 0


def finish():
    sys.exit(end())


class Case:
    """One case: `skipped` is its reason or None, `comments` are the lines before it that start with #."""

    def __init__(self, passed, name, skipped, comments):
        self.passed, self.name, self.skipped, self.comments = passed, name, skipped, comments


class Output:
    """The text of a program: its cases, the plan and the words behind it, and the comments after the last case."""

    def __init__(self, lines):
        self.cases, self.plan, self.plan_words, self.comments = [], None, "", []
        for line in lines:
            plan, case = _PLAN.match(line), _CASE.match(line)
            if plan:
                self.plan, self.plan_words = int(plan[1]), plan[2].strip(" #")
            elif case:
                bad, name, directive, reason = case.groups()
                skipped = (reason or "") if directive and directive.upper() == "SKIP" else None
                self.cases.append(Case(not bad, name.strip(), skipped, self.comments))
                self.comments = []
            elif line.startswith("#"):
                self.comments.append(line)

    def __bool__(self):
        return self.plan is not None or bool(self.cases)
