# SPDX-License-Identifier: Apache-2.0
"""gmm.torch's C++ files compile and link against PyTorch's oldest and newest version.

The headers and the two small libraries come from PyTorch's wheels by ranges, into .deps/. A version that cannot be had
is skipped with the reason. No library of CUDA is needed: c10_cuda loads it. test_torch.py compiles the files for the
installed PyTorch, and uses them.
"""
import pathlib
import shutil
import subprocess
import sys

import pytest

from gmm._core import compiled
from gmm._torch import compiler

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import wheel_headers  # noqa: E402

OLDEST = "2.5"
# The headers of CUDA's runtime, of which PyTorch's own headers need types only.
CUDA = ("nvidia-cuda-runtime", "13.0", "nvidia/")
CRT = ("nvidia-cuda-crt", "13.0", "nvidia/")
PREFIXES = ["torch/include/c10/", "torch/include/torch/headeronly/", "torch/version.py", "torch/lib/libc10.so",
            "torch/include/torch/csrc/api/include/torch/version", "torch/lib/libc10_cuda.so"]


def fetched(*wanted):
    try:
        return wheel_headers.folder_of(*wanted[:2], ROOT / ".deps" / "headers", *wanted[2:])
    except (OSError, LookupError) as error:
        pytest.skip(f"no files of {wanted[0]} {wanted[1]}: {error}")


def version_of(package):
    for line in (package / "version.py").read_text(encoding="utf-8").splitlines():
        if line.startswith("__version__"):
            return line.split("=")[1].strip(" '\"")
    raise RuntimeError(f"{package}/version.py names no version")


@pytest.fixture(scope="module")
def cuda_home():
    """A folder with include/cuda_runtime_api.h."""
    for folder in [*sorted((ROOT / ".deps" / "torch").glob("lib/python3*/site-packages/nvidia/cu13")),
                   pathlib.Path("/usr/local/cuda")]:
        if (folder / "include" / "crt" / "host_defines.h").is_file():
            return folder
    runtime, compiler_part = (next(fetched(package, version, [prefix]).glob("nvidia/cu*"))
                              for package, version, prefix in (CUDA, CRT))
    shutil.copytree(compiler_part / "include", runtime / "include", dirs_exist_ok=True)
    return runtime


def names(library, which):
    lines = subprocess.run(["nm", "-D", f"--{which}-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].partition("@")[0] for line in lines.splitlines()}


@pytest.mark.parametrize("version", [OLDEST, "newest"])
def test_it_compiles_and_links(cuda_home, tmp_path, monkeypatch, version):
    package = fetched("torch", version, PREFIXES) / "torch"
    found = version_of(package)
    installed = compiler.Installed(package, found, "13", not found.startswith("2.5"))  # 2.5 has the older ABI
    monkeypatch.setenv("CUDA_HOME", str(cuda_home))
    made = tmp_path / "made.so"
    done = subprocess.run([*compiled.compiler("the test"), "-shared", "-fPIC", "-Wall", "-Werror",
                           *compiler.arguments(installed), f"-I{compiled.INCLUDE}", "-o", made, compiler.SOURCES[0],
                           *compiler.libraries(installed), compiled.libgmm()],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{found}: {done.stderr[-4000:]}"
    missing = {name for name in names(made, "undefined") if "c10" in name}
    for library in ("c10", "c10_cuda"):
        missing -= names(package / "lib" / f"lib{library}.so", "defined")
    assert not missing, found
