# SPDX-License-Identifier: Apache-2.0
"""gmm.cuda_core with the real cuda.core, on a GPU or the fake driver.

The tests of one buffer are those that cuda.core runs on custom resources (cuda_core/tests/test_memory.py), on gmm's.
"""
import ctypes
import gc

import pytest
from allocators import Contract, Memory
from checks import refused
from conftest import run

cuda_core = pytest.importorskip("cuda.core", exc_type=ImportError)
from cuda.core.utils import StridedMemoryView  # noqa: E402 # after the check

try:
    DEVICE = cuda_core.Device(0)
    DEVICE.set_current()
except Exception as error:  # pylint: disable=broad-exception-caught # cuda.core's own class is private
    pytest.skip(f"neither a GPU nor the fake driver: {error}", allow_module_level=True)

import gmm  # noqa: E402
import gmm.cuda_core  # noqa: E402

KINDS = [gmm.Kind.DEVICE, gmm.Kind.VMM, gmm.Kind.MANAGED, gmm.Kind.HOST]
LIBRARY = ctypes.CDLL("libcuda.so.1")


def synchronize():
    """Device.sync() asks CUDA's runtime, which does not start on the fake driver."""
    assert LIBRARY.cuCtxSynchronize() == 0


@pytest.fixture
def context():
    made = gmm.Context("cuda")
    yield made
    gc.collect()
    synchronize()
    assert made.stats().live_blocks == 0
    made.close()


@pytest.fixture
def stream():
    made = DEVICE.create_stream()
    yield made
    synchronize()
    made.close()


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def resource(request, context):
    return gmm.cuda_core.MemoryResource(DEVICE, request.param, context=context)


def read(buffer):
    """The bytes of a buffer, by the driver."""
    host = ctypes.create_string_buffer(buffer.size)
    assert LIBRARY.cuMemcpy(ctypes.c_uint64(ctypes.addressof(host)), ctypes.c_uint64(int(buffer.handle)),
                            ctypes.c_size_t(buffer.size)) == 0
    return host.raw


class Library:
    kinds, want, frees_on_any_stream, is_cxx = KINDS, gmm.Error, True, False

    def __init__(self, context):
        self.context, self.default = context, DEVICE.create_stream()

    def allocator(self, kind=gmm.Kind.DEVICE, tag=None):
        resource = gmm.cuda_core.MemoryResource(DEVICE, kind, tag=tag, context=self.context)

        def allocate(size, stream=None):
            buffer = resource.allocate(size, stream=self.of_cuda_core(stream))
            return Memory(int(buffer.handle), lambda stream=None: buffer.close(self.of_cuda_core(stream)))

        return allocate

    def of_cuda_core(self, stream):
        return self.default if stream is None else cuda_core.Stream.from_handle(stream.handle)


@pytest.fixture
def library(context):
    made = Library(context)
    yield made
    made.default.close()


class TestContract(Contract):
    pass


def test_a_buffer_is_copied_and_filled(resource, stream):
    source = resource.allocate(1024, stream=stream)
    assert source.size == 1024 and source.memory_resource is resource and not source.is_mapped
    assert source.is_device_accessible and source.is_host_accessible == resource.is_host_accessible
    assert (source.device_id, source.is_managed) == (resource.device_id, resource.is_managed)
    source.fill(0x42, stream=stream)
    made = source.copy_to(stream=stream)  # into a buffer of the same resource
    synchronize()
    assert read(made) == b"\x42" * 1024 and made.memory_resource is resource
    for buffer in (source, made):
        buffer.close(stream)


def test_a_buffer_is_closed(resource, stream):
    live = resource._context.stats().live_blocks
    for end in (lambda buffer: buffer.close(), lambda buffer: buffer.close(stream), lambda buffer: None):
        buffer = resource.allocate(1024, stream=stream)
        assert resource._context.stats().live_blocks == live + 1
        end(buffer)
        del buffer
        gc.collect()
        assert resource._context.stats().live_blocks == live
    with resource.allocate(1024, stream=stream) as buffer:
        assert resource._context.stats().live_blocks == live + 1
    assert resource._context.stats().live_blocks == live


def test_the_device_allocates(context, stream):
    DEVICE.memory_resource = gmm.cuda_core.MemoryResource(DEVICE, gmm.Kind.VMM, tag="weights", context=context)
    buffer = DEVICE.allocate(1 << 20, stream=stream)
    assert context.query(int(buffer.handle)).tag == int(context.tag("weights"))
    buffer.close(stream)
    refused(gmm.Error, lambda: gmm.cuda_core.MemoryResource(99, context=context))
    refused(TypeError, lambda: gmm.cuda_core.MemoryResource(DEVICE, context=context).allocate(10, stream="first"))


def test_views_of_arrays(context, stream):
    """StridedMemoryView of gmm's arrays, and gmm's arrays of views and of buffers."""
    array = context.empty((4, 6), "int32", gmm.Kind.DEVICE)
    number = stream.__cuda_stream__()[1]
    for view in (StridedMemoryView.from_any_interface(array, number), StridedMemoryView.from_dlpack(array, number),
                 StridedMemoryView.from_cuda_array_interface(array, number)):
        assert (view.ptr, view.shape, str(view.dtype), view.device_id) == (array.address, (4, 6), "int32", 0)
        assert view.is_device_accessible and not view.readonly
        back = gmm.from_dlpack(view, context=context)
        assert (back.address, tuple(back.shape), str(back.dtype)) == (array.address, (4, 6), "<i4")
        back.close()
    array.close()
    buffer = gmm.cuda_core.MemoryResource(DEVICE, context=context).allocate(4096, stream=stream)
    from_buffer = gmm.from_dlpack(buffer, context=context)
    assert (from_buffer.address, from_buffer.nbytes) == (int(buffer.handle), 4096)
    from_buffer.close()
    buffer.close(stream)


def test_without_cuda_core():
    assert "pip install 'cuda-core" in run("""
import sys
sys.modules["cuda.core"] = None
try:
    import gmm.cuda_core
except ImportError as error:
    print(error)
""")
