# SPDX-License-Identifier: Apache-2.0
"""gmm.nccl and gmm.ucx: registrations end before a pause and come back after it.

NCCL is a stand-in here, which records what is asked of it: tests/bindings/interop/test_torch_ranks.py has the real one.
UCX is the real one where it is installed.
"""
import ctypes
import types

import pytest
from checks import refused
from conftest import need

import gmm
import gmm.nccl
import gmm.ucx
from gmm import Capability, Contents, Kind

SIZE = 3 << 20


class FakeNccl:
    """Hands out numbers, and fails where `fails` says so."""

    def __init__(self):
        self.calls, self.registered, self.fails, self.suspended = [], {}, set(), set()

    def ncclCommRegister(self, communicator, address, size, out, word="register"):
        self.calls.append((word, communicator.value))
        if self.calls[-1] in self.fails:
            return 5
        out._obj.value = 100 + sum(word != "end" for word, _ in self.calls)
        self.registered[communicator.value, out._obj.value] = (address.value, size.value)
        return 0

    def ncclCommWindowRegister(self, communicator, address, size, out, flags):
        assert flags.value == 1
        return self.ncclCommRegister(communicator, address, size, out, "window")

    def ncclCommDeregister(self, communicator, handle):
        self.calls.append(("end", communicator.value))
        del self.registered[communicator.value, handle.value]
        return 5 if self.calls[-1] in self.fails else 0

    ncclCommWindowDeregister = ncclCommDeregister

    def ncclGetErrorString(self, code):
        return b"words of NCCL"

    # Since 2.29.7.

    def ncclCommSuspend(self, communicator, flags):
        assert flags.value == 1
        self.suspended.add(communicator.value)
        return 0

    def ncclCommResume(self, communicator):
        self.suspended.remove(communicator.value)
        return 0

    def ncclCommMemStats(self, communicator, stat, out):
        number = communicator.value
        out._obj.value = [100 * number, int(number in self.suspended), number, 101 * number][stat.value]
        return 5 if "stats" in self.fails else 0


@pytest.fixture
def nccl(monkeypatch):
    library = FakeNccl()
    monkeypatch.setattr(gmm.nccl, "_nccl", lambda: library)
    return library


@pytest.fixture
def block(context):
    need(context, Capability.PAUSE, Kind.VMM)
    return context.alloc(SIZE, comm=True, tag=context.tag("network", Contents.HOST))


@pytest.fixture
def cycle(context):
    def pause_and_resume():
        context.pause("network")
        context.resume("network")

    return pause_and_resume


def test_a_registration_follows_pauses(context, block, nccl, cycle):
    info = context.query(block)
    with gmm.nccl.register(block, [1, 2], context=context, name="ring") as first:
        second = gmm.nccl.register(block.address, 3, window=True, context=context)
        begun = [("register", 1), ("register", 2), ("window", 3)]
        assert nccl.calls == begun and first.handles == [101, 102]
        assert set(nccl.registered.values()) == {(info.allocation_base, info.allocation_size)}
        context.pause("network")
        # The newest goes first, and comes back last: so do all ranks.
        assert nccl.calls[3:] == [("end", 3), ("end", 2), ("end", 1)] and not nccl.registered
        assert not first.active and first.handles == []
        context.resume("network")
        assert nccl.calls[6:] == begun and first.active
        for _ in range(2):
            second.close()
        assert second.closed and {communicator for communicator, _ in nccl.registered} == {1, 2}
    cycle()
    assert not nccl.registered and first.closed


def test_communicators_are_suspended(nccl, monkeypatch):
    assert gmm.nccl.memory([1, 2]) == gmm.nccl.MemoryInfo(suspendable=300, persistent=3, total=303, suspended=0)
    gmm.nccl.suspend([1, 2])
    assert gmm.nccl.memory([1, 2, 3]).suspended == 2
    gmm.nccl.resume([1, 2])
    assert gmm.nccl.can_suspend() and gmm.nccl.memory(2) == (200, 2, 202, 0)
    nccl.fails.add("stats")
    refused(gmm.nccl.NcclError, lambda: gmm.nccl.memory(1), match="ncclCommMemStats.*words of NCCL")
    for function in ("ncclCommSuspend", "ncclCommResume", "ncclCommMemStats"):
        monkeypatch.delattr(FakeNccl, function)
    assert not gmm.nccl.can_suspend()
    refused(NotImplementedError, lambda: gmm.nccl.memory(1), lambda: gmm.nccl.suspend(1), lambda: gmm.nccl.resume(1),
            match="2.29.7")


def test_a_pause_that_fails_brings_it_back(context, block, nccl):
    with gmm.nccl.register(block, 1, context=context) as registration:
        refused(ZeroDivisionError, lambda: context.pause("network", progress=lambda *_: 1 / 0))
        assert registration.active and len(nccl.registered) == 1
        assert [word for word, _ in nccl.calls] == ["register", "end", "register"]


