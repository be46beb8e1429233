# SPDX-License-Identifier: Apache-2.0
"""Compares the public headers with interface.txt: fields and their offsets, constants, types and functions.

A program that was compiled before stays valid as long as no line of interface.txt changes or goes. Lines may be added:
a function, a constant, a type, or a field at the end of a struct that starts with struct_size.

Usage: interface_test.py SOURCE_ROOT C_COMPILER...
       interface_test.py --renew SOURCE_ROOT C_COMPILER...   writes interface.txt
"""

import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402


def declarations(root, compiler):
    """The text of the public headers in one line, without comments and attributes."""
    text = subprocess.run([*compiler, "-E", "-x", "c", "-I", str(root / "include"), str(root / "include/gmm/gmm.h")],
                          check=True, capture_output=True, text=True).stdout
    lines, public = [], False
    for line in text.splitlines():
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            public = "/include/gmm/" in marker.group(1)
        elif public:
            lines.append(line)
    return re.sub(r"\s+", " ", re.sub(r"__attribute__ ?\(\(\w+(\(\"\w+\"\))?\)\)", "", " ".join(lines)))


def macros(root):
    """Macros that are constants. Those of version.h differ in each release."""
    names = []
    for header in sorted((root / "include/gmm").glob("*.h")):
        if header.name != "version.h":
            names += re.findall(r"^#define (GMM_\w+) +(?:\(|\d|UINT)", header.read_text(encoding="utf-8"), re.MULTILINE)
    return names


def evaluate(root, compiler, expressions):
    """The values of the expressions, in decimal."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "values.c")
        source.write_text("#include <gmm/gmm.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n" +
                          "".join(f'  printf("%lld\\n", (long long)({each}));\n' for each in expressions) + "}\n",
                          encoding="utf-8")
        subprocess.run([*compiler, "-I", str(root / "include"), str(source), "-o", source.with_suffix("")], check=True)
        return subprocess.run([source.with_suffix("")], check=True, capture_output=True,
                              text=True).stdout.splitlines()


def describe(root, compiler):
    """The lines of interface.txt: `STRUCT + OFFSET: FIELD`, `sizeof STRUCT = BYTES`, `NAME = VALUE`, declarations."""
    text = declarations(root, compiler)
    lines, questions = [], []
    for name, body in re.findall(r"typedef struct (gmm_\w+) \{ (.*?) \} \1;", text):
        for field in re.findall(r"[^;]+(?=;)", body):
            # The name is the last word, or that of a pointer to a function.
            word = re.search(r"\(\*(\w+)\)|(\w+)(?:\[\w+\])*$", field)
            questions.append((f"{name} + %s: {field.strip()}", f"offsetof({name}, {word.group(1) or word.group(2)})"))
        if "struct_size" not in body:
            questions.append((f"sizeof {name} = %s", f"sizeof({name})"))
    # A later library takes a struct of the first release.
    table = (root / "lib/api/structs.h").read_text(encoding="utf-8")
    lines += [f"{name}: at least {size} bytes" for name, size in re.findall(r"X\((gmm_\w+), \w+, (\d+),", table)]
    for body in re.findall(r"enum \{(.*?)\};", text):
        questions += [(f"{name} = %s", name) for name in re.findall(r"(GMM_\w+)(?: =|,| \}|$)", body)]
    questions += [(f"{name} = %s", name) for name in macros(root)]
    values = evaluate(root, compiler, [expression for _, expression in questions])
    lines += [form % value for (form, _), value in zip(questions, values)]
    text = re.sub(r"(typedef struct gmm_\w+|enum) \{.*?\}( gmm_\w+)?;", "", text)
    return lines + sorted(statement.strip() for statement in text.split(";") if statement.strip())


def differences(before, now):
    """The lines of `before` that changed or went, and fields that were put between or before others."""
    known = set(now)
    lines = [f"gone or changed: {line}" for line in before if line not in known]
    for struct in {line.split(" + ")[0] for line in before if " + " in line}:
        old, new = ([line for line in text if line.startswith(struct + " + ")] for text in (before, now))
        lines += [f"not at the end: {line}" for line in new[:len(old)] if line not in old]
    return lines


def main():
    renew = sys.argv[1] == "--renew"
    root, compiler = pathlib.Path(sys.argv[1 + renew]).resolve(), sys.argv[2 + renew:]
    stored = root / "tests/abi/interface.txt"
    now = describe(root, compiler)
    if renew:
        stored.write_text("\n".join(now) + "\n", encoding="utf-8")
        return
    before = stored.read_text(encoding="utf-8").splitlines()
    lines = differences(before, now)
    tap.check(not lines, "no line of interface.txt changed or went (--renew accepts a change)", lines)

    def planted(old, new):
        return differences(now, "\n".join(now).replace(old, new, 1).splitlines())

    tap.check(planted("gmm_free(", "gmm_freed("), "a function that is gone is noticed")
    tap.check(planted("gmm_result gmm_free(", "int64_t gmm_free("), "another result is noticed")
    tap.check(planted("GMM_KIND_VMM = 2", "GMM_KIND_VMM = 3"), "another value is noticed")
    tap.check(planted("gmm_pin_desc + 8: ", "gmm_pin_desc + 8: uint32_t planted\ngmm_pin_desc + 12: "),
              "a field between others is noticed")
    tap.check(not planted("GMM_KIND_VMM = 2", "GMM_KIND_VMM = 2\nGMM_KIND_NEW = 9"), "a further constant is no change")
    tap.check(len(now) > 500 and not [line for line in now if len(line) > 400], "every header was read")
    tap.finish()


main()
