# SPDX-License-Identifier: Apache-2.0
"""Other packages see gmm's bytes at the same address, and gmm theirs: held as long as needed, and given back once."""
import concurrent.futures
import ctypes
import gc
import mmap
import struct
import threading
import weakref

import pytest
from checks import refused
from conftest import on_host

import gmm
from gmm import Kind

np = pytest.importorskip("numpy")

CPU, CUDA, CUDA_HOST, CUDA_MANAGED, ONE_API, METAL = 1, 2, 3, 13, 14, 8
READ_ONLY, IS_COPIED = 1, 2


u8, u16, i32, u32, u64, pointer = (getattr(ctypes, f"c_{name}") for name in (
    "uint8", "uint16", "int32", "uint32", "uint64", "void_p"))
Deleter = ctypes.CFUNCTYPE(None, pointer)  # releases the GIL, and the function takes it


class Tensor(ctypes.Structure):
    _fields_ = [("data", pointer), ("device", i32 * 2), ("ndim", i32), ("code", u8), ("bits", u8), ("lanes", u16),
                ("shape", pointer), ("strides", pointer), ("byte_offset", u64)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", u32), ("minor", u32), ("manager_ctx", pointer), ("deleter", pointer), ("flags", u64),
                ("tensor", Tensor)]


class Legacy(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("manager_ctx", pointer), ("deleter", pointer)]


def capsule_function(name, result, *arguments):
    function = getattr(ctypes.pythonapi, f"PyCapsule_{name}")
    function.restype, function.argtypes = result, arguments
    return function


