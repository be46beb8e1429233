# SPDX-License-Identifier: Apache-2.0
"""Pauses and resumes, and gmm.Ticket, which is one in the background."""
from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING, Any, Generator

from gmm import _native as native
from gmm._core.enums import milliseconds, tag_number
from gmm._core.errors import ERRORS, ClosedError, Error
from gmm._core.values import TicketInfo, pause_desc

if TYPE_CHECKING:
    from gmm._core.typing import ContentsLike, Context, OnProgress, TagLike

_SLICE_MS = 200  # Ctrl-C interrupts a wait between two slices

_KEEP = {0: "drop", 1: "keep_host", 2: "keep_file"}  # by Contents


class Scope(contextlib.ContextDecorator):
    """with Scope(begin, arguments, end, arguments): the block gets begin's result, or a value that is given.

    The end comes for certain, also when Ctrl-C came as the block began. A begin in Python undoes itself when it raises.
    An end in Python may be called twice, when Ctrl-C came in between.
    """

    def __init__(self, *scope):
        self._scope = scope

    __enter__ = native.scope_enter
    __exit__ = native.scope_exit


class Progress:
    """A caller's progress(done, total), which the library calls on the thread that copies.

    An exception ends the operation. `error` holds it until the caller asks for the outcome.
    """

    __slots__ = ("call", "error")

    def __init__(self, call):
        if not callable(call):
            raise TypeError(f"progress is called with (done, total), but got {type(call).__name__}")
        self.call = call
        self.error = None

    def __call__(self, done, total):
        try:
            return self.call(done, total) is not False
        except BaseException as error:
            self.error = error
            return False


def carry_out(function, context, options):
    """Pauses or resumes and waits for the end. Returns the bytes."""
    progress = options["progress"]
    try:
        return function(context, pause_desc(**options))[1]
    except Error:
        if progress is None or progress.error is None:
            raise
    raise progress.error


