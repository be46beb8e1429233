# SPDX-License-Identifier: Apache-2.0
"""IPC handles for memory that has no legacy handle of the driver."""
import weakref

from numba import cuda
from numba.cuda.cudadrv import driver as numba_driver
from numba.cuda.cudadrv.driver import Device, MemoryPointer, binding

from gmm import _default


class _Import:
    """One opening of a handle."""

    def __init__(self, handle, staged):
        self._handle = handle
        self._staged = staged
        self._buffer = None

    def _map(self, device):
        context = _default.context()
        if context.info.backend_name != "cuda":
            raise RuntimeError("the handle names CUDA memory, but the default gmm context has the "
                               f"{context.info.backend_name} backend: unset GMM_BACKEND")
        self._buffer = context.ipc_import(self._handle.handle, device=device)
        return binding.CUdeviceptr(self._buffer.address)

    def open(self, context):
        if self._handle.base is not None:
            raise ValueError("opening IpcHandle from original process")
        if self._buffer is not None:
            raise ValueError("IpcHandle is already opened")
        size = self._handle.size
        if not self._staged:
            return MemoryPointer(weakref.proxy(context), self._map(int(context.device.id)), size)
        # The devices cannot reach each other's memory, so the copy goes through the host.
        source_device = int(Device.from_identity(self._handle.source_info).id)
        with cuda.gpus[source_device]:
            source = MemoryPointer(weakref.proxy(cuda.current_context()), self._map(source_device), size)
        copied = context.memalloc(size)
        try:
            numba_driver.device_to_device(copied, source, size)
        finally:
            self._buffer.close()
        return copied

    def close(self):
        self._buffer.close()


class IpcHandle(cuda.IpcHandle):
    """Numba's interface of a handle over gmm's handle, for VMM and page-locked memory.

    The driver's legacy IPC does not take such memory. Programs open, close and send it like every handle of Numba. The
    exporting process must live until the handle is opened.
    """

    def __init__(self, base, handle, size, source_info=None, offset=0):
        super().__init__(base, bytes(handle), size, source_info=source_info, offset=offset)

    def open_direct(self, context):
        """Maps the memory for the context."""
        return self._open(context, staged=False)

    def open_staged(self, context):
        """Copies the memory to the context's device, which cannot reach it."""
        self._sentry_source_info()
        return self._open(context, staged=True)

    def _open(self, context, staged):
        if self._impl is not None:
            raise ValueError("IpcHandle is already opened")
        self._impl = _Import(self, staged)
        return self._impl.open(context)

    def __reduce__(self):
        return (type(self), (None, self.handle, self.size, self.source_info, self.offset))
