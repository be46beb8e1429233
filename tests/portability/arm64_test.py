# SPDX-License-Identifier: Apache-2.0
"""A wheel for arm64, cross-compiled and repaired. Its parts run under qemu-user: the command, tests of the package, and
the preload library, whose look-up of symbols is assembly.

Usage: arm64_test.py SOURCE_ROOT ARM64_ROOT       ARM64_ROOT: as tests/support/setup.sh's setup_arm64 makes it

qemu-user starts no further process of arm64 and knows no MADV_WIPEONFORK, so no test that needs a second process is
among them.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

SOURCE, ROOT = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
TOOLS = SOURCE / ".deps" / "wheels"
sys.path[:0] = [str(SOURCE / "tests" / folder) for folder in ("support", "bindings/python")]
import tap  # noqa: E402
from wheel_test import problems_of, wheels  # noqa: E402

TESTS = ("test_calls.py", "test_watch.py", "test_registration.py")
RUN = """
import sys
sys.path[:0] = sys.argv[1:3]
import gmm, platform, pytest
assert platform.machine() == "aarch64" and gmm.__file__.startswith(sys.argv[2]), gmm.__file__
# test_ipc starts a second process, which the emulator does not run.
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-k", "not test_ipc[host- and not cuda", *sys.argv[3:]]))
"""


def run(*command, cwd=None):
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    return done.returncode == 0, [*done.stdout.splitlines()[-40:], *done.stderr.splitlines()[-40:]]


def check_look_up(package, folder):
    tests, compiler = SOURCE / "tests", ["aarch64-linux-gnu-gcc", "-std=gnu11", "-O1"]
    for number, name in enumerate(("first", "second", "third"), 1):
        run(*compiler, "-fPIC", "-shared", f"-DLIBRARY={number}", tests / "preload/look_up_library.c", "-o",
            f"liblook_up_{name}.so", cwd=folder)
    good, lines = run(*compiler, tests / "preload/look_up_user.c", tests / "support/check.c", "-o", "look_up_user",
                      "-Wl,--no-as-needed", "liblook_up_first.so", "liblook_up_second.so", "-pthread", cwd=folder)
    tap.check(good, "look_up_user.c compiles for arm64", lines)
    for name, arguments, preload in (("look-ups of a program", (), ""), (
            "look-ups through the preload library", ("taken",), package / "gmm/libgmm_preload.so")):
        good, lines = run("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-E", f"LD_LIBRARY_PATH={folder}", "-E",
                          f"LD_PRELOAD={preload}", "./look_up_user", *arguments, cwd=folder)
        tap.check(good, name, lines)


def check_wheel(folder):
    # Without optimisation: whether it builds and works is asked, not how fast.
    wheel, package = wheels.make(folder / "made", SOURCE, ["-Doptimization=0"], ROOT, TOOLS), folder / "package"
    tap.check(wheel.name.endswith("_aarch64.whl"), wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(package)
    names = {path.name for path in package.rglob("*") if path.is_file()}
    missing = {"libgmm.so.1", "libgmm_preload.so", "gmm_torch.cpp", "gmm", "LICENSE"} - names
    tap.check(not missing, "the libraries, the command and the licence are inside", [str(missing)])
    problems = problems_of(wheel, package / "gmm")
    tap.check(not problems, "nothing outside the package is needed but the system's libraries", problems)
    command = package / "gmm" / "_bin" / "gmm"
    command.chmod(0o755)  # zipfile forgets it
    good, lines = run("qemu-aarch64", "-L", ROOT, "-U", "LD_LIBRARY_PATH", command, "--version")
    tap.check(good and lines[0].startswith("gmm "), "the command runs", lines)
    # The sources lie beside the tests, and the package must come from the wheel.
    tests = folder / "tests"
    shutil.copytree(SOURCE / "tests" / "bindings" / "python", tests)
    good, lines = run(wheels.arm64_python(ROOT, folder), "-c", RUN, *TOOLS.glob("lib/python3.*/site-packages"), package,
                      *(tests / name for name in TESTS))
    passed = re.search(r"^(\d+) passed", "\n".join(lines), re.MULTILINE)
    tap.check(good and passed and int(passed[1]) > 30, f"{passed[1] if passed else 0} tests of the package pass", lines)
    check_look_up(package, folder)


def main():
    for tool, package in (("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu"), ("qemu-aarch64", "qemu-user")):
        if shutil.which(tool) is None:
            tap.skip("a wheel for arm64", f"there is no {tool} (Debian: {package})")
            tap.finish()
    for needed, function in ((ROOT, "setup_arm64"), (TOOLS, "setup_wheels")):
        if not (needed / "ready").is_file():
            tap.skip("a wheel for arm64", f"{needed} is not there: see {function} of tests/support/setup.sh")
            tap.finish()
    with tempfile.TemporaryDirectory() as folder:
        check_wheel(pathlib.Path(folder))
    tap.finish()


main()