def wait_in_slices(look, timeout):
    """Calls look(milliseconds) until it returns True. False after timeout seconds; None: no timeout."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = math.inf if deadline is None else max(0, math.ceil((deadline - time.monotonic()) * 1000))
        if look(min(_SLICE_MS, left)):
            return True
        if deadline is not None and time.monotonic() >= deadline:
            return False


class Ticket(native.Handle):
    """A pause or resume that a thread of the library carries out. Context.pause_async() and resume_async() make it.

        ticket = context.pause_async("weights")
        ...
        released = ticket.result()             # or: await ticket

    The end of a with block waits for the operation. An operation whose ticket is dropped goes on; Context.close() waits
    for it.

    With hold=SECONDS the operation stops where nothing can fail any more and nothing has changed. wait_held() waits for
    that. Then commit() carries it out. cancel(), the time and a dropped ticket undo it.
    """

    _progress = None  # the caller's, until the end
    _info = _outcome = None  # from the end on: TicketInfo, and (bytes, exception)
    _holds = _asked = _cancelled = False

    def _start(self, function, context, options):
        """Begins a pause or a resume. Returns the ticket."""
        self._progress, self._holds = options["progress"], options["hold"]
        try:
            self._begin(function, context, pause_desc(**options))
        except BaseException:  # Ctrl-C, too: nobody has the ticket
            self._abandon()
            raise
        return self

    def _begin(self, function, owner, options):
        """Opens the ticket with the operation that the function begins, of a context or of a lease, which it holds."""
        context = owner.context or owner
        self._held = owner
        self._open("ticket", context, function, owner, options)
        for other in list(context._tickets):
            other._look(0)
        if not self._holds:  # a held operation whose ticket is dropped is undone
            context._tickets.add(self)  # which knows a ticket that is open

    def _abandon(self):
        """Ends the operation. False: it has not begun, or was cancelled or failed."""
        if self.closed and self._outcome is None:
            return False
        self.cancel()
        self.close()
        return self._outcome[1] is None

    def _ask(self, function, *arguments):
        """A call of the library; None: another thread has seen the end and closed the ticket."""
        try:
            return function(self, *arguments)
        except ClosedError:
            if self._outcome is None:
                raise
            return None

    def _look(self, milliseconds):
        """Waits so long. True when the operation has ended: _outcome is (bytes, exception) then."""
        if self._outcome is not None:
            return True
        try:
            seen = self._ask(native.gmm_ticket_look, milliseconds)
            if seen is None or not seen[2]:
                return seen is None
            outcome = (seen[1], None)
        except ClosedError:
            raise
        except Error as error:
            outcome = (0, error)
        progress = self._progress  # another thread may see the end too
        if progress is not None and progress.error is not None:
            outcome = (0, progress.error)
        self._info, self._outcome = self.info, outcome
        self._progress = None  # the library calls it no more
        self.context._tickets.discard(self)
        return True

    @property
    def done(self) -> bool:
        """True when the operation has ended, with success or without."""
        return self._look(0)

    @property
    def info(self) -> TicketInfo:
        """The progress of the operation: TicketInfo."""
        asked = None if self._info is not None else self._ask(native.gmm_ticket_query)
        return self._info if asked is None else TicketInfo.unpack(asked[1])

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the end. False after timeout seconds. result() has the outcome."""
        return wait_in_slices(self._look, timeout)

    def result(self, timeout: float | None = None) -> int:
        """Waits for the end and returns the bytes that changed state, or raises the failure.

        NotReadyError, which is a TimeoutError, after timeout seconds. The outcome can be asked for again, also after
        close().
        """
        if not self.wait(timeout):
            raise ERRORS["NotReadyError"](f"the pause or resume has not ended in {timeout} s; wait again or cancel it")
        self._asked = True
        moved, error = self._outcome
        if error is not None:
            raise error
        return moved

    def wait_held(self, timeout: float | None = None) -> bool:
        """Waits until an operation with hold= is held. False after timeout seconds.

        An operation that has ended instead raises its failure.
        """
        return wait_in_slices(lambda ms: native.gmm_ticket_wait_held(self, ms) != native.GMM_ERROR_NOT_READY, timeout)

    def commit(self) -> None:
        """Carries out what is held, and does not wait: result() does.

        An operation that has failed or was undone raises that. RuntimeError: it is not held.
        """
        if native.gmm_ticket_commit(self) == native.GMM_ERROR_NOT_READY:
            raise RuntimeError("the operation is not held; wait_held() waits for that")

    def cancel(self) -> None:
        """Requests cancellation and does not wait.

        An operation that has committed completes normally. Any other is undone and ends with CancelledError.
        """
        if self._outcome is None:
            self._cancelled = True
            self._ask(native.gmm_ticket_cancel)

    def close(self):
        """Waits for the end and releases the ticket. An operation that is held and not committed is undone.

        result() still works. A second call does nothing.
        """
        if self.closed:
            return
        if self._holds and self._outcome is None:
            native.gmm_ticket_cancel(self)  # without effect on what is committed
        self.wait()
        while self._users:  # other threads wait for the same end
            time.sleep(0.001)
        super().close()

    def __exit__(self, *exception):
        """Waits. Raises a failure that result() has not raised yet, unless cancel() asked for it."""
        self.close()
        if exception[0] is None and not self._asked and not self._cancelled:
            self.result()

    def __await__(self) -> Generator[Any, None, int]:
        """`await ticket` is result() while the event loop goes on. Cancelling the task cancels the operation."""
        return self._in_loop().__await__()

    async def _in_loop(self):
        import asyncio  # a program that awaits has it already, and it takes a third of the time of `import gmm`

        if not self.done:
            try:
                await asyncio.get_running_loop().run_in_executor(None, self.wait)
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()

    def __repr__(self):
        if self._outcome is None:
            if self._held is not self.context:
                return f"<gmm.Ticket: {self._held!r}>"
            info = self.info
            return f"<gmm.Ticket running, {info.copied_bytes} of {info.total_bytes} bytes copied>"
        moved, error = self._outcome
        return f"<gmm.Ticket of {moved} bytes, done>" if error is None else f"<gmm.Ticket failed: {error}>"


