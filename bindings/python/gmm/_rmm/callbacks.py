# SPDX-License-Identifier: Apache-2.0
"""A CallbackMemoryResource of RMM whose callbacks are Python: where the one of C++ cannot be compiled."""
import sys
import weakref

from gmm import _native as native
from gmm._core.errors import ClosedError
from gmm._core.resource import alloc_desc


class _Unraisable:
    """The argument of sys.unraisablehook."""

    def __init__(self, exc_value, err_msg, object):  # pylint: disable=redefined-builtin
        self.exc_type = type(exc_value)
        self.exc_value = exc_value
        self.exc_traceback = exc_value.__traceback__
        self.err_msg = err_msg
        self.object = object


def tell_unfreed(failed):
    """Says that a free failed, which RMM's C++ takes no error of. failed: (exception, address)."""
    exception, address = failed
    message = f"gmm.rmm could not free the memory at {address:#x}"
    sys.unraisablehook(_Unraisable(exception, message, None))


native.set_helper("unfreed", tell_unfreed)

# Callbacks that were made, for good. RMM's C++ has copies of a resource with bare addresses of the callables in it, and
# no copy says when it goes.
_made = []


class _Callbacks:
    """The two callables of one resource.

    While memory of it is in use, the resource lives: a garbage collection may clear it before a buffer of the same
    reference cycle. When it has gone, the context is let go, and what C++ still calls fails.
    """

    def __init__(self, context, kind, device, tag):
        self.context = context
        self.what = (kind, device, tag)
        self.addresses = set()
        self.alive = None  # the resource, while memory of it is in use
        self.reference = None
        self.allocate, self.deallocate = self._allocate, self._deallocate  # bound once: C++ has their addresses

    def adopt(self, resource):
        """Notes the resource that was made of the callables."""
        self.reference = weakref.ref(resource, self._end)

    def _end(self, _reference):
        if not self.addresses:
            self.context = None

    # Sets, as a garbage collection inside of _allocate() may call _deallocate(): each step is one operation.
    def _allocate(self, size, stream):
        if not size:
            return 0
        context = self.context
        if context is None:
            raise ClosedError("the resource of gmm.rmm was deleted while C++ still uses a copy of it; keep it")
        number, got = stream.__cuda_stream__()[1], []
        try:
            native.hand_over(got.append, lambda address: native.gmm_free(context, address, number), native.gmm_alloc,
                             context, size, alloc_desc(*self.what, number))
            self.addresses.add(got[0])
            self.alive = self.reference()
            forget_unused(but=self)
            return got[0]
        except OverflowError as error:  # beyond any memory: want of memory to RMM
            raise MemoryError(str(error)) from None
        except BaseException:  # Ctrl-C, too: RMM does not get the address
            if got:
                self._deallocate(got[0], size, stream)
            raise

    def _deallocate(self, address, _size, stream):
        self.addresses.discard(address)  # first: after the free another thread may get the address
        try:
            if address and self.context is not None:
                native.gmm_free(self.context, address, stream.__cuda_stream__()[1])
        except Exception as exception:  # pylint: disable=broad-exception-caught # RMM's C++ takes no error here
            tell_unfreed((exception, address))


def forget_unused(but=None):
    """Lets resources go whose memory was all freed. `but`: the callbacks that C++ is calling now."""
    for callbacks in list(_made):
        if callbacks is but or callbacks.addresses:
            continue
        alive, callbacks.alive = callbacks.alive, None
        if callbacks.addresses:  # another thread has allocated meanwhile
            callbacks.alive = alive


def resource(kind_of_resource, context, kind, device, tag):
    """A resource of that class, a CallbackMemoryResource."""
    forget_unused()
    callbacks = _Callbacks(context, kind, device, tag)
    made = kind_of_resource(callbacks.allocate, callbacks.deallocate)
    callbacks.adopt(made)
    _made.append(callbacks)
    return made
