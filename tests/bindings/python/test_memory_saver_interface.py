# SPDX-License-Identifier: Apache-2.0
"""gmm.memory_saver's interface, its look for the preload library, and the environment of subprocesses."""
import os
import subprocess
import sys

import pytest

from gmm import memory_saver
from gmm._memory_saver import preload


def test_nothing_imports_torch():
    code = ("import sys, gmm.memory_saver as torch_memory_saver, gmm.vllm\n"
            "torch_memory_saver.torch_memory_saver.hook_mode = 'torch'\nassert 'torch' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True)


def test_configure_subprocess(tmp_path, monkeypatch):
    fake = tmp_path / "libgmm_preload.so"
    fake.touch()
    monkeypatch.setenv("GMM_PRELOAD_LIBRARY", str(fake))
    for before in (None, "/other/lib.so"):
        if before is None:
            monkeypatch.delenv("LD_PRELOAD", raising=False)
        else:
            monkeypatch.setenv("LD_PRELOAD", before)
        with memory_saver.configure_subprocess():
            assert os.environ["LD_PRELOAD"] == (f"{fake}:{before}" if before else str(fake))
        assert os.environ.get("LD_PRELOAD") == before
        with pytest.raises(ZeroDivisionError), memory_saver.configure_subprocess():
            raise ZeroDivisionError
        assert os.environ.get("LD_PRELOAD") == before
        with pytest.raises(AssertionError), memory_saver.configure_subprocess():
            os.environ["LD_PRELOAD"] = "changed"
        assert os.environ.get("LD_PRELOAD") == before


def test_find_library(tmp_path, monkeypatch):
    monkeypatch.setenv("GMM_PRELOAD_LIBRARY", str(tmp_path / "not there"))
    with pytest.raises(RuntimeError, match="names no file"):
        preload.find_library()
    monkeypatch.delenv("GMM_PRELOAD_LIBRARY")
    monkeypatch.setattr(preload, "NAME", "libgmm_that_nobody_has.so")
    with pytest.raises(RuntimeError, match="GMM_PRELOAD_LIBRARY"):
        preload.find_library()


def test_registered_hook_mode(monkeypatch):
    monkeypatch.setattr(memory_saver, "_hook_modes", dict(memory_saver._hook_modes))
    calls = []

    class Mine:
        def pause(self, tag):
            calls.append(tag)

    memory_saver.register_hook_mode("mine", Mine, uses_preload=False)
    with pytest.raises(ValueError, match="already registered"):
        memory_saver.register_hook_mode("mine", Mine)
    saver = memory_saver.TorchMemorySaver()
    saver.hook_mode = "mine"
    saver.pause("a")
    assert calls == ["a"]
    monkeypatch.setattr(memory_saver, "torch_memory_saver", saver)
    monkeypatch.setenv("LD_PRELOAD", "as it is")
    with memory_saver.configure_subprocess():
        assert os.environ["LD_PRELOAD"] == "as it is"
