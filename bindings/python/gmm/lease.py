# SPDX-License-Identifier: Apache-2.0
"""Leases: processes that share a GPU use its memory by turns, and none of them knows the others.

    with gmm.lease.Lease("trainer", offer=["weights", "optimizer"]) as lease:
        while training:
            with lease.use():                # waits for the turn; the tags are back, with their contents
                step()
            ...                              # others may have the memory now

Between two turns gmm pauses the offered tags when another process wants their memory, and the next turn resumes them.
Memory that nobody wants stays where it is, and the next turn costs nothing. The server of the machine, the command
`gmm serve`, decides whose turn it is. The first lease starts it.

With vLLM's sleep mode or torch_memory_saver one line is enough: see use().
"""
from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING

from gmm import _native as native
from gmm._core.enums import Contents, milliseconds, tag_number
from gmm._core.errors import BusyError, Error, size
from gmm._core.ticket import Scope, Ticket
from gmm._core.values import (
    LEASE_WITHDRAW, LeaseAsk, LeaseEntryInfo, LeaseInfo, LeaseState, lease_desc, lease_request_desc)
from gmm._default import context as default_context

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Callable, Iterable, Mapping, Optional, Union

    from gmm._core.typing import Context, TagLike

    Amounts = Union[Mapping[int, int], int, None]
    Offer = Union[Iterable[TagLike], Mapping[TagLike, int]]
    OnAsk = Optional[Callable[[LeaseAsk], object]]

__all__ = ["Lease", "LeaseAsk", "LeaseEntryInfo", "LeaseInfo", "LeaseState", "status", "use"]

_MOST_MS = 86400 * 1000
_inside = threading.local()  # is_asked: this thread is in the `asked` of a lease


def _check_other_thread(function):
    if getattr(_inside, "is_asked", False):
        raise BusyError(f"{function}: the call comes from the callback of a lease; call it after the callback returned")


