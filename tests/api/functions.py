# SPDX-License-Identifier: Apache-2.0
"""Writes FUNCTION(name) for each function that the public headers declare.

Usage: functions.py FOLDER_OF_HEADERS OUTPUT DEPFILE
"""

import pathlib
import re
import sys


def functions_of(text):
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return re.findall(r"\bGMM_API\s[^;(]*?\b(gmm_\w+)\s*\(", text)


folder, output, depfile = sys.argv[1:]
headers = sorted(pathlib.Path(folder).glob("*.h"))
names = [name for header in headers for name in functions_of(header.read_text(encoding="utf-8"))]
pathlib.Path(output).write_text("".join(f"FUNCTION({name})\n" for name in names), encoding="utf-8")
pathlib.Path(depfile).write_text(f"{output}: {' '.join(map(str, headers))}\n", encoding="utf-8")
