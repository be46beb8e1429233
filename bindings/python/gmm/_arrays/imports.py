# SPDX-License-Identifier: Apache-2.0
"""Arrays over the memory of other packages, without a copy."""
import operator
import struct
from numbers import Complex, Real

from gmm import _native as native
from gmm._arrays.array import STRUCT_FORMATS
from gmm._core import sycl
from gmm._core.enums import HOST, Kind
from gmm._core.interchange import CPU, CUDA, CUDA_HOST, CUDA_MANAGED, HOST_DEVICE, ONE_API
from gmm._core.stream import as_stream
from gmm._native import Array

_DLPACK_VERSION = (1, 1)
_KINDS = {CPU: Kind.HOST, CUDA_HOST: Kind.HOST, CUDA_MANAGED: Kind.MANAGED}  # of a copy, by DLPack's device type
_LETTERS = {  # of the struct module, and those of the array interface for them
    "?": "b", **dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BHILQNc", "u"), **dict.fromkeys("efd", "f"),
    "Zf": "c", "Zd": "c"}


def _dl_device(device):
    """gmm.HOST, a device's number, or (device type, device id) of DLPack."""
    if device is None:
        return None
    if isinstance(device, tuple):
        kind, number = device
        return (int(kind), int(number))
    number = operator.index(device)
    return HOST_DEVICE if number == HOST else (CUDA, number)


def _copy_to_gmm(array, device, context, stream):
    """A copy in gmm's memory: on the host for HOST_DEVICE, else on the memory's device."""
    context = native.default_context() if context is None else context
    at = array.__dlpack_device__()
    if device is None or device == at:
        kind, number = _KINDS.get(at[0], Kind.DEVICE), at[1]
    elif device == HOST_DEVICE:
        kind, number = Kind.HOST, 0
    else:
        kind, number = Kind.DEVICE, device[1]
    if kind != Kind.HOST and context.info.backend_name == "host" and (device is not None or at[0] != CPU):
        raise BufferError(f"memory of DLPack device {device or at} needs a context of that device's backend; "
                          "this one is of the host backend")
    source = array if array.contiguous else array.copy(Kind.HOST)
    made = context.empty(array.shape, array.dtype, kind, device=number, stream=stream)
    if array._host_reaches():
        array._wait_for_own_stream()
    elif array._foreign_stream is not None:
        native.gmm_stream_synchronize(array._stream_context, array.stream)
    made.copy_from(source._plain, stream=stream)
    return made


def from_dlpack(obj, *, device=None, copy=None, stream=None, context=None):
    """An Array over an object with __dlpack__(). It copies only where the arguments ask for it or require it.

    device: where the array shall be: None: where the object is, gmm.HOST, a CUDA device's number, or DLPack's (type,
    id). copy: False: BufferError where a copy would be needed; True: a copy in gmm's memory. stream: the stream on
    which the array will be used; None: the default stream. context: allocates copies and orders streams; None: the
    default context. The array holds the object's memory. array.readonly is what the producer declares.
    """
    if not hasattr(obj, "__dlpack__") or not hasattr(obj, "__dlpack_device__"):
        raise TypeError(f"{type(obj).__name__} has no __dlpack__(); gmm.asarray() knows more protocols")
    wanted = _dl_device(device)
    at = tuple(map(int, obj.__dlpack_device__()))
    on_stream = None
    if at[0] in (CUDA, CUDA_MANAGED):
        on_stream = 1 if stream is None else as_stream(stream)
        if isinstance(on_stream, native.Handle):
            on_stream = on_stream.handle
        on_stream = on_stream or 1
    elif at[0] not in (CPU, CUDA_HOST, ONE_API):
        raise BufferError(f"gmm does not know memory of DLPack device {at}")
    same = wanted is None or wanted == at or (wanted == HOST_DEVICE and at[0] == CUDA_HOST)
    if not same and copy is False and at[0] != CUDA_MANAGED:
        raise BufferError(f"the memory is at DLPack device {at}, not at {wanted}, and copy=False")
    if at[0] == ONE_API:
        sycl.wait_for_queue(obj)
    capsule = _capsule(obj, on_stream, wanted if not same and at[0] == CUDA_MANAGED else None, copy)
    # -1 requests no order: the array's contents are then ordered on no stream.
    array = native.dlpack_import(capsule, None if on_stream == -1 else on_stream, context)
    moved = not same and array.__dlpack_device__() != wanted
    if moved and copy is False:  # managed memory of a producer without dl_device
        raise BufferError(f"the memory is at DLPack device {at}, its producer does not offer it at {wanted}, "
                          "and copy=False")
    if copy or moved:
        return _copy_to_gmm(array, wanted, context, None if on_stream == -1 else stream)
    return array


