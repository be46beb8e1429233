# SPDX-License-Identifier: Apache-2.0
"""The library's answers as named tuples."""
from typing import NamedTuple

from gmm._core import words
from gmm._core.enums import (
    Backend, Capability, Contents, IpcRoute, Kind, PointerFlags, State, TagFlags, TicketState, Usm)


class ContextInfo(NamedTuple):
    """The backend that a context opened."""

    backend: Backend
    device_count: int
    backend_name: str
    driver_version: str


class DeviceInfo(NamedTuple):
    """A device and its capabilities. Sizes are bytes."""

    device: int
    name: str
    uuid: bytes
    capabilities: Capability
    kinds: tuple[Kind, ...]
    total_memory: int
    free_memory: int
    granularity: int


class PointerInfo(NamedTuple):
    """The memory at an address. Sizes are bytes."""

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


class BlockInfo(NamedTuple):
    """A live block at the time of a snapshot. Sizes are bytes."""

    address: int
    size: int
    reserved_size: int
    kind: Kind
    device: int
    tag: int
    state: State
    name: str


class TagInfo(NamedTuple):
    """The state of a tag. Sizes are bytes."""

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
    backup_active_bytes: int
    flags: TagFlags
    state: State
    foreign_bytes: int


class TicketInfo(NamedTuple):
    """The progress of a pause or resume in the background. result: its gmm_result; that of NOT_READY before its end."""

    state: TicketState
    result: int
    bytes: int
    copied_bytes: int
    total_bytes: int


class BackupInfo(NamedTuple):
    """Where backups keep contents. Sizes are bytes."""

    arena_bytes: int
    arena_used: int
    arena_limit: int
    pageable_bytes: int
    file_bytes: int
    zero_bytes: int
    copied_bytes: int
    skipped_bytes: int


class Statistics(NamedTuple):
    """Counters of a scope. Sizes are bytes. limit_bytes without a limit: 2**64 - 1."""

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
    limit_bytes: int
    foreign_bytes: int


class CompactInfo(NamedTuple):
    """What Context.compact() did. Sizes are bytes."""

    moved_bytes: int
    released_bytes: int
    largest_free: int


class OutOfMemoryInfo(NamedTuple):
    """What an out-of-memory handler gets."""

    device: int
    kind: Kind
    tag: int
    requested: int
    reserved: int
    attempt: int
    cause: int


# str() is a field a line with sizes in words, and notebooks show a table; repr() is that of a named tuple.
for _answer in (ContextInfo, DeviceInfo, PointerInfo, BlockInfo, TagInfo, TicketInfo, BackupInfo, Statistics,
                CompactInfo):
    for _name, _method in (("__str__", words.lines), ("_repr_html_", words.answer_table)):
        setattr(_answer, _name, _method)
del _answer, _name, _method


# A later library may return values that this package has no name for: those stay plain numbers.
def _named(enumeration, value):
    try:
        return enumeration(value)
    except ValueError:
        return value


_CONVERSIONS = {
    "backend": Backend,
    "kind": Kind,
    "state": State,
    "usm": Usm,
    "contents": Contents,
    "capabilities": Capability,
    "ipc_routes": IpcRoute,
}


def read(answer_class, struct):
    """Copies a filled struct of the C interface into its tuple."""
    values = []
    for field in answer_class._fields:
        value = getattr(struct, field)
        conversion = _CONVERSIONS.get(field)
        if field == "kinds":
            value = tuple(_named(Kind, bit) for bit in range(1, 32) if value >> bit & 1)
        elif field == "flags":
            value = _named(TagFlags if answer_class is TagInfo else PointerFlags, value)
        elif field == "state" and answer_class is TicketInfo:
            value = _named(TicketState, value)
        elif conversion is not None:
            value = _named(conversion, value)
        values.append(value)
    return answer_class._make(values)
