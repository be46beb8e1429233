# SPDX-License-Identifier: Apache-2.0
import enum
import os
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar, overload

from typing_extensions import Buffer as _ObjectWithBuffer
from typing_extensions import Self

__version__: str
__all__ = [
    "Advice", "AllocFlags", "AlreadyFreedError", "Backend", "BackupInfo", "Buffer", "BusyError", "CancelledError", "Capability", "CapturingError",
    "ClosedError", "Contents", "Context", "ContextInfo", "CorruptError", "DEFAULT_TAG", "DeviceInfo", "DriverError", "Error", "Event",
    "FdType", "FileError", "ForkedError", "HOST", "Heap", "IPCInvalidHandleError", "IPCPeerGoneError", "IPCRefusedError",
    "IPCRevokedError", "IPCTimeoutError", "InteriorPointerError", "InvalidAlignmentError", "InvalidDescriptorError",
    "InvalidDeviceError", "InvalidFlagsError", "InvalidHandleError", "InvalidKindError", "InvalidSizeError",
    "InvalidTagError", "InvalidValueError", "IpcRoute", "Kind", "LimitExceededError", "LogLevel", "NO_LIMIT",
    "NoBackendError", "NotPinnedError", "NotReadyError", "NotSupportedError", "NullArgumentError", "OutOfHostMemoryError",
    "OutOfMemoryError", "OutOfMemoryInfo", "OverlapError", "PausedError", "Pin", "PointerFlags", "PointerInfo",
    "STREAM_DEFAULT", "STREAM_LEGACY", "STREAM_PER_THREAD", "SizeOverflowError", "State", "Statistics", "Stream",
    "SystemCallError", "Tag", "TagFlags", "TagInfo", "Ticket", "TicketInfo", "UnbalancedError", "UnknownPointerError", "Usm", "alloc", "context",
]


HOST: int
NO_LIMIT: int
DEFAULT_TAG: int
STREAM_DEFAULT: int
STREAM_LEGACY: int
STREAM_PER_THREAD: int

class Backend(enum.IntEnum):
    AUTO = 0
    HOST = 1
    CUDA = 2
    SYCL = 3

class Kind(enum.IntEnum):
    UNSPECIFIED = 0
    DEVICE = 1
    VMM = 2
    HOST = 3
    MANAGED = 4

class State(enum.IntEnum):
    UNKNOWN = 0
    ACTIVE = 1
    PAUSED = 2
    FREE = 3
    IMPORTED = 4
    PINNED = 5
    PARTLY_PAUSED = 6
    REVOKED = 7

class Usm(enum.IntEnum):
    UNKNOWN = 0
    DEVICE = 1
    HOST = 2
    SHARED = 3

class Advice(enum.IntEnum):
    SET_READ_MOSTLY = 1
    UNSET_READ_MOSTLY = 2
    SET_PREFERRED_LOCATION = 3
    UNSET_PREFERRED_LOCATION = 4
    SET_ACCESSED_BY = 5
    UNSET_ACCESSED_BY = 6

class Contents(enum.IntEnum):
    DROP = 0
    HOST = 1
    FILE = 2

class LogLevel(enum.IntEnum):
    ERROR = 1
    WARNING = 2
    INFO = 3
    DEBUG = 4

class AllocFlags(enum.IntFlag):
    DEDICATED = 1
    ZERO = 2

class Capability(enum.IntFlag):
    PAUSE = 1
    EXPORT_FD = 2
    LEGACY_IPC = 4
    CONCURRENT_MANAGED = 8
    PIN = 16
    PAGEABLE = 32
    FABRIC = 64
    IS_HOST = 128
    DMA_BUF = 256

class TagFlags(enum.IntFlag):
    READ_ONLY = 1
    CHECKSUM = 2

class IpcRoute(enum.IntFlag):
    LEGACY = 1
    FD = 2
    FABRIC = 4
    DMA_BUF = 8

class FdType(enum.IntEnum):
    DEFAULT = 0
    OPAQUE = 1
    FILE = 2
    DMA_BUF = 3
    VULKAN = 4

class PointerFlags(enum.IntFlag):
    HOST_ACCESSIBLE = 1
    DEVICE_ACCESSIBLE = 2
    PEER_GONE = 4

class Error(Exception):
    code: int
    name: str
    native_code: int
    def __init__(self, message: str = "", *, code: int | None = None, name: str | None = None, native_code: int = 0) -> None: ...

