# SPDX-License-Identifier: Apache-2.0
"""The variables of the environment: `gmm info --env` prints lib/base/environment.def, nothing reads a variable past
it, and a mistake in the environment is reported.

Usage: environment_test.py SOURCE_ROOT GMM          GMM '': the command was not built
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

ROOT = pathlib.Path(sys.argv[1])
ROW = re.compile(r'^GMM_VARIABLE\((\w+), "(\w+)", (\w+), (\w+), "([^"]*)",\s*"([^"]*)",\s*"([^"]*)"\)', re.MULTILINE)
# How each language reads a variable by its name.
READ = {
    ".c": r'getenv\("(\w+)"\)', ".h": r'getenv\("(\w+)"\)',
    ".cpp": r'(?:getenv|trusted_variable)\("(\w+)"\)',
    ".py": r'environ(?:\.get|\.pop|\.setdefault)?[(\[]\s*"(GMM_\w+)"|^ENVIRONMENT = "(\w+)"',
    ".cs": r'GetEnvironmentVariable\("(\w+)"\)', ".java": r'getenv\("(\w+)"\)',
}
# These read a variable by a name that is no string.
READERS_OF_ANY = ("lib/base/environment.cpp", "lib/base/trusted_variable.cpp", "lib/preload/config.cpp",
                  "lib/cli/info.c")


def rows():
    return ROW.findall((ROOT / "lib/base/environment.def").read_text(encoding="utf-8"))


def sources():
    for folder in ("lib", "bindings"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in READ and path.is_file():
                yield path


def read_past_the_table(root, paths, known):
    """In the library environment.cpp alone reads GMM_*; the bindings read names of the table."""
    for path in paths:
        name, text = path.relative_to(root), path.read_text(encoding="utf-8")
        for match in re.finditer(READ[path.suffix], text, re.MULTILINE):
            variable = next(filter(None, match.groups()))
            if variable.startswith("GMM_") and (name.parts[0] == "lib" or variable not in known):
                yield f"{name}: {variable}"
        if path.suffix in (".c", ".h", ".cpp") and re.search(r'getenv\((?!["\)])', text) \
                and str(name) not in READERS_OF_ANY:
            yield f"{name}: getenv() of a name that is no string"


def run(command, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GMM_")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60,
                          env={**clean, "GMM_BACKEND": "host", **environment})
    return done.returncode, done.stdout, done.stderr


def expect(name, command, code, *patterns, **environment):
    """stderr has these lines and no others."""
    got, _, err = run(command, **environment)
    lines = err.splitlines()
    passed = got == code and len(lines) == len(patterns) and all(map(re.search, patterns, lines))
    tap.check(passed, name, [f"exit code {got}, expected {code}", *lines])


def test_command(gmm):
    code, out, err = run([gmm, "info", "--env"], GMM_BACKEND="no such backend")
    missing = [row[1] for row in rows()
               if not re.search(rf"^{row[1]} +{re.escape(row[4])}\n.*Default: {re.escape(row[5])}\.", out,
                                re.MULTILINE)]
    tap.check(code == 0 and err == "" and not missing, "gmm info --env prints every row", [*missing, err])
    tap.check("Set: no such backend\n" in out, "and the value of a variable that is set", out.splitlines())
    info = [gmm, "info"]
    expect("a good environment", info, 0, GMM_LOG="warning", GMM_BACKUP_DIR="/tmp", GMM_DECOMMIT_AFTER_MS="never",
           GMM_DEBUG="redzone,poison", GMM_BACKUP_ARENA_LIMIT="5",
           GMM_IPC_DIR="/tmp/gmm-of-a-test", GMM_PRELOAD_TAG="a", GMM_TRACE="")
    expect("an unknown name", info, 0, r"^gmm warning: GMM_BACKED in the environment is no variable of gmm",
           GMM_BACKED="host")
    expect("two faults", info, 0, "GMM_UNKNOWN", "GMM_LOG=loud .*; set it to off[|]error[|]warning[|]info[|]debug",
           GMM_UNKNOWN="", GMM_LOG="loud")
    for name, value, words in (("GMM_BACKUP_ARENA_LIMIT", "5G", "no number from 1"),
                               ("GMM_BACKUP_PAGEABLE_LIMIT", "0", "no number from 1"),
                               ("GMM_BACKUP_DIR", "/no/such/folder", "No such file"),
                               ("GMM_BACKUP_DIR", "/proc/self/cmdline", "no folder"),
                               ("GMM_CUDA_DRIVER", "/no/libcuda.so", "No such file"),
                               ("GMM_DEBUG", "redzone,fence", "a word is none of its values; set it to off[|]redzone"),
                               ("GMM_IPC_DIR", "relative", "begin with /"),
                               ("GMM_IPC_DIR", "/" + "x" * 1024, "too long"),
                               ("GMM_NUMBA_POOL", "yes", "set it to 0[|]1"),
                               ("GMM_TRACE", "/no/such/folder/trace", "/no/such/folder/trace"),
                               ("GMM_TRACE", "/" + "x" * 5000, "longer than")):
        expect(f"{name}={value[:30]}", info, 0, f"^gmm warning: {name}.*{words}", **{name: value})
    expect("an unknown backend is refused too", info, 1, "GMM_BACKEND=abacus.*auto[|]host.*sycl[|]hip", "context:",
           GMM_BACKEND="abacus")
    expect("GMM_LOG=off silences", info, 0, GMM_LOG="off", GMM_BACKED="host", GMM_TRACE="/no/such/folder/trace")


def main():
    known = {row[1] for row in rows()}
    count = (ROOT / "lib/base/environment.def").read_text(encoding="utf-8").count("\nGMM_VARIABLE(")
    tap.check(len(known) == count > 15, "the table is read", [f"{len(known)} of {count} rows"])
    bad = list(read_past_the_table(ROOT, sources(), known))
    tap.check(not bad, "nothing reads a variable past the table", bad)
    with tempfile.TemporaryDirectory() as folder:
        planted = pathlib.Path(folder) / "lib/planted.cpp"
        planted.parent.mkdir()
        planted.write_text('getenv("GMM_LOG"); getenv("HOME"); getenv(name);')
        found = list(read_past_the_table(pathlib.Path(folder), [planted], known))
        tap.check(len(found) == 2, "a planted one is found", found)
    if sys.argv[2]:
        test_command(sys.argv[2])
    else:
        tap.skip("what the command says", "the command was not built")
    tap.finish()


main()
