# SPDX-License-Identifier: Apache-2.0
"""The library's answers, which are named tuples."""
from gmm._core import words
from gmm._core.values import (
    BackupInfo, BlockInfo, CompactInfo, ContextInfo, DeviceInfo, OutOfMemoryInfo, PointerInfo, Statistics, TagInfo,
    TicketInfo, WatchInfo)

__all__ = ["BackupInfo", "BlockInfo", "CompactInfo", "ContextInfo", "DeviceInfo", "OutOfMemoryInfo", "PointerInfo",
           "Statistics", "TagInfo", "TicketInfo", "WatchInfo"]

# str() and notebooks have a field a line with sizes in words; repr() is that of a named tuple.
for _answer in (ContextInfo, DeviceInfo, PointerInfo, BlockInfo, TagInfo, TicketInfo, BackupInfo, Statistics,
                CompactInfo, OutOfMemoryInfo, WatchInfo):
    for _name, _method in (("__str__", words.lines), ("_repr_html_", words.pre)):
        setattr(_answer, _name, _method)
del _answer, _name, _method
