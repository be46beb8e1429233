# SPDX-License-Identifier: Apache-2.0
"""Memory of other processes as buffers."""
from gmm import _native as native
from gmm._core.buffer import IMPORTED, Buffer
from gmm._core.errors import ERRORS


def import_block(context, handle, *, nbytes=None, device=0, timeout=None):
    """Maps another process's memory as a Buffer of nbytes; None: of all bytes after the address.

    The buffer's _source is the handle, by which the buffer can be sent on.
    """
    address = native.gmm_ipc_import(context, handle, import_desc(device, timeout))[1]
    return adopt_import(context, address, nbytes, bytes(handle))


def import_desc(device, timeout):
    """A descriptor with the timeout in seconds."""
    desc = native.gmm_ipc_import_desc()
    desc.device = device
    desc.timeout_ms = 0 if timeout is None else max(1, int(timeout * 1000))
    return desc


def adopt_import(context, address, nbytes, source):
    """A Buffer for an imported address. A failure closes the import."""
    try:
        info = context.query(address)
        rest = info.base + info.size - address
        if nbytes is None:
            nbytes = rest
        elif nbytes > rest:
            raise ERRORS["InvalidSizeError"](
                f"{nbytes} bytes of another process's memory were asked for; "
                f"its block has {rest} bytes from the address on",
                code=native.GMM_ERROR_INVALID_SIZE, name="GMM_ERROR_INVALID_SIZE")
        buffer = Buffer()
        buffer._adopt(IMPORTED, address, nbytes, context, None, None, source)
    except BaseException:
        native.gmm_ipc_close(context, address)
        raise
    return buffer