def _capsule(obj, stream, dl_device, copy):
    """A capsule of the newest form that the producer knows."""
    options = {} if stream is None else {"stream": stream}
    newer = {"max_version": _DLPACK_VERSION}
    if dl_device is not None:
        newer["dl_device"] = dl_device
    if copy is False:
        newer["copy"] = False
    try:
        return obj.__dlpack__(**options, **newer)
    except TypeError:  # DLPack before 1.0
        if dl_device is not None or copy is False:
            try:
                return obj.__dlpack__(**options, max_version=_DLPACK_VERSION)
            except TypeError:
                pass
        return obj.__dlpack__(**options)


def asarray(obj, *, copy=None, stream=None, context=None):
    """An Array over an object with DLPack, the CUDA Array Interface, SYCL's interface or the buffer protocol.

    Nothing is copied. An Array is returned as it is, and a Buffer as an array of its bytes. copy: True: a copy in gmm's
    memory. stream: the stream on which the array will be used. context: see from_dlpack(). gmm.array() copies objects
    without any of these protocols, such as lists of numbers.
    """
    if isinstance(obj, native.Memory):
        obj = Array(obj)
    if isinstance(obj, Array):
        return _copy_to_gmm(obj, None, context, stream) if copy else obj
    array = refused = None
    if hasattr(obj, "__dlpack__"):
        try:
            return from_dlpack(obj, copy=copy, stream=stream, context=context)
        except BufferError as error:  # an old producer's read-only memory, say: another protocol may offer it
            refused = error
    if hasattr(obj, "__cuda_array_interface__"):
        array = _over_interface(obj, obj.__cuda_array_interface__, CUDA, context)
    elif hasattr(obj, "__sycl_usm_array_interface__"):
        array = _over_sycl(obj, obj.__sycl_usm_array_interface__, context)
    else:
        try:
            array = _over_buffer(obj, context)
        except TypeError:
            if hasattr(obj, "__array_interface__"):
                array = _over_interface(obj, obj.__array_interface__, CPU, context)
    if array is None:
        if refused is not None:
            raise refused
        raise TypeError(f"{type(obj).__name__} has none of __dlpack__, __cuda_array_interface__, "
                        "__sycl_usm_array_interface__ and the buffer "
                        "protocol; gmm.array() copies lists of numbers")
    return _copy_to_gmm(array, None, context, stream) if copy else array


def _over_interface(obj, interface, device_type, context):
    """An Array by the CUDA Array Interface, or by NumPy's interface, which it follows."""
    if interface.get("mask") is not None:
        raise BufferError("gmm cannot import an array with a mask")
    typestr, shape, data = interface["typestr"], tuple(interface["shape"]), interface.get("data")
    if not isinstance(data, tuple):
        return _over_buffer(obj if data is None else data, context)
    stream = interface.get("stream") if device_type == CUDA else None
    if stream == 0:
        raise ValueError("the CUDA Array Interface does not allow stream 0: 1 is the legacy default stream, "
                         "2 the thread's own")
    device = 0
    if device_type == CUDA and data[0]:
        device = _cuda_device(data[0], context)
    stream = None if stream is None else as_stream(stream)
    return native.array_foreign(
        obj, data[0], shape, interface.get("strides"), typestr, bool(data[1]), device_type, device, stream, context)


def _cuda_device(address, context):
    """The device of an address. The interface does not name it; the driver does, where the context is CUDA's."""
    context = native.default_context() if context is None else context
    if context.info.backend_name != "cuda":
        return 0
    return max(context.query(address).device, 0)


