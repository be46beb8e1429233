# SPDX-License-Identifier: Apache-2.0
"""The library and the preload library for arm64, cross-compiled, and quick tests of both under qemu-user.

Usage: arm64_test.py SOURCE_ROOT MESON

These run: unit tests of base about atomics and threads, cases of the conformance suite on the host backend, and the
look-up of the preload library, which is assembly. qemu-user knows no MADV_WIPEONFORK, so nothing that forks is among
them. With TEST_ARM64=long whole programs of the conformance suite run, which takes minutes: each reservation of
addresses costs qemu-user milliseconds.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT, MESON = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import tap  # noqa: E402

#: What forks, what belongs to this machine's kernel, and what counts all characters.
LEFT_OUT = "-*Child*:*GenerationsDiffer*:MemoryGroup*:Utf8*"
CONFORMANCE = {program: [""] for program in ("context", "memory", "pause", "stream", "threads")} if os.environ.get(
    "TEST_ARM64") == "long" else {  # program, the cases whose name has this text
    "memory": ["DEVICE, device 0", "HOST, device 0", "the_whole_block_is_usable (VMM, device 0)"],
    "threads": ["DEVICE, device 0"]}


def run(folder, *command, **environment):
    """Whether a command succeeds, and its last lines."""
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, cwd=folder,
                              timeout=900, env=dict(os.environ, **environment))
    except subprocess.TimeoutExpired:
        return False, [f"{command[0]} does not end"]
    return done.returncode == 0, (done.stdout + done.stderr).splitlines()[-40:]


def emulate(folder, program, *arguments, preload="", **environment):
    return run(folder, "qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-E", f"LD_LIBRARY_PATH={folder}", "-E",
               f"LD_PRELOAD={preload}", program, *arguments, GMM_BACKEND="host", **environment)


def build(folder):
    gtest = any(pathlib.Path(f"/usr/src/{name}/gtest-all.cc").is_file() for name in (
        "gtest/src", "googletest/googletest/src"))
    programs = [f"tests/api/conformance_{program}" for program in CONFORMANCE] + ["tests/unit/base_test"] * gtest
    options = ["-Doptimization=0", "-Ddebug=false", "-Dbench=false", "-Dpython=disabled", "-Djava=disabled",
               "-Dcsharp=disabled", f"-Dgtest={'enabled' if gtest else 'disabled'}"]
    good, lines = run(folder, MESON, "setup", f"--cross-file={ROOT / 'bindings/python/arm64.ini'}", *options, ".", ROOT)
    if good:
        good, lines = run(folder, "ninja", *programs, "lib/preload/libgmm_preload.so.1.0.0")
    tap.check(good, "the libraries and their tests compile for arm64", lines)
    return good, gtest


def check_look_up(folder):
    preload, compiler = ROOT / "tests/preload", "aarch64-linux-gnu-gcc"
    for number, name in enumerate(("first", "second", "third"), 1):
        good, lines = run(folder, compiler, "-fPIC", "-shared", f"-DLIBRARY={number}", preload / "look_up_library.c",
                          "-o", f"liblook_up_{name}.so", "-ldl")
        tap.check(good, f"liblook_up_{name}.so compiles for arm64", lines)
    good, lines = run(folder, compiler, "-std=gnu11", "-O1", preload / "look_up_user.c", ROOT / "tests/support/check.c",
                      "-o", "look_up_user", "-Wl,--no-as-needed", "liblook_up_first.so", "liblook_up_second.so",
                      "-pthread", "-ldl")
    tap.check(good, "look_up_user.c compiles for arm64", lines)
    for name, arguments, library in (("look-ups of a program", (), ""), ("look-ups through the preload library",
                                     ("taken",), folder / "lib/preload/libgmm_preload.so.1.0.0")):
        good, lines = emulate(folder, "./look_up_user", *arguments, preload=library)
        tap.check(good, name, lines)


def main():
    for tool, package in (("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu"), ("qemu-aarch64", "qemu-user")):
        if shutil.which(tool) is None:
            tap.skip("the library works on arm64", f"there is no {tool} (Debian: {package})")
            tap.finish()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        good, gtest = build(folder)
        if good:
            if gtest:
                good, lines = emulate(folder, "tests/unit/base_test", f"--gtest_filter={LEFT_OUT}")
                tap.check(good, "unit tests of base", lines)
            else:
                tap.skip("unit tests of base", "there is no source of GoogleTest (Debian: libgtest-dev)")
            for program, cases in CONFORMANCE.items():
                for case in cases:
                    good, lines = emulate(folder, f"tests/api/conformance_{program}", CHECK_ONLY=case)
                    tap.check(good and any(line.startswith("ok ") for line in lines),
                              f"conformance_{program}: {case or 'all cases'}", lines)
            check_look_up(folder)
    tap.finish()


main()
