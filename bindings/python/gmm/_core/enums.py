# SPDX-License-Identifier: Apache-2.0
"""The enumerations of the C headers, constants with Python's names, and arguments as the library takes them."""
from __future__ import annotations

import functools
import operator
from typing import Any

from gmm import _native as native
from gmm._core import values
from gmm._core.values import *  # noqa: F401,F403 # pylint: disable=wildcard-import,unused-wildcard-import


def by_name(members: Any, given: Any) -> Any:
    """A member of an enumeration that is given by its name, such as "vmm". Anything else comes back as it is."""
    if not isinstance(given, str):
        return given
    try:
        return members[given.upper()]
    except KeyError:
        noun = members.__name__.lower()
        names = ", ".join(repr(member.name.lower()) for member in members if member.name != "UNSPECIFIED")
        raise ValueError(f"there is no {noun} {given!r}; the {noun}s are {names}") from None


as_kind = functools.partial(by_name, Kind)


def tag_number(context: Any, tag: Any) -> int:
    """The number of a tag that is given by its number, its object or its name; None: the thread's current tag."""
    if tag is None:
        return 0
    return native.gmm_tag_find(context, tag)[1] if isinstance(tag, str) else operator.index(tag)


def milliseconds(seconds, none=0):
    """A time for the library, at least 1 ms; `none` stands for None."""
    if seconds is None:
        return none
    if not seconds >= 0:
        raise ValueError(f"a time is 0 seconds or more, not {seconds!r}")
    return max(1, round(seconds * 1000))


#: The host's memory, where a function takes a location.
HOST = values.DEVICE_HOST
#: The tag of memory that was allocated under no other tag.
DEFAULT_TAG = values.TAG_DEFAULT
