# SPDX-License-Identifier: Apache-2.0
"""Writes FUNCTION(name) for each function that the public headers declare.

Usage: functions.py FOLDER_OF_HEADERS OUTPUT DEPFILE
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import interface  # noqa: E402

folder, output, depfile = map(pathlib.Path, sys.argv[1:])
output.write_text("".join(f"FUNCTION({name})\n" for name in interface.functions(folder)), encoding="utf-8")
depfile.write_text(f"{output}: {' '.join(map(str, sorted(folder.glob('*.h'))))}\n", encoding="utf-8")
