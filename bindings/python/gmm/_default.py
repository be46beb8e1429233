# SPDX-License-Identifier: Apache-2.0
"""The context that programs share which do not care."""
import os
import threading

from gmm import _native as native
from gmm._context import Context
from gmm._core.enums import Kind

_lock = threading.Lock()
_context = None


def context():
    """The process's default context: opened at the first call (backend "auto"), opened anew when it was closed."""
    global _context
    with _lock:
        if _context is None or _context.closed:
            _context = Context()
            native.set_default_context(_context)
        return _context


native.set_helper("default_context", context)


def array(source, dtype=None, kind=Kind.DEVICE, *, device=0, tag=0, stream=None):
    """A new Array of the default context with a copy of somebody's elements: see Context.array()."""
    return context().array(source, dtype, kind, device=device, tag=tag, stream=stream)


def forget(dead):
    """The next context() opens a new one, if this was it. For a context whose memory the driver has lost: it is left alone."""
    global _context
    with _lock:
        if _context is dead:
            _context = None
            native.set_default_context(None)


def _forget_after_fork():
    """The parent's context is of no use to a child; the child opens its own. The lock may have been held by another thread."""
    global _lock, _context
    _lock = threading.Lock()
    _context = None
    native.set_default_context(None)


os.register_at_fork(after_in_child=_forget_after_fork)
