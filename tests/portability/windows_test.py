# SPDX-License-Identifier: Apache-2.0
"""The engine and the interface compile for Windows, with a stub in place of what knows the operating system.

Usage: windows_test.py SOURCE_ROOT STUB SOURCE...

Links them, so that the stub has every function that they need of the system. Nothing of it runs.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

PREFIX = "x86_64-w64-mingw32-"
# The formats of PRIu64 and its kin are those of the C standard.
OPTIONS = ["-std=c++20", "-O0", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-DGMM_STATIC", "-Wall",
           "-Werror", "-Wno-invalid-offsetof", "-Wno-format", "-Wno-format-extra-args", "-D__USE_MINGW_ANSI_STDIO=1"]


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    return done.returncode == 0, (done.stdout + done.stderr).splitlines()[-40:]


def compile_and_link(root, stub_source, sources, folder):
    include = ["-I", root / "tests/portability", "-I", root / "lib", "-I", root / "include"]
    unit = folder / "library.cpp"
    unit.write_text("".join(f'#include "{source}"\n' for source in sources))
    good, lines = run(PREFIX + "g++", *OPTIONS, *include, "-c", unit, "-o", folder / "library.o")
    tap.check(good, f"{len(sources)} sources compile for Windows", lines)
    if not good:
        return
    good, lines = run(PREFIX + "g++", *OPTIONS, *include, "-c", stub_source, "-o", folder / "stub.o")
    tap.check(good, "the stub compiles", lines)
    if not good:
        return
    # The linker for C: the library needs nothing of the C++ runtime.
    good, lines = run(PREFIX + "gcc", "-shared", folder / "library.o", folder / "stub.o", "-o", folder / "gmm.dll")
    tap.check(good, "the stub has every function that they need of the system", lines)


def main():
    root, stub, sources = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    for tool in ("g++", "gcc"):
        if shutil.which(PREFIX + tool) is None:
            tap.skip("the library compiles for Windows",
                     f"there is no {PREFIX}{tool} (Debian: g++-mingw-w64-x86-64-posix)")
            tap.finish()
    with tempfile.TemporaryDirectory() as folder:
        compile_and_link(root, stub, sources, pathlib.Path(folder))
    tap.finish()


main()
