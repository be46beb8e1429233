# SPDX-License-Identifier: Apache-2.0
"""A manylinux wheel in a clean virtual environment, and a program that uses what was installed.

Usage: wheel_test.py SOURCE_ROOT. Ends with 77 (skipped) without .deps/wheels, which tests/support/setup.sh makes.
"""
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

# Its folder has the package's sources, which no path of a test may lead to.
WHEELS = pathlib.Path(__file__).resolve().parents[3] / "bindings" / "python" / "wheels.py"
specification = importlib.util.spec_from_file_location("wheels", WHEELS)
wheels = importlib.util.module_from_spec(specification)
specification.loader.exec_module(wheels)

PROGRAM = """
import pathlib, sys
import gmm
installed = pathlib.Path(gmm.__file__).parent
assert installed.is_relative_to(sys.prefix), installed
source = pathlib.Path(sys.argv[1])
files = {file.relative_to(source) for file in source.rglob("*.py*") if "__pycache__" not in file.parts}
missing = {file for file in files if not (installed / file).is_file()}
assert not missing, missing
from importlib import metadata
licences = [file for file in metadata.files("gmm-memory") if file.name == "LICENSE"]
assert len(licences) == 1 and "Apache License" in licences[0].read_text(), licences
import gmm.cupy, gmm.memory_saver, gmm.multiprocessing, gmm.rmm, gmm.vllm  # none needs its library yet
try:
    import gmm.numba
except ImportError as error:
    assert "numba-cuda" in str(error), error
else:
    raise AssertionError("gmm.numba found a Numba in a new environment")
from gmm._memory_saver import preload as loader
preload = loader.load(loader.find_library())
assert preload.path == str(installed / "libgmm_preload.so"), preload.path
assert not preload.cdll.gmm_preload_active()
from gmm._memory_saver import by_name
import subprocess, tempfile
with tempfile.TemporaryDirectory() as folder:  # a library under another's name, in a process that has no gmm
    links = by_name.make_folder(folder)
    code = f"import ctypes; ctypes.CDLL({links + '/' + by_name.LIBRARIES[0]!r}); import torch_memory_saver"
    subprocess.run([sys.executable, "-m", "gmm.memory_saver", "--folder", links, "run", sys.executable, "-c", code],
                   check=True)
points = {point.group: point for point in metadata.distribution("gmm-memory").entry_points}
points["torch.backends"].load()()  # does nothing without its variable
assert points["vllm.general_plugins"].value == "gmm.vllm:plugin"
from gmm._torch import library  # needs no PyTorch
assert {"gmm_torch.cpp", "allocator.hpp"} <= {file.name for file in library.SOURCES}, library.SOURCES
assert all(file.is_file() for file in (*library.SOURCES, installed / "_include" / "gmm" / "gmm.h"))
assert library.compiled.loaded("libgmm.so") == str(installed / "libgmm.so.1")
assert (installed / "_rmm" / "resource.cpp").is_file()
loaded = {line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if "libgmm.so" in line}
assert loaded == {str(installed / "libgmm.so.1")}, loaded  # the one inside the package
try:
    gmm.Context("cuda").close()
except gmm.Error as error:
    assert "CUDA" in str(error) and "built" not in str(error), error  # the backend is there, a GPU is not
with gmm.Context("host") as context, context.alloc(100) as buffer:
    buffer.fill(3)
    assert bytes(buffer) == b"\\x03" * 100
    array = context.array(memoryview(bytes(8)).cast("f"))  # without NumPy
    assert array.shape == (2,) and array.dtype == "<f4" and bytes(array) == bytes(8)
print(gmm.__version__)
"""


#: libpthread and libdl are parts of glibc before 2.34.
ALLOWED = {"libgmm.so.1", "libc.so.6", "libz.so.1", "libpthread.so.0", "libdl.so.2"}


def libraries_of(file):
    said = subprocess.run(["readelf", "-d", str(file)], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", said)), re.findall(r"\(RU?N?PATH\).*\[(.*)\]", said)


def problems_of(wheel, package):
    """The ways in which an installed wheel depends on the machine that built it."""
    found = []
    if not re.search(r"-manylinux_2_\d+_\w+\.whl$", wheel.name):
        found.append(f"{wheel.name} has no manylinux tag")
    for file in [*package.rglob("*.so*"), package / "_bin" / "gmm"]:
        needed, paths = libraries_of(file)
        outside = {name for name in needed if not name.startswith("ld-linux-")} - ALLOWED
        if outside:
            found.append(f"{file.name} needs {outside}")
        if [path for path in ":".join(paths).split(":") if path and not path.startswith("$ORIGIN")]:
            found.append(f"{file.name} looks for libraries in {paths}")
    return found


def main(root):
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    tools = pathlib.Path(root).resolve() / ".deps" / "wheels"
    if not (tools / "ready").is_file():
        print("skipped: no environment .deps/wheels (see .deps/install.log)")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        subprocess.run([tools / "bin/python", "-m", "venv", "--without-pip", folder / "venv"], check=True)
        python = folder / "venv" / "bin" / "python"
        # Without optimisation: whether it builds and works is asked, not how fast.
        wheel = wheels.make(folder / "made", root, ["-Doptimization=0"], tools=tools)
        subprocess.run([tools / "bin/python", "-m", "pip", "--python", python, "install", "-q", wheel], env=environment,
                       check=True, cwd=folder)
        problems = problems_of(wheel, next((folder / "venv").glob("lib/python3.*/site-packages/gmm")))
        print(wheel.name, *problems, sep="\n")
        if problems:
            return 1
        done = subprocess.run([python, "-X", "dev", "-c", PROGRAM,
                               str(pathlib.Path(root) / "bindings" / "python" / "gmm")], env=environment,
                               capture_output=True, text=True, check=False, cwd=folder)
        print(done.stdout + done.stderr)
        command, module = [python.with_name("gmm")], [python, "-m", "gmm"]
        for start, words in ((command, ["--version"]), (module, ["info"]), (command, ["run", "--", "true"])):
            said = subprocess.run([*start, *words], env={**environment, "GMM_BACKEND": "host"}, text=True,
                                  capture_output=True, check=False, cwd=folder)
            print(f"gmm {' '.join(words)}: {said.stdout}{said.stderr}")
            if said.returncode != 0 or (words[0] == "--version" and said.stdout.split()[-1] != done.stdout.strip()):
                return 1
        return 1 if done.returncode != 0 or done.stderr else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
