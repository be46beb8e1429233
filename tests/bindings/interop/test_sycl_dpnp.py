# SPDX-License-Identifier: Apache-2.0
"""dpnp's arrays and gmm's on the SYCL backend: the same memory, both ways."""
import ctypes
import gc
import os
import weakref

import dpctl
import numpy as np
import pytest

import gmm
from gmm import Kind

dpnp = pytest.importorskip("dpnp")

try:
    import dpnp.tensor as dpt
except ImportError:  # dpnp 0.19: dpctl has it
    import dpctl.tensor as dpt

pytestmark = pytest.mark.skipif(not dpctl.has_cpu_devices(), reason="dpctl sees no CPU device")

os.environ["GMM_BACKEND"] = "sycl"  # of the default context

KINDS = {Kind.DEVICE: "device", Kind.HOST: "host", Kind.MANAGED: "shared"}
NUMBERS = np.arange(24, dtype="f4").reshape(4, 6)


@pytest.fixture
def context():
    with gmm.Context("sycl") as opened:
        yield opened
        gc.collect()


#: How dpnp takes memory without a copy. dpnp.asarray() copies every array that is not its own.
TAKE = {"interface": lambda array: dpnp.ndarray(array.shape, dtype="f4", buffer=dpt.asarray(array, copy=False)),
        "tensor": lambda array: dpt.asarray(array, copy=False), "dlpack": dpnp.from_dlpack}


def address_of(array):
    array = array.get_array() if hasattr(array, "get_array") else array
    return array._pointer


@pytest.mark.parametrize("take", TAKE)
@pytest.mark.parametrize("kind", KINDS)
def test_dpnp_takes_gmms_arrays(context, kind, take):
    array = context.array(NUMBERS, kind=kind)
    seen = TAKE[take](array)
    assert address_of(seen) == array.address and seen.usm_type == KINDS[kind] and seen.shape == (4, 6)
    seen[1, 2] = 70
    seen.sycl_queue.wait()
    assert array.tolist()[1][2] == 70
    array.fill(0)
    assert dpt.asnumpy(seen if take == "tensor" else seen.get_array()).tolist() == np.zeros((4, 6)).tolist()


@pytest.mark.parametrize("usm_type", KINDS.values())
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


@pytest.mark.parametrize("take", [gmm.asarray, gmm.from_dlpack])
def test_an_import_waits_for_dpnps_work(context, take):
    values = dpnp.ones(1 << 20, dtype="i8", usm_type="host")
    for _ in range(30):  # work that has not ended when the CPU comes to read
        values = values + 1
    seen = take(values, context=context)
    assert (np.ctypeslib.as_array((ctypes.c_int64 * (1 << 20)).from_address(seen.address)) == 31).all()


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
