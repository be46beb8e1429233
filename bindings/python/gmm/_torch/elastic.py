# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors over reserved addresses."""
from __future__ import annotations

from typing import Any

import torch

from gmm._context import Context
from gmm._core.elastic import PAGE
from gmm._core.resource import resource_tag
from gmm._core.tag import Tag
from gmm._default import context as default_context


def reserve(shape: Any, dtype: torch.dtype | None = None, *, device: Any = None, context: Context | None = None,
            tag: Tag | int | str | None = None, page: int = PAGE) -> torch.Tensor:
    """A tensor over reserved addresses, whose rows have memory while they are taken. It may be larger than the GPU.

        cache = gmm.torch.reserve((blocks, 2, 16, 8, 128), torch.bfloat16)
        cache.gmm.take(first, count)                  # or a list of rows; all of them, or an exception and none
        cache[first].zero_()
        cache.gmm.give_back(first, count)

    `cache.gmm` is a gmm.Elastic, whose help() has the rules. Kernels and CUDA graphs find the same addresses after rows
    were given back and taken again. The end of the tensor and its views frees the memory. Views have no attribute
    `gmm`. Printing or copying rows that are not taken is a fault.

    dtype: None: PyTorch's default. device: of PyTorch; None: its current CUDA device, or the CPU on the host backend.
    context: None: gmm.context(). tag: as of gmm.torch.pool(). page: see gmm.Context.reserve().
    """
    context = default_context() if context is None else context
    where = "cpu" if context.info.backend_name == "host" else "cuda"
    device = torch.device(where if device is None else device)
    if device.type != where:
        raise RuntimeError(f"gmm.torch.reserve(): {context!r} has no memory for the device {device}; name a device of "
                           f"type {where}, or a context of another backend")
    index = torch.cuda.current_device() if where == "cuda" and device.index is None else device.index or 0
    memory = context.reserve(shape, dtype or torch.get_default_dtype(), device=index, tag=resource_tag(context, tag),
                             page=page)
    made = torch.from_dlpack(memory)
    made.gmm = memory
    return made