class NullArgumentError(Error, ValueError): ...
class InvalidSizeError(Error, ValueError): ...
class SizeOverflowError(Error, OverflowError): ...
class InvalidAlignmentError(Error, ValueError): ...
class InvalidKindError(Error, ValueError): ...
class InvalidDeviceError(Error, ValueError): ...
class InvalidTagError(Error, ValueError): ...
class InvalidFlagsError(Error, ValueError): ...
class InvalidDescriptorError(Error, ValueError): ...
class InvalidValueError(Error, ValueError): ...
class InvalidHandleError(Error): ...
class UnknownPointerError(Error): ...
class AlreadyFreedError(Error): ...
class InteriorPointerError(Error): ...
class OverlapError(Error): ...
class NotPinnedError(Error): ...
class UnbalancedError(Error): ...
class OutOfMemoryError(Error, MemoryError): ...
class OutOfHostMemoryError(Error, MemoryError): ...
class LimitExceededError(Error, MemoryError): ...
class PausedError(Error): ...
class BusyError(Error): ...
class CapturingError(Error): ...
class NotSupportedError(Error, NotImplementedError): ...
class NoBackendError(Error): ...
class ForkedError(Error): ...
class CancelledError(Error): ...
class CorruptError(Error): ...
class DriverError(Error): ...
class SystemCallError(Error, OSError): ...
class FileError(Error, OSError): ...
class IPCInvalidHandleError(Error): ...
class IPCPeerGoneError(Error, ConnectionError): ...
class IPCRefusedError(Error, PermissionError): ...
class IPCRevokedError(Error, ConnectionError): ...
class IPCTimeoutError(Error, TimeoutError): ...
class NotReadyError(Error, TimeoutError): ...
class ClosedError(InvalidHandleError, ValueError): ...

class ContextInfo(NamedTuple):
    backend: Backend
    device_count: int
    backend_name: str
    driver_version: str

class DeviceInfo(NamedTuple):
    device: int
    name: str
    uuid: bytes
    capabilities: Capability
    kinds: tuple[Kind, ...]
    total_memory: int
    free_memory: int
    granularity: int

class PointerInfo(NamedTuple):
    kind: Kind
    base: int
    size: int
    reserved_size: int
    device: int
    tag: int
    state: State
    usm: Usm
    ipc_routes: IpcRoute
    flags: PointerFlags
    allocation_base: int
    allocation_size: int
    device_pointer: int
    generation: int

class TagInfo(NamedTuple):
    tag: int
    name: str
    contents: Contents
    priority: int
    active_bytes: int
    paused_bytes: int
    backup_host_bytes: int
    backup_file_bytes: int
    pauses: int
    backup_pinned_bytes: int
    backup_zero_bytes: int
    retained_bytes: int
    flags: TagFlags
    state: State

class TicketInfo(NamedTuple):
    done: bool
    result: int
    bytes: int
    copied_bytes: int
    total_bytes: int

class BackupInfo(NamedTuple):
    arena_bytes: int
    arena_used: int
    arena_limit: int
    pageable_bytes: int
    file_bytes: int
    zero_bytes: int
    copied_bytes: int
    skipped_bytes: int

class Statistics(NamedTuple):
    live_tags: int
    live_bytes: int
    live_blocks: int
    peak_live_bytes: int
    cached_bytes: int
    reserved_bytes: int
    peak_reserved_bytes: int
    paused_bytes: int
    pinned_bytes: int
    imported_bytes: int
    allocations: int
    frees: int
    failures: int
    extents: int
    backend_calls: int

class OutOfMemoryInfo(NamedTuple):
    device: int
    kind: Kind
    tag: int
    requested: int
    reserved: int
    attempt: int
    cause: int

