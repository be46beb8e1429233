# SPDX-License-Identifier: Apache-2.0
"""Arrays that outlive their process: the first process loads them, and all others attach them."""
from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Callable

from gmm._core.array import Array, asarray
from gmm._core.enums import Kind
from gmm._core.errors import NotReadyError
from gmm._default import context as default_context

if TYPE_CHECKING:
    from gmm._core.typing import Buffer, Context

_ALIGNMENT = 256  # of each array in the block
_SLICE = 1.0  # seconds, between which Ctrl-C works


def keep(name: str, load: Callable[[], Any], *, device: int = 0, timeout: float | None = None,
         context: Context | None = None) -> Any:
    """The arrays of load(), an array or a dict of them, in memory that all processes of the machine share.

        weights = gmm.keep("llama-8b", lambda: dict(numpy.load("llama-8b.npz")))

    The first process calls load(), copies its arrays into one block of VMM memory and publishes that. Every other one,
    and the first one's successor after a crash, attaches the block. Others wait while one loads. The result is an Array
    or a dict of Arrays, which are read-only. The memory lives until Context.unpublish(name) and the last reader's end.

    device: of the first process. timeout: seconds to wait for the server and another one's load(); None: without an
    end. gmm.NotReadyError: they have passed.
    """
    context = default_context() if context is None else context
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _SLICE if end is None else min(_SLICE, max(end - time.monotonic(), 0))
        try:
            block = context.attach(name, or_claim=True, timeout=left)
            break
        except NotReadyError:
            if end is not None and time.monotonic() >= end:
                raise
    if block is None:
        try:
            block = _pack(context, load(), device)
            context.publish(block, name)
        except BaseException:
            context.unpublish(name)  # another process may load
            raise
    return _unpack(block)


def tensors(arrays: dict[str, Array]) -> dict[str, Any]:
    """PyTorch's tensors over what keep() returned, for Module.load_state_dict(state, assign=True).

    PyTorch knows no read-only tensors: a write to one ends the process, or is an error of the GPU.
    """
    import torch  # pylint: disable=import-outside-toplevel # the rest of the module does without

    return {key: torch.from_dlpack(Array(one.buffer, one.shape, one.dtype_name, offset=one.offset))
            for key, one in arrays.items()}


def _pack(context: Context, arrays: Any, device: int) -> Buffer:
    """A block with a table of the arrays, and their elements."""
    taken = {key: asarray(value, context=context) for key, value in (
        arrays.items() if hasattr(arrays, "items") else [("", arrays)])}
    rows, at = [], 0
    for key, one in taken.items():
        rows.append([key, one.dtype_name, list(one.shape), at])
        at += -(-one.nbytes // _ALIGNMENT) * _ALIGNMENT
    table = json.dumps([hasattr(arrays, "items"), rows]).encode()
    first = -(-(len(table) + 8) // _ALIGNMENT) * _ALIGNMENT
    block = context.alloc(first + at, Kind.VMM, device=device, dedicated=True)
    try:
        block.copy_from(len(table).to_bytes(8, "little") + table)
        for (_, _, _, place), one in zip(rows, taken.values()):
            if one.nbytes:
                block.copy_from(one if one.contiguous else one.copy(), offset=first + place)
    except BaseException:
        block.free()
        raise
    return block


def _unpack(block: Buffer) -> Any:
    length = bytearray(8)
    block.copy_to(length)
    table = bytearray(int.from_bytes(length, "little"))
    block.copy_to(table, offset=8)
    is_mapping, rows = json.loads(table)
    first = -(-(len(table) + 8) // _ALIGNMENT) * _ALIGNMENT
    arrays = {key: Array(block, shape, dtype, offset=first + at, readonly=True) for key, dtype, shape, at in rows}
    return arrays if is_mapping else arrays[""]
