# SPDX-License-Identifier: Apache-2.0
"""gmm.Array: shape, element type and strides over memory; NumPy says what is right."""
import gc
import itertools
import struct
import threading
import weakref

import pytest
from test_interchange import on_host

import gmm
from gmm import Kind

np = pytest.importorskip("numpy")

NUMPY_DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
                "float64",
                "complex64", "complex128"]
OTHER_DTYPES = {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}


def same(array, expected):
    """The same memory, layout and elements."""
    assert array.shape == expected.shape and array.ndim == expected.ndim and array.size == expected.size
    assert array.dtype == expected.dtype.str and array.nbytes == expected.nbytes and array.itemsize == expected.itemsize
    if expected.size:
        assert array.address == expected.ctypes.data
        assert [step for step, length in zip(array.strides, array.shape) if length > 1] == [
            step for step, length in zip(expected.strides, expected.shape) if length > 1]
    assert array.contiguous == expected.flags.c_contiguous
    assert array.tolist() == expected.tolist()


def pair(context):
    """An array of gmm, and NumPy's view of it."""
    array = context.array(np.arange(2 * 3 * 4, dtype=np.int32).reshape(2, 3, 4))
    return array, array.numpy()


def test_dtypes(host):
    for name in NUMPY_DTYPES:
        dtype = np.dtype(name)
        for given in (name, dtype.str, dtype, dtype.type, dtype.str[1:]):
            array = host.empty(3, given)
            assert (array.dtype, array.dtype_name, array.itemsize) == (dtype.str, name, dtype.itemsize), given
        values = np.array([0, 1, 1]).astype(dtype)
        array.copy_from(values)
        assert array.tolist() == values.tolist() and (array.numpy() == values).all() and array.numpy().dtype == dtype
        assert np.from_dlpack(array).dtype == dtype and memoryview(array).itemsize == dtype.itemsize
    for name, itemsize in OTHER_DTYPES.items():
        array = host.empty((2, 2), name)
        assert (array.dtype, array.itemsize) == (name, itemsize)
        with pytest.raises(BufferError, match="view"):
            memoryview(array)
        assert array.view(f"uint{8 * itemsize}").numpy().shape == (2, 2)
    for given, expected in ((float, "<f8"), (int, "<i8"), (bool, "|b1"), (complex, "<c16"), (None, "<f8")):
        assert host.empty(1, given).dtype == expected
    assert host.empty(1).dtype == "<f8"
    for wrong in (">f4", "f3", "U4", "", "float128", np.dtype("M8[s]"), np.dtype([("a", "f4")]), object()):
        with pytest.raises(TypeError):
            host.empty(1, wrong)
    del array
    assert host.stats().live_blocks == 0


def test_shapes(host):
    for shape in ((), (0,), (1,), (3,), (2, 0, 3), (1, 1), (2, 3, 4), (1,) * 6):
        array = host.zeros(shape, "i2")
        expected = np.zeros(shape, "i2")
        assert array.shape == shape and array.tolist() == expected.tolist() and array.contiguous
        assert 0 in shape or array.strides == expected.strides
        if shape:
            assert len(array) == shape[0]
    assert host.empty(5).shape == (5,) and host.empty([2, 3]).shape == (2, 3) and host.empty(np.int64(4)).shape == (4,)
    with pytest.raises(TypeError):
        len(host.empty(()))
    for wrong, error in ((-1, ValueError), ((2, -1), ValueError), (2.5, TypeError), ("ab", TypeError),
                         ((1 << 40, 1 << 40), ValueError),
                         (1 << 70, OverflowError), ((1,) * 65, ValueError)):
        with pytest.raises(error):
            host.empty(wrong)
    with pytest.raises((gmm.OutOfMemoryError, gmm.SizeOverflowError)):
        host.empty(1 << 50)


