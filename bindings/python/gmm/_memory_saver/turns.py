# SPDX-License-Identifier: Apache-2.0
"""The pauses and resumes of gmm.memory_saver and gmm.vllm, which go by a lease after gmm.lease.use()."""
import contextlib
import threading

from gmm._core.enums import Contents
from gmm._core.errors import check
from gmm._core.tag import Tag

_PREFIXES = ("", "vllm:")  # gmm.vllm names its tags so
_SUFFIXES = ("", "#host", "#file", "#mmap")  # lib/preload/region.cpp: one tag for each kind of contents
_LONGEST_NAME = 40


class Turns:
    """The offered names of the preload library's context.

    A tag sleeps while the lease is idle, as others may have its memory, and while it is paused in a turn. A request
    resumes all offers, so each one is preceded by the withdrawal of the tags that sleep on. An interrupt (Ctrl-C) may
    come after any call: a release stands then.
    """

    def __init__(self, library, names=(), at_once=False, timeout=None):
        for name in names:
            if not isinstance(name, str) or not 0 < len(name.encode()) <= _LONGEST_NAME:
                raise ValueError(f"{name!r}: with the tags of gmm.memory_saver and gmm.vllm an offer is a list of "
                                 f"names of at most {_LONGEST_NAME} bytes")
        self._library, self._names, self._at_once, self._timeout = library, tuple(names), at_once, timeout
        self._lock = threading.RLock()
        self.lease = None

    def begin(self, lease):
        """From now on the transitions request and release this lease, which is in use."""
        self.lease = lease
        self.offer_new()

    # Tags.

    def _find(self, *names):
        wanted = {prefix + name + suffix for prefix in _PREFIXES for name in names for suffix in _SUFFIXES}
        return [tag.number for tag in self._library.context.tags() if tag.name in wanted]

    @property
    def _is_on(self):
        """False when the program has no lease, or has closed it: then all goes as without."""
        return self.lease is not None and not self.lease.closed

    @property
    def _in_use(self):
        return bool(self.lease.info().state)

    def _managed(self):
        return self._find(*self._names) if self._is_on else []

    def _asleep(self):
        managed = self._managed()
        if not managed or not self._in_use:
            return managed
        return [number for number in managed if self._library.context.tag_info(number).paused_bytes]

    def _awake(self):
        asleep = self._asleep()
        return [number for number in self._managed() if number not in asleep]

    def _set_contents(self, contents):
        """Sets the contents that later pauses keep; None: as the tag has it. Returns the settings that undo it."""
        before = {}
        for number, wanted in contents.items():
            now = self._library.context.tag_info(number).contents
            if wanted is not None and wanted != now:
                before[number] = now
                Tag(self._library.context, number, "").update(contents=wanted)
        return before

    def _offer(self, numbers):
        """Makes these tags the offers."""
        for number in self._managed():
            if number in numbers:
                self.lease.offer(number)
            else:
                self.lease.withdraw(number)

    def offer_new(self):
        """Offers tags that have come, so that others wait for them, and are not denied at once."""
        if not self._is_on or not self._lock.acquire(blocking=False):
            return  # a transition is under way, whose next request does it
        try:
            for number in self._awake():
                self.lease.offer(number)
        finally:
            self._lock.release()

    # Transitions.

    def _to_sleep(self, contents):
        """Puts tags that are awake to sleep: {number: Contents, or None: as the tag has it}."""
        awake, stay = {}, False
        for number in self._awake():
            if number in contents:
                awake[number] = contents[number]
            else:
                stay = stay or self._library.context.stats(tag=number).live_bytes > 0
        if not awake:
            return
        before = self._set_contents(awake)
        try:
            if stay or self._at_once:
                self._library.pause(list(awake))
            if not stay:
                self.lease.release()
        except BaseException:
            if self._in_use:  # others cannot have the memory
                self._library.resume(list(awake))
                self._set_contents(before)
            raise

    def _wake(self, numbers):
        asleep = self._asleep()
        numbers = [number for number in numbers if number in asleep]
        if not numbers:
            return
        awake, in_use = self._awake(), self._in_use
        self._library.pause([number for number in asleep if number not in numbers])  # they may not have gone yet
        before = {}
        try:
            if in_use:  # between the release and the grant others may have what is awake
                before = self._set_contents({number: Contents.HOST for number in awake
                                             if self._library.context.tag_info(number).contents == Contents.DROP})
            self._offer(awake + numbers)
            if in_use:  # a process that waits must not keep memory that others want
                self.lease.release()
            self.lease.request(timeout=self._timeout)
        except BaseException:
            if in_use and not self._in_use:
                self._offer(awake)
                self.lease.request(timeout=self._timeout)  # after a failure all sleeps
            elif in_use:
                self._library.pause(numbers)  # an interrupt came when they were awake
            else:
                self.lease.release()
            raise
        finally:
            if self._in_use:
                self._set_contents(before)

    def sleep(self, contents):
        """Puts tags to sleep, as _to_sleep() takes them: all, or none. Tags without an offer are paused at once.

        Returns the bytes of those whose contents are kept, and of those whose contents are dropped. None: by a lease
        the memory goes when others want it.
        """
        with self._lock, contextlib.ExitStack() as undo:
            managed, awake = self._managed(), self._awake()
            others = {number: wanted for number, wanted in contents.items()
                      if number not in managed and self._library.context.tag_info(number).active_bytes}
            dropped = [number for number, wanted in others.items() if wanted == Contents.DROP]
            kept = [number for number in others if number not in dropped]
            undo.callback(self._library.resume, kept)
            offloaded = self._library.pause(kept, others[kept[0]] if kept else None)
            self._to_sleep(contents)
            undo.callback(self._wake, [number for number in awake if number in contents])
            gone = self._library.pause(dropped, Contents.DROP)  # last, as it cannot be undone
            undo.pop_all()
            return None if self._is_on else (offloaded, gone)

    def wake_up(self, numbers):
        """Wakes all of the tags, or none."""
        with self._lock, contextlib.ExitStack() as undo:
            managed, asleep = self._managed(), self._asleep()
            self._wake(numbers)
            undo.callback(self._to_sleep, dict.fromkeys(number for number in asleep if number in numbers))
            self._library.resume([number for number in numbers if number not in managed])
            undo.pop_all()

    def change_name(self, name, asleep):
        """Pauses or resumes all memory of a name of torch_memory_saver; None: all memory.

        A name that is not offered goes as without a lease.
        """
        if self._is_on and (name is None or name in self._names):
            numbers = self._find(name) if name else [tag.number for tag in self._library.context.tags()]
            (self.sleep if asleep else self.wake_up)(dict.fromkeys(numbers))
        else:
            cdll = self._library.cdll
            check((cdll.tms_pause if asleep else cdll.tms_resume)(name and name.encode()),
                  cdll.gmm_preload_last_error())
