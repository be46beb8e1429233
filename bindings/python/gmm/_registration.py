# SPDX-License-Identifier: Apache-2.0
"""Memory that a library knows by its address: it lets go before the pages change, and takes the new ones."""
import contextlib
import itertools
import threading

from gmm._core.enums import Kind, PointerFlags
from gmm._default import context as _default_context

# Registrations end in the reverse order of their making and come back in that order: on every rank alike.
_numbers = itertools.count(1)


class LibraryError(RuntimeError):
    """A library refused. code: its status."""

    def __init__(self, function: str, code: int, text: str) -> None:
        super().__init__(f"{function}() answered {code}: {text}")
        self.code = code


class Registration(contextlib.AbstractContextManager):
    """A block of gmm that a library has registered, until close() or the end of its with block.

    address, size: what is registered: all of the driver's allocation where the block has one of its own, else the
    block. active: whether the library has it now. closed: whether close() was called. error: what the library answered
    when it should have taken the memory again, or let it go; None after a success. A subclass has _begin(), by which
    the library takes the memory, and _end(), by which it lets go.
    """

    def __init__(self, memory, *, context=None, name=None):
        if context is None:
            context = getattr(memory, "context", None) or _default_context()
        self._context = context
        address = memory.data_ptr() if hasattr(memory, "data_ptr") else getattr(memory, "address", memory)
        if not isinstance(address, int):
            raise TypeError(f"expected gmm's memory, a tensor or an address, but got {type(memory).__name__}")
        info = self._context.query(address)
        if not info.tag:
            raise ValueError(f"0x{address:x} is not memory of {self._context!r}: allocate it with gmm, for networks "
                             "with alloc(size, comm=True)")
        own = info.flags & PointerFlags.COMM or (
            info.allocation_base == info.base and info.allocation_size < info.size + (2 << 20))
        self.address = info.allocation_base if own else info.base
        self.size = info.allocation_size if own else info.size
        self.device = info.device
        self.active = False
        self.error = None
        self.closed = False
        self._memory = memory  # the library must not outlive it
        self._lock = threading.Lock()
        self._lost = False
        self._watcher = None
        try:
            # The watcher comes first: a pause that comes too early for it ends before the library takes the pages.
            if info.kind == Kind.VMM:
                self._watcher = self._context.watch(
                    memory=info.base, size=info.size, losing=self._lose, restored=self._restore, failed=self._restore,
                    order=-next(_numbers), name=name)
            with self._lock:
                if not self._lost and not self.active:
                    self._try(self._begin, True)
        except BaseException:
            with contextlib.suppress(Exception):  # a failure here must not hide the cause
                self.close()
            raise

    def _lose(self, info):  # pylint: disable=unused-argument # a watcher's signature
        with self._lock:
            self._lost = True
            if self.active:
                self._try(self._end, False)

    def _restore(self, info):  # pylint: disable=unused-argument # a watcher's signature
        with self._lock:
            self._lost = False
            if not self.active and not self.closed:
                self._try(self._begin, True)

    def _try(self, step, active):
        """The library takes the memory, or lets it go. It does not have the memory after a failure."""
        self.active = False
        try:
            step()
            self.active, self.error = active, None
        except Exception as error:
            self.error = error
            raise

    def close(self):
        """Ends the registration. A second call does nothing."""
        watcher, self._watcher = self._watcher, None
        try:
            if watcher is not None:
                watcher.close()  # without the lock, which its calls take; no call of it comes after this
        finally:
            with self._lock:
                self.closed = True
                active, self.active = self.active, False
                if active:
                    self._end()
        self._memory = None

    def __exit__(self, *exception):
        self.close()

    def __repr__(self):
        state = "closed" if self.closed else "active" if self.active else "paused" if not self.error else "failed"
        return f"<{type(self).__module__}.{type(self).__name__} {self.size} bytes at 0x{self.address:x} {state}>"