def test_options(context):
    tag, stream = context.tag("arrays"), context.stream()
    array = context.zeros((4, 4), "f4", Kind.HOST, device=0, tag=tag, stream=stream, alignment=4096)
    assert array.kind == Kind.HOST and array.info.tag == tag and array.stream is stream and array.address % 4096 == 0
    assert array.buffer.nbytes == 64 and array.context is context and array.device == array.buffer.device
    assert context.empty(8, kind=Kind.HOST, tag="arrays", dedicated=True).info.tag == tag
    for wrong in ({"colour": 1}, {"zero": True}, {"size": 3}, {"dtype": "f4"}):
        with pytest.raises(TypeError):
            context.empty(3, "f4", **wrong)
    with pytest.raises(TypeError):
        context.empty()
    with pytest.raises(gmm.InvalidDeviceError):
        context.empty(3, device=99)
    with pytest.raises(OverflowError):
        context.empty(3, kind=1 << 40)
    with pytest.raises(OverflowError):
        context.empty(3, kind=-1)
    array.free()
    del array
    stream.close()


INDICES = [0, -1, slice(None), slice(1, None), slice(None, None, -1), slice(10, 20), slice(2, 0, -2), slice(0, 2), None,
           Ellipsis]


def test_basic_indexing_is_numpys(host):
    array, view = pair(host)
    for count in (1, 2, 3, 4):
        for key in itertools.product(INDICES, repeat=count):
            try:
                expected = view[key]
            except IndexError:
                with pytest.raises(IndexError):
                    array[key]
                continue
            if not isinstance(expected, np.ndarray):
                assert array[key].shape == () and array[key].item() == expected.item()
                continue
            got = array[key]
            assert got.shape == expected.shape and got.contiguous == expected.flags.c_contiguous, key
            if expected.size:
                assert got.address == expected.ctypes.data, key
                steps = [(a, b) for a, b, n in zip(got.strides, expected.strides, got.shape) if n > 1]
                assert all(a == b for a, b in steps), key
    same(array[1], view[1])
    same(array[1, ::-1], view[1, ::-1])
    assert [row.shape for row in array] == [(3, 4), (3, 4)]
    for wrong, error in ((2, IndexError), (-3, IndexError), (1.5, TypeError), ([0, 1], TypeError), (True, TypeError),
                         (1 << 80, IndexError), ("x", TypeError)):
        with pytest.raises(error):
            array[wrong]
    with pytest.raises(ValueError):
        array[::0]


def test_views(host):
    array, view = pair(host)
    same(array.T, view.T)
    same(array.transpose(1, 0, 2), view.transpose(1, 0, 2))
    same(array.transpose((2, -3, 1)), view.transpose((2, -3, 1)))
    same(array.reshape(-1), view.reshape(-1))
    same(array.reshape(4, -1), view.reshape(4, -1))
    same(array.reshape((1, 24, 1)), view.reshape((1, 24, 1)))
    same(array[0].reshape(2, 6), view[0].reshape(2, 6))
    same(array.view("u1"), view.view("u1"))
    same(array.view("f8"), view.view("f8"))
    same(array.view("f4"), view.view("f4"))
    same(array[:, 1].view("i2"), view[:, 1].view("i2"))
    assert array[0:0].reshape(0, 7).shape == (0, 7)
    assert array[0, 0, 0].reshape(()).shape == ()
    for wrong in ((5,), (-1, -1), (-2,), (-1, 7), (-1, 0)):
        with pytest.raises(ValueError):
            array.reshape(*wrong)
    with pytest.raises(ValueError, match="contiguous"):
        array.T.reshape(-1)
    for wrong in ((0,), (0, 0, 1), (0, 1, 3), (0, 1, 2, 2)):
        with pytest.raises((ValueError, TypeError)):
            array.transpose(*wrong)
    with pytest.raises(ValueError):
        array.T.view("u1")
    with pytest.raises(ValueError):
        array[:, :, :3].view("f8")
    assert array.T.T.contiguous and array[:, :, 1:2].view("f4").shape == (2, 3, 1)
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
                                   ((3,), (1 << 62,), 0), ((1,), None, -1),
                                   ((1,), None, 100),
                                   ((2,), (1, 2), 0)):
        with pytest.raises(ValueError):
            gmm.Array(buffer, shape, strides=strides, offset=offset)
    with pytest.raises(ValueError, match="whole number"):
        gmm.Array(buffer, None, "f8")
    with pytest.raises(TypeError):
        gmm.Array(b"bytes")
    gc.collect()
    assert buffer._exports == 0