class Lease(native.Handle):
    """This process's share in the memory of its devices, until close() or the end of its with block.

    name: for messages and `gmm serve --status`. offer: tags, one name, or a mapping of tags to what it costs to bring a
    byte of them back; the lowest cost goes first. Between two turns the program does not use their memory. priority:
    the highest is served first; the lowest gives up memory first. floor: bytes of each device that are left to this
    process; what it holds counts, and more than a device has means all of it. residency: seconds after a grant in which
    the tags stay, so that processes do not only copy; None: as long as the last resume took.

    asked(LeaseAsk) hears that others want what is in use, on the lease's thread, at once and then every second. It
    returns soon. It may call release(), or make the program come to an end of its turn. request() and close() are
    BusyError there. Without asked, the lease's thread needs no GIL.
    """

    def __init__(self, name: str, offer: Offer = (), *, priority: int = 0, floor: int = 0,
                 residency: float | None = None, asked: OnAsk = None, context: Context | None = None) -> None:
        if asked is not None and not callable(asked):
            raise TypeError(f"asked is called with a LeaseAsk, but got {type(asked).__name__}")
        context = default_context() if context is None else context
        self.name = name
        self._lock = threading.RLock()  # a signal's handler may close the lease in the middle of a request
        self._requests = weakref.WeakSet()
        offer = (offer,) if isinstance(offer, str) else offer
        costs = dict(offer) if hasattr(offer, "items") else dict.fromkeys(offer, 1)

        def call(data):
            _inside.is_asked = True
            try:
                asked(LeaseAsk.unpack(data))
            finally:
                _inside.is_asked = False

        self._held = None if asked is None else call
        context._parts.add(self)
        try:
            self._open("lease", context, native.gmm_lease_create, context, lease_desc(
                name=name, priority=priority, floor_bytes=floor, residency_ms=milliseconds(residency),
                asked=None if asked is None else self))
            for tag, cost in costs.items():
                self.offer(tag, cost)
        except BaseException:
            self.close()
            raise

    def offer(self, tag: TagLike, cost: int = 1) -> None:
        """Offers a tag, or changes its cost. Waits while gmm pauses or resumes for this lease.

        gmm.OfferedError: another lease of the context offers the tag.
        """
        if cost == LEASE_WITHDRAW:
            raise ValueError(f"a cost is 0 to {LEASE_WITHDRAW - 1}, not {cost}; withdraw() ends an offer")
        native.gmm_lease_offer_wait(self, tag_number(self.context, tag), cost)

    def withdraw(self, tag: TagLike) -> None:
        """Ends an offer. The tag stays as it is, active or paused. Waits as offer() does."""
        native.gmm_lease_offer_wait(self, tag_number(self.context, tag), LEASE_WITHDRAW)

    def request_async(self, amounts: Amounts = None, *, timeout: float | None = 60.0) -> Ticket:
        """request() in the background: a Ticket, whose success is the grant. Its cancel() ends the request."""
        return self._request(amounts, timeout, False)

    def request(self, amounts: Amounts = None, *, timeout: float | None = 60.0) -> int:
        """Waits for the turn and resumes the offered tags. Returns the bytes that came back.

        amounts: what the program will allocate beyond the paused memory of the offered tags: {device: bytes}, or bytes
        of device 0. All or nothing: the memory on all devices, or none. The amounts are kept free until the program
        allocates them or releases. timeout: seconds, at most a day; None: a day.

        gmm.OutOfMemoryError: free memory and what others offer can never meet it. gmm.NotReadyError: the time is over.
        Both messages name who holds what. gmm.BusyError: the lease is in use or waits already. After an exception,
        Ctrl-C too, the lease is idle.
        """
        return self._request(amounts, timeout, True)

    def _request(self, amounts, timeout, waits):
        """The ticket of a request, or its result. It is there before the request begins, which an interrupt ends."""
        _check_other_thread("Lease.request()")
        ticket = Ticket()
        if not hasattr(amounts, "items"):
            amounts = {0: amounts} if amounts else {}
        try:
            with self._lock:
                self._requests.add(ticket)
                ticket._begin(native.gmm_lease_request, self, lease_request_desc(
                    amounts=[*amounts.items()], timeout_ms=milliseconds(timeout, _MOST_MS)))
            if not waits:
                return ticket
            ticket.wait()
            ticket.close()
            return ticket.result()
        except BaseException:
            if ticket._abandon():  # it has begun, and may be granted
                self.release()
            raise

    def release(self) -> bool:
        """Ends the turn: others may have the memory of the offered tags. Their memory stays until others want it.

        False: the lease was not in use. The name is that of Python's locks, as `return` is a word of the language.
        Work that is queued on streams still ends, because a pause waits for the devices.
        """
        return native.gmm_lease_return(self) == native.GMM_OK

    def use(self, amounts: Amounts = None, *, timeout: float | None = 60.0) -> AbstractContextManager[int]:
        """A turn for the time of a with block: request() and release(). The block gets the bytes that came back."""
        return Scope(lambda: self.request(amounts, timeout=timeout), (), lambda: self.closed or self.release(), ())

    def info(self) -> LeaseInfo:
        """The state of the lease: LeaseInfo."""
        return LeaseInfo.unpack(native.gmm_lease_query(self)[1])

    def close(self) -> None:
        """Ends the lease; a request that waits is cancelled. Its memory stays as it is, and is the context's alone.

        A second call does nothing.
        """
        if self.closed:
            return
        _check_other_thread("Lease.close()")
        with self._lock:
            for ticket in list(self._requests):
                if not ticket.closed:
                    ticket.cancel()
                    ticket.close()
            while self._users:  # other threads ask for its state
                time.sleep(0.001)
            super().close()

    def __repr__(self):
        if self.closed:
            return f"<gmm.lease.Lease {self.name!r} closed>"
        try:
            info = self.info()
        except (Error, RuntimeError):  # in a child of fork(), or closed by another thread
            return f"<gmm.lease.Lease {self.name!r}>"
        return (f"<gmm.lease.Lease {self.name!r}, {info.state.name.lower().replace('_', ' ')}, "
                f"{size(info.active_bytes)} active, {size(info.paused_bytes)} paused>")


def status(*, timeout: float = 5.0, context: Context | None = None) -> list[LeaseEntryInfo]:
    """The leases of the machine: a list with a LeaseEntryInfo for each device that a lease uses, and one for a lease
    that uses none.

    `gmm serve --status` prints the same. gmm.NotReadyError: no server runs, or none answers in timeout seconds.
    """
    context, found = default_context() if context is None else context, []
    while True:
        code, entry = native.gmm_lease_list(context, len(found), milliseconds(timeout))
        if code == native.GMM_UNCHANGED:
            return found
        found.append(LeaseEntryInfo.unpack(entry))