@pytest.mark.parametrize("is_watched", [False, True])
def test_a_pause_during_the_registration(context, block, nccl, monkeypatch, is_watched):
    """Another thread's pause just before the watcher, or just after it: the library takes the pages of now."""
    watch, generations = context.watch, []

    def pause_beside(**options):
        watcher = watch(**options) if is_watched else None
        context.pause("network")
        if not is_watched:
            context.resume("network")
        return watcher or watch(**options)

    def begin(self):
        generations.append(context.query(block).generation)

    monkeypatch.setattr(type(context), "watch", lambda self, **options: pause_beside(**options))
    monkeypatch.setattr(gmm.nccl.Registration, "_begin", begin)
    with gmm.nccl.register(block, 1, context=context) as registration:
        if is_watched:
            assert not registration.active and not generations
            context.resume("network")
        assert registration.active and generations == [context.query(block).generation]


def test_a_watch_that_fails_is_the_cause(context, block, nccl, monkeypatch, cycle):
    nccl.fails.add(("end", 1))
    with monkeypatch.context() as patch:
        patch.setattr(type(context), "watch", lambda self, **options: 1 / 0)
        refused(ZeroDivisionError, lambda: gmm.nccl.register(block, 1, context=context))
    assert not nccl.registered
    nccl.fails.add(("register", 1))
    refused(gmm.nccl.NcclError, lambda: gmm.nccl.register(block, 1, context=context))
    del nccl.calls[:]
    cycle()
    assert nccl.calls == []  # its watcher is closed


def test_refusals_of_nccl_are_errors(context, block, nccl, unraisable, cycle):
    nccl.fails.add(("register", 2))
    failure = refused(gmm.nccl.NcclError, lambda: gmm.nccl.register(block, [1, 2], context=context),
                      match="words of NCCL")
    assert failure.code == 5 and not nccl.registered  # the first one went, too
    with gmm.nccl.register(block, 1, context=context) as registration:
        nccl.fails.add(("register", 1))
        cycle()
        assert not registration.active and registration.error is unraisable[0]
        nccl.fails.clear()
        cycle()
        assert registration.active and registration.error is None
    outside = ctypes.addressof(ctypes.create_string_buffer(16))
    refused(ValueError, lambda: gmm.nccl.register(outside, 1, context=context), match="comm=True")
    refused(TypeError, lambda: gmm.nccl.register("weights", 1, context=context), match="address")


def test_a_process_group_has_a_communicator(context, block, nccl, monkeypatch, cycle):
    """It comes with the first collective."""
    communicators = [0, 7, 8]  # the group was made anew
    backend = types.SimpleNamespace(_comm_ptr=lambda: communicators.pop(0))
    monkeypatch.setattr(gmm.nccl, "_backend", lambda group, device: backend)
    refused(RuntimeError, lambda: gmm.nccl.register(block, context=context), match="collective")
    with gmm.nccl.register(block, context=context):
        cycle()
    assert nccl.calls == [("register", 7), ("end", 7), ("register", 8), ("end", 8)]


class Parameters(ctypes.Structure):
    """The first fields of ucp_params_t."""

    _fields_ = [("field_mask", ctypes.c_uint64), ("features", ctypes.c_uint64), ("rest", ctypes.c_uint64 * 16)]


@pytest.fixture
def ucp():
    try:
        library = gmm.ucx._ucx()[0]
    except ImportError as error:
        pytest.skip(str(error))
    config, made = ctypes.c_void_p(), ctypes.c_void_p()
    assert library.ucp_config_read(None, None, ctypes.byref(config)) == 0
    parameters = Parameters(1, 2)  # the field of features: RMA
    assert library.ucp_init_version(1, 10, ctypes.byref(parameters), config, ctypes.byref(made)) == 0
    library.ucp_config_release(config)
    yield made.value
    library.ucp_cleanup(made)


def test_a_mapping_of_ucx_follows_pauses(host, ucp):
    block = host.alloc(SIZE, comm=True, tag=host.tag("network", Contents.HOST))
    block.fill(7)
    with gmm.ucx.map(ucp, block, context=host) as mapping:
        key = mapping.remote_key()
        assert mapping.memh and mapping.generation == 1 and key
        paused = host.pause("network")
        assert paused >= SIZE and host.tag("network").info.foreign_bytes == 0
        assert not mapping.active and mapping.memh == 0
        refused(RuntimeError, mapping.remote_key, match="paused")
        host.resume("network")
        assert mapping.active and mapping.memh and mapping.generation == 2 and mapping.remote_key()
    assert mapping.closed and mapping.memh == 0 and bytes(block) == b"\7" * SIZE
    with pytest.raises(gmm.ucx.UcxError):
        gmm.ucx._call("ucp_mem_map", ctypes.c_void_p(ucp), (ctypes.c_uint64 * 6)(), ctypes.byref(ctypes.c_void_p()))
