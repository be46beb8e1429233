# SPDX-License-Identifier: Apache-2.0
"""gmm.Tag: memory that is paused, limited and counted together."""
from __future__ import annotations

from typing import TYPE_CHECKING

from gmm import _native as native
from gmm._core.errors import Error, size
from gmm._core.values import TagFlags, TagInfo, tag_desc
from gmm._core.ticket import Pausing, Scope

if TYPE_CHECKING:
    from gmm._core.typing import ContentsLike, Context


class Tag(Pausing, Scope, int):
    """A tag of a context, which it pauses alone. In a with block it is the current tag of the thread.

    Context.tag() makes it. It is its number, which PointerInfo.tag says.

        with context.tag("weights", contents=gmm.Contents.HOST, read_only=True) as weights:
            block = context.alloc(1 << 20, gmm.Kind.VMM)
        with weights.paused():
            ...  # the driver has the memory
    """

    def __new__(cls, context: Context, number: int, name: str) -> Tag:
        return super().__new__(cls, number)

    def __init__(self, context: Context, number: int, name: str) -> None:
        super().__init__(native.gmm_tag_push, (context, number), native.gmm_tag_pop, (context,), None)
        self.context, self.number, self.name = context, number, name

    def _chosen(self, tags):
        if tags:
            raise TypeError("a tag pauses and resumes its own memory; pass several tags to the context's methods")
        return self.context, (self,)

    @property
    def info(self) -> TagInfo:
        """The state of the tag: TagInfo."""
        return self.context.tag_info(self)

    def destroy(self) -> None:
        """Destroys the tag, which must have no memory, heap or with block left, and returns its free memory.

        Its number is not used again. Otherwise a tag lives as long as its context.
        """
        native.gmm_tag_destroy(self.context, self.number)

    def update(self, contents: ContentsLike | None = None, priority: int | None = None, *,
               read_only: bool | None = None, checksum: bool | None = None, pageable: bool | None = None) -> None:
        """Changes the tag's options from the next pause or resume on; None leaves an option as it is.

        The change does not affect contents that are kept already.
        """
        now = self.info
        native.gmm_tag_configure(self.context, self.number, tag_desc(
            contents=now.contents if contents is None else contents,
            priority=now.priority if priority is None else priority,
            read_only=TagFlags.READ_ONLY in now.flags if read_only is None else read_only,
            checksum=TagFlags.CHECKSUM in now.flags if checksum is None else checksum,
            pageable=TagFlags.PAGEABLE in now.flags if pageable is None else pageable))

    def __repr__(self):
        what = f"<gmm.Tag {self.number} {self.name!r}"
        try:
            info = self.info
        except (Error, RuntimeError):  # it was destroyed, or its context is closed or being reset
            return what + ">"
        return (f"{what}, {info.contents.name} contents, {size(info.active_bytes)} active, "
                f"{size(info.paused_bytes)} paused>")
