# SPDX-License-Identifier: Apache-2.0
"""Tags: what is paused, limited and counted together."""
import operator

from gmm import _native as native
from gmm._info import TagInfo, read


class Tag:
    """A tag of a context. In a with block it is the current tag of the thread.

        with context.tag("weights", contents=gmm.Contents.HOST):
            block = context.alloc(1 << 20, gmm.Kind.VMM)
        context.pause("weights")
    """

    __slots__ = ("context", "name", "number")

    def __init__(self, context, name, contents=None, priority=None):
        desc = None
        if contents is not None or priority is not None:
            desc = native.gmm_tag_desc()
            desc.contents = contents or 0
            desc.priority = priority or 0
        self.context = context
        self.name = name
        self.number = native.gmm_tag_create(context, name, desc)[1]

    def __index__(self):
        return self.number

    __int__ = __index__

    def __eq__(self, other):
        """A tag equals its number, which is what PointerInfo.tag says."""
        if isinstance(other, Tag):
            return self.number == other.number and self.context is other.context
        return self.number == other if isinstance(other, int) else NotImplemented

    def __hash__(self):
        return hash(self.number)

    @property
    def info(self):
        """How the tag stands: TagInfo."""
        return tag_info(self.context, self)

    def __enter__(self):
        native.gmm_tag_push(self.context, self.number)
        return self

    def __exit__(self, *exception):
        native.gmm_tag_pop(self.context)

    def pause(self, *, force=False):
        """Gives the physical memory of the tag's VMM blocks back and keeps the addresses. Returns the bytes that went back."""
        return self.context.pause(self, force=force)

    def resume(self):
        """Gives the blocks their pages back. Returns the bytes taken."""
        return self.context.resume(self)

    def __repr__(self):
        return f"<gmm.Tag {self.number} {self.name!r}>"


def tag_number(context, tag):
    """A tag by its number, its object or its name."""
    if isinstance(tag, str):
        return native.gmm_tag_find(context, tag)[1]
    return operator.index(tag)


def tag_info(context, tag):
    """How a tag stands."""
    struct = native.gmm_pause_info()
    native.gmm_pause_query(context, tag_number(context, tag), struct)
    return read(TagInfo, struct)


def pause_desc(context, tags, force):
    """A descriptor for pause and resume; None for every tag."""
    if not tags and not force:
        return None
    desc = native.gmm_pause_desc()
    desc.flags = native.GMM_PAUSE_FORCE if force else 0
    for tag in tags:
        desc.add_tag(tag_number(context, tag))
    return desc
