# SPDX-License-Identifier: Apache-2.0
"""The package beside a real dpctl and dpnp: memory, queues and arrays that both use, without a copy.

tests/unit/backend/sycl_backend_test.cpp has what the library does with queues and pointers of dpctl.
"""
import gc
import os
import types
import weakref

import dpctl
import dpctl.memory
import numpy as np
import pytest

import gmm
from gmm import Kind

try:
    import dpnp

    try:
        import dpnp.tensor as dpt
    except ImportError:  # dpnp 0.19: dpctl has it
        import dpctl.tensor as dpt
except ImportError:
    dpnp = None  # it comes later than dpctl

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
def test_memory_in_both_directions(context, kind):
    name, cls = KINDS[kind]
    buffer = context.alloc(400, kind)
    assert not hasattr(buffer, "__cuda_array_interface__")
    seen = dpctl.memory.as_usm_memory(buffer)
    assert type(seen) is cls and (seen.get_usm_type(), seen._pointer, seen.nbytes) == (name, buffer.address, 400)
    assert seen.sycl_context == context.sycl_object == dpctl.SyclDevice().sycl_platform.default_context
    seen.copy_from_host(np.full(400, 3, "u1"))
    assert bytes(buffer) == b"\3" * 400
    buffer.fill(7)
    assert seen.tobytes() == b"\7" * 400
    memory = cls(400)
    array = gmm.asarray(memory)
    info = context.query(memory._pointer + 399)
    assert (array.address, array.nbytes, info.kind, info.usm.name.lower()) == (memory._pointer, 400, kind, name)
    memory.memset(5)
    assert array.numpy().tolist() == [5] * 400
    array.copy_from(bytes([9]) * 400)  # by the default context, which is of SYCL here
    assert memory.tobytes() == b"\x09" * 400


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
def test_a_record_without_data_means_the_buffer_protocol(data):
    class Words(bytearray):
        @property
        def __sycl_usm_array_interface__(self):
            return {"shape": (2, 2), "typestr": "|u1", "version": 1, "strides": (2, 1), "offset": 1, **data}

    array = gmm.asarray(Words(b".gmm!"))
    assert array.tolist() == [[*b"gm"], [*b"m!"]] and not array.readonly
    with pytest.raises(ValueError, match="past the buffer's 4 bytes"):
        gmm.asarray(Words(b".gmm"))


def test_streams_are_queues_of_dpctl_and_queues_are_streams(context):
    buffer, stream, order = context.alloc(1 << 20, Kind.HOST), context.stream(), []
    queue = stream.sycl_queue
    assert queue.is_in_order and queue.sycl_context == context.sycl_object and queue.sycl_device.is_cpu
    stream.call(lambda: order.append("call"))
    buffer.fill(3, stream=stream)
    stream.synchronize()
    seen = dpctl.memory.as_usm_memory(buffer)
    queue.memcpy(seen, b"\4" * 100, 100)
    assert order == ["call"] and bytes(memoryview(buffer)[98:102]) == b"\4\4\3\3"
    stream.close()
    queue.memcpy(seen, b"\5" * 100, 100)  # dpctl's reference outlives the stream
    assert memoryview(buffer)[99] == 5
    for properties in ("in_order", "enable_profiling"):
        theirs = dpctl.SyclQueue(property=properties)
        block = context.alloc(1 << 20, Kind.HOST, stream=theirs)
        block.fill(6, stream=theirs)
        theirs.wait()
        assert memoryview(block)[-1] == 6
        block.free(theirs)
        context.forget_stream(theirs)


# Arrays of dpnp.

with_dpnp = pytest.mark.skipif(dpnp is None, reason="there is no dpnp")
NUMBERS = np.arange(24, dtype="f4").reshape(4, 6)


#: How dpnp takes memory without a copy.
TAKE = {"asarray": lambda array: dpnp.asarray(array),
        "interface": lambda array: dpnp.ndarray(array.shape, dtype="f4", buffer=dpt.asarray(array, copy=False)),
        "tensor": lambda array: dpt.asarray(array, copy=False), "dlpack": lambda array: dpnp.from_dlpack(array)}


def address_of(array):
    array = array.get_array() if hasattr(array, "get_array") else array
    return array._pointer


@with_dpnp
@pytest.mark.parametrize("take", TAKE)
@pytest.mark.parametrize("kind", KINDS)
def test_dpnp_takes_gmms_arrays(context, kind, take):
    array = context.array(NUMBERS, kind=kind)
    seen = TAKE[take](array)
    assert address_of(seen) == array.address and seen.usm_type == KINDS[kind][0] and seen.shape == (4, 6)
    with pytest.raises(BufferError):
        array.free()  # the memory would go to another block while dpnp writes into it
    if take != "interface":
        part = array[1::2, ::3]
        assert address_of(TAKE[take](part)) == part.address
    seen[1, 2] = 70
    seen.sycl_queue.wait()
    assert array.tolist()[1][2] == 70
    array.fill(0)
    assert dpt.asnumpy(seen if take == "tensor" else seen.get_array()).tolist() == np.zeros((4, 6)).tolist()
    del seen
    array.free()


@with_dpnp
@pytest.mark.parametrize("usm_type", ["device", "host", "shared"])
@pytest.mark.parametrize("take", [gmm.asarray, gmm.from_dlpack])
def test_gmm_takes_dpnps_arrays(context, usm_type, take):
    theirs = dpnp.arange(24, dtype="i4", usm_type=usm_type).reshape(4, 6)
    array = take(theirs, context=context)  # waits for the queue of dpnp's work
    assert array.address == address_of(theirs) and array.shape == (4, 6) and not array.readonly
    assert array.tolist() == theirs.asnumpy().tolist()
    array.copy_from(np.full((4, 6), 5, "i4"))
    assert (theirs.asnumpy() == 5).all()
    turned = take(theirs.T, context=context)
    assert turned.shape == (6, 4) and turned.address == address_of(theirs)


@with_dpnp
def test_read_only_is_kept(context):
    frozen = gmm.Array(context.array(NUMBERS).buffer, (4, 6), "float32", readonly=True)
    seen = dpt.asarray(frozen, copy=False)
    assert address_of(seen) == frozen.address and not seen.flags.writable
    with pytest.raises(ValueError, match="read-only"):
        seen[0, 0] = 1
    theirs = dpnp.ones((4, 6), dtype="f4").get_array()
    theirs.flags["W"] = False
    array = gmm.asarray(theirs, context=context)
    assert array.readonly and array.address == address_of(theirs)


@with_dpnp
def test_each_keeps_the_others_memory(context):
    array = context.array(NUMBERS)
    gone = weakref.ref(array.buffer)
    seen = dpt.asarray(array, copy=False)
    del array
    gc.collect()
    assert gone() is not None and float(dpt.sum(seen)) == NUMBERS.sum()
    del seen
    gc.collect()
    assert gone() is None
    theirs = dpt.ones(1000, dtype="f4")
    array = gmm.asarray(theirs, context=context)
    del theirs
    gc.collect()
    others = [dpt.zeros(1000, dtype="f4") for _ in range(8)]
    others[0].sycl_queue.wait()
    assert array.address not in [other._pointer for other in others] and set(array.tolist()) == {1.0}
