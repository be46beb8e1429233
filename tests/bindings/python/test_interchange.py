# SPDX-License-Identifier: Apache-2.0
"""Other packages see the same bytes, at the same address."""
import ctypes
import gc

import pytest
from conftest import need

import gmm
from gmm import Capability, Kind

np = pytest.importorskip("numpy")

HOST_VISIBLE = [Kind.HOST, Kind.MANAGED]
CPU, CUDA = 1, 2


def on_host(context):
    return context.info.backend_name == "host"


def kinds_with_buffers(context):
    return context.device_info(0).kinds if on_host(context) else HOST_VISIBLE


def test_buffer_protocol(context):
    for kind in kinds_with_buffers(context):
        with context.alloc(4096, kind) as buffer:
            view = memoryview(buffer)
            assert (view.nbytes, view.format, view.readonly, view.contiguous) == (4096, "B", False, True)
            array = np.frombuffer(buffer, dtype=np.float32)
            assert array.ctypes.data == buffer.address and array.size == 1024
            array[:] = 1.5
            assert bytes(buffer)[:4] == array[:1].tobytes() and len(buffer) == 4096
            view.release()
            del array


def test_no_buffer_protocol_for_device_memory(context):
    if on_host(context):
        pytest.skip("the host reaches every kind of its own memory")
    for kind in (Kind.DEVICE, Kind.VMM):
        with context.alloc(4096, kind) as buffer:
            with pytest.raises(BufferError, match="host cannot reach"):
                memoryview(buffer)
            assert len(bytes(buffer)) == 4096  # a copy
            assert buffer._exports == 0


def test_copies(context):
    with context.alloc(1024) as first, context.alloc(1024, Kind.HOST) as second:
        values = np.arange(256, dtype=np.int32)
        first.copy_from(values)
        second.copy_from(first)
        seen = np.zeros(256, dtype=np.int32)
        second.copy_to(seen)
        assert (seen == values).all()
        part = bytearray(8)
        second.copy_to(part, offset=4)
        assert part == values[1:3].tobytes()
        stream = context.stream()
        first.fill(1, stream=stream)
        second.copy_from(first, stream=stream)
        second.copy_to(part, stream=stream)
        assert part == b"\x01" * 8
        with pytest.raises(gmm.InvalidSizeError):
            first.copy_from(bytes(1025))
        with pytest.raises(gmm.InvalidSizeError):
            first.copy_to(bytearray(2), offset=1023)
        with pytest.raises(BufferError):
            first.copy_to(bytes(4))
        with pytest.raises((BufferError, ValueError)):  # numpy's own word for what is not contiguous
            first.copy_from(np.zeros((4, 4), dtype=np.uint8).T[1:])
        stream.close()


def test_dlpack_numpy(context):
    for kind in kinds_with_buffers(context):
        buffer = context.alloc(4096, kind)
        buffer.fill(5)
        device = (CPU, 0)
        if buffer.__dlpack_device__() == device:
            array = np.from_dlpack(buffer)
        else:
            array = np.from_dlpack(OnDevice(buffer, device))
        assert array.ctypes.data == buffer.address and array.dtype == np.uint8 and array.shape == (4096,)
        assert array[17] == 5
        with pytest.raises(BufferError, match="views"):
            buffer.free()
        del buffer
        gc.collect()
        assert array.sum() == 5 * 4096  # the array keeps it
        del array
        gc.collect()
    assert context.stats().live_blocks == 0


class OnDevice:
    """Asks for a DLPack device by name, as consumers do that have no argument for it."""

    def __init__(self, buffer, device):
        self.buffer, self.device = buffer, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        options["dl_device"] = self.device
        return self.buffer.__dlpack__(**options)


