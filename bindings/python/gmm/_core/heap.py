# SPDX-License-Identifier: Apache-2.0
"""gmm.Heap: allocation with one kind, device and tag."""
from __future__ import annotations

from typing import TYPE_CHECKING

from gmm import _native as native
from gmm._core.enums import Kind, as_kind, tag_number
from gmm._core.stream import _Closing

if TYPE_CHECKING:
    from gmm._core.typing import Context, KindLike, Tag


class Heap(_Closing, native.Handle):
    """A heap with a fixed kind, device and tag: the fastest way to allocate. Context.heap() makes it."""

    __slots__ = ("kind", "device")

    def __init__(self, context: Context, kind: KindLike = Kind.DEVICE, *, device: int = 0, tag: Tag | int = 0,
                 minimum_extent: int = 0, limit: int = 0, peer_devices: int = 0, exportable: bool = False) -> None:
        kind = as_kind(kind)
        options = {"kind": kind, "device": device, "tag": tag_number(context, tag), "minimum_extent": minimum_extent,
                   "limit": limit, "peer_devices": peer_devices,
                   "flags": native.GMM_HEAP_EXPORTABLE if exportable else 0}
        self.kind = Kind(kind)
        self.device = device
        self._open(native.HANDLE_HEAP, context, native.gmm_heap_create, context, options)

    alloc = native.heap_alloc

    def reserve(self, size: int) -> None:
        """Makes the heap hold at least so many bytes from now on, all of them touched; 0 ends it."""
        native.gmm_heap_reserve(self, size)

    def __repr__(self):
        return "<gmm.Heap closed>" if self.closed else f"<gmm.Heap of {self.kind.name} memory of device {self.device}>"
