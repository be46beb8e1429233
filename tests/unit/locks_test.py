# SPDX-License-Identifier: Apache-2.0
"""Every lock of the library has a rank of lib/base/lock_rank.h, and every rank one lock.

Usage: locks_test.py SOURCE_ROOT
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402


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
    text = (root / "lib/base/lock_rank.h").read_text(encoding="utf-8")
    names = [name for name in re.findall(r"LOCK\((k\w+), \"", text) if name != "kTest"]
    tap.check(len(names) > 20, "the table of ranks was found")
    locks = locks_of(root)
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
    tap.finish()


main()