_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def test_dlpack_capsules(host):
    buffer = host.alloc(64)
    legacy, versioned = buffer.__dlpack__(), buffer.__dlpack__(max_version=(1, 1))
    assert _name(legacy) == b"dltensor" and _name(versioned) == b"dltensor_versioned"
    words = (ctypes.c_uint32 * 2).from_address(_pointer(versioned, b"dltensor_versioned"))
    assert tuple(words) == (1, 0)
    tensor = _pointer(versioned, b"dltensor_versioned") + 32
    assert ctypes.c_void_p.from_address(tensor).value == buffer.address
    assert (ctypes.c_int32 * 2).from_address(tensor + 8)[:] == [CPU, 0]
    assert buffer._exports == 2
    del legacy, versioned  # nobody consumed them
    gc.collect()
    assert buffer._exports == 0
    buffer.free()


def test_dlpack_arguments(host):
    buffer = host.alloc(64)
    buffer.fill(3)
    assert buffer.__dlpack_device__() == (CPU, 0)
    with pytest.raises(ValueError, match="stream"):
        buffer.__dlpack__(stream=1)
    with pytest.raises(BufferError):
        buffer.__dlpack__(dl_device=(CUDA, 0))
    with pytest.raises(BufferError):
        buffer.__dlpack__(dl_device=(CUDA, 0), copy=False)
    copied = buffer.__dlpack__(copy=True, max_version=(1, 0))
    start = _pointer(copied, b"dltensor_versioned")
    assert ctypes.c_uint64.from_address(start + 24).value == 2  # IS_COPIED
    data = ctypes.c_void_p.from_address(start + 32).value
    assert data != buffer.address and ctypes.string_at(data, 64) == b"\x03" * 64
    buffer.free()  # the copy does not hold it
    assert host.stats().live_blocks == 1
    del copied
    gc.collect()
    assert host.stats().live_blocks == 0


def test_dlpack_of_paused_memory(host):
    with host.tag("away"):
        buffer = host.alloc(4096, Kind.VMM)
    host.pause("away")
    with pytest.raises(BufferError, match="paused"):
        buffer.__dlpack__()
    host.resume("away")
    buffer.__dlpack__()


def test_cuda_array_interface(context):
    with context.alloc(4096) as buffer:
        if on_host(context):
            assert not hasattr(buffer, "__cuda_array_interface__")
            with pytest.raises(TypeError, match="CUDA"):
                context.stream().__cuda_stream__()
            return
        interface = buffer.__cuda_array_interface__
        assert interface["version"] == 3 and interface["shape"] == (4096,) and interface["typestr"] == "|u1"
        assert interface["data"] == (buffer.address, False) and interface["stream"] == 1
        stream = context.stream()
        with context.alloc(16, stream=stream) as other:
            assert other.__cuda_array_interface__["stream"] == stream.handle == stream.__cuda_stream__()[1]


def test_dlpack_on_cuda(context):
    if on_host(context):
        pytest.skip("for the CUDA backend")
    with context.alloc(4096) as buffer:
        assert buffer.__dlpack_device__() == (CUDA, 0)
        stream = context.stream()
        for argument in (None, 1, 2, -1, stream.handle):
            buffer.__dlpack__(stream=argument)
        with pytest.raises(ValueError):
            buffer.__dlpack__(stream=0)
        buffer.fill(8)
        copied = np.from_dlpack(OnDevice(buffer, (CPU, 0)))
        assert copied.sum() == 8 * 4096
        with pytest.raises(BufferError):
            buffer.__dlpack__(dl_device=(CPU, 0), copy=False)
        del copied
        gc.collect()
    need(context, Capability.CONCURRENT_MANAGED)
    with context.alloc(4096, Kind.MANAGED) as managed:
        assert managed.__dlpack_device__() == (CUDA, 0)
        managed.__dlpack__(dl_device=(13, 0))
        managed.__dlpack__(dl_device=(CPU, 0))


def test_ctypes(host):
    with host.alloc(64, Kind.HOST) as buffer:
        numbers = (ctypes.c_uint8 * 64).from_buffer(buffer)
        assert ctypes.addressof(numbers) == buffer.address
        numbers[3] = 9
        del numbers
        gc.collect()
        assert bytes(buffer)[3] == 9
