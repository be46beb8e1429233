# SPDX-License-Identifier: Apache-2.0
"""The C interface of gmm (include/gmm/*.h) for ctypes: only what the model uses."""

import ctypes
import enum
from ctypes import POINTER, Structure, c_char, c_char_p, c_int32, c_uint8, c_uint32, c_uint64, c_void_p

KIB, MIB = 1 << 10, 1 << 20
NONE = 0xFFFFFFFFFFFFFFFF  # GMM_NO_LIMIT, GMM_FOREVER, GMM_DECOMMIT_NEVER


class Kind(enum.IntEnum):
    DEVICE, VMM, HOST, MANAGED = 1, 2, 3, 4


class State(enum.IntEnum):
    UNKNOWN, ACTIVE, PAUSED, FREE, IMPORTED, PINNED, PARTLY_PAUSED, REVOKED = range(8)


class Result(enum.IntEnum):
    """Those that a step may expect; others keep their number."""
    OK = 0
    UNCHANGED = 1
    INVALID_SIZE = -2
    INVALID_KIND = -5
    INVALID_VALUE = -10
    INVALID_HANDLE = -11
    UNKNOWN_POINTER = -12
    ALREADY_FREED = -13
    INTERIOR_POINTER = -14
    UNBALANCED = -17
    OUT_OF_MEMORY = -20
    OUT_OF_HOST_MEMORY = -21
    LIMIT_EXCEEDED = -22
    PAUSED = -23
    BUSY = -24
    NOT_SUPPORTED = -26
    FORKED = -28
    CANCELLED = -29
    DRIVER = -30
    SYSTEM = -31
    IO = -32
    PEER_GONE = -41
    REVOKED = -44
    NOT_READY = -50


DROP, HOST, FILE = 0, 1, 2  # gmm_contents
READ_ONLY, CHECKSUM = 1, 2  # GMM_TAG_*
FORCE, PAUSE_DROP, KEEP_HOST, KEEP_FILE = 1, 2, 4, 8  # GMM_PAUSE_*
DEDICATED, ZERO = 1, 2  # GMM_ALLOC_*
SCOPE_DEVICE, SCOPE_TAG, SCOPE_KIND = 1, 2, 4
COMPACT_LIVE = 1


def struct(name, fields):
    """A growing struct: struct_size first, which a new object has set."""
    made = type(name, (Structure,), {"_fields_": [("struct_size", c_uint32), *fields]})

    def begin(self, **values):
        Structure.__init__(self, struct_size=ctypes.sizeof(made), **values)

    made.__init__ = begin
    return made


def numbers(kind, names):
    return [(name, kind) for name in names.split()]


class Callback(Structure):
    _fields_ = [("fn", c_void_p), ("user", c_void_p)]


class HostAllocator(Structure):
    _fields_ = [("allocate", c_void_p), ("deallocate", c_void_p), ("user", c_void_p)]


class Handle(Structure):
    _fields_ = [("bytes", c_uint8 * 256)]


ContextDesc = struct("ContextDesc", [
    *numbers(c_uint32, "backend flags host_devices"), ("log", Callback), ("host_allocator", HostAllocator),
    ("host_memory", c_uint64), ("decommit_after_ms", c_uint64)])
AllocDesc = struct("AllocDesc", [
    ("kind", c_uint32), ("device", c_int32), ("tag", c_uint32), ("stream", c_void_p), ("alignment", c_uint64),
    *numbers(c_uint32, "flags reserved")])
PointerInfo = struct("PointerInfo", [
    ("kind", c_uint32), ("base", c_void_p), *numbers(c_uint64, "size reserved_size"), ("device", c_int32),
    *numbers(c_uint32, "tag state usm ipc_routes flags"), ("allocation_base", c_void_p), ("allocation_size", c_uint64),
    ("device_pointer", c_void_p), ("generation", c_uint64)])
