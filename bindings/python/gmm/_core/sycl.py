# SPDX-License-Identifier: Apache-2.0
"""dpctl beside the SYCL backend: its C library, and gmm's queues as dpctl's objects."""
import ctypes
import functools
import os
import sys
import types
import weakref

from gmm._core.errors import NoBackendError

_NAME = "libDPCTLSyclInterface.so"
_QUEUE_CAPSULE = b"SyclQueueRef"  # dpctl gives and takes queues by capsules of this name


def load_library():
    """Opens dpctl's C library from dpctl's package, so that gmm finds it by its name. GMM_SYCL_LIBRARY has precedence.

    PyPI's intel-opencl-rt, the CPU device, registers itself nowhere. Where it is installed and OCL_ICD_FILENAMES is not
    set, this names it to the runtime.
    """
    cpu = os.path.join(sys.prefix, "lib", "libintelocl.so")
    if os.path.exists(cpu):
        os.environ.setdefault("OCL_ICD_FILENAMES", cpu)
    if os.environ.get("GMM_SYCL_LIBRARY"):
        return
    from importlib.util import find_spec  # here, as it takes as long to import as a tenth of this package

    package = find_spec("dpctl")
    for folder in (package and package.submodule_search_locations) or ():
        library = os.path.join(folder, _NAME)
        if os.path.exists(library):
            try:
                ctypes.CDLL(library)
            except OSError as error:
                raise NoBackendError(f"dpctl's C interface to SYCL could not be opened: {error}; "
                                     "install the intel-sycl-rt that dpctl asks for") from error
            return


def queue_of(stream):
    """A dpctl.SyclQueue over the SYCL queue of a gmm.Stream. It may outlive the stream."""
    import dpctl

    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return dpctl.SyclQueue(new(stream.handle, _QUEUE_CAPSULE, None))  # the constructor copies the reference


def cached_queue(context, device):
    """The dpctl.SyclQueue that dpctl keeps for a device of a gmm.Context.

    dpctl and dpnp make their own memory with it, and their functions take arrays of equal queues only.
    """
    from dpctl._sycl_queue_manager import get_device_cached_queue

    with context.stream(device) as stream:
        queue = queue_of(stream)
    return get_device_cached_queue((queue.sycl_context, queue.sycl_device))


_tensors = weakref.WeakKeyDictionary()  # by gmm.Array


def tensor_of(array):
    """An array of the tensors of dpnp, or of dpctl's before dpnp 0.20, over a gmm.Array. It has no export."""
    if array not in _tensors:
        view = types.SimpleNamespace(__sycl_usm_array_interface__=array.__sycl_usm_array_interface__)
        tensor = sys.modules.get("dpnp.tensor")
        if tensor is None:
            import dpctl.tensor as tensor
        _tensors[array] = tensor.asarray(view, copy=False)
    return _tensors[array]


@functools.lru_cache(maxsize=None)
def _with_attributes(memory_type):
    return type(memory_type.__name__, (memory_type,), {})


def exported(array):
    """The tensor of a gmm.Array with an export, which ends with the new tensor's memory.

    Its queue is the same object: dpnp.asarray() copies nothing only where `sycl_queue` of an array and of its
    `__usm_ndarray__` are one.
    """
    tensor = tensor_of(array)
    memory = _with_attributes(type(tensor.usm_data))(tensor.usm_data)
    memory.export = array.__dlpack__(max_version=(1, 0))
    new = type(tensor)(tensor.shape, dtype=tensor.dtype, buffer=memory, strides=tensor.strides,
                       offset=tensor._element_offset)
    new.flags["W"] = tensor.flags.writable
    return new


def wait_for_queue(obj, interface=None):
    """Waits for the queue that an object of SYCL names: an array's own, else the interface's syclobj.

    The protocols name no work that a reader must wait for. A syclobj may be a context, which has nothing to wait for.
    """
    queue = getattr(obj, "sycl_queue", None)
    if queue is None and interface is not None:
        queue = interface.get("syclobj")
    if hasattr(queue, "wait"):
        queue.wait()


def means_writable(memory):
    """Whether the flag beside an object's address means writable and not read-only.

    The protocol's page says read-only, and dpnp's arrays do as it says. The objects of dpctl.memory always have True
    there, and are writable.
    """
    dpctl_memory = sys.modules.get("dpctl.memory")
    return dpctl_memory is not None and isinstance(
        memory, (dpctl_memory.MemoryUSMDevice, dpctl_memory.MemoryUSMHost, dpctl_memory.MemoryUSMShared))
