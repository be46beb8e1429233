# SPDX-License-Identifier: Apache-2.0
"""The library and the preload library for arm64, cross-compiled, and quick tests of both under qemu-user.

Usage: arm64_test.py SOURCE_ROOT LIBRARY_SOURCE... -- PRELOAD_SOURCE...

These run: unit tests of base about atomics and threads, cases of the conformance suite on the host backend,
and the look-up of the preload library, which is assembly. qemu-user knows no MADV_WIPEONFORK, so nothing that forks is
among them. With TEST_ARM64=long whole programs of the conformance suite run, which takes minutes: each reservation of
addresses costs qemu-user milliseconds.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

PREFIX = "aarch64-linux-gnu-"
SYSROOT = "/usr/aarch64-linux-gnu"
GTEST = pathlib.Path("/usr/src/googletest/googletest")
LIBRARY = ["-std=c++20", "-O0", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fPIC",
           "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-Wall", "-Werror", "-Wno-invalid-offsetof",
           "-pthread"]
UNIT_TESTS = ("hash_table_test", "lock_test", "range_table_test", "registry_test")
FORKS = "-*Child*:*GenerationsDiffer*"
LONG = tuple((program, "") for program in ("context", "memory", "pause", "stream", "threads"))
CONFORMANCE = LONG if os.environ.get("TEST_ARM64") == "long" else (  # program, the cases whose name has this text
    ("memory", "DEVICE, device 0"),
    ("memory", "HOST, device 0"),
    ("memory", "the_whole_block_is_usable (VMM, device 0)"),
    ("threads", "DEVICE, device 0"),
)


class Cross:
    def __init__(self, root, folder):
        self.root, self.folder = root, folder
        self.include = ["-I", root / "lib", "-I", root / "include", "-I", root / "tests/support"]

    def run(self, *command, **environment):
        try:
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                                  cwd=self.folder, timeout=900, env=dict(os.environ, **environment))
        except subprocess.TimeoutExpired:
            return False, [f"{command[0]} does not end"]
        return done.returncode == 0, (done.stdout + done.stderr).splitlines()[-40:]

    def step(self, name, *command):
        good, lines = self.run(*command)
        if not good:
            tap.check(False, name, lines)
        return good

    def unit(self, name, sources, *more):
        """One unit of many sources, as that costs a third of the time."""
        unit = self.folder / f"{name}.cpp"
        unit.write_text("".join(f'#include "{source}"\n' for source in sources) + "".join(more))
        return unit

    def emulate(self, program, *arguments, preload="", **environment):
        # libgmm.so.1 and the libraries of the tests lie beside the programs.
        options = ["-L", SYSROOT, "-E", f"LD_LIBRARY_PATH={self.folder}"]
        if preload:
            options += ["-E", f"LD_PRELOAD={self.folder / preload}"]
        return self.run("qemu-aarch64", *options, self.folder / program, *arguments, GMM_BACKEND="host", **environment)


def build_libraries(cross, library, preload):
    for name, sources, script, more in (
            ("libgmm.so.1", library, "lib/gmm.map", []),
            ("libgmm_preload.so", preload, "lib/preload/preload.map", [cross.folder / "libgmm.so.1"])):
        shared = cross.folder / name
        made = cross.step(f"{name} compiles for arm64", PREFIX + "g++", *LIBRARY, *cross.include, "-c",
                          cross.unit(name, sources), "-o", f"{shared}.o")
        # The linker for C: the libraries need nothing of the C++ runtime.
        made = made and cross.step(f"{name} links for arm64", PREFIX + "gcc", "-shared", f"{shared}.o", *more, "-o",
                                   shared, f"-Wl,-soname,{name}", f"-Wl,--version-script,{cross.root / script}",
                                   "-Wl,-z,defs", "-Wl,-z,nodelete", "-pthread", "-ldl")
        if not made:
            return False
        tap.check(True, f"{name} compiles and links for arm64")
    return True


def check_units(cross):
    name = "unit tests of base"
    if not (GTEST / "src/gtest-all.cc").is_file():
        tap.skip(name, f"there is no {GTEST}/src/gtest-all.cc (Debian: libgtest-dev)")
        return
    main = "int main(int c, char **v) {\n  testing::InitGoogleTest(&c, v);\n  return RUN_ALL_TESTS();\n}\n"
    tests = cross.root / "tests/unit"
    unit = cross.unit("units", [tests / f"base/{test}.cpp" for test in UNIT_TESTS] + [GTEST / "src/gtest-all.cc"], main)
    if not cross.step(name, PREFIX + "g++", "-std=c++20", "-O0", "-fno-rtti", "-w", "-I", GTEST, "-I",
                      GTEST / "include", "-I", tests, *cross.include, unit, "libgmm.so.1.o", "-o", "units", "-pthread",
                      "-ldl"):
        return
    good, lines = cross.emulate("units", "--gtest_brief=1", f"--gtest_filter={FORKS}")
    tap.check(good, name, lines)


def check_conformance(cross):
    support = cross.root / "tests/support"
    for program in sorted({program for program, _ in CONFORMANCE}):
        source = cross.root / f"tests/api/conformance_{program}.c"
        if not cross.step(f"conformance_{program}", PREFIX + "gcc", "-std=gnu11", "-O1", *cross.include, source,
                          support / "check.c", support / "ends.c", support / "gmm_test.c", "libgmm.so.1", "-o",
                          f"conformance_{program}", "-pthread", "-ldl"):
            return
    for program, cases in CONFORMANCE:
        good, lines = cross.emulate(f"conformance_{program}", CHECK_ONLY=cases)
        passed = sum(line.startswith("ok ") for line in lines)
        tap.check(good and passed > 0, f"conformance_{program}: {cases or 'all cases'}", lines)


def check_look_up(cross):
    preload = cross.root / "tests/preload"
    linked = []
    for number, name in enumerate(("first", "second", "third"), 1):
        if not cross.step("look_up_library.c", PREFIX + "gcc", "-fPIC", "-shared", f"-DLIBRARY={number}",
                          preload / "look_up_library.c", "-o", f"liblook_up_{name}.so", "-ldl"):
            return
        linked.append(f"liblook_up_{name}.so")
    if not cross.step("look_up_user.c", PREFIX + "gcc", "-std=gnu11", "-O1", *cross.include, preload / "look_up_user.c",
                      cross.root / "tests/support/check.c", "-o", "look_up_user", "-Wl,--no-as-needed", *linked[:2],
                      "-pthread", "-ldl"):
        return
    good, lines = cross.emulate("look_up_user")
    tap.check(good, "look-ups of a program", lines)
    good, lines = cross.emulate("look_up_user", "taken", preload="libgmm_preload.so")
    tap.check(good, "the same through the preload library", lines)


def main():
    divide = sys.argv.index("--")
    root, library, preload = pathlib.Path(sys.argv[1]), sys.argv[2:divide], sys.argv[divide + 1:]
    for tool, package in ((PREFIX + "g++", "g++-aarch64-linux-gnu"), ("qemu-aarch64", "qemu-user")):
        if shutil.which(tool) is None:
            tap.skip("the library works on arm64", f"there is no {tool} (Debian: {package})")
            tap.finish()
    with tempfile.TemporaryDirectory() as folder:
        cross = Cross(root, pathlib.Path(folder))
        if build_libraries(cross, library, preload):
            check_units(cross)
            check_conformance(cross)
            check_look_up(cross)
    tap.finish()


main()