class Pausing:
    """The pauses and resumes of a context's tags, or of one tag."""

    __slots__ = ()

    def _options(self, tags, *, force=False, contents=None, retain=False, progress=None, hold=None, no_writes=False):
        """(context, options) of a call. The options' progress must live until the operation has ended."""
        if contents is not None and contents not in _KEEP:
            raise ValueError(f"there are no contents {contents!r}; there are Contents.DROP, HOST and FILE")
        context, tags = self._chosen(tags)
        options = {"tags": [tag_number(context, tag) for tag in tags], "force": force, "retain": retain,
                   "no_writes": no_writes, "hold": hold is not None, "hold_ms": milliseconds(hold),
                   "progress": None if progress is None else Progress(progress)}
        return context, options if contents is None else {**options, _KEEP[contents]: True}

    def pause(self, *tags: TagLike, force: bool = False, contents: ContentsLike | None = None,
              progress: OnProgress = None) -> int:
        """Returns the physical memory of the tags' VMM blocks to the driver; every address stays. No tags: all tags.

        Returns the bytes released; 0 when nothing was active. Views of the memory stay valid, but must not be read or
        written before resume(). force: pauses also when importers hold the memory. contents: Contents.DROP, HOST or
        FILE for this pause, in place of the tags' option. progress: the library calls progress(done, total), in bytes,
        while it copies contents. False aborts the pause with CancelledError. An exception aborts it too and comes out
        of this call. After an abort everything is as before. The callback must not call gmm.
        """
        return carry_out(native.gmm_pause, *self._options(tags, force=force, contents=contents, progress=progress))

    def resume(self, *tags: TagLike, retain: bool = False, progress: OnProgress = None) -> int:
        """Gives paused memory physical memory again, at the same addresses. progress: see pause().

        retain: blocks over 128 KiB keep their backup in host memory: Buffer.backup() goes on to read it, until a free
        or a resume without retain. Returns the bytes taken; 0 when nothing was paused.
        """
        return carry_out(native.gmm_resume, *self._options(tags, retain=retain, progress=progress))

    def paused(self, *tags: TagLike, force: bool = False, contents: ContentsLike | None = None,
               progress: OnProgress = None) -> contextlib.AbstractContextManager[int]:
        """Pauses for the time of a with block. The block gets the bytes released."""
        def pause():
            context, options = self._options(tags, force=force, contents=contents, progress=progress)
            try:
                return carry_out(native.gmm_pause, context, options)
            except BaseException as error:
                if not isinstance(error, Error) and getattr(options["progress"], "error", None) is not error:
                    self.resume(*tags)  # an interrupt: the pause may have ended before
                raise

        return Scope(pause, (), lambda: self.resume(*tags, progress=progress), ())

    def pause_async(self, *tags: TagLike, force: bool = False, contents: ContentsLike | None = None,
                    progress: OnProgress = None, hold: float | None = None, no_writes: bool = False) -> Ticket:
        """pause() on a thread of the library, which also calls progress: a Ticket.

        hold: it stops where nothing can fail any more, until Ticket.commit(), for at most so many seconds. The
        memory is active then, and what is written is kept. no_writes: nothing writes it, so the commit copies once.
        """
        return Ticket()._start(native.gmm_pause_async, *self._options(
            tags, force=force, contents=contents, progress=progress, hold=hold, no_writes=no_writes))

    def resume_async(self, *tags: TagLike, retain: bool = False, progress: OnProgress = None,
                     hold: float | None = None) -> Ticket:
        """resume() on a thread of the library: a Ticket. hold: as for pause_async(), with all pages taken."""
        return Ticket()._start(native.gmm_resume_async, *self._options(
            tags, retain=retain, progress=progress, hold=hold))

    def discard_backup(self, *tags: TagLike) -> int:
        """Discards the kept contents of the tags' paused memory. Returns their bytes.

        The contents are undefined after a resume.
        """
        context, options = self._options(tags)
        return native.gmm_backup_discard(context, pause_desc(**options))[1]
