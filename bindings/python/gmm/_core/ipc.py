# SPDX-License-Identifier: Apache-2.0
"""Memory of other processes as buffers."""
from gmm import _native as native
from gmm._core.buffer import IMPORTED, Buffer
from gmm._core.errors import ERRORS
from gmm._core.ticket import milliseconds


def import_block(context, handle, *, nbytes=None, device=0, timeout=None):
    """Maps another process's memory as a Buffer of nbytes; None: of all bytes after the address.

    The buffer's _source is the handle, by which the buffer can be sent on.
    """
    return open_import(context, nbytes, bytes(handle), native.gmm_ipc_import, context, handle,
                       import_desc(device, timeout))


def import_desc(device, timeout):
    """A descriptor with the timeout in seconds."""
    desc = native.gmm_ipc_import_desc()
    desc.device = device
    desc.timeout_ms = milliseconds(timeout)
    return desc


def open_import(context, nbytes, source, function, *arguments):
    """A Buffer of what the native function imports. A failure closes the import."""
    buffer = Buffer()
    buffer._open(IMPORTED, None, nbytes, context, source, function, *arguments)
    if nbytes is not None:
        try:
            info = context.query(buffer)
            rest = info.base + info.size - buffer.address
            if nbytes > rest:
                raise ERRORS["InvalidSizeError"](
                    f"{nbytes} bytes of another process's memory were asked for; "
                    f"its block has {rest} bytes from the address on",
                    code=native.GMM_ERROR_INVALID_SIZE, name="GMM_ERROR_INVALID_SIZE")
        except BaseException:
            buffer.free()
            raise
    return buffer
