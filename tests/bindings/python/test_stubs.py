# SPDX-License-Identifier: Apache-2.0
"""The stubs say what the package is."""
import importlib
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import gmm
import gmm.cupy
import gmm.job
import gmm.lease
import gmm.memory_saver
import gmm.multiprocessing
import gmm.nccl
import gmm.rmm
import gmm.ucx
import gmm.vllm

pytest.importorskip("mypy")

#: Modules for another library: looked at where that is installed.
WITH_LIBRARIES = {"cuda_core", "numba"}


def _is_here(module):
    try:
        importlib.import_module(f"gmm.{module}")
    except ImportError:
        return False
    return True


def test_stubs(tmp_path):
    """The checker gets the stubs, and the two private modules that they import.

    No other private module is part of the interface.
    """
    package = pathlib.Path(gmm.__file__).parent
    (tmp_path / "gmm" / "_core").mkdir(parents=True)
    for stub in package.glob("*.pyi"):
        shutil.copy(stub, tmp_path / "gmm")
    annotated = {path.stem for path in package.glob("[a-z]*.py")} - {path.stem for path in package.glob("*.pyi")}
    for file in ("__init__.py", "enums.pyi", "info.py"):
        shutil.copy(package / "_core" / file, tmp_path / "gmm" / "_core")
    passed_over = tmp_path / "passed_over"
    without_stub = [*(rf"gmm\.{module}(\..*)?" for module in annotated), r"gmm\._\w+(\.\w+)+", r"gmm\.__main__",
                    *(rf"gmm\.{module}" for module in WITH_LIBRARIES if not _is_here(module))]
    passed_over.write_text("".join(f"{pattern}\n" for pattern in without_stub))
    environment = {**os.environ, "MYPYPATH": str(tmp_path), "PYTHONPATH": str(package.parent)}
    done = subprocess.run([sys.executable, "-m", "mypy.stubtest", "gmm", "--allowlist", str(passed_over)], cwd=tmp_path,
                          env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no issues found" in done.stdout


@pytest.mark.parametrize("module", [gmm, gmm.cupy, gmm.job, gmm.lease, gmm.memory_saver, gmm.multiprocessing, gmm.nccl,
                                    gmm.rmm, gmm.ucx, gmm.vllm],
                         ids=lambda module: module.__name__)
def test_every_public_name_has_a_docstring(module):
    assert module.__doc__
    for name in module.__all__:
        value = getattr(module, name)
        if not isinstance(value, type) and not callable(value):
            continue
        assert value.__doc__, name
        if not isinstance(value, type) or issubclass(value, (Exception, tuple, int)):
            continue
        for method, function in vars(value).items():
            if not method.startswith("_") and (callable(function) or isinstance(function, property)):
                assert function.__doc__, f"{name}.{method}"
