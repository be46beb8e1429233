# SPDX-License-Identifier: Apache-2.0
"""Helpers of other libraries' memory resources: their tag, and the end of their use."""
import contextlib

from gmm._core.enums import tag_number


def resource_tag(context, tag):
    """The number of a Tag, of a number or of a name, which is made when it is new. 0 for None: the current tag."""
    if tag is None:
        return 0
    number = tag_number(context, context.tag(tag) if isinstance(tag, str) else tag)
    context.tag_info(number)  # a missing tag is an error here
    return number


def need_cuda(context, user):
    """The context. RuntimeError where its memory is not CUDA memory, which the user, by name, needs."""
    backend = context.info.backend_name
    if backend != "cuda":
        raise RuntimeError(f"{user} needs CUDA memory, but {context!r} has the {backend} backend: unset GMM_BACKEND, "
                           "or name a context of the cuda backend, for which a driver and a device must answer")
    return context


class Undoable(contextlib.ExitStack):
    """undo(), which the end of a with block calls too, calls what the constructor has left to callback()."""

    def undo(self) -> None:
        """Restores what was there before. A second call does nothing."""
        self.close()
