# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from typing import Any

from gmm import Context, Kind, Tag

__all__ = ["Use", "allocator", "pinned_allocator", "use"]

class Use:
    context: Context
    allocator: Callable[[int], Any]
    pinned_allocator: Callable[[int], Any] | None
    def __init__(self, kind: Kind, pinned: bool, tag: Tag | int | str | None, context: Context | None) -> None: ...
    def undo(self) -> None: ...
    def __enter__(self) -> Use: ...
    def __exit__(self, *exception: object) -> None: ...

def allocator(
    kind: Kind = ..., *, tag: Tag | int | str | None = None, context: Context | None = None
) -> Callable[[int], Any]: ...
def pinned_allocator(*, tag: Tag | int | str | None = None, context: Context | None = None) -> Callable[[int], Any]: ...
def use(
    kind: Kind = ..., *, pinned: bool = True, tag: Tag | int | str | None = None, context: Context | None = None
) -> Use: ...
