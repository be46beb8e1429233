# SPDX-License-Identifier: Apache-2.0
"""The engine and the interface compile for Windows and need nothing of the system but the functions of lib/base that a
port writes, and the makers of the backends.

Usage: windows_test.py SOURCE_ROOT SOURCE...

The test lists these functions and links the library with empty ones. Nothing of it runs.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

PREFIX = "x86_64-w64-mingw32-"
# The formats of PRIu64 and its kin are those of the C standard.
OPTIONS = ["-std=c++20", "-O0", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-DGMM_STATIC", "-Wall",
           "-Werror", "-Wno-invalid-offsetof", "-Wno-format", "-Wno-format-extra-args", "-D__USE_MINGW_ANSI_STDIO=1"]


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    return done.returncode == 0, (done.stdout + done.stderr).splitlines()


def headers_of_a_port(root):
    """The headers that the table of lib/base/README.md names, and those with the makers of the backends."""
    page = (root / "lib/base/README.md").read_text(encoding="utf-8")
    names = [name for row in re.findall(r"^\| .* \| (`.*`) \|$", page, re.MULTILINE)
             for name in re.findall(r"`(\w+\.h)`", row)]
    return [root / "lib/base" / name for name in names] + list((root / "lib/backend").glob("*/*_backend.h"))


def compile_and_link(root, sources, folder):
    include = ["-I", root / "tests/portability", "-I", root / "lib", "-I", root / "include"]
    unit, library = folder / "library.cpp", folder / "library.o"
    unit.write_text("".join(f'#include "{source}"\n' for source in sources))
    good, lines = run(PREFIX + "g++", *OPTIONS, *include, "-c", unit, "-o", library)
    tap.check(good, f"{len(sources)} sources compile for Windows", lines[-40:])
    if not good:
        return
    symbols = [line.split()[-1] for line in run(PREFIX + "nm", "-u", library)[1] if re.search(r" _ZNK?3gmm", line)]
    functions = [line.strip()[2:] for line in run(PREFIX + "nm", "-uC", library)[1] if " gmm::" in line]
    print(*(f"# a port writes {function}" for function in functions), sep="\n")
    declared = set(re.findall(r"\b(\w+)\(", "".join(each.read_text(encoding="utf-8")
                                                    for each in headers_of_a_port(root))))
    wrong = [each for each in functions if re.search(r"(\w+)\(", each).group(1) not in declared]
    tap.check(len(functions) == len(symbols) > 50 and not wrong, "the headers of lib/base/README.md declare what they "
              "need of the system", wrong)
    empty = folder / "empty.s"
    empty.write_text("".join(f".globl {symbol}\n{symbol}:\n" for symbol in symbols) + "ret\n")
    # The linker for C: the library needs nothing of the C++ runtime.
    good, lines = run(PREFIX + "gcc", "-shared", library, empty, "-o", folder / "gmm.dll")
    tap.check(good, "they need no other function that Windows and C lack", lines[-40:])


def main():
    for tool in ("g++", "gcc", "nm"):
        if shutil.which(PREFIX + tool) is None:
            tap.skip("the library compiles for Windows",
                     f"there is no {PREFIX}{tool} (Debian: g++-mingw-w64-x86-64-posix)")
            tap.finish()
    with tempfile.TemporaryDirectory() as folder:
        compile_and_link(pathlib.Path(sys.argv[1]), sys.argv[2:], pathlib.Path(folder))
    tap.finish()


main()
