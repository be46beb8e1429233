# SPDX-License-Identifier: Apache-2.0
"""The stubs say what the package is."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import gmm

pytest.importorskip("mypy")


def test_stubs(tmp_path):
    """Only the stub file is given: the private modules are no part of the interface."""
    package = pathlib.Path(gmm.__file__).parent
    (tmp_path / "gmm").mkdir()
    shutil.copy(package / "__init__.pyi", tmp_path / "gmm")
    environment = {**os.environ, "MYPYPATH": str(tmp_path), "PYTHONPATH": str(package.parent)}
    done = subprocess.run([sys.executable, "-m", "mypy.stubtest", "gmm"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no issues found" in done.stdout


def test_every_public_name_has_a_docstring():
    for name in gmm.__all__:
        value = getattr(gmm, name)
        if not isinstance(value, type) and not callable(value):
            continue
        assert value.__doc__, name
        if not isinstance(value, type) or issubclass(value, (Exception, tuple, int)):
            continue
        for method, function in vars(value).items():
            if not method.startswith("_") and (callable(function) or isinstance(function, property)):
                assert function.__doc__, f"{name}.{method}"
