# SPDX-License-Identifier: Apache-2.0
"""IPC handles that Numba's own class cannot have or cannot send."""
import ctypes
import weakref

from numba import cuda
from numba.cuda.cudadrv import driver as numba_driver
from numba.cuda.cudadrv.driver import Device, MemoryPointer, binding

from gmm import _default
from gmm._core.resource import need_cuda


class IpcHandle(cuda.IpcHandle):
    """Numba's interface of a handle over gmm's handle, for VMM and page-locked memory.

    The driver's legacy IPC does not take such memory. Programs open, close and send it like every handle of Numba. The
    exporting process must live until the handle is opened.
    """

    def __init__(self, base, handle, size, source_info=None, offset=0):
        super().__init__(base, bytes(handle), size, source_info=source_info, offset=offset)

    def open_direct(self, context):
        """Maps the memory for the context; close() of Numba's class closes the gmm.Buffer."""
        if self._impl is not None:
            raise ValueError("IpcHandle is already opened")
        if self.base is not None:
            raise ValueError("opening IpcHandle from original process")
        importer = need_cuda(_default.context(), "the handle")
        self._impl = importer.ipc_import(self.handle, device=int(context.device.id))
        return MemoryPointer(weakref.proxy(context), binding.CUdeviceptr(self._impl.address), self.size)

    def open_staged(self, context):
        """Copies the memory to the context's device, which cannot reach it."""
        self._sentry_source_info()
        with cuda.gpus[int(Device.from_identity(self.source_info).id)]:
            source = self.open_direct(cuda.current_context())
        copied = context.memalloc(self.size)  # the copy goes through the host
        try:
            numba_driver.device_to_device(copied, source, self.size)
        finally:
            self._impl.close()
        return copied

    def __reduce__(self):
        return (type(self), (None, self.handle, self.size, self.source_info, self.offset))


class LegacyIpcHandle(cuda.IpcHandle):
    """The driver's legacy handle of newer cuda-bindings, whose bytes Numba's class does not find when it is sent."""

    @classmethod
    def _received(cls, content, *fields):
        handle = binding.CUipcMemHandle()
        ctypes.memmove(handle.getPtr(), content, len(content))
        return cls(None, handle, *fields)

    def __reduce__(self):
        content = ctypes.string_at(self.handle.getPtr(), 64)  # CU_IPC_HANDLE_SIZE
        return (self._received, (content, self.size, self.source_info, self.offset))
