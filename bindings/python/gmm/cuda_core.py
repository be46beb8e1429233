# SPDX-License-Identifier: Apache-2.0
"""gmm under cuda.core: a memory resource whose buffers come from gmm's pool.

    import gmm.cuda_core
    from cuda.core import Device

    device = Device()
    device.set_current()
    device.memory_resource = gmm.cuda_core.MemoryResource(device)
    buffer = device.allocate(1 << 20, stream=device.create_stream())

The resource allocates and frees on the streams that cuda.core names.
"""
from __future__ import annotations

import operator
from typing import Any

try:
    import cuda.core
    from cuda.core import Buffer
    from cuda.core import MemoryResource as _MemoryResource
except ImportError as error:
    raise ImportError("gmm.cuda_core makes gmm a memory resource of cuda.core 1.0 or newer, and that cannot be "
                      f"imported here ({error}): pip install 'cuda-core[cu13]' (or [cu12])") from error

from gmm._context import Context
from gmm._core.enums import STREAM_DEFAULT, Kind
from gmm._core.resource import resource_tag
from gmm._core.tag import Tag
from gmm._default import context as _default_context

__all__ = ["MemoryResource"]

# Since 1.2 a buffer knows from its allocation on which stream it is freed.
_KNOWS_STREAM = tuple(map(int, cuda.core.__version__.split(".")[:2])) >= (1, 2)


class MemoryResource(_MemoryResource):
    """Memory of one device from gmm, as a cuda.core.MemoryResource.

    device: a cuda.core.Device or its number. kind: DEVICE, VMM (which can be paused by its tag), MANAGED or HOST. tag:
    a Tag, its number or its name, which is made when it is new; None: the thread's current tag at each allocation.
    context: None: the default context. It must stay open as long as its memory is in use.
    """

    def __init__(self, device: Any = 0, kind: Kind = Kind.DEVICE, *, tag: Tag | int | str | None = None,
                 context: Context | None = None) -> None:
        super().__init__()
        self._context = _default_context() if context is None else context
        self._kind = Kind(kind)
        self._device = operator.index(getattr(device, "device_id", device))
        self._context.device_info(self._device)  # a missing device is an error here
        self._tag = resource_tag(self._context, tag)
        self._buffers = {}  # gmm's, by address

    def allocate(self, size: int, stream: Any = None) -> Any:
        """A cuda.core.Buffer, ready for work on the stream. None: the default stream."""
        known = {"stream": stream} if _KNOWS_STREAM and stream is not None else {}
        if not size:
            return Buffer.from_handle(0, size, mr=self, **known)
        block = self._context.alloc(size, self._kind, device=self._device, tag=self._tag, stream=stream)
        made = Buffer.from_handle(block.address, size, mr=self, **known)
        self._buffers[block.address] = block
        return made

    # pylint: disable-next=unused-argument # cuda.core's own signature
    def deallocate(self, ptr: Any, size: int, stream: Any = None) -> None:
        """Frees memory of allocate() behind the work that is queued on the stream."""
        block = self._buffers.pop(int(ptr), None)
        if block is not None:  # else it has no bytes, or Ctrl-C came in the middle of allocate() and freed it
            block.free(STREAM_DEFAULT if stream is None else stream)

    @property
    def is_device_accessible(self) -> bool:
        """True: a GPU reaches every kind."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """Whether the CPU reaches the memory: of the kinds HOST and MANAGED."""
        return self._kind in (Kind.HOST, Kind.MANAGED)

    @property
    def is_managed(self) -> bool:
        """Whether the memory is of the kind MANAGED."""
        return self._kind == Kind.MANAGED

    @property
    def device_id(self) -> int:
        """The device's number; -1 for the kind HOST."""
        return -1 if self._kind == Kind.HOST else self._device

    def __repr__(self):
        return f"<gmm.cuda_core.MemoryResource kind={self._kind.name} device={self._device}>"
