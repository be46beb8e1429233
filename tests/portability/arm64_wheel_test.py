# SPDX-License-Identifier: Apache-2.0
"""A wheel for arm64, cross-compiled and repaired, and tests of the package in it under qemu-user.

Usage: arm64_wheel_test.py SOURCE_ROOT ARM64_ROOT       ARM64_ROOT: as tests/support/setup.sh's setup_arm64 makes it

qemu-user starts no further process of arm64, so no test that needs a second one is among them.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile

SOURCE, ROOT = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
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


def main():
    for tool, package in (("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu"), ("qemu-aarch64", "qemu-user")):
        if shutil.which(tool) is None:
            tap.skip("a wheel for arm64", f"there is no {tool} (Debian: {package})")
            tap.finish()
    if not (ROOT / "ready").is_file():
        tap.skip("a wheel for arm64", f"no Python of arm64 is in {ROOT}: see setup_arm64 of tests/support/setup.sh")
        tap.finish()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        venv.create(folder / "tools", with_pip=True)
        reached = subprocess.run([folder / "tools/bin/python", "-m", "pip", "install", "-q", "--target",
                                  folder / "pytest", "pytest"], capture_output=True, text=True, check=False)
        if reached.returncode != 0:
            tap.skip("a wheel for arm64", "PyPI cannot be reached")
            tap.finish()
        # Without optimisation: whether it builds and works is asked, not how fast.
        wheel = wheels.make(folder / "made", SOURCE, ["-Doptimization=0"], ROOT)
        tap.check(wheel.name.endswith("_aarch64.whl"), wheel.name)
        package = folder / "package"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(package)
        names = {path.name for path in package.rglob("*") if path.is_file()}
        missing = {"libgmm.so.1", "libgmm_preload.so", "gmm_torch.cpp", "gmm", "LICENSE"} - names
        tap.check(not missing, "the libraries, the command and the licence are inside", [str(missing)])
        problems = problems_of(wheel, package / "gmm")
        tap.check(not problems, "nothing outside the package is needed but the system's libraries", problems)
        command = package / "gmm" / "_bin" / "gmm"
        command.chmod(0o755)  # zipfile forgets it
        said = subprocess.run(["qemu-aarch64", "-L", ROOT, "-U", "LD_LIBRARY_PATH", command, "--version"],
                              capture_output=True, text=True, check=False)
        tap.check(said.returncode == 0 and said.stdout.startswith("gmm "), "the command runs",
                  [said.stdout, said.stderr])
        # The sources lie beside the tests, and the package must come from the wheel.
        tests = folder / "tests"
        shutil.copytree(SOURCE / "tests" / "bindings" / "python", tests)
        done = subprocess.run([wheels.arm64_python(ROOT, folder), "-c", RUN, folder / "pytest", package,
                               *(tests / name for name in TESTS)], capture_output=True, text=True, check=False)
        passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
        tap.check(done.returncode == 0 and passed and int(passed[1]) > 30,
                  f"{passed[1] if passed else 0} tests of the package pass",
                  [*done.stdout.splitlines()[-40:], done.stderr])
    tap.finish()


main()