new_capsule = capsule_function("New", ctypes.py_object, pointer, ctypes.c_char_p, pointer)
name_of = capsule_function("GetName", ctypes.c_char_p, ctypes.py_object)
rename = capsule_function("SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
pointer_of = capsule_function("GetPointer", pointer, ctypes.py_object, ctypes.c_char_p)


def versioned(capsule):
    return Versioned.from_address(pointer_of(capsule, b"dltensor_versioned"))


class Producer:
    """Another package: int32 memory as a tensor of either form. Its deleter notes each call and its thread."""

    def __init__(self, shape=(2, 3), *, strides=None, device=(CPU, 0), form=Versioned, version=(1, 0), flags=0, code=0,
                 bits=32, lanes=1, byte_offset=0, ndim=None):
        self.memory, self.deleted, self.asked, self.device = (i32 * 64)(*range(64)), [], [], device
        self.address = ctypes.addressof(self.memory)
        self.deleter = Deleter(lambda tensor: self.deleted.append((tensor, threading.get_ident())))
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        self.tensor = form(tensor=Tensor(
            self.address, (i32 * 2)(*device), len(shape) if ndim is None else ndim, code, bits, lanes,
            ctypes.addressof(self.shape), None if strides is None else ctypes.addressof(self.strides), byte_offset))
        self.tensor.deleter = ctypes.cast(self.deleter, pointer).value
        if form is Versioned:
            self.tensor.major, self.tensor.minor, self.tensor.flags = *version, flags

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        self.asked.append(options)
        # No destructor: a capsule that is dropped unconsumed gives nothing back here, so that each call of the deleter
        # is the consumer's.
        is_versioned = isinstance(self.tensor, Versioned)
        return new_capsule(ctypes.addressof(self.tensor), b"dltensor_versioned" if is_versioned else b"dltensor", None)


class OldProducer(Producer):
    """DLPack before 1.0 knows the stream only."""

    def __init__(self, **options):
        super().__init__(form=Legacy, **options)

    def __dlpack__(self, stream=None):
        return super().__dlpack__(stream=stream)


class Interface:
    """Memory by one protocol only."""

    def __init__(self, memory, **interfaces):
        self.memory = memory
        for name, value in interfaces.items():
            setattr(self, f"__{name}__", value)


class OnDevice:
    """Asks for a DLPack device by name, as consumers do that have no argument for it."""

    def __init__(self, buffer, device):
        self.__dlpack_device__ = lambda: device
        self.__dlpack__ = lambda **options: buffer.__dlpack__(**{**options, "dl_device": device})


# gmm's memory, for others.


def test_buffer_protocol(context):
    for kind in context.device_info(0).kinds:
        with context.alloc(4096, kind) as buffer:
            if not on_host(context) and kind in (Kind.DEVICE, Kind.VMM):
                with pytest.raises(BufferError, match="host cannot reach"):
                    memoryview(buffer)
                assert len(bytes(buffer)) == 4096 and buffer._exports == 0  # a copy
                continue
            with memoryview(buffer) as view:
                assert (view.nbytes, view.format, view.readonly, view.contiguous) == (4096, "B", False, True)
                assert np.asarray(view).ctypes.data == buffer.address


def test_buffer_protocol_of_arrays(host):
    array = host.array(np.arange(12, dtype=np.int16).reshape(3, 4))
    with memoryview(array) as view, memoryview(array.T) as transposed:
        assert (view.format, view.shape, view.strides, view.readonly, view.ndim) == ("h", (3, 4), (8, 2), False, 2)
        view[1, 2] = 99
        assert array[1, 2].item() == 99
        assert transposed.shape == (4, 3) and transposed.f_contiguous and not transposed.c_contiguous
    refused(BufferError, lambda: struct.unpack_from("h", array[:, ::2]))  # asks for plain bytes
    number = host.array(7, "i4")
    assert memoryview(number).tolist() == 7 and np.asarray(number).shape == ()
    readonly = gmm.Array(host.alloc(16), readonly=True)
    for each in (readonly, readonly[2:], readonly.view("u2"), readonly.T):
        assert each.readonly and memoryview(each).readonly and not np.asarray(each).flags.writeable
    refused((BufferError, TypeError), lambda: struct.pack_into("B", readonly, 0, 1))
    refused(ValueError, lambda: readonly.fill(1), lambda: readonly.copy_from(bytes(16)),
            lambda: host.zeros(16, "u1").copy_to(readonly), match="read-only")


def test_copies_with_objects_of_python(context):
    with context.alloc(1024) as buffer:
        refused(gmm.InvalidSizeError, lambda: buffer.copy_from(bytes(1025)),
                lambda: buffer.copy_to(bytearray(2), offset=1023), lambda: buffer.fill(0, offset=8, size=1017))
        refused((BufferError, ValueError), lambda: buffer.copy_to(bytes(4)),  # NumPy has its own words for the second
                lambda: buffer.copy_from(np.zeros((4, 4), dtype=np.uint8).T[1:]))


def test_dlpack_capsules(host):
    buffer = host.alloc(64)
    buffer.fill(3)
    legacy, modern = buffer.__dlpack__(), buffer.__dlpack__(max_version=(1, 1))
    assert name_of(legacy) == b"dltensor" and name_of(modern) == b"dltensor_versioned"
    made = versioned(modern)
    assert (made.major, made.minor, made.tensor.data, made.tensor.device[:]) == (1, 0, buffer.address, [CPU, 0])
    assert buffer._exports == 2
    refused(BufferError, buffer.free, match="views")
    del legacy, modern  # nobody consumed them
    gc.collect()
    assert buffer._exports == 0 and buffer.__dlpack_device__() == (CPU, 0)
    for error, options in ((ValueError, {"stream": 1}), (BufferError, {"dl_device": (CUDA, 0)}),
                           (BufferError, {"dl_device": (CUDA, 0), "copy": False})):
        refused(error, lambda: buffer.__dlpack__(**options))
    copied = buffer.__dlpack__(copy=True, max_version=(1, 0))
    made = versioned(copied)
    assert made.flags == IS_COPIED and made.tensor.data != buffer.address
    assert ctypes.string_at(made.tensor.data, 64) == b"\x03" * 64
    buffer.free()  # the copy does not hold it
    assert host.stats().live_blocks == 1
    del copied
    gc.collect()
    assert host.stats().live_blocks == 0
    # dlpack.h: the data pointer of a tensor without elements is NULL.
    assert gmm.from_dlpack(host.zeros((0, 3), "i4")).address == 0 and gmm.from_dlpack(host.zeros(3)).address != 0


def test_newer_types_need_a_newer_consumer(host):
    array = host.zeros(4, "float8_e5m2")
    for version in (None, (0, 8), (1, 0)):
        refused(BufferError, lambda: array.__dlpack__(max_version=version), match="1.1")
    capsule = array.__dlpack__(max_version=(1, 1))
    made = versioned(capsule)
    assert (made.major, made.minor, made.tensor.code, made.tensor.bits) == (1, 1, 12, 8)
    for name in ("float8_e5m2", "bfloat16"):
        assert gmm.from_dlpack(host.empty(2, name)).dtype == name
    refused(BufferError, gmm.Array(array.buffer, (1, 1), "u2", strides=(3, 3)).__dlpack__, match="strides in elements")


def test_protocols_of_the_gpu(context):
    array = context.zeros((4, 6), "f4")
    for each in (array, array.buffer):
        assert not hasattr(each, "__sycl_usm_array_interface__") and not hasattr(each, "sycl_queue")
        assert hasattr(each, "__cuda_array_interface__") != on_host(context)
    if on_host(context):
        refused(TypeError, context.stream().__cuda_stream__, match="CUDA")
        return
    with context.alloc(64, Kind.MANAGED) as managed:
        assert managed.__dlpack_device__() == (CUDA, 0)
        assert managed.__dlpack__(dl_device=(CUDA_MANAGED, 0)) is not None
        assert np.from_dlpack(OnDevice(managed, (CPU, 0))).ctypes.data == managed.address
    assert array.buffer.__cuda_array_interface__["shape"] == (96,)
    interface = array[1:, ::2].__cuda_array_interface__
    assert interface == {"shape": (3, 3), "typestr": "<f4", "data": (array.address + 24, False), "version": 3,
                         "strides": (24, 8), "stream": 1}
    assert not hasattr(context.empty(3, "bfloat16"), "__cuda_array_interface__")
    assert gmm.Array(array.buffer, readonly=True).__cuda_array_interface__["data"] == (array.address, True)
    # Out by DLPack, on streams, and back into gmm.
    stream = context.stream()
    ordered = context.empty(16, "f4", stream=stream)
    assert ordered.__cuda_array_interface__["stream"] == stream.handle
    for consumer in (None, 1, 2, -1, stream.handle, stream):
        assert ordered.__dlpack__(stream=consumer, max_version=(1, 0)) is not None
    refused(ValueError, lambda: ordered.__dlpack__(stream=0), match="stream 0")
    taken = context.from_dlpack(ordered, stream=stream)
    assert taken.address == ordered.address and taken.stream == stream.handle and taken.__dlpack_device__() == (CUDA, 0)
    assert context.asarray(Interface(None, cuda_array_interface=interface)).address == array.address + 24
    for down in (context.from_dlpack(array, device=gmm.HOST), np.from_dlpack(OnDevice(array, (CPU, 0)))):
        assert down.tolist() == array.tolist()
    refused(BufferError, lambda: context.from_dlpack(array, device=gmm.HOST, copy=False), match="copy=False")
    up = context.from_dlpack(np.arange(3.0), device=0)
    assert up.kind == Kind.DEVICE and up.tolist() == [0, 1, 2] and up.context is context
    del taken, ordered
    gc.collect()
    stream.close()


# Others' memory, for gmm.


@pytest.mark.parametrize("make", [Producer, OldProducer, lambda: Producer(form=Legacy)],
                         ids=["versioned", "old", "legacy"])
def test_a_tensor_is_taken_once_and_given_back_once(make):
    producer = make()
    array = gmm.from_dlpack(producer)
    assert (array.address, array.shape, array.dtype, array.strides) == (producer.address, (2, 3), "<i4", (12, 4))
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]] and not array.readonly and array.buffer is None
    row = array[1]
    memory = memoryview(row)
    refused(BufferError, row.free, array.free, match="views")
    memory[0] = 77
    memory.release()
    assert producer.memory[3] == 77 and not producer.deleted
    for _ in range(2):
        row.free()
    refused(gmm.ClosedError, lambda: array.address, lambda: memoryview(array))
    assert array.closed and producer.deleted == [(ctypes.addressof(producer.tensor), threading.get_ident())]
    capsule = producer.__dlpack__()
    taken = gmm._native.dlpack_import(capsule)
    assert name_of(capsule).startswith(b"used_dltensor")
    for wrong, error in ((capsule, ValueError), (new_capsule(1, b"other", None), TypeError), (3, TypeError)):
        refused(error, lambda: gmm._native.dlpack_import(wrong))
    del taken, capsule
    gc.collect()
    assert len(producer.deleted) == 2


