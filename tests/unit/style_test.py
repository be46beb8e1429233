# SPDX-License-Identifier: Apache-2.0
"""Licence line, formatting, width and line ends of the project's own files.

Usage: style_test.py SOURCE_ROOT
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

FOLDERS = ("docs", "include", "lib", "bindings", "tests", "examples")
CODE = (".h", ".hpp", ".c", ".cpp", ".py", ".pyi", ".java", ".cs", ".i", ".sh", ".map", ".build")
WIDE = (".h", ".hpp", ".c", ".cpp", ".py", ".java", ".cs", ".i", ".sh", ".md")  # these and meson.build
WIDTH = 120  # columns
CLANG_FORMAT = "14"  # Debian 12's; other versions format differently


def files(root):
    ignored = {"__pycache__", "build", "bin", "obj", "subprojects"}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and not ignored & set(path.relative_to(root).parts):
                yield path


def text_problems(paths, root):
    for path in paths:
        name, text = path.relative_to(root), path.read_text(encoding="utf-8")
        if "SPDX-License-Identifier: Apache-2.0" not in text[:300]:
            yield f"{name}: no SPDX line at the top"
        if "\r" in text or "\t" in text and path.suffix != ".map":
            yield f"{name}: tabs or carriage returns"
        if text and not text.endswith("\n"):
            yield f"{name}: no newline at the end"
        if path.suffix == ".build":
            yield from (f"{name}: {found} has no .format()"
                        for found in re.findall(r"'[^'\n]*@\d@[^'\n]*'(?!\.format)", text))
        for number, line in enumerate(text.splitlines(), 1):
            if line != line.rstrip():
                yield f"{name}:{number}: blanks at the end of the line"
            if re.search(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b", line):
                yield f"{name}:{number}: unfinished work"


def width_problems(paths, root):
    """Lines that are too wide to stand beside another file."""
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if len(line) > WIDTH:
                yield f"{path.relative_to(root)}:{number}: {len(line)} columns"


def list_problems(root):
    """Sources that no meson.build names: they would not be built, and their tests would not run."""
    for folder in ("lib", "tests", "examples"):
        builds = {path.parent: path.read_text(encoding="utf-8") for path in (root / folder).rglob("meson.build")}
        for path in sorted((root / folder).rglob("*")):
            # install_test.sh compiles that one
            if path.suffix not in (".c", ".cpp") or path.name == "static_link.c":
                continue
            near = [text for place, text in builds.items() if place in path.parents]
            # As a source, as a name that '.c' is put to, or as the meson.build of a project of its own.
            if not any(re.search(rf"['/]{path.stem}({re.escape(path.suffix)})?'", text) for text in near):
                yield f"{path.relative_to(root)} is in no meson.build"


def format_problems(paths, root):
    done = subprocess.run(["clang-format", "--dry-run", "--ferror-limit=1", *map(str, paths)],
                          capture_output=True, text=True, check=False, cwd=root)
    return sorted({line.split(":")[0] for line in done.stderr.splitlines() if "-Wclang-format-violations" in line})


def main():
    root = pathlib.Path(sys.argv[1])
    code = [path for path in files(root) if path.suffix in CODE or path.name == "meson.build"]
    tap.check(len(code) > 20, "the project's files are seen", [str(len(code))])
    lines = list(text_problems(code, root))
    tap.check(not lines, "licence line, line ends, nothing unfinished", lines)

    wide = [path for path in files(root) if path.suffix in WIDE or path.name == "meson.build"]
    lines = list(width_problems(wide, root))
    tap.check(not lines, f"lines have at most {WIDTH} columns", lines)

    lines = list(list_problems(root))
    tap.check(not lines, "every source is built", lines)

    with tempfile.TemporaryDirectory() as folder:
        planted = pathlib.Path(folder) / "planted.c"
        planted.write_text("int  a;\t\n// TO" "DO\n")
        found = list(text_problems([planted], planted.parent))
        planted.write_text("x" * WIDTH + "\n" + "x" * (WIDTH + 1) + "\n")
        found += width_problems([planted], planted.parent)
        message = planted.with_name("meson.build")
        message.write_text("# SPDX-License-Identifier: Apache-2.0\nerror('no @0@')\n")
        found += text_problems([message], planted.parent)
        tap.check(len(found) == 6 and found[-2].startswith("planted.c:2:") and "'no @0@'" in found[-1],
                  "planted faults are found", found)

    if shutil.which("clang-format") is None:
        tap.skip("formatting", "clang-format is not installed")
    else:
        version = subprocess.run(["clang-format", "--version"], capture_output=True, text=True, check=True).stdout
        if f"version {CLANG_FORMAT}." not in version:
            tap.skip("formatting", f"clang-format {CLANG_FORMAT} is wanted, this is {version.strip()}")
        else:
            lines = format_problems([path for path in code if path.suffix in (".h", ".hpp", ".c", ".cpp")], root)
            tap.check(not lines, "C and C++ are formatted by .clang-format", lines)
    tap.finish()


main()
