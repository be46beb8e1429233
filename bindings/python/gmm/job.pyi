# SPDX-License-Identifier: Apache-2.0
import enum
from typing import NamedTuple

__all__ = [
    "CheckpointError", "ProcessState", "ProcessStuckError", "Suspended", "process_state", "resume_process",
    "suspend_process",
]

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
