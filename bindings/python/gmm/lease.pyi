# SPDX-License-Identifier: Apache-2.0
import enum
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from gmm import Context, Tag, Ticket

__all__ = ["Lease", "LeaseAsk", "LeaseEntryInfo", "LeaseInfo", "LeaseState", "status", "use"]

_Tag = Tag | int | str
_Offer = Iterable[_Tag] | Mapping[_Tag, int]
_Amounts = Mapping[int, int] | int | None

class LeaseState(enum.IntEnum):
    IDLE = 0
    WAITING = 1
    IN_USE = 2

class LeaseAsk(NamedTuple):
    name: str
    process: int
    priority: int
    bytes: int
    waiting_ms: int

class LeaseInfo(NamedTuple):
    state: LeaseState
    server: int
    server_process: int
    grants: int
    shorts: int
    asked: int
    evictions: int
    evicted_bytes: int
    active_bytes: int
    paused_bytes: int

class LeaseEntryInfo(NamedTuple):
    name: str
    state: LeaseState
    process: int
    priority: int
    since_ms: int
    uuid: bytes
    free_bytes: int
    held_bytes: int
    floor_bytes: int
    offered_bytes: int
    wanted_bytes: int
    granted_bytes: int
    server: int
    server_process: int

class Lease:
    context: Context
    name: str
    def __init__(
        self, name: str, offer: _Offer = (), *, priority: int = 0, floor: int = 0,
        residency: float | None = None, asked: Callable[[LeaseAsk], object] | None = None,
        context: Context | None = None,
    ) -> None: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Lease: ...
    def __exit__(self, *exception: object) -> None: ...
    def offer(self, tag: _Tag, cost: int = 1) -> None: ...
    def withdraw(self, tag: _Tag) -> None: ...
    def request(self, amounts: _Amounts = None, *, timeout: float | None = 60.0) -> int: ...
    def request_async(self, amounts: _Amounts = None, *, timeout: float | None = 60.0) -> Ticket: ...
    def release(self) -> bool: ...
    def use(self, amounts: _Amounts = None, *, timeout: float | None = 60.0) -> AbstractContextManager[int]: ...
    def info(self) -> LeaseInfo: ...

def status(*, timeout: float = 5.0, context: Context | None = None) -> list[LeaseEntryInfo]: ...
def use(
    name: str, offer: _Offer = ("weights", "kv_cache"), amounts: _Amounts = None, *, priority: int = 0,
    floor: int = 0, residency: float | None = None,
    asked: Callable[[LeaseAsk], object] | None = None, timeout: float | None = 60.0, at_once: bool = False,
) -> Lease: ...
