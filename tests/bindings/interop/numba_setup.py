# SPDX-License-Identifier: Apache-2.0
"""Numba with gmm.numba in this process and in those that the tests start."""
import ctypes
import os
import pathlib
import subprocess
import sys

import pytest

os.environ["NUMBA_CUDA_MEMORY_MANAGER"] = "gmm"  # for this process and its children
os.environ.pop("GMM_NUMBA_POOL", None)

cuda = pytest.importorskip("numba.cuda", exc_type=ImportError)
if not cuda.is_available():
    pytest.skip("neither a GPU nor the fake driver", allow_module_level=True)

import gmm.numba

cuda.set_memory_manager(gmm.numba.MemoryManager)  # also when somebody imported Numba before
LIBRARY = ctypes.CDLL("libcuda.so.1")
FAKE = hasattr(LIBRARY, "fake_cuda_count")
needs_fake = pytest.mark.skipif(not FAKE, reason="asks the fake driver how often it was called")
if FAKE:
    LIBRARY.fake_cuda_count.restype = ctypes.c_uint64


def count(*names):
    """How often the fake driver's entries were called."""
    return sum(LIBRARY.fake_cuda_count(name.encode()) for name in names)


def run(code, **environment):
    """A program of its own; what it prints."""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True,
                          text=True, timeout=300,
                          cwd=pathlib.Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
