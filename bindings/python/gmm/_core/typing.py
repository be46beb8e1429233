# SPDX-License-Identifier: Apache-2.0
"""Types in the signatures of several modules. Type checkers alone import this."""
from __future__ import annotations

import os
from typing import Any, Callable, Optional, Sequence, Union

from gmm._context import Context, Watcher
from gmm._core.array import Array
from gmm._core.buffer import Buffer, Pin
from gmm._core.enums import Contents, FdType, Kind
from gmm._core.values import PointerInfo, WatchInfo
from gmm._core.stream import Stream
from gmm._core.tag import Tag
from gmm._core.ticket import Ticket

__all__ = ["Address", "Array", "Context", "ContentsLike", "FdTypeLike", "KindLike", "OnProgress", "OnWatch", "Path",
           "PointerInfo", "Shape", "Stream", "Tag", "TagLike", "Ticket", "Watcher"]

Address = Union[int, Buffer, Array, Pin]
ContentsLike = Union[Contents, int]
FdTypeLike = Union[FdType, int]
KindLike = Union[Kind, int, str]  # such as "vmm"
TagLike = Union[Tag, int, str]
OnProgress = Optional[Callable[[int, int], object]]  # bytes that are done, and all; False aborts the operation
OnWatch = Optional[Callable[[WatchInfo], Any]]  # False of `prepare` ends the operation
Path = Union[str, bytes, "os.PathLike[str]"]
Shape = Union[int, Sequence[int]]
