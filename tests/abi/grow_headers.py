# SPDX-License-Identifier: Apache-2.0
"""Copies the public headers and appends a field, `uint64_t appended`, to every struct of lib/api/structs.h.

Usage: grow_headers.py SOURCE_ROOT OUTPUT_FOLDER
"""

import pathlib
import re
import sys


def main():
    root, output = (pathlib.Path(argument) for argument in sys.argv[1:3])
    wanted = re.findall(r"^\s*X\((gmm_\w+),", (root / "lib/api/structs.h").read_text(encoding="utf-8"), re.MULTILINE)
    grown = []

    def append(match):
        if match.group(1) not in wanted:
            return match.group(0)
        grown.append(match.group(1))
        return f"  uint64_t appended;\n}} {match.group(1)};"

    for header in sorted((root / "include/gmm").glob("*.h")):
        text = re.sub(r"^\} (gmm_\w+);$", append, header.read_text(encoding="utf-8"), flags=re.MULTILINE)
        (output / header.name).write_text(text, encoding="utf-8")
    if not wanted or sorted(grown) != sorted(wanted):
        sys.exit(f"grow_headers.py: the table names {wanted}, the headers have {grown}")


main()