_use_lock = threading.Lock()
_used = None  # the Lease of use()


def _preload_library():
    """The preload library when the process uses vLLM's or torch_memory_saver's interface, else None."""
    from gmm._memory_saver import preload  # pylint: disable=import-outside-toplevel # few programs need it

    if preload.preloaded():
        return preload.load(preload.preloaded_library())
    if {"gmm.vllm", "gmm.memory_saver"}.isdisjoint(sys.modules):
        return None
    return preload.load(preload.find_library())


def use(name: str, offer: Offer = ("weights", "kv_cache"), amounts: Amounts = None, *, priority: int = 0,
        floor: int = 0, residency: float | None = None, asked: OnAsk = None, timeout: float | None = 60.0,
        at_once: bool = False) -> Lease:
    """The lease of the process in one line. Returns it in use: the program may load its model.

        gmm.lease.use(name="generator", offer=["weights", "kv_cache"])

    A program with gmm.vllm or gmm.memory_saver, imported before, or preloaded, goes on as it is. The names are those of
    its regions and memory pools; one that comes later is offered too. From then on

    - a pause or sleep of all that is awake of the offered names ends the turn, and returns at once. The memory stays
      until another process wants it. The call has said what happens to the contents then: sleep level 1 keeps the
      weights, also when somebody takes them an hour later. at_once: the memory goes in the call, as without a lease. A
      process that needs the memory itself passes that, such as one that trains and generates.
    - a pause or sleep of a part of it gives that part's memory back in the call. The rest stays in use.
    - a resume or wake_up while nothing is awake is a request: it waits for the turn up to timeout seconds and raises
      as Lease.request(). The names that it does not wake give their memory back first.
    - a resume or wake_up of more, while a part is awake, ends the turn and requests all of it. Until the grant others
      may have the part that was awake. Its contents are kept, whatever its tags say. So no two processes wait for each
      other. If the request fails, the part that was awake is requested again, and the exception is raised. If that
      fails too, all is asleep.
    - Lease.request(), release() and use() of the result are not for such a program. Its close() ends all this.

    Such a program allocates in its regions only while they are awake. Names that are not offered, pauses of
    GMM's own functions and those by torch_memory_saver's C functions are as without a lease. A resume by a lease
    retains no backup (retain_cpu_backup).

    In any other program the names are tags of the default context; a missing one is made, and keeps its contents in
    host memory. The program calls request(), release() or use() of the lease.

    amounts: what the program will allocate before its first release, as in Lease.request(). The others are those of
    Lease. A process has one such lease at a time. The interpreter's end closes it.
    """
    global _used  # pylint: disable=global-statement # it is the process's
    lease = None
    try:
        with _use_lock:
            if _used is not None and not _used.closed:
                raise BusyError(f"gmm.lease.use(): the process has the lease {_used.name!r}; close it first")
            if isinstance(offer, str):
                offer = (offer,)
            library, turns = _preload_library(), None
            if library is None:
                if at_once:
                    raise ValueError("at_once is for programs with gmm.vllm or gmm.memory_saver: import it first")
                context = default_context()
                known = {tag.name for tag in context.tags()}
                for tag in offer:
                    if isinstance(tag, str) and tag not in known:
                        context.tag(tag, Contents.HOST)
            else:
                from gmm._memory_saver.turns import Turns  # pylint: disable=import-outside-toplevel # as above

                context, turns = library.context, Turns(library, offer, at_once, timeout)
                offer = ()
            lease = Lease(name, offer, priority=priority, floor=floor, residency=residency, asked=asked,
                          context=context)
            lease.request(amounts, timeout=timeout)
            if turns is not None:
                turns.begin(lease)
                library.turns = turns
            _used = lease
        return lease
    except BaseException:  # Ctrl-C, too: the program does not get the lease
        if lease is not None:
            lease.close()
        raise


def _forget_used():
    """A child of fork() has no lease."""
    global _use_lock, _used
    _use_lock, _used = threading.Lock(), None


atexit.register(lambda: _used and _used.close())
os.register_at_fork(after_in_child=_forget_used)
