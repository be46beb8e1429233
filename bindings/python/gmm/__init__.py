# SPDX-License-Identifier: Apache-2.0
"""gmm: one interface over every kind of GPU memory, with and without a GPU.

    import gmm

    with gmm.Context() as context:
        with context.alloc(1 << 20, gmm.Kind.MANAGED) as buffer:
            buffer.fill(7)
            print(memoryview(buffer)[0], buffer)
"""
import atexit as _atexit
from typing import Any as _Any

from gmm import _native

_native.require_main_interpreter()

from gmm._context import Context, Watcher
from gmm._core.array import Array, asarray, from_dlpack
from gmm._core.buffer import Buffer, Heap, Pin
from gmm._core.elastic import Elastic
from gmm._core.enums import (
    DEFAULT_TAG, HOST, NO_LIMIT, STREAM_DEFAULT, STREAM_LEGACY, STREAM_PER_THREAD, Advice, AllocFlags, Backend,
    Capability, Contents, FdType, IpcRoute, Kind, LogLevel, PointerFlags, State, TagFlags, TicketState, Usm, WatchEvent)
from gmm._core.errors import ClosedError, Error
from gmm._core.errors import ERRORS as _ERRORS
from gmm._core.values import (
    BackupInfo, BlockInfo, CompactInfo, ContextInfo, DeviceInfo, OutOfMemoryInfo, PointerInfo, Statistics, TagInfo,
    TicketInfo, WatchInfo)
from gmm._core.stream import Event, Stream
from gmm._core.tag import Tag
from gmm._core.ticket import Ticket
from gmm._default import array, context, empty, metrics, watch, zeros
from gmm._keep import keep
from gmm._native import alloc
from gmm._report import Profile as profile, progress, report

__version__ = _native.gmm_version_string()
globals().update(_ERRORS)
__all__ = sorted(name for name in globals() if not name.startswith("_"))

# Behind __all__, which it is no part of: it registers with multiprocessing's pickler.
from gmm import multiprocessing  # noqa: E402, F401

for _public in map(globals().get, __all__):
    if getattr(_public, "__module__", "").startswith("gmm."):
        _public.__module__ = "gmm"
del _public


def __getattr__(name: str) -> _Any:
    import importlib.util
    if not name.startswith("_") and importlib.util.find_spec(f"gmm.{name}"):  # `import gmm` is enough for all of it
        try:
            return importlib.import_module(f"gmm.{name}")
        except ImportError as error:
            raise AttributeError(f"gmm.{name} could not be imported: {error}") from error
    # Numba looks for this name in the module that NUMBA_CUDA_MEMORY_MANAGER names.
    if name == "_numba_memory_manager":
        from gmm import numba
        return numba.MemoryManager
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# When the interpreter ends, no callback may start and none may be under way.
_atexit.register(_native.callbacks_end)
