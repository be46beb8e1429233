# SPDX-License-Identifier: Apache-2.0
"""Several processes pause and resume as one, and whole processes leave the GPU.

    with gmm.job.paused("weights", "optimizer"):    # on all ranks of torch.distributed, in the same order, or on none
        ...                                         # the GPUs are free for others
    loss = step()

Each rank starts its pause and lets it be held: all contents are copied, and nothing has changed. One all-reduce tells
whether every rank has come so far. Then all commit, or all undo and the call raises. A rank that dies, stops or is late
before that ends the others' pauses within `hold` seconds: the all-reduce fails or comes too late, and everything is as
before.

A pause leaves contexts, communicators, graphs and workspaces of libraries on the GPU. suspend_process() takes a whole
process off it, by the driver's checkpoint, and resume_process() brings it back:

    gmm.context().pause()                           # gmm copies its tags faster than the driver does
    suspended = gmm.job.suspend_process()           # this process, or those with the given numbers
    ...                                             # no call of CUDA or gmm here: it would wait
    gmm.job.resume_process(suspended)
    gmm.context().resume()
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from gmm._core.errors import ERRORS, Error
from gmm._core.ticket import Scope
from gmm._default import context as default_context
from gmm._suspend import (
    CheckpointError, ProcessState, ProcessStuckError, Suspended, process_state, resume_process, suspend_process)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gmm._core.typing import ContentsLike, Context, TagLike

    Reduce = Callable[[int], int]

__all__ = ["CheckpointError", "ProcessState", "ProcessStuckError", "Suspended", "pause", "paused", "process_state",
           "resume", "resume_process", "suspend_process"]

for _public in (CheckpointError, ProcessState, ProcessStuckError, Suspended, process_state, resume_process,
                suspend_process):
    _public.__module__ = __name__
del _public


def _reduce_minimum(value):
    """The least value of all ranks, over the default group of torch.distributed."""
    import torch
    from torch import distributed

    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    least = torch.tensor([value], dtype=torch.int32, device=device)
    distributed.all_reduce(least, distributed.ReduceOp.MIN)
    return int(least.item())


def _together(start, reduce, hold):
    """Starts an operation, which is held, and carries it out if all ranks come so far. Returns its bytes."""
    failure = ticket = None
    try:
        ticket = start()
        if not ticket.wait_held(hold):
            raise ERRORS["NotReadyError"](f"this rank has not come to its hold in {hold} s")
    except Error as error:
        failure = error
    try:
        agreed = reduce(0 if failure else 1) == 1  # every rank comes here, also one that has failed
        if agreed:
            ticket.commit()
    finally:
        if ticket is not None:
            ticket.cancel()  # without effect on what is committed
            ticket.wait()
    if failure is not None:
        raise failure
    if not agreed:
        raise ERRORS["CancelledError"]("another rank failed, so no rank has changed; its own error tells why")
    return ticket.result()


def pause(*tags: TagLike, context: Context | None = None, reduce: Reduce = _reduce_minimum, hold: float = 60.0,
          force: bool = False, contents: ContentsLike | None = None) -> int:
    """Pauses the tags on all ranks, or on none. Returns the bytes that this rank released. No tags: all tags.

    reduce(value) returns the least value of all ranks; the default uses torch.distributed. hold: seconds until a pause
    that no rank decided is undone. No thread or kernel may use the memory during the call. A rank whose own part fails
    raises that failure, the others CancelledError.
    """
    context = default_context() if context is None else context
    return _together(lambda: context.pause_async(*tags, force=force, contents=contents, hold=hold, no_writes=True),
                     reduce, hold)


def resume(*tags: TagLike, context: Context | None = None, reduce: Reduce = _reduce_minimum, hold: float = 60.0,
           retain: bool = False) -> int:
    """Resumes the tags on all ranks, or on none: a rank that cannot have its pages lets all stay paused."""
    context = default_context() if context is None else context
    return _together(lambda: context.resume_async(*tags, retain=retain, hold=hold), reduce, hold)


def paused(*tags: TagLike, context: Context | None = None, reduce: Reduce = _reduce_minimum, hold: float = 60.0,
           force: bool = False, contents: ContentsLike | None = None) -> AbstractContextManager[int]:
    """Pauses for the time of a with block, which gets the bytes that this rank released."""
    same = {"context": context, "reduce": reduce, "hold": hold}
    return Scope(lambda: pause(*tags, force=force, contents=contents, **same), (), lambda: resume(*tags, **same), ())
