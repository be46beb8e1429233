# SPDX-License-Identifier: Apache-2.0
"""The switches of gmm.torch: whether new tensors are managed, and whether .to() moves them."""
import os
import threading

_lock = threading.RLock()
_enabled = False
_move_on_copy = False


def lock():
    """The lock around what is switched on once, which may take seconds."""
    return _lock


def enabled():
    """Whether new tensors are managed."""
    return _enabled


def set_enabled(new):
    """Notes whether new tensors are managed; the caller has made them so."""
    global _enabled  # pylint: disable=global-statement
    _enabled = new


def move_on_copy():
    """Whether .to(), .cuda() and .cpu() move managed tensors while UVM is enabled."""
    return _move_on_copy


def set_move_on_copy(move):
    """Sets move_on_copy()."""
    global _move_on_copy  # pylint: disable=global-statement
    _move_on_copy = move


def moves():
    """Whether .to(), .cuda() and .cpu() move managed tensors now."""
    return _enabled and _move_on_copy


def _forget_after_fork():
    """A child makes ordinary tensors, and another thread of the parent may have held the lock."""
    global _lock, _enabled  # pylint: disable=global-statement
    _lock = threading.RLock()
    _enabled = False


os.register_at_fork(after_in_child=_forget_after_fork)