def test_versioned_details():
    strided = Producer((2, 2), strides=(1, 4), flags=READ_ONLY, byte_offset=8, version=(1, 9))
    array = gmm.from_dlpack(strided)
    assert strided.asked == [{"max_version": (1, 1)}]
    assert array.address == strided.address + 8 and array.strides == (4, 16) and array.tolist() == [[2, 6], [3, 7]]
    assert array.readonly and array.numpy().flags.writeable is False
    refused(BufferError, array.__dlpack__, match="read-only")
    again = gmm.from_dlpack(array)  # its own export, by the form that can say it
    assert again.readonly and again.address == array.address and again.strides == array.strides
    assert gmm.from_dlpack(Producer((), strides=())).tolist() == 0
    assert gmm.from_dlpack(Producer((0, 3))).tolist() == []


@pytest.mark.parametrize("options, error", [
    ({"version": (2, 0)}, BufferError), ({"code": 3}, BufferError), ({"bits": 4}, BufferError),
    ({"lanes": 2}, BufferError), ({"device": (METAL, 0)}, BufferError),
    ({"shape": (-1,)}, BufferError), ({"ndim": 65}, BufferError), ({"ndim": -1}, BufferError),
    ({"shape": (1 << 62, 4)}, ValueError),
    ({"shape": (2,), "strides": (1 << 62,)}, BufferError)])
