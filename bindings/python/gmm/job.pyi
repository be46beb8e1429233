# SPDX-License-Identifier: Apache-2.0
import enum
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from gmm import Contents, Context, Tag

__all__ = [
    "CheckpointError", "ProcessState", "ProcessStuckError", "Suspended", "pause", "paused", "process_state", "resume",
    "resume_process", "suspend_process",
]

def pause(
    *tags: Tag | int | str, context: Context | None = None, reduce: Callable[[int], int] = ..., hold: float = 60.0,
    force: bool = False, contents: Contents | None = None,
) -> int: ...
def resume(
    *tags: Tag | int | str, context: Context | None = None, reduce: Callable[[int], int] = ..., hold: float = 60.0,
    retain: bool = False,
) -> int: ...
def paused(
    *tags: Tag | int | str, context: Context | None = None, reduce: Callable[[int], int] = ..., hold: float = 60.0,
    force: bool = False, contents: Contents | None = None,
) -> AbstractContextManager[int]: ...

class ProcessState(enum.IntEnum):
    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3

class CheckpointError(RuntimeError):
    pid: int
    step: str
    code: int
    state: ProcessState | None
    def __init__(
        self, message: str, pid: int = 0, step: str = "", code: int = 0, state: ProcessState | None = None,
    ) -> None: ...

class ProcessStuckError(CheckpointError): ...

class Suspended(NamedTuple):
    pids: tuple[int, ...]
    bytes: dict[str, int]
    seconds: float

def process_state(pid: int | None = None) -> ProcessState: ...
def suspend_process(*pids: int, timeout: float = 300.0) -> Suspended: ...
def resume_process(*pids: int | Suspended, timeout: float = 300.0) -> None: ...
