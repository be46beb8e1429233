# SPDX-License-Identifier: Apache-2.0
"""Each public header alone, as C11 and C++17, without one warning, with every compiler that is here.

Usage: header_test.py SOURCE_ROOT
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

WARNINGS = ["-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wundef", "-Werror", "-fsyntax-only"]
LANGUAGES = {
    "C11": (("gcc", "clang"), ["-x", "c", "-std=c11", "-Wstrict-prototypes"]),
    "C++17": (("g++", "clang++"), ["-x", "c++", "-std=c++17", "-Wold-style-cast"]),
}


def compiles(compiler, arguments, root, text):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as source:
        source.write(text)
        source.flush()
        done = subprocess.run([compiler, *WARNINGS, *arguments, "-I", str(root / "include"), source.name],
                              capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stderr.splitlines()


def main():
    root = pathlib.Path(sys.argv[1])
    headers = sorted(path.name for path in (root / "include/gmm").glob("*.h"))
    for language, (compilers, arguments) in LANGUAGES.items():
        for compiler in compilers:
            if shutil.which(compiler) is None:
                tap.skip(f"headers as {language} with {compiler}", f"{compiler} is not installed")
                continue
            for header in headers:
                # Twice: the include guard. A use of size_t or bool would fail here, as nothing else is included.
                passed, lines = compiles(compiler, arguments, root,
                                         f"#include <gmm/{header}>\n" * 2 + "extern int unused;\n")
                tap.check(passed, f"{header} as {language} with {compiler}", lines)
            passed, lines = compiles(compiler, arguments, root,
                                     "#include <gmm/gmm.h>\nint f(int a);\nint f(int a) { int b; return 0; }\n")
            tap.check(not passed, f"a planted warning is an error for {compiler} as {language}")
    umbrella = (root / "include/gmm/gmm.h").read_text(encoding="utf-8")
    lines = [name for name in headers if name != "gmm.h" and f"#include <gmm/{name}>" not in umbrella]
    tap.check(not lines, "gmm.h includes every header", lines)
    tap.finish()


main()