def test_a_tensor_that_gmm_does_not_understand_is_given_back(options, error):
    producer = Producer(**options)
    refused(error, lambda: gmm.from_dlpack(producer))
    gc.collect()
    assert len(producer.deleted) == (0 if producer.device[0] == METAL else 1)


def test_consumers_delete_without_the_gil(host):
    """On several threads at once, as code in C does."""
    tensors = []
    for _ in range(50):
        capsule = host.zeros(16, "u1").__dlpack__(max_version=(1, 0))
        tensors.append(versioned(capsule))
        rename(capsule, b"used_dltensor_versioned")
    assert host.stats().live_blocks == 50
    with concurrent.futures.ThreadPoolExecutor(5) as threads:
        list(threads.map(lambda tensor: Deleter(tensor.deleter)(ctypes.addressof(tensor)), tensors))
    gc.collect()
    assert host.stats().live_blocks == 0


def test_copies_of_external_memory(host):
    source = np.arange(6, dtype=np.int16).reshape(2, 3)
    for take in (host.from_dlpack, host.asarray):
        for given in (source, source.T, source[:, ::2]):
            array = take(given, copy=True)
            assert array.context is host and array.buffer is not None and array.tolist() == given.tolist()
            assert not array.readonly and not np.shares_memory(array.numpy(), given)
        assert take(source, copy=False).address == source.ctypes.data
    assert host.from_dlpack(source, device=gmm.HOST).address == source.ctypes.data
    assert host.from_dlpack(source, device=(CPU, 0), copy=False).address == source.ctypes.data
    for options in ({}, {"copy": False}):
        refused(BufferError, lambda: host.from_dlpack(source, device=0, **options))
    locked, reverse = source.copy(), np.from_dlpack(gmm.from_dlpack(source).T)
    locked.flags.writeable = False
    assert host.asarray(locked).readonly and reverse.ctypes.data == source.ctypes.data and reverse.shape == (3, 2)
    mine = host.array([1, 2])
    assert host.asarray(mine) is mine and host.asarray(mine, copy=True).address != mine.address
    assert host.asarray(mine.buffer).dtype == "|u1" and host.asarray(mine.buffer).address == mine.address
    producer, old = Producer(), OldProducer(device=(CUDA_MANAGED, 0))
    assert host.from_dlpack(producer, copy=True).tolist() == [[0, 1, 2], [3, 4, 5]]
    # An old producer cannot be asked for another device.
    refused(BufferError, lambda: host.from_dlpack(old, device=gmm.HOST, copy=False), match="copy=False")
    gc.collect()
    assert len(producer.deleted) == len(old.deleted) == 1


def test_asarray_of_the_buffer_protocol():
    for source, dtype, readonly in ((bytes(range(8)), "|u1", True), ((ctypes.c_float * 4)(1, 2), "<f4", False),
                                    (mmap.mmap(-1, 4096), "|u1", False),
                                    (memoryview(bytearray(16)).cast("d"), "<f8", False)):
        array = gmm.asarray(source)
        assert array.dtype == dtype and array.readonly is readonly and array.nbytes == memoryview(source).nbytes
        assert array.address == gmm._native.view_address(memoryview(source)) and bytes(array) == bytes(source)
    source = bytearray(range(8))
    array = gmm.asarray(source)
    refused(BufferError, lambda: source.append(0))  # the array holds it where it is
    array[1:2].fill(99)
    assert source[1] == 99
    array.free()
    source.append(0)
    for wrong in (object(), 3, "text", [1, 2]):
        refused(TypeError, lambda: gmm.asarray(wrong), lambda: gmm.from_dlpack(wrong))
    refused((BufferError, TypeError), lambda: gmm.asarray(np.zeros(2, [("a", "i4")])))


