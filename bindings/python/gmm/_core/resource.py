# SPDX-License-Identifier: Apache-2.0
"""Helpers of other libraries' memory resources: their tag, the options of allocations, and the end of their use."""
import functools
from typing import TypeVar

from gmm._core.enums import tag_number

_Self = TypeVar("_Self")


def resource_tag(context, tag):
    """The number of a Tag, of a number or of a name, which is made when it is new. 0 for None: the current tag."""
    if tag is None:
        return 0
    number = tag_number(context, context.tag(tag) if isinstance(tag, str) else tag)
    context.tag_info(number)  # a missing tag is an error here
    return number


def hand_over(take, give_back, function, *arguments):
    """take() of the last output of a native function that makes something; give_back() of it when take() fails.

    A signal's handler may raise an exception after each call of Python code. extend() calls both in C, one after the
    other, so that no handler comes between a call and the list that has its result.
    """
    made, taken = [], []
    try:
        made.extend(map(function, *zip(arguments)))
        taken.extend(map(take, (made[0][-1],)))
        return taken[0]
    except BaseException:
        if made and not taken:
            give_back(made[0][-1])
        raise


@functools.lru_cache(maxsize=256)
def alloc_desc(kind, device, tag, stream):
    """The options of an allocation. They are shared: nobody changes them."""
    return {"kind": kind, "device": device, "tag": tag, "stream": stream}


class Undoable:
    """undo() and the with statement."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()
