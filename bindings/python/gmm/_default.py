# SPDX-License-Identifier: Apache-2.0
"""The default context, which everything in the process shares that names no other."""
from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from gmm import _native as native
from gmm._context import Context
from gmm._core.buffer import Buffer
from gmm._core.enums import Kind, as_kind, tag_number
from gmm._core.errors import make_exception
from gmm._core.stream import as_stream

if TYPE_CHECKING:
    from gmm._core.typing import Array, KindLike, Shape, TagLike, Watcher

_lock = threading.Lock()
_context = None


def context() -> Context:
    """The process's default context.

    The first call opens it with the backend "auto"; a call after its close() opens another.
    """
    global _context
    with _lock:
        if _context is None or _context.closed:
            _context = Context()
            native.set_default_context(_context)
        return _context


native.set_helpers(as_stream, tag_number, context, as_kind, make_exception, Buffer)


def array(source: Any, dtype: Any = None, kind: KindLike = Kind.DEVICE, *, device: int = 0, tag: TagLike = 0,
          stream: Any = None) -> Array:
    """A new Array of the default context with a copy of the source's elements: see Context.array()."""
    return context().array(source, dtype, kind, device=device, tag=tag, stream=stream)


def empty(shape: Shape, dtype: Any = "float64", kind: KindLike = Kind.DEVICE, **options) -> Array:
    """Allocates an Array of the default context with undefined elements: see Context.empty()."""
    return context().empty(shape, dtype, kind, **options)


def zeros(shape: Shape, dtype: Any = "float64", kind: KindLike = Kind.DEVICE, **options) -> Array:
    """Allocates an Array of the default context whose elements read as zero: see Context.zeros()."""
    return context().zeros(shape, dtype, kind, **options)


def watch(tag: TagLike | None = None, **options: Any) -> Watcher:
    """A Watcher of the default context: see Context.watch()."""
    return context().watch(tag, **options)


def metrics() -> list[Any]:
    """The metrics of the default context for prometheus_client: see Context.metrics()."""
    return context().metrics()


def forget(dead):
    """Makes the next context() open another one, if `dead` is the default one: the driver has lost its memory."""
    global _context
    with _lock:
        if _context is dead:
            _context = None
            native.set_default_context(None)


def _forget_after_fork():
    """A child cannot use the parent's context and opens its own.

    Another thread of the parent may have held the lock.
    """
    global _lock
    _lock = threading.Lock()
    native.callbacks_after_fork()
    forget(_context)


os.register_at_fork(after_in_child=_forget_after_fork)
