# SPDX-License-Identifier: Apache-2.0
"""Tags: what is paused, limited and counted together."""
from gmm import _native as native
from gmm._info import TagInfo, read


class Tag(int):
    """A tag's number, with its context. In a with block it is the current tag of the thread.

        with context.tag("weights", contents=gmm.Contents.HOST):
            block = context.alloc(1 << 20, gmm.Kind.VMM)
        context.pause("weights")
    """

    def __new__(cls, context, name, contents=None, priority=None):
        desc = None
        if contents is not None or priority is not None:
            desc = native.gmm_tag_desc()
            desc.contents = contents or 0
            desc.priority = priority or 0
        self = super().__new__(cls, native.gmm_tag_create(context, name, desc)[1])
        self._context = context
        self._name = name
        return self

    @property
    def context(self):
        """The context that the tag belongs to."""
        return self._context

    @property
    def name(self):
        """The tag's name."""
        return self._name

    @property
    def info(self):
        """How the tag stands: TagInfo."""
        return tag_info(self._context, self)

    def __enter__(self):
        native.gmm_tag_push(self._context, self)
        return self

    def __exit__(self, *exception):
        native.gmm_tag_pop(self._context)

    def pause(self, *, force=False):
        """Gives the physical memory of the tag's VMM blocks back and keeps the addresses. Returns the bytes that went back."""
        return self._context.pause(self, force=force)

    def resume(self):
        """Gives the blocks their pages back. Returns the bytes taken."""
        return self._context.resume(self)

    def __repr__(self):
        return f"<gmm.Tag {int(self)} {self._name!r}>"


def tag_number(context, tag):
    """A tag by its number, its object or its name."""
    if isinstance(tag, str):
        return native.gmm_tag_find(context, tag)[1]
    return int(tag)


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
