# SPDX-License-Identifier: Apache-2.0
"""What memory resources of other libraries share: the tag that they are given, and their descriptors."""
import functools

from gmm import _native as native
from gmm._core.tag import tag_number


def resource_tag(context, tag):
    """The number of a Tag, of a number or of a name, which is made when it is new. 0 for None: the current tag."""
    if tag is None:
        return 0
    number = tag_number(context, context.tag(tag) if isinstance(tag, str) else tag)
    context.tag_info(number)  # a missing tag is an error here
    return number


@functools.lru_cache(maxsize=256)
def alloc_desc(kind, device, tag, stream):
    """The descriptor of an allocation. It is shared: nobody changes it."""
    desc = native.gmm_alloc_desc()
    desc.kind = kind
    desc.device = device
    desc.tag = tag
    desc.stream = stream
    return desc
