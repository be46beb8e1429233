# SPDX-License-Identifier: Apache-2.0
"""Arrays of JAX and gmm by DLPack both ways, over the same memory: on the CPU and the host backend, and on a GPU."""
import gc
import os
import weakref

import pytest
from checks import refused, until

import gmm

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402 # after the check

KINDS = [gmm.Kind.DEVICE, gmm.Kind.VMM, gmm.Kind.HOST, gmm.Kind.MANAGED]
SIZE = 4096


@pytest.fixture
def context():
    with gmm.Context("host", host_memory=1 << 30) as made, jax.default_device(jax.devices("cpu")[0]):
        yield made
        gc.collect()


def address_of(array):
    return array.unsafe_buffer_pointer()


def wait_for(holds):
    """JAX lets go on a thread of its own."""
    until(lambda: gc.collect() >= 0 and holds())


def gpu():
    try:
        return jax.devices("gpu")[0]
    except RuntimeError as error:
        pytest.skip(f"JAX reaches no GPU here: {error}")


@pytest.mark.parametrize("on_gpu", [False, pytest.param(True, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("kind", KINDS)
def test_jax_takes_and_keeps_buffers(context, kind, on_gpu):
    if on_gpu:
        gpu()
        context = gmm.context()
    buffer = context.alloc(SIZE, kind)
    buffer.fill(3)
    array = jax.dlpack.from_dlpack(buffer)
    assert (address_of(array), array.dtype, array.shape) == (buffer.address, jnp.uint8, (SIZE,))
    assert int(array.astype("int32").sum()) == 3 * SIZE
    # Page-locked memory is CPU memory to JAX.
    assert next(iter(array.devices())).platform == ("gpu" if on_gpu and kind != gmm.Kind.HOST else "cpu")
    refused(BufferError, buffer.close, match="views")
    kept = weakref.ref(buffer)
    del buffer
    gc.collect()
    assert kept() is not None
    more = (array + 1).block_until_ready()  # JAX's own memory
    del array
    wait_for(lambda: kept() is None)
    assert int(more.astype("int32").sum()) == 4 * SIZE


@pytest.mark.parametrize("dtype", ["float32", "int8", "complex64", "bfloat16", "bool"])
def test_shapes_and_types_there_and_back(context, dtype):
    array = context.empty((3, 5), dtype)
    theirs = jax.dlpack.from_dlpack(array)
    assert (theirs.shape, theirs.dtype, address_of(theirs)) == ((3, 5), jnp.dtype(dtype), array.address)
    turned = jax.dlpack.from_dlpack(array.T)
    assert (turned.shape, address_of(turned)) == ((5, 3), array.address)
    for take in (gmm.from_dlpack, gmm.asarray) if dtype != "bfloat16" else (gmm.from_dlpack,):
        back = take(jnp.ones((3, 5), dtype).block_until_ready())
        assert (back.shape, back.dtype_name) == ((3, 5), dtype)
        assert address_of(jax.dlpack.from_dlpack(back)) == back.address
    assert gmm.from_dlpack(theirs).address == array.address


def test_a_donated_array_stays_gmms(context):
    array = context.array([float(i) for i in range(1024)], "float32")
    donated = jax.dlpack.from_dlpack(array)
    result = jax.jit(lambda x: x * 2, donate_argnums=0)(donated).block_until_ready()
    assert address_of(result) != array.address and float(result[3]) == 6
    assert array.tolist() == [float(i) for i in range(1024)]


# On a GPU.


@pytest.mark.gpu
def test_gmm_takes_and_keeps_arrays_of_the_gpu():
    array = jax.device_put(jnp.arange(1000, dtype="int32"), gpu()).block_until_ready()
    address, made = address_of(array), gmm.from_dlpack(array)
    del array
    gc.collect()
    # One of them would get the memory.
    others = [jax.device_put(jnp.zeros(1000, dtype="int32"), gpu()).block_until_ready() for _ in range(4)]
    assert address not in map(address_of, others)
    assert made.address == address and made.tolist() == list(range(1000))
