# SPDX-License-Identifier: Apache-2.0
import enum
import os
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from gmm import Contents, Context, Tag

__all__ = [
    "CheckpointError", "Folder", "Job", "JobInfo", "JobState", "ProcessState", "ProcessStuckError", "Store",
    "Suspended", "process_state", "resume_process", "suspend_process",
]

class JobState(enum.IntEnum):
    IDLE = 0
    COMMITTED = 1
    ABORTED = 2
    IN_DOUBT = 3
    RUNNING = 4

class JobInfo(NamedTuple):
    state: JobState
    epoch: int
    failed_rank: int | None
    cause: int
    bytes: int
    job_bytes: int

class _Exchange(Protocol):
    def set(self, key: str, value: str, timeout: float) -> str | None: ...
    def get(self, key: str, timeout: float) -> str | None: ...

class Folder:
    def __init__(self, path: str | os.PathLike[str]) -> None: ...
    def set(self, key: str, value: str, timeout: float) -> str | None: ...
    def get(self, key: str, timeout: float) -> str | None: ...
    def erase(self, key: str) -> None: ...

class Store:
    def __init__(self, store: Any = None) -> None: ...
    def set(self, key: str, value: str, timeout: float) -> str | None: ...
    def get(self, key: str, timeout: float) -> str | None: ...
    def erase(self, key: str) -> None: ...
    def __del__(self) -> None: ...

class Job:
    context: Context
    def __init__(
        self, exchange: _Exchange, *, rank: int | None = None, ranks: int | None = None, name: str = "job",
        timeout: float = 60.0, context: Context | None = None,
    ) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Job: ...
    def __exit__(self, *exception: object) -> None: ...
    def pause(self, *tags: Tag | int | str, force: bool = False, contents: Contents | None = None) -> JobInfo: ...
    def resume(self, *tags: Tag | int | str, retain: bool = False) -> JobInfo: ...
    def paused(
        self, *tags: Tag | int | str, force: bool = False, contents: Contents | None = None
    ) -> AbstractContextManager[JobInfo]: ...
    def info(self) -> JobInfo: ...

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
