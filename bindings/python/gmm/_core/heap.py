# SPDX-License-Identifier: Apache-2.0
"""gmm.Heap: allocation with one kind, device and tag."""
from __future__ import annotations

from typing import TYPE_CHECKING

from gmm import _native as native
from gmm._core.enums import Kind, as_kind, tag_number

if TYPE_CHECKING:
    from gmm._core.typing import Context, KindLike, TagLike


class Heap(native.Handle):
    """A heap with a fixed kind, device and tag: the fastest way to allocate. Context.heap() makes it."""

    __slots__ = ("kind", "device")

    alloc = native.heap_alloc

    def reserve(self, size: int) -> None:
        """Makes the heap hold at least so many bytes from now on, all of them touched; 0 ends it."""
        native.gmm_heap_reserve(self, size)

    def __repr__(self):
        return "<gmm.Heap closed>" if self.closed else f"<gmm.Heap of {self.kind.name} memory of device {self.device}>"


def heap(self: Context, kind: KindLike = Kind.DEVICE, *, device: int = 0, tag: TagLike = 0, minimum_extent: int = 0,
         limit: int = 0, peer_devices: int = 0, exportable: bool = False) -> Heap:
    """Makes a Heap. Its blocks share no extent with other heaps. exportable: each block has a file descriptor."""
    made = Heap()
    made.kind, made.device = Kind(as_kind(kind)), device
    made._open("heap", self, native.gmm_heap_create, self, {
        "kind": made.kind, "device": device, "tag": tag_number(self, tag), "minimum_extent": minimum_extent,
        "limit": limit, "peer_devices": peer_devices, "flags": native.GMM_HEAP_EXPORTABLE if exportable else 0})
    return made
