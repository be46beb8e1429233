# SPDX-License-Identifier: Apache-2.0
from typing import Any, NamedTuple

from gmm import Context

__all__ = ["MemoryInfo", "NcclError", "Registration", "can_suspend", "memory", "register", "resume", "suspend"]

class MemoryInfo(NamedTuple):
    suspendable: int
    persistent: int
    total: int
    suspended: int

class NcclError(RuntimeError):
    code: int
    def __init__(self, function: str, code: int, text: str) -> None: ...

class Registration:
    address: int
    size: int
    device: int
    active: bool
    error: Exception | None
    def __init__(self, memory: Any, groups: list[Any], window: bool, **options: Any) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def handles(self) -> list[int]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Registration: ...
    def __exit__(self, *exception: object) -> None: ...

def register(
    memory: Any, group: Any = None, *, window: bool = False, context: Context | None = None, name: str | None = None,
    timeout: float | None = None
) -> Registration: ...
def can_suspend() -> bool: ...
def memory(group: Any = None, device: int = 0) -> MemoryInfo: ...
def suspend(group: Any = None, device: int = 0) -> None: ...
def resume(group: Any = None, device: int = 0) -> None: ...
