# SPDX-License-Identifier: Apache-2.0
"""gmm.Ticket, and the options of pauses and resumes."""
from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Generator

from gmm import _native as native
from gmm._core.enums import TicketState, flags
from gmm._core.errors import ERRORS, ClosedError, Error
from gmm._core.info import TicketInfo
from gmm._core.stream import _Closing
from gmm._core.tag import tag_number

if TYPE_CHECKING:
    from gmm._core.typing import Context

_SLICE_MS = 200  # Ctrl-C interrupts a wait between two slices

_KEEP = {0: native.GMM_PAUSE_DROP, 1: native.GMM_PAUSE_KEEP_HOST, 2: native.GMM_PAUSE_KEEP_FILE}  # by Contents


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


def pause_options(context, tags, *, force=False, contents=None, retain=False, progress=None, hold=None,
                  no_writes=False):
    """The options of pauses and resumes. Their progress must live until the operation has ended."""
    if contents is not None and contents not in _KEEP:
        raise ValueError(f"there are no contents {contents!r}; there are Contents.DROP, HOST and FILE")
    chosen = flags((native.GMM_PAUSE_FORCE, force), (native.GMM_RESUME_RETAIN, retain),
                   (native.GMM_PAUSE_HOLD, hold is not None), (native.GMM_PAUSE_NO_WRITES, no_writes))
    return {"tags": [tag_number(context, tag) for tag in tags], "hold_ms": milliseconds(hold),
            "flags": chosen | _KEEP.get(contents, 0),
            "progress": None if progress is None else Progress(progress)}


def carry_out(function, context, options):
    """Pauses or resumes and waits for the end. Returns the bytes."""
    progress = options["progress"]
    try:
        return function(context, options)[1]
    except Error:
        if progress is None or progress.error is None:
            raise
    raise progress.error


def milliseconds(seconds, none=0):
    """A time for the library, at least 1 ms; `none` stands for None."""
    if seconds is None:
        return none
    if not seconds >= 0:
        raise ValueError(f"a time is 0 seconds or more, not {seconds!r}")
    return max(1, round(seconds * 1000))


def wait_in_slices(look, timeout):
    """Calls look(milliseconds) until it returns True. False after timeout seconds; None: no timeout."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = math.inf if deadline is None else max(0, math.ceil((deadline - time.monotonic()) * 1000))
        if look(min(_SLICE_MS, left)):
            return True
        if deadline is not None and time.monotonic() >= deadline:
            return False


class Ticket(_Closing, native.Handle):
    """A pause or resume that a thread of the library carries out. Context.pause_async() and resume_async() make it.

        ticket = context.pause_async("weights")
        ...
        released = ticket.result()             # or: await ticket

    The end of a with block waits for the operation. An operation whose ticket is dropped goes on; Context.close() waits
    for it.

    With hold=SECONDS the operation stops where nothing can fail any more and nothing has changed. wait_held() waits for
    that. Then commit() carries it out. cancel(), the time and a dropped ticket undo it.
    """

    __slots__ = ("context", "_progress", "_info", "_outcome", "_asked", "_cancelled", "_holds")

    def __init__(self, context: Context, function: Any, options: Any) -> None:
        self._prepare(context, options["progress"], bool(options["flags"] & native.GMM_PAUSE_HOLD))
        try:
            self._begin(function, context, options)
        except BaseException:  # Ctrl-C, too: nobody has the ticket
            self._abandon()
            raise

    def _prepare(self, context, progress=None, holds=False):
        self.context = context
        self._holds = holds
        self._progress = progress
        self._info = self._outcome = None
        self._asked = self._cancelled = False

    def _begin(self, function, *arguments):
        """Opens the ticket with the operation that the function begins. The context knows a ticket that is open."""
        self._open(native.HANDLE_TICKET, self.context, function, *arguments)
        for other in list(self.context._tickets):
            other._look(0)
        if not self._holds:  # a held operation whose ticket is dropped is undone
            self.context._tickets.add(self)

    def _abandon(self):
        """Ends the operation. False: it has not begun, or was cancelled or failed."""
        if self.closed and self._outcome is None:
            return False
        self.cancel()
        self.close()
        return self._outcome[1] is None

    def _look(self, milliseconds):
        """Waits so long. True when the operation has ended: _outcome is (bytes, exception) then."""
        if self._outcome is not None:
            return True
        try:
            _, moved, has_ended = native.gmm_ticket_look(self, milliseconds)
            if not has_ended:
                return False
            info, outcome = TicketInfo.unpack(native.gmm_ticket_query(self)[1]), (moved, None)
        except ClosedError:
            if self._outcome is None:
                raise
            return True  # another thread has seen the end and closed the ticket
        except Error as error:
            info = TicketInfo(TicketState.DONE, error.code, 0, *self.info[3:])
            outcome = (0, error)
        progress = self._progress  # another thread may see the end too
        if progress is not None and progress.error is not None:
            outcome = (0, progress.error)
        self._info, self._outcome = info, outcome
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
        if self._info is not None:
            return self._info
        try:
            return TicketInfo.unpack(native.gmm_ticket_query(self)[1])
        except ClosedError:
            if self._info is None:
                raise
            return self._info  # another thread has seen the end and closed the ticket

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the end. False after timeout seconds. result() has the outcome."""
        return wait_in_slices(self._look, timeout)

    def result(self, timeout: float | None = None) -> int:
        """Waits for the end and returns the bytes that changed state, or raises the failure.

        NotReadyError, which is a TimeoutError, after timeout seconds. The outcome can be asked for again, also after
        close().
        """
        if not self.wait(timeout):
            raise ERRORS["NotReadyError"](
                f"the pause or resume has not ended in {timeout} s; wait again or cancel it")
        self._asked = True
        moved, error = self._outcome
        if error is not None:
            raise error
        return moved

    def wait_held(self, timeout: float | None = None) -> bool:
        """Waits until an operation with hold= is held. False after timeout seconds.

        An operation that has ended instead raises its failure.
        """
        def look(milliseconds):
            return native.gmm_ticket_wait_held(self, milliseconds) != native.GMM_ERROR_NOT_READY

        return wait_in_slices(look, timeout)

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
            try:
                native.gmm_ticket_cancel(self)
            except ClosedError:
                if self._outcome is None:
                    raise

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
        self._close()

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
            info = self.info
            return f"<gmm.Ticket running, {info.copied_bytes} of {info.total_bytes} bytes copied>"
        moved, error = self._outcome
        return f"<gmm.Ticket of {moved} bytes, done>" if error is None else f"<gmm.Ticket failed: {error}>"
