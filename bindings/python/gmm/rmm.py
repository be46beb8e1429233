# SPDX-License-Identifier: Apache-2.0
"""RMM over gmm: cuDF, cuML and the other libraries of RAPIDS allocate from gmm's pool.

    import gmm.rmm

    gmm.rmm.use()                                    # every device; `with gmm.rmm.use():` for a block
    mr = gmm.rmm.resource()                          # or by hand: rmm.mr.set_current_device_resource(mr)

The resource allocates and frees on the streams that RMM names. RMM's adaptors (limits, statistics, logging) work over
it as over any other.
"""
# pylint: disable=import-outside-toplevel # RMM is imported at the first use only
import functools
import sys
import weakref

from gmm import _native as native
from gmm._core.enums import Kind
from gmm._core.resource import alloc_desc, resource_tag
from gmm._default import context as _default_context

__all__ = ["Use", "resource", "use"]

_KINDS = (Kind.DEVICE, Kind.VMM, Kind.MANAGED, Kind.HOST)


# Resources by a key of their own, each while memory of it is in use. RMM's buffers free their memory in C++, which
# calls the resource. A garbage collection may clear a resource before a buffer of the same reference cycle; then C++
# would call a function that is gone. What stands here is reachable, so no collection clears it.
_in_use = {}


def _forget_unused(but=None):
    """Lets resources go whose memory was all freed. `but`: one that C++ is calling now."""
    for key, (addresses, _) in list(_in_use.items()):
        if addresses or key is but:
            continue
        known = _in_use.pop(key, None)
        if known is not None and addresses:  # another thread has allocated meanwhile
            _in_use[key] = known


@functools.lru_cache(maxsize=1)
def _resource_type():
    import rmm

    class Resource(rmm.mr.CallbackMemoryResource):
        """RMM's class, and weak references to it."""

    return Resource


def resource(kind=Kind.DEVICE, *, device=0, tag=None, context=None):
    """An rmm.mr.DeviceMemoryResource of one device over gmm.

    kind: DEVICE, VMM (which can be paused by its tag), MANAGED or HOST. tag: a Tag, its number or its name, which is
    made when it is new; None: the thread's current tag at each allocation. context: None: the default context. It must
    stay open as long as its memory is in use.
    RMM makes rmm::out_of_memory, with gmm's message, of a MemoryError in C++; in Python it is a MemoryError.
    """
    if kind not in _KINDS:
        raise ValueError(f"RMM cannot use memory of kind {kind!r}; "
                         f"use one of {', '.join(known.name for known in _KINDS)}")
    kind = Kind(kind)
    context = _default_context() if context is None else context
    # A missing device is an error here, before C++ turns it into another one.
    context.device_info(device)
    number = resource_tag(context, tag)

    # Sets and dicts, as a garbage collection inside of allocate() may call deallocate(): each step is one operation.
    addresses = set()
    key = object()

    def allocate(size, stream):
        if not size:
            return 0
        address = native.gmm_alloc(context, size, alloc_desc(kind, device, number, stream.__cuda_stream__()[1]))[1]
        addresses.add(address)
        _in_use[key] = (addresses, itself())
        _forget_unused(key)
        return address

    def deallocate(address, _size, stream):
        addresses.discard(address)  # first: after the free another thread may get the address
        try:
            native.gmm_free(context, address or None, stream.__cuda_stream__()[1])
        except Exception:  # pylint: disable=broad-exception-caught # RMM's C++ takes no error here
            message = f"gmm.rmm could not free the memory at {address:#x}"
            sys.unraisablehook(_Unraisable(*sys.exc_info(), message, deallocate))

    _forget_unused()
    made = _resource_type()(allocate, deallocate)
    itself = weakref.ref(made)  # a strong one would be a cycle
    return made


class _Unraisable:
    """The argument of sys.unraisablehook."""

    def __init__(self, exc_type, exc_value, exc_traceback, err_msg, object):  # pylint: disable=redefined-builtin
        self.exc_type = exc_type
        self.exc_value = exc_value
        self.exc_traceback = exc_traceback
        self.err_msg = err_msg
        self.object = object


class Use:
    """RMM allocates from gmm until undo(), or until the end of the with block."""

    def __init__(self, kind, tag, devices, context):
        import rmm

        self._rmm = rmm
        self.context = _default_context() if context is None else context
        devices = range(self.context.info.device_count) if devices is None else devices
        self.resources = {device: resource(kind, device=device, tag=tag, context=self.context) for device in devices}
        self._previous = {device: rmm.mr.get_per_device_resource(device) for device in self.resources}
        for device, made in self.resources.items():
            rmm.mr.set_per_device_resource(device, made)

    def undo(self):
        """Restores the previous resource of each device that still has ours. A second call does nothing.

        Memory that was allocated before goes back to our resource.
        """
        previous, self._previous = self._previous, {}
        for device, before in previous.items():
            if self._rmm.mr.get_per_device_resource(device) is self.resources[device]:
                self._rmm.mr.set_per_device_resource(device, before)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.undo()


def use(kind=Kind.DEVICE, *, tag=None, devices=None, context=None):
    """Makes gmm the memory resource of devices, until undo() of the result or the end of its with block.

    devices: None: all devices of the context. kind, tag, context: see resource().
    """
    return Use(kind, tag, devices, context)