HeapDesc = struct("HeapDesc", [
    ("kind", c_uint32), ("device", c_int32), ("tag", c_uint32), *numbers(c_uint64, "minimum_extent limit peer_devices"),
    *numbers(c_uint32, "flags reserved")])
StreamDesc = struct("StreamDesc", [("flags", c_uint32), ("device", c_int32), ("priority", c_int32)])
TagDesc = struct("TagDesc", [("contents", c_uint32), ("priority", c_int32), ("flags", c_uint32)])
PauseDesc = struct("PauseDesc", [
    ("flags", c_uint32), ("tags", POINTER(c_uint32)), *numbers(c_uint32, "tag_count reserved"), ("progress", Callback)])
TagInfo = struct("TagInfo", [
    *numbers(c_uint32, "tag contents"), ("priority", c_int32),
    *numbers(c_uint64, "active_bytes paused_bytes backup_host_bytes backup_file_bytes pauses"), ("name", c_char * 64),
    *numbers(c_uint64, "backup_pinned_bytes backup_zero_bytes backup_active_bytes"), *numbers(c_uint32, "flags state"),
    ("foreign_bytes", c_uint64)])
BackupDesc = struct("BackupDesc", [
    ("flags", c_uint32), *numbers(c_uint64, "arena_limit pageable_limit"), ("directory", c_char_p),
    *numbers(c_uint32, "threads reserved")])
BackupInfo = struct("BackupInfo", [("reserved", c_uint32), *numbers(c_uint64, (
    "arena_bytes arena_used arena_limit pageable_bytes file_bytes zero_bytes copied_bytes skipped_bytes"))])
IpcDesc = struct("IpcDesc", [
    ("flags", c_uint32), ("directory", c_char_p), ("users", c_void_p), *numbers(c_uint32, "user_count reserved")])
ImportDesc = struct("ImportDesc", [
    ("flags", c_uint32), ("device", c_int32), ("reserved", c_uint32), ("timeout_ms", c_uint64)])
ScopeDesc = struct("ScopeDesc", [
    ("flags", c_uint32), ("device", c_int32), *numbers(c_uint32, "tag kind reserved")])
CompactDesc = struct("CompactDesc", [
    ("flags", c_uint32), ("heap", c_void_p), *numbers(c_uint64, "max_bytes max_us")])
CompactInfo = struct("CompactInfo", [
    ("reserved", c_uint32), *numbers(c_uint64, "moved_bytes released_bytes largest_free")])
StatsInfo = struct("StatsInfo", [("live_tags", c_uint32), *numbers(c_uint64, (
    "live_bytes live_blocks peak_live_bytes cached_bytes reserved_bytes peak_reserved_bytes paused_bytes pinned_bytes "
    "imported_bytes allocations frees failures extents backend_calls limit_bytes foreign_bytes"))])
SnapshotInfo = struct("SnapshotInfo", [
    ("backend", c_uint32), *numbers(c_uint64, "heap_count extent_count block_count live_bytes")])
BlockInfo = struct("BlockInfo", [
    ("kind", c_uint32), ("device", c_int32), *numbers(c_uint32, "tag state flags"), ("address", c_void_p),
    *numbers(c_uint64, "size reserved_size"), ("heap", c_void_p), ("name", c_char * 64)])
MoveDesc = struct("MoveDesc", [("flags", c_uint32), ("stream", c_void_p)])
DeviceInfo = struct("DeviceInfo", [
    ("device", c_int32), *numbers(c_uint32, "capabilities kinds"),
    *numbers(c_uint64, "total_memory free_memory granularity"), ("name", c_char * 128), ("uuid", c_uint8 * 16),
    *numbers(c_uint64, "held_bytes budget_bytes"), ("luid", c_uint8 * 8), ("node_mask", c_uint32),
    ("numa_node", c_int32)])


