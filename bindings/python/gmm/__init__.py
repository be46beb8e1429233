# SPDX-License-Identifier: Apache-2.0
"""gmm: one interface over every kind of GPU memory, with and without a GPU.

    import gmm

    with gmm.Context() as context:
        with context.alloc(1 << 20, gmm.Kind.MANAGED) as buffer:
            buffer.fill(7)
            print(memoryview(buffer)[0], buffer)
"""
import atexit as _atexit

from gmm import _native
from gmm._array import Array
from gmm._buffer import Buffer, Pin
from gmm._context import Context
from gmm._default import array, context
from gmm._enums import (
    DEFAULT_TAG, HOST, NO_LIMIT, STREAM_DEFAULT, STREAM_LEGACY, STREAM_PER_THREAD, Advice, AllocFlags, Backend, Capability, Contents, FdType,
    IpcRoute, Kind, LogLevel, PointerFlags, State, TagFlags, Usm)
from gmm._errors import ERRORS as _ERRORS
from gmm._errors import ClosedError, Error, NotReadyError
from gmm._heap import Heap
from gmm._imports import asarray, from_dlpack
from gmm._info import BackupInfo, ContextInfo, DeviceInfo, OutOfMemoryInfo, PointerInfo, Statistics, TagInfo, TicketInfo
from gmm._native import alloc, empty, zeros
from gmm._stream import Event, Stream
from gmm._tag import Tag
from gmm._ticket import Ticket

__version__ = _native.gmm_version_string()
globals().update(_ERRORS)
__all__ = sorted(name for name in globals() if not name.startswith("_"))

from gmm import multiprocessing as _multiprocessing  # noqa: E402: no name of the interface; it teaches multiprocessing's pickler

for _public in (alloc, empty, zeros, BackupInfo, ClosedError, Context, ContextInfo, DeviceInfo, Error, Event, Heap, NotReadyError, OutOfMemoryInfo, Pin, PointerInfo, Statistics,
                Stream, Tag, TagInfo, Ticket, TicketInfo):
    _public.__module__ = "gmm"
del _public

# Before the interpreter takes itself apart: no callback may start, and none may be under way.
_atexit.register(_native.callbacks_end)
