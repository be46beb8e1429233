# SPDX-License-Identifier: Apache-2.0
"""Writes test results in the Test Anything Protocol, which Meson reads."""

import sys

_count = 0
_failed = 0


def check(passed, name, details=()):
    """Reports one case, after the lines in `details` that say what was wrong."""
    global _count, _failed
    _count += 1
    if not passed:
        _failed += 1
        for line in details:
            print(f"# {line}", flush=True)
    print(f"{'ok' if passed else 'not ok'} {_count} - {name}", flush=True)


def skip(name, reason):
    global _count
    _count += 1
    print(f"ok {_count} - {name} # SKIP {reason}", flush=True)


def finish():
    print(f"1..{_count}")
    sys.exit(1 if _failed else 0)
