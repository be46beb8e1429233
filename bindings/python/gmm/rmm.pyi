# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable
from typing import Any

from gmm import Context, Kind, Tag

__all__ = ["Use", "resource", "use"]

class Use:
    context: Context
    resources: dict[int, Any]
    def __init__(
        self, kind: Kind, tag: Tag | int | str | None, devices: Iterable[int] | None, context: Context | None
    ) -> None: ...
    def undo(self) -> None: ...
    def __enter__(self) -> Use: ...
    def __exit__(self, *exception: object) -> None: ...

def resource(
    kind: Kind = ..., *, device: int = 0, tag: Tag | int | str | None = None, context: Context | None = None
) -> Any: ...
def use(
    kind: Kind = ..., *, tag: Tag | int | str | None = None, devices: Iterable[int] | None = None,
    context: Context | None = None
) -> Use: ...