def test_copies_of_every_kind(context):
    values = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    for kind in context.device_info(0).kinds:
        array = context.array(values, kind=kind)
        assert array.kind == kind and array.shape == (3, 4, 5) and array.dtype == "<f4"
        assert (np.asarray(array) == values).all() and bytes(array) == values.tobytes()
        assert array.tolist() == values.tolist()
        assert array[1, 2, 3].item() == values[1, 2, 3]
        copied = array.copy()
        assert copied.kind == kind and copied.address != array.address and (copied.numpy() == values).all()
        again = np.zeros_like(values)
        array[1].copy_to(again[1])
        assert (again[1] == values[1]).all() and not again[0].any()
        array[2].copy_from(array[0])
        array[0].fill(0)
        assert (array.numpy()[2] == values[0]).all() and not array.numpy()[0].any()
        with pytest.raises(ValueError, match="bytes"):
            array.copy_from(values[0])
        with pytest.raises(ValueError, match="strides"):
            array.T.copy_from(values)
        with pytest.raises(ValueError, match="strides"):
            array[:, 0].fill(0)
        with context.alloc(values.nbytes, kind) as buffer:
            buffer.copy_from(copied)
            assert bytes(buffer) == values.tobytes()
            buffer.copy_from(copied[1], offset=8)
            buffer.copy_to(copied)
            assert bytes(copied)[8:88] == values[1].tobytes()
            copied.copy_from(values)
        stream = context.stream()
        array.copy_from(values, stream=stream)
        copied.copy_from(array, stream=stream)
        stream.synchronize()
        assert (copied.numpy() == values).all()
        stream.close()
        if on_host(context) or kind in (Kind.HOST, Kind.MANAGED):
            assert (array.T.copy().numpy() == values.T).all()
            assert array.numpy(copy=False).ctypes.data == array.address
            assert array.numpy(copy=True).ctypes.data != array.address
        else:
            with pytest.raises(BufferError):
                array.numpy(copy=False)
            with pytest.raises(ValueError):
                np.asarray(array, copy=False)
            with pytest.raises(BufferError):
                array.T.copy()
            with pytest.raises(BufferError, match="host cannot reach"):
                memoryview(array)
        assert np.asarray(array, dtype=np.float64).dtype == np.float64


def test_arrays_from_numbers(host):
    for source, dtype in (([1, 2, 3], "<i8"), ([[1.5, 2], [3, 4]], "<f8"), (7, "<i8"), ([True, False], "|b1"),
                          ([1j, 2], "<c16"), ([], "<f8"),
                          ([[], []], "<f8")):
        array = host.array(source)
        expected = np.array(source)
        assert array.dtype == dtype and array.shape == expected.shape and array.tolist() == expected.tolist(), source
    assert host.array([1, 2], "f2").tolist() == [1.0, 2.0]
    assert host.array([np.complex64(1j), np.float32(2)]).tolist() == [1j, 2]
    assert host.array((1, 2), "u1").nbytes == 2
    assert host.array(b"abc").tolist() == [97, 98, 99]
    assert host.array(np.arange(6).reshape(2, 3).T).tolist() == [[0, 3], [1, 4], [2, 5]]
    for wrong, dtype, error in (([[1], [2, 3]], None, ValueError), (["x"], None, TypeError), ([300], "u1", TypeError),
                                ([1.5], "i4", TypeError),
                                (np.arange(3.0), "f4", TypeError), ([1.0], "bfloat16", TypeError)):
        with pytest.raises(error):
            host.array(wrong, dtype)
    del array
    gc.collect()
    assert host.stats().live_blocks == 0


def test_buffer_protocol(host):
    array = host.array(np.arange(12, dtype=np.int16).reshape(3, 4))
    view = memoryview(array)
    assert (view.format, view.shape, view.strides, view.readonly, view.ndim) == ("h", (3, 4), (8, 2), False, 2)
    view[1, 2] = 99
    assert array[1, 2].item() == 99
    transposed = memoryview(array.T)
    assert transposed.shape == (4, 3) and transposed.f_contiguous and not transposed.c_contiguous
    assert transposed.tolist() == np.asarray(array).T.tolist()
    with pytest.raises(BufferError):
        struct.unpack_from("h", array[:, ::2])  # asks for plain bytes
    with pytest.raises(BufferError, match="views"):
        array.free()
    view.release()
    transposed.release()
    array.free()
    readonly = gmm.Array(host.alloc(16), readonly=True)
    assert memoryview(readonly).readonly and not np.asarray(readonly).flags.writeable
    with pytest.raises((BufferError, TypeError)):
        struct.pack_into("B", readonly, 0, 1)
    for write in (lambda: readonly.fill(1), lambda: readonly.copy_from(bytes(16)),
                  lambda: host.zeros(16, "u1").copy_to(readonly)):
        with pytest.raises(ValueError, match="read-only"):
            write()
    assert readonly[2:].readonly and readonly.view("u2").readonly and readonly.T.readonly


