# SPDX-License-Identifier: Apache-2.0
"""The table of lib/engine/LOCKS.md is the one of lib/base/lock_rank.h, and every lock of the library has a rank.

Usage: locks_test.py SOURCE_ROOT
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402


def ranks_of_code(text):
    """[(enumerator, name, kind)] in their order."""
    found = re.findall(r'LOCK\((k\w+), "([^"]+)", k(Operation|Brief)\)', text)
    return [(enumerator, name, kind.lower()) for enumerator, name, kind in found]


def ranks_of_page(text):
    """[(number, name, kind)] in their order."""
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \| (operation|brief) \| [^|]+ \|$", text, re.M)
    return [(int(number), name.strip(), kind) for number, name, kind in rows]


def differences(code, page):
    wanted = [(number, name, kind) for number, (_, name, kind) in enumerate(code, 1)]
    for row in wanted:
        if row not in page:
            yield f"LOCKS.md lacks the row {row}"
    for row in page:
        if row not in wanted:
            yield f"LOCKS.md has the row {row}, which lock_rank.h has not"
    if sorted(wanted) == sorted(page) and wanted != page:
        yield "LOCKS.md has the rows in another order"


def locks_of(root):
    """{enumerator: [file]} of every lock that is declared."""
    found = {}
    for path in sorted((root / "lib").rglob("*")):
        if path.suffix not in (".h", ".cpp") or path.name in ("lock.h", "lock.cpp", "lock_rank.h", "process_mutex.h"):
            continue
        text = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
        declared = r"\b(?:Mutex|ProcessMutex|OperationLock|TagClaims) \w+\{(?:gmm::)?LockRank::(\w+)\}"
        for enumerator in re.findall(declared, text):
            found.setdefault(enumerator, []).append(str(path.relative_to(root)))
    return found


def unranked_locks(text):
    """Locks of the system that are declared in the text."""
    return re.findall(r"\b(?:SystemMutex|pthread_(?:mutex|rwlock|spinlock)_t) (\w+)", re.sub(r"//.*", "", text))


def main():
    root = pathlib.Path(sys.argv[1])
    code = ranks_of_code((root / "lib/base/lock_rank.h").read_text(encoding="utf-8"))
    page = ranks_of_page((root / "lib/engine/LOCKS.md").read_text(encoding="utf-8"))
    problems = list(differences(code, page))
    tap.check(len(code) > 20 and not problems, "LOCKS.md has the table of the code", problems)

    locks = locks_of(root)
    names = [enumerator for enumerator, _, _ in code if enumerator != "kTest"]
    problems = [f"no lock has the rank {name}" for name in names if name not in locks]
    problems += [f"{', '.join(files)}: more than one lock has the rank {name}" for name, files in locks.items()
                 if len(files) > 1]
    problems += [f"{', '.join(files)}: {name} is no rank" for name, files in locks.items() if name not in names]
    tap.check(not problems, "every rank is that of one lock", problems)

    problems = []
    for path in sorted((root / "lib").rglob("*")):
        if path.suffix in (".h", ".cpp", ".c") and path.name not in ("lock.h", "system_lock.h"):
            found = unranked_locks(path.read_text(encoding="utf-8"))
            problems += [f"{path.relative_to(root)}: {name} has no rank" for name in found]
    for planted in ("static pthread_mutex_t g_planted = PTHREAD_MUTEX_INITIALIZER;", "SystemMutex planted_;"):
        if not unranked_locks(planted):
            problems.append(f"a planted lock was not found: {planted}")
    tap.check(not problems, "every lock has a rank", problems)

    planted = page[:-1], page[1:] + page[:1], [(1, "Another", "brief")] + page[1:]
    missed = [f"planted fault {i} was not found" for i, rows in enumerate(planted) if not list(differences(code, rows))]
    tap.check(not missed, "planted faults are found", missed)
    tap.finish()


main()
