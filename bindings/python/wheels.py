# SPDX-License-Identifier: Apache-2.0
"""Makes a wheel for the Python that runs this, in FOLDER: wheels.py [--setup-args ARGUMENT] [FOLDER]
or for a system of arm64:                               wheels.py [--setup-args ARGUMENT] --arm64 ROOT [FOLDER]

auditwheel gives the wheel the lowest manylinux tag that its symbols of glibc allow, so the system of the build decides:
Debian 12 (glibc 2.36) makes manylinux_2_34. For an older glibc build on an older system. The tools come from PyPI.

ROOT has arm64's Python with its headers and zlib's, for example Debian's packages libpython3.11-dev, python3.11-minimal
and zlib1g-dev, unpacked. The compiler is this machine's g++-aarch64-linux-gnu. The build's Python alone runs under
qemu-user.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import venv

HERE = pathlib.Path(__file__).resolve().parent
ARM64 = "aarch64-linux-gnu"
MAKE_WHEEL = """
import sys
sys.path.insert(0, sys.argv[1])
import mesonpy
mesonpy.build_wheel(sys.argv[2], {"setup-args": sys.argv[3:]})
"""


def arm64_python(root, folder):
    """A program that runs the Python of `root`, as Meson asks for one."""
    python, = [path for path in root.glob("usr/bin/python3.*") if re.fullmatch(r"python3\.\d+", path.name)]
    runner = folder / python.name
    runner.write_text(f'#!/bin/sh\nexec qemu-aarch64 -L "{root}" -U LD_LIBRARY_PATH "{python}" "$@"\n')
    runner.chmod(0o755)
    return runner


def build_arm64(tools, root, folder, source, setup_args, environment):
    """The wheel for the Python of `root`. meson-python runs under qemu-user, and starts this machine's tools."""
    root = root.resolve()
    folder.mkdir()
    runner = arm64_python(root, folder)
    # The root's own libraries are for its programs: the compiler has its libc, and lacks zlib.
    system = folder / "system"
    system.mkdir()
    for header in ("zlib.h", "zconf.h"):
        shutil.copy(root / "usr/include" / header, system)
    library, = set(root.glob(f"lib/{ARM64}/libz.so.1")) or set(root.glob(f"usr/lib/{ARM64}/libz.so.1"))
    (system / "libz.so").symlink_to(library)
    (system / "zlib.pc").write_text(f"Name: zlib\nDescription: zlib\nVersion: 1\nLibs: -lz\n"
                                    f"Cflags: -idirafter {system}\n")
    flags = f"['-idirafter', '{root}/usr/include']"  # Debian's pyconfig.h is below it
    (folder / "root.ini").write_text(f"""
[binaries]
python = '{runner}'
python3 = '{runner}'
exe_wrapper = ['qemu-aarch64', '-L', '{root}']
[properties]
pkg_config_libdir = '{system}'
[built-in options]
c_args = {flags}
cpp_args = {flags}
c_link_args = ['-L{system}']
""")
    arguments = [*(f"--cross-file={file}" for file in (HERE / "arm64.ini", folder / "root.ini")), *setup_args]
    site, = tools.glob("lib/python3.*/site-packages")
    subprocess.run([str(runner), "-c", MAKE_WHEEL, str(site), str(folder), *arguments], check=True, cwd=source,
                   env=environment, stdout=subprocess.DEVNULL)


def make(folder, source=HERE.parents[1], setup_args=(), arm64=None, tools=None):
    """The path of a wheel in the folder. auditwheel adds the libraries that a tag does not allow; gmm needs none.

    `tools`: an environment with what wheels.txt names.
    """
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        built, repaired = work / "built", work / "repaired"
        if tools is None:
            tools = work / "tools"
            venv.create(tools, with_pip=True)
            subprocess.run([tools / "bin/python", "-m", "pip", "install", "-q", "-r", HERE / "wheels.txt"], check=True)
        environment = {**os.environ, "PATH": f"{tools / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}
        if arm64:
            build_arm64(tools, arm64, built, source, setup_args, environment)
        else:
            settings = [f"--config-settings=setup-args={argument}" for argument in setup_args]
            subprocess.run([tools / "bin/python", "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
                            "--check-build-dependencies", "--wheel-dir", built, *settings, source], env=environment,
                           check=True)
        wheel, = built.glob("*.whl")
        done = subprocess.run([tools / "bin/auditwheel", "repair", "--wheel-dir", repaired, wheel], env=environment,
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{wheel.name}: auditwheel refuses it: {done.stdout}{done.stderr}")
        wheel, = repaired.glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return pathlib.Path(shutil.move(wheel, folder / wheel.name))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=pathlib.Path("dist"), metavar="FOLDER")
    parser.add_argument("--setup-args", action="append", default=[], metavar="ARGUMENT", help="for meson setup")
    parser.add_argument("--arm64", type=pathlib.Path, metavar="ROOT", help="a wheel for the Python of this folder")
    options = parser.parse_args()
    print(make(options.folder, setup_args=options.setup_args, arm64=options.arm64))


if __name__ == "__main__":
    main()
