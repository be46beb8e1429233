# SPDX-License-Identifier: Apache-2.0
"""The backend of a run: GMM_BACKEND of the process that run.py starts, over the host, the fake CUDA driver or a GPU.

Tests with the mark `gpu` need real kernels, those with `fake` ask the fake driver how often it was called. Both are
skipped elsewhere.
"""
import ctypes
import os
import pathlib
import subprocess
import sys

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors, and a machine that others use
MIB = 1 << 20
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "python"))  # has remote.py

try:
    DRIVER = ctypes.CDLL("libcuda.so.1")
except OSError:
    DRIVER = None
FAKE = hasattr(DRIVER, "fake_cuda_count")
if FAKE:
    DRIVER.fake_cuda_count.restype = ctypes.c_uint64
GPU = DRIVER is not None and not FAKE and DRIVER.cuInit(0) == 0 if os.environ.get("GMM_BACKEND") != "host" else False
#: Of gmm, for tests that open a context of their own.
BACKEND = os.environ.get("GMM_BACKEND") or ("cuda" if DRIVER else "host")


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a GPU")
    config.addinivalue_line("markers", "fake: counts calls of the fake CUDA driver")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("gpu") and not GPU:
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
        if item.get_closest_marker("fake") and not FAKE:
            item.add_marker(pytest.mark.skip(reason="asks the fake driver how often it was called"))


def count(*names):
    """How often the fake driver's entries were called."""
    return sum(DRIVER.fake_cuda_count(name.encode()) for name in names)


def run(code, *arguments, timeout=300, **environment):
    """A program of its own; its output. An empty value unsets a variable."""
    environment = {**os.environ, **environment}
    environment = {name: value for name, value in environment.items() if value != ""}
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], env=environment, capture_output=True,
                          text=True, timeout=timeout, check=False, cwd=os.path.dirname(__file__))
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    return done.stdout.strip()


def goes_back(size, give, take):
    """Asserts that the driver has so much more after give(); take() undoes it. Other programs may use the GPU: one of
    four times is enough.
    """
    import torch

    def free_memory():
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0]

    found = []
    for _ in range(4):
        before = free_memory()
        give()
        found.append(free_memory() - before)
        take()
        if found[-1] >= size:
            return
    raise AssertionError(f"of {size // MIB} MiB {[gone // MIB for gone in found]} MiB went back")
