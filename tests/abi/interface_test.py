# SPDX-License-Identifier: Apache-2.0
"""Compares the public headers with interface.txt: structs and their offsets, constants, types and functions.

A program that was compiled before stays valid as long as each line of interface.txt equals a line of today's headers or
the beginning of one: a struct that starts with struct_size may gain fields at its end. An enum may gain constants.
Further lines may come.

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
    """The lines of interface.txt: each is a struct with the offset before each field, an enum, a macro, or another
    declaration.
    """
    text = declarations(root, compiler)
    forms, questions = [], []  # a line with a %s for the value of each question

    def ask(start, parts, end=""):
        forms.append(start + " ".join(form for form, _ in parts) + end)
        questions.extend(expression for _, expression in parts)

    # A later library takes a struct of the first release.
    minimum = dict(re.findall(r"X\((gmm_\w+), (\d+)\)", (root / "lib/api/structs.h").read_text(encoding="utf-8")))
    for name, body in re.findall(r"typedef struct (gmm_\w+) \{ (.*?) \} \1;", text):
        # A field's name is the last word, or that of a pointer to a function.
        fields = [(field.strip(), re.search(r"\(\*(\w+)\)|(\w+)(?:\[\w+\])*$", field))
                  for field in body.split(";")[:-1]]
        parts = [(f"%s: {field};", f"offsetof({name}, {word[1] or word[2]})") for field, word in fields]
        if name in minimum:
            ask(f"{name} from {minimum[name]} bytes: ", parts)
        else:
            ask(f"{name} of ", [("%s bytes:", f"sizeof({name})"), *parts], " nothing more")
    for body in re.findall(r"enum \{(.*?)\};", text):
        ask("enum: ", [(f"{name} = %s,", name) for name in re.findall(r"(GMM_\w+)(?: =|,| \}|$)", body)])
    for name in macros(root):
        ask("", [(f"{name} = %s", name)])
    values = iter(evaluate(root, compiler, questions))
    lines = [re.sub("%s", lambda _: next(values), form) for form in forms]
    text = re.sub(r"(typedef struct gmm_\w+|enum) \{.*?\}( gmm_\w+)?;", "", text)
    return lines + sorted(statement.strip() + ";" for statement in text.split(";") if statement.strip())


def constants(lines):
    return set(re.findall(r"GMM_\w+ = -?\d+,", "\n".join(lines)))


def differences(before, now):
    lines = [line for line in before if not line.startswith("enum: ")]
    return [f"gone or changed: {line}" for line in lines if not any(each.startswith(line) for each in now)] + \
           [f"gone or changed: {constant}" for constant in sorted(constants(before) - constants(now))]


def main():
    renew = sys.argv[1] == "--renew"
    root, compiler = pathlib.Path(sys.argv[1 + renew]).resolve(), sys.argv[2 + renew:]
    stored = root / "tests/abi/interface.txt"
    now = describe(root, compiler)
    if renew:
        stored.write_text("\n".join(now) + "\n", encoding="utf-8")
        return
    lines = differences(stored.read_text(encoding="utf-8").splitlines(), now)
    tap.check(not lines, "no line of interface.txt changed or went (--renew accepts a change)", lines)

    def noticed(old, new):
        text = "\n".join(now)
        return old in text and differences(now, text.replace(old, new, 1).splitlines())

    for name, old, new in (("a function that is gone", "gmm_free(", "gmm_freed("),
                           ("another result", "gmm_result gmm_free(", "int64_t gmm_free("),
                           ("another value", "GMM_KIND_VMM = 2", "GMM_KIND_VMM = 3"),
                           ("a field between others", " 8: uint32_t flags;", " 8: uint32_t new; 12: uint32_t flags;"),
                           ("a field of a struct without a size", " nothing more", " 16: int new; nothing more")):
        tap.check(noticed(old, new), f"{name} is noticed")
    for old, new in (("56: gmm_stream stream;", "56: gmm_stream stream; 64: uint64_t new;"),
                     ("enum: ", "enum: GMM_NEW = 9, ")):
        tap.check(old in "\n".join(now) and not noticed(old, new), f"{new} is no change")
    tap.check(len([line for line in now if line.startswith("gmm_result gmm_")]) > 90, "every header was read")
    tap.finish()


main()