class _Handle:
    @property
    def closed(self) -> bool: ...
    @property
    def handle(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

class Stream(_Handle):
    context: Context
    device: int
    def __init__(self, context: Context, device: int = 0) -> None: ...
    def synchronize(self) -> None: ...
    def call(self, function: Callable[[], object]) -> None: ...
    def wait(self, event: Event) -> None: ...
    def record(self, event: Event | None = None) -> Event: ...
    def __cuda_stream__(self) -> tuple[int, int]: ...

class Event(_Handle):
    context: Context
    device: int
    def __init__(self, context: Context, device: int = 0, *, ipc: bool = False) -> None: ...
    def ipc_export(self) -> bytes: ...
    def record(self, stream: _Stream = None) -> None: ...
    def synchronize(self) -> None: ...
    @property
    def done(self) -> bool: ...

# A gmm.Stream, a stream's handle, a stream of another package, or None for the default stream.
_Stream = Stream | int | Any | None
_Tag = Tag | int | str
# Called with the bytes that are done and all that there are; False ends the operation.
_Progress = Callable[[int, int], object] | None

_Object = TypeVar("_Object", bound=_ObjectWithBuffer)

class _Block:
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def context(self) -> Context: ...
    @property
    def stream(self) -> Stream | int: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Buffer(_Block):
    @property
    def info(self) -> PointerInfo: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def device(self) -> int: ...
    @property
    def tag(self) -> int: ...
    @property
    def state(self) -> State: ...
    def free(self, stream: _Stream = None) -> None: ...
    def copy_from(self, source: Buffer | _ObjectWithBuffer, *, offset: int = 0, stream: _Stream = None) -> None: ...
    def copy_to(self, destination: Buffer | _ObjectWithBuffer, *, offset: int = 0, stream: _Stream = None) -> None: ...
    def fill(self, value: int, *, offset: int = 0, size: int | None = None, stream: _Stream = None) -> None: ...
    def __bytes__(self) -> bytes: ...
    def record_use(self, stream: _Stream) -> None: ...
    def advise(self, advice: Advice | int, location: int = 0, *, offset: int = 0, size: int | None = None) -> None: ...
    def prefetch(self, location: int, *, offset: int = 0, size: int | None = None, stream: _Stream = None) -> None: ...
    def move(self, location: int, *, stream: _Stream = None, non_blocking: bool = False) -> Self: ...
    def resume(self, *, offset: int = 0, size: int | None = None) -> int: ...
    def wait_ready(self, timeout: float | None = None, *, offset: int = 0, size: int | None = None) -> bool: ...
    @overload
    def backup(self, *, offset: int = 0, size: int | None = None, into: None = None) -> bytes: ...
    @overload
    def backup(self, *, offset: int = 0, size: int | None = None, into: _Object) -> _Object: ...
    def backup_view(self, *, offset: int = 0, size: int | None = None) -> memoryview: ...
    def ipc_export(self, *, offset: int = 0) -> bytes: ...
    def ipc_export_fd(self, *, offset: int = 0, type: FdType | int = ...) -> tuple[int, int, int]: ...
    def ipc_export_legacy(self, *, offset: int = 0) -> tuple[bytes, int, int]: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: int | Any | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...

class Pin(_Block):
    device_pointer: int
    @property
    def object(self) -> Any: ...

class Heap(_Handle):
    context: Context
    kind: Kind
    device: int
    def __init__(
        self,
        context: Context,
        kind: Kind | int = ...,
        *,
        device: int = 0,
        tag: Tag | int = 0,
        minimum_extent: int = 0,
        limit: int = 0,
        peer_devices: int = 0,
    ) -> None: ...
    def alloc(self, size: int, *, stream: _Stream = None) -> Buffer: ...

class Tag:
    context: Context
    name: str
    number: int
    def __init__(
        self,
        context: Context,
        name: str,
        contents: Contents | int | None = None,
        priority: int | None = None,
        *,
        read_only: bool | None = None,
        checksum: bool | None = None,
    ) -> None: ...
    def __index__(self) -> int: ...
    def __int__(self) -> int: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
    @property
    def info(self) -> TagInfo: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
    def update(
        self,
        contents: Contents | int | None = None,
        priority: int | None = None,
        *,
        read_only: bool | None = None,
        checksum: bool | None = None,
    ) -> None: ...
    def pause(self, *, force: bool = False, contents: Contents | int | None = None, progress: _Progress = None) -> int: ...
    def resume(self, *, progress: _Progress = None) -> int: ...
    def paused(
        self, *, force: bool = False, contents: Contents | int | None = None, progress: _Progress = None
    ) -> AbstractContextManager[int]: ...
    def pause_async(self, *, force: bool = False, contents: Contents | int | None = None, progress: _Progress = None) -> Ticket: ...
    def resume_async(self, *, progress: _Progress = None) -> Ticket: ...
    def discard_backup(self) -> int: ...

class Ticket(_Handle):
    context: Context
    def __init__(self, context: Context, function: Any, desc: Any, told: Any) -> None: ...
    @property
    def done(self) -> bool: ...
    @property
    def info(self) -> TicketInfo: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def result(self, timeout: float | None = None) -> int: ...
    def cancel(self) -> None: ...
    def __await__(self) -> Generator[Any, None, int]: ...

class Context(_Handle):
    def __init__(
        self,
        backend: Backend | int | str = ...,
        *,
        log: Callable[[LogLevel, str], object] | None = None,
        host_memory: int = 0,
        host_devices: int = 0,
        decommit_after_ms: int | None = 0,
        capture: bool = True,
    ) -> None: ...
    @property
    def info(self) -> ContextInfo: ...
    def device_info(self, device: int = 0) -> DeviceInfo: ...
    def alloc(
        self,
        size: int,
        kind: Kind | int = ...,
        *,
        device: int = 0,
        tag: _Tag = 0,
        stream: _Stream = None,
        alignment: int = 0,
        dedicated: bool = False,
        zero: bool = False,
    ) -> Buffer: ...
    def query(self, address: int | Buffer | Pin) -> PointerInfo: ...
    def free(self, memory: Buffer | int, stream: _Stream = None) -> None: ...
    def heap(
        self,
        kind: Kind | int = ...,
        *,
        device: int = 0,
        tag: _Tag = 0,
        minimum_extent: int = 0,
        limit: int = 0,
        peer_devices: int = 0,
    ) -> Heap: ...
    def copy(self, destination: int | Buffer | Pin, source: int | Buffer | Pin, size: int, *, stream: _Stream = None) -> None: ...
    def pin(self, obj: _ObjectWithBuffer, *, device: int = 0, read_only: bool = False) -> Pin: ...
    def stream(self, device: int = 0) -> Stream: ...
    def event(self, device: int = 0, *, ipc: bool = False) -> Event: ...
    def synchronize(self, stream: _Stream = None) -> None: ...
    def forget_stream(self, stream: _Stream) -> None: ...
    def tag(
        self,
        name: str,
        contents: Contents | int | None = None,
        priority: int | None = None,
        *,
        read_only: bool | None = None,
        checksum: bool | None = None,
    ) -> Tag: ...
    def set_process_default_tag(self, tag: _Tag) -> None: ...
    def tag_info(self, tag: _Tag) -> TagInfo: ...
    def pause(self, *tags: _Tag, force: bool = False, contents: Contents | int | None = None, progress: _Progress = None) -> int: ...
    def resume(self, *tags: _Tag, progress: _Progress = None) -> int: ...
    def paused(
        self, *tags: _Tag, force: bool = False, contents: Contents | int | None = None, progress: _Progress = None
    ) -> AbstractContextManager[int]: ...
    def pause_async(
        self, *tags: _Tag, force: bool = False, contents: Contents | int | None = None, progress: _Progress = None
    ) -> Ticket: ...
    def resume_async(self, *tags: _Tag, progress: _Progress = None) -> Ticket: ...
    def resume_range(self, address: int | Buffer, size: int) -> int: ...
    def wait_ready(self, address: int | Buffer, size: int, timeout: float | None = None) -> bool: ...
    def set_backup(
        self,
        *,
        arena: bool = True,
        pageable: bool = True,
        arena_limit: int = 0,
        pageable_limit: int = 0,
        directory: str | bytes | os.PathLike[str] | None = None,
        threads: int = 0,
    ) -> None: ...
    def prepare_backup(self, size: int, device: int = 0) -> None: ...
    @property
    def backup_info(self) -> BackupInfo: ...
    def discard_backup(self, *tags: _Tag) -> int: ...
    def ipc_export(self, memory: int | Buffer) -> bytes: ...
    def ipc_import(self, handle: bytes | bytearray | memoryview, *, device: int = 0, timeout: float | None = None) -> Buffer: ...
    def ipc_import_event(self, handle: bytes | bytearray | memoryview, *, device: int = 0, timeout: float | None = None) -> Event: ...
    def ipc_configure(self, *, directory: str | bytes | os.PathLike[str] | None = None, users: Iterable[int] = ()) -> None: ...
    def import_fd(self, fd: int, size: int, *, type: FdType | int = ..., device: int = 0) -> Buffer: ...
    @property
    def decommit_after_ms(self) -> int | None: ...
    @decommit_after_ms.setter
    def decommit_after_ms(self, milliseconds: int | None) -> None: ...
    def set_limit(self, limit: int | None, *, device: int | None = None, tag: _Tag | None = None) -> None: ...
    def set_oom_handler(self, handler: Callable[[OutOfMemoryInfo], object] | None) -> None: ...
    def stats(self, *, device: int | None = None, tag: _Tag | None = None, kind: Kind | int | None = None) -> Statistics: ...
    @overload
    def snapshot(self, write: None = None) -> dict[str, Any]: ...
    @overload
    def snapshot(self, write: Callable[[bytes], object]) -> None: ...
    def trim(self, *, device: int | None = None, tag: _Tag | None = None, kind: Kind | int | None = None) -> int: ...
    def reset(self) -> None: ...
    def defer(self) -> AbstractContextManager[Context]: ...
    def trace(self, path: str | bytes | os.PathLike[str]) -> AbstractContextManager[Context]: ...

def context() -> Context: ...
def alloc(
    size: int,
    kind: Kind | int = ...,
    *,
    device: int = 0,
    tag: _Tag = 0,
    stream: _Stream = None,
    alignment: int = 0,
    dedicated: bool = False,
    zero: bool = False,
) -> Buffer: ...
