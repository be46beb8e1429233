# SPDX-License-Identifier: Apache-2.0
from typing import Any

from gmm import Context

__all__ = ["Mapping", "UcxError", "map"]

class UcxError(RuntimeError):
    code: int
    def __init__(self, function: str, code: int, text: str) -> None: ...

class Mapping:
    address: int
    size: int
    device: int
    active: bool
    error: Exception | None
    generation: int
    def __init__(self, ucp_context: Any, memory: Any, **options: Any) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def memh(self) -> int: ...
    def remote_key(self) -> bytes: ...
    def close(self) -> None: ...
    def __enter__(self) -> Mapping: ...
    def __exit__(self, *exception: object) -> None: ...

def map(
    ucp_context: Any, memory: Any, *, context: Context | None = None, name: str | None = None,
    timeout: float | None = None
) -> Mapping: ...