class FakeLive(Structure):
    """struct fake_cuda_live of tests/support/fake_cuda/fake_cuda.h."""
    _fields_ = numbers(c_uint64, (
        "allocations reservations handles mappings registrations streams events imports context_references "
        "device_bytes host_bytes managed_bytes dropped graphs user_objects"))


# p: an address; i: int32_t; u: uint32_t; q: uint64_t
FUNCTIONS = {
    "context_create": "pp", "context_release": "p", "context_set_decommit": "pq", "device_query": "pip",
    "alloc": "pqpp", "free": "ppp", "try_alloc": "pqpp", "try_free": "ppp", "query": "ppp",
    "heap_create": "ppp", "heap_alloc": "pqqupp", "heap_destroy": "p", "heap_reserve": "pq",
    "compact": "pppp",
    "stream_create": "ppp", "stream_destroy": "pp", "stream_synchronize": "pp", "stream_call": "pppp",
    "copy": "pppqp", "fill": "ppuqp", "record_use": "ppp",
    "tag_create": "pppp", "tag_configure": "pup", "tag_destroy": "pu", "tag_query": "pup",
    "pause": "ppp", "resume": "ppp", "resume_range": "ppqp", "resume_wait": "ppqq",
    "pause_async": "ppp", "resume_async": "ppp", "ticket_wait": "pqp", "ticket_destroy": "p", "ticket_cancel": "p",
    "backup_configure": "pp", "backup_query": "pp", "backup_read": "ppqp", "backup_map": "ppqp",
    "backup_discard": "ppp",
    "ipc_configure": "pp", "ipc_export": "ppp", "ipc_import": "pppp", "ipc_close": "pp",
    "limit_set": "ppq", "stats_query": "ppp", "trim": "ppp", "reset": "p", "defer_begin": "p", "defer_end": "p",
    "snapshot_create": "ppp", "snapshot_query": "pp", "snapshot_query_block": "pqp", "snapshot_destroy": "p",
    "move": "ppip", "name": "ppp",
}
TYPES = {"p": c_void_p, "i": c_int32, "u": c_uint32, "q": c_uint64}


class Library:
    """gmm and the helper; `fake` is the fake CUDA driver or None."""

    def __init__(self, gmm, helper, with_fake):
        library = ctypes.CDLL(gmm)
        for name, words in FUNCTIONS.items():
            function = getattr(library, "gmm_" + name)
            function.argtypes, function.restype = [TYPES[word] for word in words], c_int32
            setattr(self, name, function)
        library.gmm_last_error_message.restype = c_char_p
        self.last_message = library.gmm_last_error_message
        self.helper = ctypes.CDLL(helper)
        self.helper.model_differs.argtypes = [c_void_p, c_void_p, c_uint64]
        self.helper.model_differs.restype = c_uint64
        self.helper.model_differs_from_value.argtypes = [c_void_p, c_uint32, c_uint64]
        self.helper.model_differs_from_value.restype = c_uint64
        self.helper.model_refuse.argtypes = [c_uint64]
        self.helper.model_refused.restype = c_uint64
        for name in ("model_allocated_blocks", "model_allocator_mistakes"):
            getattr(self.helper, name).restype = ctypes.c_int64
        self.fake = None
        if with_fake:
            self.fake = ctypes.CDLL("libcuda.so.1")
            self.fake.fake_cuda_fail.argtypes = [c_char_p, c_uint64, ctypes.c_int]
            self.fake.fake_cuda_failures.restype = c_uint64
            self.fake.fake_cuda_live.argtypes = [c_void_p]
            self.fake.fake_cuda_live.restype = None

    def message(self):
        return self.last_message().decode("utf-8", "replace")

    def fake_live(self):
        live = FakeLive()
        self.fake.fake_cuda_live(ctypes.byref(live))
        return {name: getattr(live, name) for name, _ in FakeLive._fields_}


def result_name(number):
    try:
        return Result(number).name
    except ValueError:
        return str(number)
