# SPDX-License-Identifier: Apache-2.0
"""Makes what `gmm --help` prints, and the manual pages, from the texts in help/.

Usage: manual.py --header HEADER TEXT...
       manual.py --page PAGE VERSION VARIABLES TEXT        VARIABLES: base/environment.def

A text has a line "NAME: what it does", then blocks between blank lines: lines that begin with two blanks and "gmm" say
how it is called, with "-" which options there are, and other lines are prose.
"""

import pathlib
import re
import sys

VARIABLE = re.compile(r'^GMM_VARIABLE\(\w+, "(\w+)", (\w+), \w+, "([^"]*)",\s*"([^"]*)",\s*"([^"]*)"\)', re.MULTILINE)
COPYRIGHT = "Copyright 2026 The gmm authors. Licence: Apache-2.0."


def c_string(line):
    return '    "' + line.replace("\\", "\\\\").replace('"', '\\"') + '\\n"'


def header(paths):
    lines = ["/* SPDX-License-Identifier: Apache-2.0 */", "/* Made by manual.py from lib/cli/help. */"]
    for path in paths:
        lines.append(f"static const char help_{path.stem.replace('gmm-', '')}[] =")
        lines += [c_string(line) for line in path.read_text(encoding="utf-8").splitlines()]
        lines[-1] += ";"
    return "\n".join(lines) + "\n"


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in (".", "'") else text


def page(version, variables, text):
    first, *blocks = text.rstrip("\n").split("\n\n")
    name, summary = first.split(": ", 1)
    name = name.replace(" ", "-")
    out = ['.\\" SPDX-License-Identifier: Apache-2.0',
           f'.TH {name.upper()} 1 "" "gmm {roff(version)}" "GPU memory"', ".SH NAME", f"{name} \\- {roff(summary)}"]
    for block in blocks:
        lines = [roff(line) for line in block.split("\n")]
        if heading := {"  g": "SYNOPSIS", "  -": "OPTIONS"}.get(block[:3]):
            out += [f".SH {heading}", ".nf", *lines, ".fi"]
        else:
            out += [".SH DESCRIPTION", *lines]
    if name == "gmm":
        out += [".SH ENVIRONMENT"]
        for variable, _, values, fallback, meaning in variables:
            out += [".TP", f".BR {variable} =", roff(values), ".br", roff(f"{meaning} Default: {fallback}.")]
        words = ("info", "pause", "ps", "replay", "run", "serve", "snapshot", "trace")
        others = (f"gmm\\-{word} (1)" for word in words)
        out += [".SH SEE ALSO", ".ad l", ".BR " + ", ".join(others)]
    else:
        out += [".SH SEE ALSO", ".ad l", ".BR gmm (1)"]
    return "\n".join(out + [".SH COPYRIGHT", roff(COPYRIGHT)]) + "\n"


def main():
    kind, target, *rest = sys.argv[1:]
    if kind == "--header":
        made = header([pathlib.Path(path) for path in rest])
    else:
        version, variables, text = rest
        made = page(version, VARIABLE.findall(pathlib.Path(variables).read_text(encoding="utf-8")),
                    pathlib.Path(text).read_text(encoding="utf-8"))
    pathlib.Path(target).write_text(made, encoding="utf-8")


main()
