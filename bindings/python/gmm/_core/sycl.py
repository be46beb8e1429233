# SPDX-License-Identifier: Apache-2.0
"""dpctl beside the SYCL backend: its C library, and gmm's queues as dpctl's objects."""
import ctypes
import importlib.util
import os
import pathlib
import sys

from gmm._core.errors import NoBackendError

_NAME = "libDPCTLSyclInterface.so"
_QUEUE_CAPSULE = b"SyclQueueRef"  # dpctl gives and takes queues by capsules of this name


def load_library():
    """Opens dpctl's C library where it lies in the package: gmm then finds it by its name. GMM_SYCL_LIBRARY comes first.

    PyPI's intel-opencl-rt, the CPU device, registers itself nowhere; where it is installed and nothing else is said, it is named to the runtime.
    """
    cpu = pathlib.Path(sys.prefix, "lib", "libintelocl.so")
    if cpu.exists():
        os.environ.setdefault("OCL_ICD_FILENAMES", str(cpu))
    if os.environ.get("GMM_SYCL_LIBRARY"):
        return
    try:
        package = importlib.util.find_spec("dpctl")
    except ValueError:  # a module without a spec stands in for it
        package = None
    for folder in (package and package.submodule_search_locations) or ():
        library = pathlib.Path(folder, _NAME)
        if library.exists():
            try:
                ctypes.CDLL(str(library))
            except OSError as error:
                raise NoBackendError(f"dpctl's C interface to SYCL could not be opened: {error}; install the intel-sycl-rt that dpctl asks for") from error
            return


def queue_of(stream):
    """A dpctl.SyclQueue that is the same SYCL queue as a gmm.Stream; it may outlive the stream."""
    import dpctl

    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return dpctl.SyclQueue(new(stream.handle, _QUEUE_CAPSULE, None))  # copies the reference at once


def context_of(context):
    """The dpctl.SyclContext that a gmm.Context allocates in."""
    with context.stream() as stream:
        return queue_of(stream).sycl_context
