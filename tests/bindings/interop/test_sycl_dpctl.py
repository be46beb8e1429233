# SPDX-License-Identifier: Apache-2.0
"""The SYCL backend beside a real dpctl: memory and queues that both use, without a copy."""
import gc
import os
import subprocess
import sys
import types

import dpctl
import dpctl.memory
import numpy as np
import pytest

import gmm
from gmm import Kind, Usm

pytestmark = pytest.mark.skipif(not dpctl.has_cpu_devices(), reason="dpctl sees no CPU device")

os.environ["GMM_BACKEND"] = "sycl"  # of the default context

KINDS = {Kind.DEVICE: ("device", dpctl.memory.MemoryUSMDevice), Kind.HOST: ("host", dpctl.memory.MemoryUSMHost),
         Kind.MANAGED: ("shared", dpctl.memory.MemoryUSMShared)}


@pytest.fixture
def context():
    with gmm.Context("sycl") as opened:
        yield opened
        gc.collect()


@pytest.mark.parametrize("kind", KINDS)
def test_dpctl_takes_gmm_memory(context, kind):
    name, cls = KINDS[kind]
    buffer = context.alloc(4096, kind, zero=True)
    seen = dpctl.memory.as_usm_memory(buffer)
    assert type(seen) is cls and seen.get_usm_type() == name
    assert seen._pointer == buffer.address and seen.nbytes == 4096
    assert seen.sycl_context == context.sycl_object == dpctl.SyclDevice().sycl_platform.default_context
    # dpctl's writes are seen by gmm, and gmm's by dpctl.
    seen.copy_from_host(np.arange(4096, dtype="u1"))
    read = bytearray(4096)
    buffer.copy_to(read)
    assert read == bytes(i % 256 for i in range(4096))
    buffer.fill(7)
    assert seen.tobytes() == b"\7" * 4096
    if kind != Kind.DEVICE:
        np.asarray(seen)[1000] = 99
        assert memoryview(buffer)[1000] == 99


@pytest.mark.parametrize("kind", KINDS)
def test_gmm_takes_dpctl_memory(context, kind):
    name, cls = KINDS[kind]
    memory = cls(400)
    array = gmm.asarray(memory)
    assert array.address == memory._pointer and array.nbytes == 400
    info = context.query(memory._pointer)
    assert (info.kind, info.usm.name.lower()) == (kind, name)
    assert context.query(memory._pointer + 399).kind == kind
    # Each sees what the other writes; gmm copies by its default context, which is of SYCL here.
    memory.memset(5)
    assert array.numpy().tolist() == [5] * 400
    array.copy_from(bytes([9]) * 400)
    assert memory.tobytes() == b"\x09" * 400
    own = gmm.alloc(400, Kind.HOST)
    own.fill(3)
    gmm.context().copy(memory._pointer, own, 400)
    own.copy_to(bytearray(400))  # waits, on the same stream
    assert memory.tobytes() == b"\3" * 400
    array.copy_to(own)
    assert bytes(memoryview(own)) == b"\3" * 400


class Record:
    """An object with an interface, which it was made of."""

    def __init__(self, memory, **changes):
        self.memory = memory
        self.__sycl_usm_array_interface__ = {**memory.__sycl_usm_array_interface__, **changes}


def test_the_flag_beside_the_address(context):
    memory = dpctl.memory.MemoryUSMShared(16)
    assert memory.__sycl_usm_array_interface__["data"][1] is True  # and it is writable
    own = type("Own", (dpctl.memory.MemoryUSMHost,), {})(16)
    assert not gmm.asarray(memory).readonly and not gmm.asarray(own).readonly
    for readonly in (False, True):
        array = gmm.asarray(Record(memory, data=(memory._pointer, readonly)))
        assert array.readonly == readonly and array.address == memory._pointer
    with pytest.raises(ValueError, match="read-only"):
        array.copy_from(bytes(16))


def test_an_import_waits_for_the_queue_that_is_named(context):
    memory, waits = dpctl.memory.MemoryUSMShared(16), []
    queue = types.SimpleNamespace(wait=lambda: waits.append(memory.sycl_queue.wait()))
    in_interface, as_attribute = Record(memory, syclobj=queue), Record(memory)
    as_attribute.sycl_queue = queue  # as an array has it
    for count, record in enumerate((in_interface, as_attribute), 1):
        assert gmm.asarray(record).address == memory._pointer and len(waits) == count
    for other in (memory.sycl_context, None):  # nothing to wait for
        assert gmm.asarray(Record(memory, syclobj=other)).address == memory._pointer


@pytest.mark.parametrize("data", [{}, {"data": None}])
def test_a_record_without_data_means_the_buffer_protocol(context, data):
    class Words(bytearray):
        @property
        def __sycl_usm_array_interface__(self):
            return {"shape": (4,), "typestr": "|u1", "version": 1, **data}

    words = Words(b"gmm!")
    array = gmm.asarray(words)
    assert array.tolist() == list(b"gmm!") and not array.readonly
    words[0] = 0
    assert array.tolist()[0] == 0


@pytest.mark.parametrize("properties", ["in_order", "enable_profiling"])
def test_queues_of_dpctl_are_streams(context, properties):
    queue = dpctl.SyclQueue(property=properties)
    assert queue.is_in_order == (properties == "in_order")
    whole = context.alloc(8 << 20, Kind.HOST)
    last = context.alloc(1, Kind.HOST)
    for value in range(1, 20):
        whole.fill(value, stream=queue)
        # In order, also where the queue itself has none.
        context.copy(last, whole.address + (8 << 20) - 1, 1, stream=queue)
        queue.wait()
        assert memoryview(last)[0] == value
    # A block that is freed on a queue and allocated on another comes behind its work.
    block = context.alloc(8 << 20, Kind.HOST, stream=queue)
    block.fill(1, stream=queue)
    block.free(queue)
    again = context.alloc(8 << 20, Kind.HOST, zero=True)
    with context.event() as event:
        event.record()
        event.synchronize()
    queue.wait()
    assert bytes(memoryview(again)[-4:]) == bytes(4)


def test_streams_are_queues_of_dpctl(context):
    buffer = context.alloc(1 << 20, Kind.HOST)
    stream = context.stream()
    queue = stream.sycl_queue
    assert queue.is_in_order and queue.sycl_context == context.sycl_object and queue.sycl_device.is_cpu
    seen = dpctl.memory.as_usm_memory(buffer)
    order = []
    stream.call(lambda: order.append("call"))
    buffer.fill(3, stream=stream)
    stream.synchronize()
    queue.memcpy(seen, b"\4" * 100, 100)
    assert order == ["call"] and bytes(memoryview(buffer)[98:102]) == b"\4\4\3\3"
    stream.close()
    queue.memcpy(seen, b"\5" * 100, 100)  # dpctl's reference outlives the stream
    assert memoryview(buffer)[99] == 5


def test_vmm_is_refused_and_the_rest_says_what_it_is(context):
    assert context.info.backend_name == "sycl" and "DPC++" in context.info.driver_version
    with pytest.raises(gmm.NotSupportedError, match="VMM"):
        context.alloc(100, Kind.VMM)
    info = context.query(np.zeros(8).ctypes.data)
    assert info.usm == Usm.UNKNOWN
    assert not hasattr(context.alloc(100, Kind.HOST), "__cuda_array_interface__")


def test_the_environment_chooses_it_and_auto_never_does():
    program = "import gmm; print(gmm.Context().info.backend_name)"
    for backend in ("sycl", "auto"):
        done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "GMM_BACKEND": backend},
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert (done.stdout.strip() == "sycl") == (backend == "sycl")
