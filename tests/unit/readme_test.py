# SPDX-License-Identifier: Apache-2.0
"""The examples in README.md compile and run as written, and the links of it and of the other pages lead to files.

Usage: readme_test.py SOURCE_ROOT LIBGMM_A PYTHON PYTHON_PATH CC...     (PYTHON_PATH '': the module was not built)
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402


def run(*command, **more):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=300, **more)
    return done.returncode, done.stdout, [*done.stdout.splitlines(), *done.stderr.splitlines()]


def main():
    root, library, python, python_path = pathlib.Path(sys.argv[1]), *sys.argv[2:5]
    compiler = sys.argv[5:]
    text = (root / "README.md").read_text(encoding="utf-8")
    blocks = dict(reversed(re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)))
    with tempfile.TemporaryDirectory() as folder:
        source, program = pathlib.Path(folder) / "readme.c", pathlib.Path(folder) / "readme"
        source.write_text(blocks["c"])
        code, _, lines = run(*compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", root / "include", source,
                             library, "-lpthread", "-o", program)
        tap.check(code == 0, "the example in C compiles", lines)
        if code == 0:
            code, out, lines = run(program)
            tap.check(code == 0 and out == "7\n", "the example in C prints 7", lines)
    if python_path:
        code, out, lines = run(python, "-c", blocks["python"], env=dict(os.environ, PYTHONPATH=python_path))
        tap.check(code == 0 and out == "7\n", "the example in Python prints 7", lines)
    else:
        tap.skip("the example in Python", "the Python module was not built")
    short = [name for name, block in blocks.items() if block.count("\n") > 20]
    tap.check(not short, "the examples are short", short)
    gone = [f"README.md: {target}" for target in re.findall(r"^    \./(\S+)", text, re.MULTILINE)
            if not os.access(root / target, os.X_OK)]
    for folder in ("", "lib", "bindings", "tests", "examples"):
        for page in (root / folder).glob("*.md" if folder == "" else "**/*.md"):
            gone += [f"{page.relative_to(root)}: {target}"
                     for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
                     if not (page.parent / target).exists()]
    tap.check(not gone, "what the pages point at is there", gone)
    options = set(re.findall(r"option\('(\w+)'", (root / "meson_options.txt").read_text(encoding="utf-8")))
    unknown = [name for name in re.findall(r"`-D(\w+)=", text) if name not in options | {"default_library", "NAME"}]
    tap.check(not unknown, "the options that README.md names exist", unknown)
    tap.finish()


main()
