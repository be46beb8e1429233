# SPDX-License-Identifier: Apache-2.0
"""gmm.keep(): arrays that outlive their process."""
import os
import signal
import subprocess
import sys

import numpy
import pytest
from checks import refused

import gmm

VALUES = {"a": numpy.arange(1000, dtype="float32").reshape(10, 100), "none": numpy.zeros((0, 3)),
          "half": numpy.arange(7, dtype="float16"), "number": numpy.array(5, dtype="int64")}

LOADER = """
import os, signal, sys, numpy, gmm
def load():
    if sys.argv[1] == "dies":
        print("loading", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return {"a": numpy.full(3, 4.0)}
print(gmm.keep("kept", load, timeout=60)["a"].numpy().tolist(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.setenv("GMM_IPC_DIR", str(tmp_path))
    with gmm.Context("host", leak_report=False) as made:
        yield made
        for entry in made.published():
            made.unpublish(entry.name)


def never():
    raise AssertionError("the memory is there")


def run(what):
    ended = subprocess.run([sys.executable, "-c", LOADER, what], env={**os.environ, "GMM_BACKEND": "host"}, text=True,
                           stdout=subprocess.PIPE, check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    return ended.stdout


def test_arrays_come_back_read_only(context):
    for load in (lambda: VALUES, never):
        arrays = gmm.keep("kept", load, context=context, timeout=60)
        assert arrays.keys() == VALUES.keys()
        for key, array in arrays.items():
            assert array.readonly and array.dtype == VALUES[key].dtype.str
            assert array.shape == VALUES[key].shape and (array.numpy() == VALUES[key]).all()
    assert (gmm.keep("one", lambda: numpy.arange(9), context=context, timeout=60).numpy() == numpy.arange(9)).all()
    attached = context.attach("one", timeout=60)
    assert memoryview(attached).readonly and memoryview(gmm.Array(attached)).readonly
    refused(gmm.InvalidValueError, lambda: attached.fill(1), match="read only")
    refused(gmm.NotReadyError, lambda: context.attach("nothing", timeout=0.1), match="Context.attach")
    assert {entry.name: entry.readers for entry in context.published()}["one"] >= 1


def test_a_successor_finds_the_arrays_of_a_killed_process(context):
    assert run("dies") == "loading\n"
    assert run("lives") == "[4.0, 4.0, 4.0]\n"
    assert gmm.keep("kept", never, context=context, timeout=60)["a"].numpy().tolist() == [4, 4, 4]
    assert run("dies") == "[4.0, 4.0, 4.0]\n"
    assert context.unpublish("kept") and not context.unpublish("kept")


def test_a_load_that_fails_leaves_the_claim(context):
    with pytest.raises(ZeroDivisionError):
        gmm.keep("kept", lambda: 1 / 0, context=context, timeout=60)
    assert gmm.keep("kept", lambda: numpy.ones(2), context=context, timeout=60).numpy().tolist() == [1, 1]