def test_life(context):
    array = context.zeros(1024, "f4", Kind.HOST)
    part = array[10:]
    held = weakref.ref(array), weakref.ref(array.buffer)
    del array
    gc.collect()
    assert held[0]() is None and held[1]() is part.buffer and context.stats().live_blocks == 1
    view = part.numpy()
    assert view.ctypes.data == part.address
    with pytest.raises(BufferError, match="views"):
        part.free()
    with pytest.raises(BufferError, match="views"):
        context.close()
    del part
    gc.collect()
    assert view.sum() == 0 and context.stats().live_blocks == 1
    del view
    gc.collect()
    assert held[1]() is None and context.stats().live_blocks == 0


def test_use_after_close(context):
    with context.empty((2, 2), "f4", Kind.HOST) as array:
        part = array[0]
        assert not part.closed
    assert array.closed and part.closed and "closed" in repr(part)
    assert part.shape == (2,) and array.dtype == "<f4"
    array.free()
    for use in (lambda: part.address, lambda: memoryview(part), part.__dlpack__, lambda: np.asarray(part),
                lambda: part.fill(0),
                lambda: part.copy_from(bytes(8)),
                lambda: bytes(part), lambda: context.copy(part, part, 8), lambda: part.info,
                lambda: gmm.Array(part.buffer)):
        with pytest.raises(gmm.ClosedError):
            use()
    other = context.empty(4, "u1")
    context.reset()
    assert other.closed
    with pytest.raises(gmm.ClosedError):
        other.address
    assert context.stats().live_blocks == 0


def test_objects_are_used_again(host):
    """An object that takes the place of one that is gone has nothing of it, weak references and finalizers included."""
    for _ in range(3):
        arrays = [host.empty((2, 3), "f4") for _ in range(200)] + [host.empty((1,) * 7, "u1") for _ in range(10)]
        gone = [weakref.ref(array) for array in arrays] + [weakref.ref(array.buffer) for array in arrays]
        assert len({array.address for array in arrays}) == 210 and host.stats().live_blocks == 210
        del arrays
        assert all(reference() is None for reference in gone) and host.stats().live_blocks == 0
    cycle = [host.empty(3)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert host.stats().live_blocks == 0

    class Mine(gmm.Buffer):
        pass

    assert issubclass(Mine, gmm.Buffer)
    with pytest.raises(TypeError):
        gmm.Buffer(3)
    with pytest.raises(TypeError):
        type("Mine", (gmm.Array,), {})


def test_threads(host):
    """Arrays made here and dropped there, with views in between."""
    failures, queue, wakes = [], [], threading.Semaphore(0)

    def make():
        for i in range(2000):
            array = host.empty((4, i % 50 + 1), "i4")
            array.fill(i % 256)
            queue.append((array.T, i % 256))
            wakes.release()

    def drop():
        for _ in range(2000):
            wakes.acquire()
            array, value = queue.pop()
            if set(memoryview(array.T).tobytes()) != {value}:
                failures.append(value)

    threads = [threading.Thread(target=work) for work in (make, drop, make, drop)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del queue[:]
    gc.collect()
    assert not failures and host.stats().live_blocks == 0


def test_default_context():
    array = gmm.zeros((2, 2), "i4", Kind.HOST)
    assert array.context is gmm.context() and array.tolist() == [[0, 0], [0, 0]]
    assert gmm.empty(3, kind=Kind.HOST).nbytes == 24 and gmm.array([1, 2], kind=Kind.HOST).tolist() == [1, 2]
    gmm.context().close()
    assert array.closed
    again = gmm.empty(3)
    assert again.context is gmm.context() and not again.closed
