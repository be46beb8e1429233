# SPDX-License-Identifier: Apache-2.0
from typing import Any

import cuda.core

from gmm import Context, Kind, Tag

__all__ = ["MemoryResource"]

class MemoryResource(cuda.core.MemoryResource):
    def __init__(
        self, device: cuda.core.Device | int = 0, kind: Kind = ..., *, tag: Tag | int | str | None = None,
        context: Context | None = None
    ) -> None: ...
    def allocate(self, size: int, stream: Any = None) -> cuda.core.Buffer: ...
    def deallocate(self, ptr: Any, size: int, stream: Any = None) -> None: ...
    @property
    def is_device_accessible(self) -> bool: ...
    @property
    def is_host_accessible(self) -> bool: ...
    @property
    def is_managed(self) -> bool: ...
    @property
    def device_id(self) -> int: ...
