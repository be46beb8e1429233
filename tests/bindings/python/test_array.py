# SPDX-License-Identifier: Apache-2.0
"""gmm.Array: shape, element type and strides over memory; NumPy says what is right."""
import gc
import itertools
import sys

import pytest
from checks import refused
from conftest import on_host

import gmm
from gmm import Kind

np = pytest.importorskip("numpy")

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
          "float64", "complex64", "complex128"]
OTHER_DTYPES = {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}


def same(array, expected):
    """Compares memory, layout and elements."""
    assert (array.shape, array.ndim, array.size) == (expected.shape, expected.ndim, expected.size)
    assert (array.dtype, array.nbytes, array.itemsize) == (expected.dtype.str, expected.nbytes, expected.itemsize)
    assert array.contiguous == expected.flags.c_contiguous
    if expected.size:
        assert array.address == expected.ctypes.data
        assert [step for step, length in zip(array.strides, array.shape) if length > 1] == [
            step for step, length in zip(expected.strides, expected.shape) if length > 1]
    assert array.tolist() == expected.tolist()


def pair(context):
    """An array of gmm, and NumPy's view of it."""
    array = context.array(np.arange(2 * 3 * 4, dtype=np.int32).reshape(2, 3, 4))
    return array, array.numpy()


def test_dtypes(host):
    for name in DTYPES:
        dtype, array = np.dtype(name), host.empty(3, name)
        for given in (dtype.str, dtype, dtype.type, dtype.str[1:], "=" + dtype.str[1:]):
            assert host.empty(3, given).dtype == array.dtype == dtype.str, given
        values = np.array([0, 1, 1]).astype(dtype)
        array.copy_from(values)
        assert (array.numpy() == values).all() and array.numpy().dtype == dtype
        assert (array.dtype_name, array.itemsize) == (name, dtype.itemsize)
        assert np.from_dlpack(array).dtype == dtype and memoryview(array).itemsize == dtype.itemsize
        assert gmm.asarray(values).dtype == dtype.str == gmm.asarray(memoryview(array)).dtype
    for name, itemsize in OTHER_DTYPES.items():
        array = host.empty((2, 2), name)
        assert (array.dtype, array.itemsize) == (name, itemsize)
        refused(BufferError, lambda: memoryview(array), match="view")
        assert array.view(f"uint{8 * itemsize}").numpy().shape == (2, 2)
    for given, expected in ((float, "<f8"), (int, "<i8"), (bool, "|b1"), (complex, "<c16"), (None, "<f8")):
        assert host.empty(1, given).dtype == expected
    for wrong in (">f4", "f3", "U4", "", "float128", np.dtype("M8[s]"), np.dtype([("a", "f4")]), object()):
        refused(TypeError, lambda: host.empty(1, wrong))


def test_shapes(host):
    for shape in ((), (0,), (1,), (3,), (2, 0, 3), (1, 1), (2, 3, 4), (1,) * 6):
        array, expected = host.zeros(shape, "i2"), np.zeros(shape, "i2")
        assert array.shape == shape and array.tolist() == expected.tolist() and array.contiguous
        assert (0 in shape or array.strides == expected.strides) and (not shape or len(array) == shape[0])
    assert host.empty(5).shape == (5,) and host.empty([2, 3]).shape == (2, 3) and host.empty(np.int64(4)).shape == (4,)
    refused(TypeError, lambda: len(host.empty(())))
    for wrong, error in ((-1, ValueError), ((2, -1), ValueError), (2.5, TypeError), ("ab", TypeError),
                         ((1 << 40, 1 << 40), ValueError), (1 << 70, ValueError), ((0, 1 << 62), ValueError),
                         ((1,) * 65, ValueError)):
        refused(error, lambda: host.empty(wrong))
    refused((gmm.OutOfMemoryError, gmm.SizeOverflowError), lambda: host.empty(1 << 50))
    nothing = gmm.Array(host.alloc(64), (4, 0), "u1", strides=(1 << 62, 1))
    assert nothing[3].size == 0 and nothing[::-3].shape == (2, 0)


def test_allocation(context):
    tag, stream = context.tag("arrays"), context.stream()
    array = context.zeros((4, 4), "f4", Kind.HOST, device=0, tag=tag, stream=stream, alignment=4096)
    assert array.kind == Kind.HOST and array.info.tag == tag and array.stream is stream and array.address % 4096 == 0
    assert array.buffer.nbytes == 64 and array.context is context and array.device == array.buffer.device
    for wrong in ({"colour": 1}, {"size": 3}, {"dtype": "f4"}):
        refused(TypeError, lambda: context.empty(3, "f4", **wrong))
    array.free()
    stream.close()
    by_default = gmm.zeros((2, 2), "i4", Kind.HOST)
    assert by_default.context is gmm.context() and by_default.tolist() == [[0, 0], [0, 0]]
    assert gmm.empty(3, kind="host").nbytes == 24 and gmm.array([1, 2], kind=Kind.HOST).tolist() == [1, 2]


INDICES = [0, -1, slice(None), slice(1, None), slice(None, None, -1), slice(10, 20), slice(2, 0, -2), slice(0, 2), None,
           Ellipsis]


def test_basic_indexing_is_numpys(host):
    array, view = pair(host)
    for key in itertools.chain.from_iterable(itertools.product(INDICES, repeat=count) for count in (1, 2, 3)):
        try:
            expected = view[key]
        except IndexError:
            refused(IndexError, lambda: array[key])
            continue
        if isinstance(expected, np.ndarray):
            same(array[key], expected)
        else:
            one = array[key]
            assert one.shape == () and one.item() == expected.item() == float(one) == int(one)
    assert [row.shape for row in array] == [(3, 4), (3, 4)]
    for wrong, error in ((2, IndexError), (-3, IndexError), (1.5, TypeError), ([0, 1], TypeError), (True, TypeError),
                         (1 << 80, IndexError), ("x", TypeError), (slice(None, None, 0), ValueError)):
        refused(error, lambda: array[wrong])


