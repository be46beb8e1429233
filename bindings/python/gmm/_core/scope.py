# SPDX-License-Identifier: Apache-2.0
"""With blocks whose end comes for certain, also when Ctrl-C came as they began."""
import contextlib

from gmm import _native as native


class Scope(contextlib.ContextDecorator):
    """with Scope(begin, arguments, end, arguments): the block gets begin's result, or a value that is given.

    A begin in Python undoes itself when it raises. An end in Python may be called twice, when Ctrl-C came in between.
    """

    __slots__ = ("_scope",)

    def __init__(self, *scope):
        self._scope = scope

    __enter__ = native.scope_enter
    __exit__ = native.scope_exit
