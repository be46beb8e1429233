# SPDX-License-Identifier: Apache-2.0
"""Compiles and links gmm.torch's C++ against PyTorch's oldest, installed and newest version, in TAP.

The headers and the two small libraries come from PyTorch's wheels by ranges, into .deps/. A version that cannot be had
is skipped with the reason. No library of CUDA is needed: c10_cuda loads it.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import tap  # noqa: E402
import wheel_headers  # noqa: E402

from gmm._core import compiled  # noqa: E402
from gmm._torch import compiler  # noqa: E402

OLDEST = "2.5"
# The headers of CUDA's runtime, of which PyTorch's own headers need types only.
CUDA = ("nvidia-cuda-runtime", "13.0", "nvidia/")
CRT = ("nvidia-cuda-crt", "13.0", "nvidia/")
PREFIXES = ["torch/include/c10/", "torch/include/torch/headeronly/", "torch/version.py", "torch/lib/libc10.so",
            "torch/include/torch/csrc/api/include/torch/version", "torch/lib/libc10_cuda.so"]


def fetched(version):
    try:
        return wheel_headers.folder_of("torch", version, ROOT / ".deps" / "headers", PREFIXES) / "torch", None
    except (OSError, LookupError) as error:
        return None, str(error)


def version_of(package):
    for line in (package / "version.py").read_text(encoding="utf-8").splitlines():
        if line.startswith("__version__"):
            return line.split("=")[1].strip(" '\"")
    raise RuntimeError(f"{package}/version.py names no version")


def cuda_home():
    """A folder with include/cuda_runtime_api.h, or the reason why there is none."""
    for folder in [*sorted((ROOT / ".deps" / "torch").glob("lib/python3*/site-packages/nvidia/cu13")),
                   pathlib.Path("/usr/local/cuda")]:
        if (folder / "include" / "crt" / "host_defines.h").is_file():
            return folder, None
    try:
        merged = None
        for package, version, prefix in (CUDA, CRT):
            folder = wheel_headers.folder_of(package, version, ROOT / ".deps" / "headers", [prefix])
            found = next(folder.glob("nvidia/cu*"))
            if merged is None:
                merged = found
            else:
                shutil.copytree(found / "include", merged / "include", dirs_exist_ok=True)
        return merged, None
    except (OSError, LookupError, StopIteration) as error:
        return None, f"no headers of CUDA's runtime: {error}"


def undefined(library):
    """The names of c10's that a library wants from others."""
    lines = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].partition("@")[0] for line in lines.splitlines() if "c10" in line}


def defined(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].partition("@")[0] for line in lines.splitlines()}


def check(name, package, home):
    version = version_of(package)
    installed = compiler.Installed(package, version, "13", not version.startswith("2.5"))  # 2.5 has the older ABI
    words = [f"-isystem{home / 'include'}" if word.startswith("-isystem") else word
             for word in compiler.arguments(installed)]
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder) / "made.so"
        done = subprocess.run([*compiled.compiler("the test"), "-shared", "-fPIC", "-Wall", "-Werror", *words,
                               f"-I{compiled.INCLUDE}", "-o", made, compiler.SOURCES[0],
                               *compiler.libraries(installed), compiled.libgmm()],
                              capture_output=True, text=True, check=False)
        tap.check(done.returncode == 0, f"gmm.torch's C++ compiles against {name}, {version}", done.stderr[-4000:])
        if done.returncode == 0:
            missing = undefined(made)
            for library in ("c10", "c10_cuda"):
                missing -= defined(package / "lib" / f"lib{library}.so")
            tap.check(not missing, f"gmm.torch's C++ links against {name}, {version}", sorted(missing))


def main():
    home, reason = cuda_home()
    # The tests "python with torch" compile it for the installed PyTorch, and use it.
    versions = {"the oldest PyTorch": fetched(OLDEST), "the newest PyTorch": fetched("newest")}
    for name, (package, why) in versions.items():
        if package is None or home is None:
            tap.skip(f"gmm.torch compiles against {name}", why if package is None else reason)
        else:
            check(name, package, home)
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
