# SPDX-License-Identifier: Apache-2.0
"""Helpers of the memory resources of other libraries: the tag that they are given, and the options of allocations."""
import functools

from gmm._core.enums import tag_number


def resource_tag(context, tag):
    """The number of a Tag, of a number or of a name, which is made when it is new. 0 for None: the current tag."""
    if tag is None:
        return 0
    number = tag_number(context, context.tag(tag) if isinstance(tag, str) else tag)
    context.tag_info(number)  # a missing tag is an error here
    return number


@functools.lru_cache(maxsize=256)
def alloc_desc(kind, device, tag, stream):
    """The options of an allocation. They are shared: nobody changes them."""
    return {"kind": kind, "device": device, "tag": tag, "stream": stream}
