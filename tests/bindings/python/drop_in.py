# SPDX-License-Identifier: Apache-2.0
"""Runs programs that use gmm.memory_saver or gmm.vllm, each in an interpreter of its own.

They run on a fake of PyTorch over the fake CUDA driver.
"""
import ctypes
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import FAKE

from gmm._memory_saver import preload

HERE = pathlib.Path(__file__).parent
FAKE_TORCH = HERE / "fake_torch"

PRELUDE = """
import contextlib, os, sys, threading
import torch
import gmm

MIB = 1 << 20

def full(mib, value, device="cuda"):
    return torch.full((mib * MIB,), value, dtype=torch.uint8, device=device)

def used():  # MiB of the device
    free, total = torch.cuda.mem_get_info()
    return (total - free) // MIB

def holds(tensor, value):
    content = tensor.content()
    return content == bytes([value]) * len(content)

def raises(kind, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except kind as error:
        return error
    raise SystemExit(f"no {kind.__name__} by {function}")

def enter(manager):
    with manager:
        pass
"""

SAVER = """
from gmm.memory_saver import TorchMemorySaver, configure_subprocess, register_hook_mode, torch_memory_saver as saver
saver.hook_mode = {mode!r}
"""


def library():
    """The preload library; the test is left out where there is none, or no fake driver and runtime to run it on."""
    if not FAKE:
        pytest.skip("the fake CUDA driver is not in reach")
    try:
        ctypes.CDLL("libcudart.so.13")  # the fake runtime
        return preload.find_library()
    except (OSError, RuntimeError) as error:
        pytest.skip(str(error))


def run(code, preload=False, environment=(), prelude=PRELUDE):
    """Runs a program; fails when it does not end with 0. Returns what it printed."""
    path = library()
    others = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    mine = ("TMS_", "PYTORCH_", "GMM_PRELOAD")
    inherited = {name: value for name, value in others.items() if not name.startswith(mine)}
    inherited["PYTHONPATH"] = os.pathsep.join([str(FAKE_TORCH), str(HERE), inherited.get("PYTHONPATH", "")])
    inherited["GMM_PRELOAD_LIBRARY"] = path
    if preload:
        inherited["LD_PRELOAD"] = path
    inherited.update(environment)
    done = subprocess.run([sys.executable, "-c", prelude + code], env=inherited, capture_output=True, text=True,
                          timeout=300, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_saver(mode, code, environment=()):
    """Runs a program with the memory saver in a hook mode."""
    return run(code, preload=mode == "preload", environment=environment, prelude=PRELUDE + SAVER.format(mode=mode))
