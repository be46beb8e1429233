# SPDX-License-Identifier: Apache-2.0
"""Contexts of every backend that answers here."""
import ctypes
import gc
import subprocess
import sys

import pytest

import gmm


def _backends():
    found = ["host"]
    try:
        gmm.Context("cuda").close()
        found.append("cuda")
    except gmm.Error:  # no driver, no device, or built without it
        pass
    return found


BACKENDS = _backends()
try:
    FAKE = hasattr(ctypes.CDLL("libcuda.so.1"), "fake_cuda_live")  # whether the fake driver is in reach
except OSError:
    FAKE = False


def open_context(backend, **options):
    if backend == "host":
        options = {"host_devices": 2, "host_memory": 1 << 30, **options}
    return gmm.Context(backend, **options)


@pytest.fixture(params=BACKENDS)
def context(request):
    context = open_context(request.param)
    yield context
    gc.collect()
    context.close()


@pytest.fixture
def host():
    context = open_context("host")
    yield context
    gc.collect()
    context.close()


def on_host(context):
    return context.info.backend_name == "host"


def need(context, capability, kind=None):
    """Leaves a test out on a device that says it cannot do it."""
    info = context.device_info(0)
    if not info.capabilities & capability:
        pytest.skip(f"the device {info.name!r} has no {capability.name}")
    if kind is not None and kind not in info.kinds:
        pytest.skip(f"the device {info.name!r} has no {kind.name} memory")


@pytest.fixture
def kept(context):
    """(tag, buffer): a pausable block of 4 MiB with a tag of its own and known contents."""
    need(context, gmm.Capability.PAUSE, gmm.Kind.VMM)
    tag = context.tag("kept", gmm.Contents.HOST)
    buffer = context.alloc(4 << 20, gmm.Kind.VMM, tag=tag, dedicated=True)
    buffer.fill(0x77)
    return tag, buffer


@pytest.fixture
def unraisable(monkeypatch):
    """The exceptions that reach sys.unraisablehook."""
    found = []
    monkeypatch.setattr("sys.unraisablehook", lambda arguments: found.append(arguments.exc_value))
    return found


def run_code(code):
    """Runs a program in a fresh interpreter; fails when it ends with anything on stderr or another code than 0."""
    done = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, ""), f"exit code {done.returncode}\n{done.stderr}"
    return done.stdout