def test_views(host):
    array, view = pair(host)
    for step in (lambda a: a.T, lambda a: a.transpose(1, 0, 2), lambda a: a.transpose((2, -3, 1)),
                 lambda a: a.reshape(-1), lambda a: a.reshape(4, -1), lambda a: a.reshape((1, 24, 1)),
                 lambda a: a[0].reshape(2, 6), lambda a: a.view("u1"), lambda a: a.view("f8"), lambda a: a.view("f4"),
                 lambda a: a[:, 1].view("i2"), lambda a: a[0:0].reshape(0, 7), lambda a: a[:, :, 1:2].view("f4")):
        same(step(array), step(view))
    assert array[0, 0, 0].reshape(()).shape == () and array.T.T.contiguous
    refused(ValueError, lambda: array.reshape(5), lambda: array.reshape(-1, -1), lambda: array.reshape(-2),
            lambda: array.reshape(-1, 7), lambda: array.reshape(-1, 0), lambda: array.T.reshape(-1),
            lambda: array.transpose(0), lambda: array.transpose(0, 0, 1), lambda: array.transpose(0, 1, 3),
            lambda: array.T.view("u1"), lambda: array[:, :, :3].view("f8"))
    # Views share the buffer and know where they lie in it.
    assert array[1].buffer is array.buffer and array[1].offset == 48 and array.offset == 0


def test_over_a_buffer(host):
    buffer = host.alloc(100)
    buffer.copy_from(bytes(range(100)))
    assert gmm.Array(buffer).shape == (100,) and gmm.Array(buffer).dtype == "|u1"
    assert gmm.Array(buffer, None, "u4").shape == (25,)
    array = gmm.Array(buffer, (3, 2), "u1", strides=(-10, 5), offset=50, readonly=True)
    assert array.tolist() == [[50, 55], [40, 45], [30, 35]] and array.readonly and memoryview(array).readonly
    assert gmm.Array(buffer, (0,), "f8", offset=100).size == 0
    for shape, strides, offset in (((101,), None, 0), ((100,), None, 1), ((2,), (-1,), 0), ((2,), (100,), 0),
                                   ((3,), (1 << 62,), 0), ((1,), None, -1), ((1,), None, 100), ((2,), (1, 2), 0)):
        refused(ValueError, lambda: gmm.Array(buffer, shape, strides=strides, offset=offset))
    refused(ValueError, lambda: gmm.Array(buffer, None, "f8"), match="whole number")
    refused(TypeError, lambda: gmm.Array(b"bytes"))
    gc.collect()
    assert buffer._exports == 0


def test_copies_of_every_kind(context):
    values = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    with context.stream() as stream:
        for kind in context.device_info(0).kinds:
            array = context.array(values, kind=kind)
            assert array.kind == kind and bytes(array) == values.tobytes() and str(array) == str(values)
            assert np.asarray(array, dtype=np.float64).dtype == np.float64
            copied, again = array.copy(), np.zeros_like(values)
            assert copied.kind == kind and copied.address != array.address and (copied.numpy() == values).all()
            array[1].copy_to(again[1])
            assert (again[1] == values[1]).all() and not again[0].any()
            array[2].copy_from(array[0])
            array[0].fill(0)
            assert (array.numpy()[2] == values[0]).all() and not array.numpy()[0].any()
            for wrong, message in ((lambda: array.copy_from(values[0]), "bytes"),
                                   (lambda: array.T.copy_from(values), "strides"),
                                   (lambda: array[:, 0].fill(0), "strides")):
                refused(ValueError, wrong, match=message)
            array.copy_from(values, stream=stream)
            copied.copy_from(array, stream=stream)
            stream.synchronize()
            assert (copied.numpy() == values).all()
            if on_host(context) or kind in (Kind.HOST, Kind.MANAGED):
                assert (array.T.copy().numpy() == values.T).all()
                assert array.numpy(copy=False).ctypes.data == array.address != array.numpy(copy=True).ctypes.data
                continue
            refused(BufferError, lambda: array.numpy(copy=False), array.T.copy, lambda: memoryview(array))
            refused(ValueError, lambda: np.asarray(array, copy=False))


def test_numbers_are_numpys(host, monkeypatch):
    for source in ([1, 2, 3], [[1.5, 2], [3, 4]], 7, [True, False], [1j, 2], [], [[], []], (1, 2)):
        array, expected = host.array(source), np.array(source)
        assert array.dtype == expected.dtype.str and array.tolist() == expected.tolist(), source
    assert host.array([1, 2], "f2").tolist() == [1.0, 2.0] and host.array(b"abc").tolist() == [97, 98, 99]
    assert host.array(np.arange(6).reshape(2, 3).T).tolist() == [[0, 3], [1, 4], [2, 5]]
    for wrong, dtype, error in (([[1], [2, 3]], None, ValueError), (["x"], None, TypeError),
                                (np.arange(3.0), "f4", TypeError)):
        refused(error, lambda: host.array(wrong, dtype))
    assert host.array(7).item() == 7
    monkeypatch.setitem(sys.modules, "numpy", None)
    refused(ImportError, lambda: host.array([1]), match="numpy")
    assert "gmm.Array" in str(host.zeros(3)) and memoryview(host.zeros(3)).shape == (3,)
    gc.collect()
    assert host.stats().live_blocks == 1
