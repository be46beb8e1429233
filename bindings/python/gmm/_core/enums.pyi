# SPDX-License-Identifier: Apache-2.0
import enum

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

class TicketState(enum.IntEnum):
    RUNNING = 0
    DONE = 1
    HELD = 2

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
    COMM = 4

class Capability(enum.IntFlag):
    PAUSE = 1
    EXPORT_FD = 2
    LEGACY_IPC = 4
    CONCURRENT_MANAGED = 8
    PIN = 16
    PAGEABLE = 32
    FABRIC = 64
    IS_CPU = 128
    DMA_BUF = 256
    RDMA = 512
    HOST_NUMA = 1024
    HOST_PAGE_TABLES = 2048

class TagFlags(enum.IntFlag):
    READ_ONLY = 1
    CHECKSUM = 2
    PAGEABLE = 4

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

class WatchEvent(enum.IntFlag):
    PREPARE = 1
    LOSING = 2
    RESTORED = 4
    FAILED = 8
    BUDGET = 16

class PointerFlags(enum.IntFlag):
    HOST_ACCESSIBLE = 1
    DEVICE_ACCESSIBLE = 2
    PEER_GONE = 4
    COMM = 8
def as_kind(kind: Kind | int | str | None) -> Kind | int | None: ...