def test_asarray_of_array_interfaces():
    memory = np.arange(12, dtype=np.int32).reshape(3, 4)
    plain = Interface(memory, array_interface=memory[:, ::2].__array_interface__)
    array = gmm.asarray(plain)
    assert array.address == memory.ctypes.data and array.tolist() == memory[:, ::2].tolist() and array.owner is plain
    gone = weakref.ref(plain)
    del plain
    gc.collect()
    assert gone() is not None
    del array
    gc.collect()
    assert gone() is None
    inside = {"shape": (2, 2), "typestr": "<i2", "data": bytearray(range(24)), "version": 3, "offset": 4}
    assert gmm.asarray(Interface(None, array_interface=inside)).tolist() == [[1284, 1798], [2312, 2826]]
    # Of a GPU, whose addresses are not looked through here.
    described = {"shape": (3, 4), "typestr": "<i4", "data": (0x7000, True), "version": 3, "strides": None, "stream": 2}
    array = gmm.asarray(Interface(memory, cuda_array_interface=described))
    assert array.address == 0x7000 and array.readonly and array.stream == 2 and array.__dlpack_device__() == (CUDA, 0)
    assert array[1:].__cuda_array_interface__ == {**described, "shape": (2, 4), "data": (0x7010, True)}
    assert array.T.__cuda_array_interface__["strides"] == (4, 16)
    refused(BufferError, lambda: memoryview(array), lambda: array.__dlpack__(dl_device=(CPU, 0), copy=False))
    unordered = gmm.asarray(Interface(memory, cuda_array_interface={**described, "stream": None}))
    assert unordered.__cuda_array_interface__["stream"] is None
    for changed, error in (({"stream": 0}, ValueError), ({"mask": memory}, BufferError),
                           ({"typestr": "|V4"}, TypeError)):
        refused(error, lambda: gmm.asarray(Interface(memory, cuda_array_interface={**described, **changed})))
    # SYCL counts strides and the offset in elements.
    usm = {"shape": (2, 2), "typestr": "<i4", "data": (0x7000, True), "version": 1, "strides": (1, 4), "offset": 2,
           "syclobj": None}
    array = gmm.asarray(Interface(memory, sycl_usm_array_interface=usm))
    assert array.address == 0x7008 and array.strides == (4, 16) and array.__dlpack_device__() == (ONE_API, 0)
    assert array.readonly
    assert not hasattr(array, "__cuda_array_interface__") and not hasattr(array, "__sycl_usm_array_interface__")


def test_the_producer_is_told_the_stream():
    for device in ((CUDA, 0), (CUDA_MANAGED, 0)):
        for stream, expected in ((None, 1), (0, 1), (2, 2), (77, 77)):
            producer = Producer(device=device)
            array = gmm.from_dlpack(producer, stream=stream)
            assert producer.asked[0]["stream"] == expected and array.stream == expected
    producer = Producer(device=(CUDA, 0))
    array = gmm.from_dlpack(producer, stream=-1)  # no order is no stream
    assert producer.asked == [{"max_version": (1, 1), "stream": -1}] and array.stream == 0
    assert array.__cuda_array_interface__["stream"] is None
    for device in ((CPU, 0), (CUDA_HOST, 0), (ONE_API, 1)):
        producer = Producer(device=device)
        array = gmm.from_dlpack(producer, stream=5)
        assert "stream" not in producer.asked[0] and array.__dlpack_device__() == device
    pinned = gmm.from_dlpack(Producer(device=(CUDA_HOST, 0)))
    assert pinned.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert np.from_dlpack(gmm.from_dlpack(Producer(device=(CPU, 0)))).shape == (2, 3)


def test_a_device_is_not_read_by_the_host(host):
    """A context of the host backend would read a GPU's address with the processor."""
    described = {"shape": (4,), "typestr": "<i4", "data": (0x7000, False), "version": 3, "stream": 1}
    array = host.asarray(Interface(None, cuda_array_interface=described))
    assert array.context is host and array[1:].context is host
    mine = host.zeros(4, "i4")
    refused(BufferError, array.numpy, array.copy, lambda: bytes(array), lambda: array.fill(0),
            lambda: array.copy_from(bytes(16)), lambda: mine.copy_from(array), lambda: mine.copy_to(array),
            lambda: host.array(array), lambda: host.asarray(array, copy=True), lambda: array.__dlpack__(stream=2),
            lambda: mine.buffer.copy_from(array), lambda: host.from_dlpack(array, device=gmm.HOST))
    usm = {**described, "version": 1, "strides": None, "offset": 0, "syclobj": None}
    refused(BufferError, host.asarray(Interface(None, sycl_usm_array_interface=usm)).tolist, match="sycl")


def test_elements_behind_pointers_are_refused():
    buffers = pytest.importorskip("_testbuffer")
    with pytest.raises(BufferError, match="pointers"):
        gmm.asarray(buffers.ndarray(list(range(6)), shape=[2, 3], format="i", flags=buffers.ND_PIL))