def _over_sycl(obj, interface, context):
    data = interface.get("data")
    if not isinstance(data, tuple):
        return _over_buffer(obj if data is None else data, context)
    sycl.wait_for_queue(obj, interface)
    itemsize = int(interface["typestr"][2:])
    strides = interface.get("strides")
    address = data[0] + (interface.get("offset") or 0) * itemsize
    readonly = bool(data[1]) and not sycl.means_writable(obj)
    if strides is not None:
        strides = tuple(step * itemsize for step in strides)
    return native.array_foreign(
        obj, address, tuple(interface["shape"]), strides, interface["typestr"], readonly, ONE_API, 0, None, context)


def _over_buffer(obj, context):
    view = memoryview(obj)
    if view.suboffsets:
        raise BufferError("the buffer's elements lie behind pointers, which gmm does not support")
    address = native.view_address(view)
    return native.array_foreign(
        view, address, view.shape, view.strides or None, _typestr(view), view.readonly, CPU, 0, None, context)


def _typestr(view):
    letter = view.format.lstrip("@=<")
    if letter not in _LETTERS:
        raise BufferError(f"gmm has no element type for the buffer's format {view.format!r}")
    return f"{_LETTERS[letter]}{view.itemsize}"


def copied_array(context, source, dtype, kind, *, device, tag, stream):
    """Context.array()."""
    options = {"device": device, "tag": tag, "stream": stream}
    try:
        seen = asarray(source, stream=stream, context=context)
    except TypeError:
        if hasattr(source, "__dlpack__") or hasattr(source, "__cuda_array_interface__"):
            raise
        return _from_numbers(context, source, dtype, kind, options)
    made = context.empty(seen.shape, seen.dtype, kind, **options)
    if dtype is not None and Array(made.buffer, 0, dtype).dtype != seen.dtype:
        raise TypeError(f"the source has elements of {seen.dtype_name}; gmm does not convert: request that dtype, "
                        "or convert with the source's library")
    if not seen.contiguous:
        seen = seen.copy(Kind.HOST)
    if not seen._host_reaches() and seen.buffer is None and seen._foreign_stream is not None:
        native.gmm_stream_synchronize(seen._stream_context, seen.stream)
    made.copy_from(seen._plain, stream=stream)
    return made


def _from_numbers(context, source, dtype, kind, options):
    shape, values = [], source
    flat = [source]
    while flat and isinstance(flat[0], (list, tuple)):
        if len({len(row) if isinstance(row, (list, tuple)) else -1 for row in flat}) != 1:
            raise ValueError("the nested lists are not of one length")
        shape.append(len(flat[0]))
        flat = [value for row in flat for value in row]
    for value in flat:
        if not any(hasattr(value, name) for name in ("__index__", "__float__", "__complex__")):
            raise TypeError(f"{type(value).__name__} is neither a number, nor an array of any protocol that gmm knows")
    if dtype is None:
        def all_have(name):
            return all(hasattr(value, name) for value in flat)

        if flat and all(isinstance(value, bool) for value in flat):
            dtype = bool
        elif flat and all_have("__index__"):
            dtype = int
        else:
            # NumPy's complex numbers have __float__, and before Python 3.10 all have.
            real = all(isinstance(value, Real) or not isinstance(value, Complex) for value in flat)
            dtype = float if real and all_have("__float__") else complex
    made = context.empty(tuple(shape), dtype, kind, **options)
    letter = STRUCT_FORMATS.get(made.dtype)
    if letter is None:
        made.free()
        raise TypeError(f"Python has no numbers of type {made.dtype_name}; make them with a library that has, "
                        "and copy its array")
    if len(letter) == 2:
        flat = [part for value in flat for part in (complex(value).real, complex(value).imag)]
    try:
        made.copy_from(struct.pack(f"={len(flat)}{letter[0]}", *flat), stream=options["stream"])
    except struct.error as error:
        made.free()
        raise TypeError(f"a value of the source does not fit {made.dtype_name}: {error}") from None
    return made
