# SPDX-License-Identifier: Apache-2.0
"""Programs that change things while gmm looks at them, and numbers beyond all memory."""
import ctypes
import gc

import pytest

import gmm
from gmm import Kind

np = pytest.importorskip("numpy")


def test_a_stream_that_frees_the_memory_itself(context):
    """Foreign streams are asked by Python code, which may do anything, and so may other threads meanwhile."""
    class Stream:
        def __init__(self, act):
            self.act = act

        def __cuda_stream__(self):
            self.act()
            return 0, 0

    buffer = context.alloc(4096)
    reused = []
    buffer.free(Stream(lambda: (buffer.free(), reused.append(context.alloc(4096)))))
    # Not freed under the other's hands.
    assert buffer.closed and not reused[0].closed and context.stats().live_blocks == 1
    reused[0].free()
    views = []
    buffer = context.alloc(4096, Kind.HOST)
    with pytest.raises(BufferError, match="views"):
        buffer.free(Stream(lambda: views.append(memoryview(buffer))))
    assert not buffer.closed
    views.clear()
    buffer.free()


def test_a_cycle_with_a_view_gives_its_memory_back(context):
    """The collector finalizes the buffer while the view in the same cycle still looks at it."""
    for _ in range(3):
        cycle = [context.alloc(4096, Kind.HOST)]
        cycle += [memoryview(cycle[0]), cycle]
        del cycle
        gc.collect()
        assert context.stats().live_blocks == 0
    pinned = bytearray(8192)
    cycle = [context.pin(pinned)]
    cycle += [memoryview(cycle[0]), cycle]
    del cycle
    gc.collect()
    context.pin(pinned).close()  # which it is not any more


def test_hostile_shapes_and_indices(host):
    shape = [4, None, 2]

    class Shrinking:
        def __index__(self):
            shape.clear()
            return 3

    shape[1] = Shrinking()
    assert host.empty(shape, "u1").shape == (4, 3, 2)  # as it was when asked
    buffer = host.alloc(64)
    for wrong in ((0, 1 << 62), (1 << 62, 0, 8), (1 << 40, 1 << 40)):
        with pytest.raises(ValueError, match="beyond any address space"):
            host.empty(wrong)
        with pytest.raises(ValueError, match="beyond any address space"):
            gmm.Array(buffer, wrong, "f8")
    nothing = gmm.Array(buffer, (4, 0), "u1", strides=(1 << 62, 1))
    assert nothing[3].size == 0 and nothing[::-3].shape == (2, 0)
    array = host.array([1, 2, 3])
    item = ctypes.pythonapi.PySequence_GetItem
    item.argtypes, item.restype = [ctypes.py_object, ctypes.c_ssize_t], ctypes.py_object
    assert item(array, -1).item() == 3
    for wrong in (-4, -5, 3):
        with pytest.raises(IndexError):
            item(array, wrong)


class _View(ctypes.Structure):
    """Py_buffer."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int),
                ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p),
                ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)]


def test_a_single_item_has_no_shape_in_the_buffer_protocol(host):
    view, full = _View(), 0x11C  # PyBUF_FULL_RO
    for array, shaped in ((host.zeros((), "i4"), False), (host.zeros(3, "i4"), True)):
        assert ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(array), ctypes.byref(view), full) == 0
        assert (view.shape is not None, view.strides is not None) == (shaped, shaped)
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
    assert memoryview(host.zeros((), "i4")).tolist() == 0 and np.asarray(host.zeros((), "i4")).shape == ()


def test_no_elements_are_at_no_address_for_dlpack(host):
    """dlpack.h: of a tensor of size zero the data pointer is to be NULL."""
    array = host.zeros((0, 3), "i4")
    back = gmm.from_dlpack(array)
    assert array.address != 0 and back.address == 0 and back.shape == (0, 3) and back.tolist() == []
    assert np.from_dlpack(array).shape == (0, 3)
    assert gmm.from_dlpack(array[:, :1]).address == 0 and gmm.from_dlpack(host.zeros(3)).address != 0
