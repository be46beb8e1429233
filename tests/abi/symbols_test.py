# SPDX-License-Identifier: Apache-2.0
"""Functions of the headers = exports of the library. And the symbols that the library must not have.

Usage: symbols_test.py SOURCE_ROOT LIBGMM_SO LIBGMM_A
"""

import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import interface  # noqa: E402
import tap  # noqa: E402


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def exported(library):
    """Name and version of every symbol that the library gives out."""
    found = {}
    for line in run("nm", "-D", "--defined-only", str(library)).splitlines():
        kind, name = line.split()[-2:]
        name, _, version = name.partition("@")
        if kind != "A":  # the version nodes themselves
            found[name] = version.strip("@")
    return found


def sections(library):
    """Section name to size."""
    found = {}
    for line in run("readelf", "-SW", str(library)).splitlines():
        match = re.match(r"\s*\[\s*\d+\]\s+(\S+)\s+\S+\s+[0-9a-f]+\s+[0-9a-f]+\s+([0-9a-f]+)", line)
        if match:
            found[match.group(1)] = int(match.group(2), 16)
    return found


def main():
    root, shared, static = (pathlib.Path(argument) for argument in sys.argv[1:4])
    names = interface.functions(root / "include/gmm")
    header = set(names)
    tap.check(len(names) == len(header) > 90, "every GMM_API of the headers declares a function of its own", names)
    library = exported(shared)
    lines = sorted(header ^ set(library))
    tap.check(not lines, f"the library exports the {len(header)} functions of the headers and nothing else", lines)
    lines = [f"{name} has the version {version or 'none'}" for name, version in library.items()
             if not re.fullmatch(r"GMM_\d+\.\d+", version)]
    tap.check(not lines, "every exported function has a version GMM_x.y", lines)

    dynamic = run("readelf", "-dW", str(shared))
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    lines = [name for name in needed if not re.match(r"(libc|libpthread|libdl|libm|librt|ld-linux[\w-]*|"
                                                     r"libasan|libubsan|libtsan|libgcc_s)\.so", name)]
    tap.check(not lines, "the library needs the C library only", lines)
    soname = re.findall(r"\(SONAME\).*\[(.*)\]", dynamic)
    tap.check(bool(soname) and re.fullmatch(r"libgmm\.so\.\d+", soname[0]) is not None,
              "the soname carries the ABI number", soname)
    tap.check("NODELETE" in dynamic, "the library stays loaded: its threads run its code")

    # The compiler's own start file puts one function (frame_dummy, do_global_dtors_aux) into each array.
    size = sections(shared)
    pointer = 8 if "ELF64" in run("readelf", "-h", str(shared)) else 4
    lines = [f"{name}: {size[name] // pointer} entries" for name in (".init_array", ".fini_array")
             if size.get(name, 0) > pointer]
    tap.check(not lines, "no constructors and no destructors in the shared library", lines)
    members = run("readelf", "-SW", str(static))
    lines = sorted(set(re.findall(r"\s(\.(?:init_array|fini_array|ctors|dtors)\S*)\s", members)))
    tap.check(not lines, "no static initialisers in the static library", lines)
    undefined = {line.split()[-1].partition("@")[0] for line in run("nm", "-u", str(static)).splitlines()
                 if " U " in line}
    forbidden = {"exit", "_exit", "abort", "atexit", "__cxa_atexit", "at_quick_exit", "quick_exit", "__assert_fail",
                 "__cxa_pure_virtual", "__cxa_guard_acquire", "__gxx_personality_v0"}
    lines = sorted(name for name in undefined
                   if name in forbidden
                   or re.match(r"_ZSt|_ZNSt|_ZNKSt|_Zn[wa]|_Zd[la]|_ZTV.*__cxxabiv1|__cxa_throw", name))
    tap.check(not lines, "no exit, abort, atexit or C++ runtime in the library", lines)
    visible = run("readelf", "-sW", str(static))
    lines = sorted({name for name in re.findall(r"GLOBAL\s+DEFAULT\s+\d+\s+(\S+)", visible)})
    tap.check(not lines, "the static library hides its functions in a program", lines[:20])
    tap.finish()


main()
