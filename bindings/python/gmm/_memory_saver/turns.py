# SPDX-License-Identifier: Apache-2.0
"""The pauses and resumes of gmm.memory_saver and gmm.vllm, which go by a lease after gmm.lease.use()."""
import threading

from gmm._core.enums import Contents
from gmm._core.tag import Tag

_PREFIXES = ("", "vllm:")  # gmm.vllm names its tags so
_SUFFIXES = ("", "#host", "#file", "#mmap")  # lib/preload/region.cpp: one tag for each kind of contents
_LONGEST_NAME = 40


class Turns:
    """The offered names of the preload library's context, and which of their tags the program has put to sleep.

    While the lease is in use the tags that are awake are its offers. Those that sleep beside them are paused and no
    offers, as a request resumes all offers. An interrupt (Ctrl-C) may come after any call: a release stands then, and
    the tags that it put to sleep sleep.
    """

    def __init__(self, library, names=(), at_once=False, timeout=None):
        for name in names:
            if not isinstance(name, str) or not 0 < len(name.encode()) <= _LONGEST_NAME:
                raise ValueError(f"{name!r}: with the tags of gmm.memory_saver and gmm.vllm an offer is a list of "
                                 f"names of at most {_LONGEST_NAME} bytes")
        self._library, self._names, self._at_once, self._timeout = library, tuple(names), at_once, timeout
        self._asleep = set()
        self._lock = threading.RLock()
        self.lease = None

    def begin(self, lease):
        """From now on the transitions request and release this lease, which is in use."""
        with self._lock:
            self.lease = lease
            for number in self._managed():  # of regions from before
                info = self._context.tag_info(number)
                if info.paused_bytes and not info.active_bytes:
                    self._asleep.add(number)
            self.offer_new()

    # Tags.

    @property
    def _context(self):
        return self._library.context

    def _find(self, *names):
        wanted = {prefix + name + suffix for prefix in _PREFIXES for name in names for suffix in _SUFFIXES}
        return [tag.number for tag in self._context.tags() if tag.name in wanted]

    def _managed(self):
        return self._find(*self._names) if self._is_on else []

    def _set_contents(self, contents, before):
        """Sets the contents that later pauses keep. `before` receives the present settings, which undo it."""
        for number, wanted in contents.items():
            now = self._context.tag_info(number).contents
            if wanted is not None and wanted != now:
                before[number] = now
                Tag(self._context, number, "").update(contents=wanted)

    def _awake(self):
        return [number for number in self._managed() if number not in self._asleep]

    def _offer(self, awake):
        """Makes the awake tags the offers. None is awake: all are, as others may have the memory of all."""
        for number in self._managed():
            if awake and number not in awake:
                self.lease.withdraw(number)
            else:
                self.lease.offer(number)

    @property
    def _is_on(self):
        """False when the program has no lease, or has closed it: then all goes as without."""
        return self.lease is not None and not self.lease.closed

    def offer_new(self):
        """Offers tags that have come, so that others wait for them, and are not denied at once."""
        if not self._is_on or not self._lock.acquire(blocking=False):
            return  # a transition is under way, which does it
        try:
            awake = self._awake()
            if awake and self.lease.info().state:
                self._offer(awake)
        finally:
            self._lock.release()

    # Transitions.

    def _to_sleep(self, contents):
        """Puts tags that are awake to sleep: {number: Contents, or None: as the tag has it}."""
        contents = {number: wanted for number, wanted in contents.items() if number not in self._asleep}
        if not contents:
            return
        awake = self._awake()
        others = [number for number in awake if number not in contents]
        stay = any(self._context.stats(tag=number).live_bytes for number in others)
        before, is_paused, is_released = {}, False, False
        try:
            self._set_contents(contents, before)
            self._offer(others if stay else ())
            if stay or self._at_once:
                is_paused = True  # perhaps in part only by an interrupt
                self._library.pause(list(contents))
            self._asleep |= contents.keys()
            if not stay:
                is_released = True
                self.lease.release()
        except BaseException:
            # After the release others may have the memory, whatever came after it.
            if not is_released or self.lease.info().state:
                self._asleep -= contents.keys()
                self._set_contents(before, {})
                self._offer(awake)
                if is_paused:
                    self._library.resume(list(contents))
            raise

    def _wake(self, numbers):
        numbers = [number for number in numbers if number in self._asleep]
        if not numbers:
            return
        awake, in_use, undo = self._awake(), bool(self.lease.info().state), {}
        self._library.pause([number for number in self._asleep if number not in numbers])  # they may not have gone yet
        try:
            if in_use:
                self._set_contents({number: Contents.HOST for number in awake
                                    if self._context.tag_info(number).contents == Contents.DROP}, undo)
            self._offer(awake + numbers)
            if in_use:  # a process that waits must not keep memory that others want
                self.lease.release()
            self.lease.request(timeout=self._timeout)
            self._asleep.difference_update(numbers)
        except BaseException:
            self._asleep.update(numbers)
            self._undo_wake(in_use, awake if in_use else [], numbers, undo)
            raise
        finally:
            self._set_contents(undo, {})

    def _undo_wake(self, in_use, awake, numbers, undo):
        """After a failure: the tags that were awake are in use again, or all sleep."""
        try:
            self._offer(awake)
            if not in_use:
                self.lease.release()
                return
            if not self.lease.info().state:
                self.lease.request(timeout=self._timeout)
            self._library.pause(numbers)  # an interrupt came when they were awake
        except BaseException:
            # Others have it now, or Ctrl-C came again: what was awake sleeps too, with its contents.
            if not self.lease.info().state:
                self._asleep |= set(awake)
                undo.clear()
                self._offer(())
            raise

    def _sleep(self, contents):
        """Puts tags to sleep, as _to_sleep() takes them: all, or none. Tags without an offer are paused at once.

        Returns the bytes of those whose contents are kept, and of those whose contents are dropped.
        """
        with self._lock:
            managed = self._managed()
            offered = {number: wanted for number, wanted in contents.items() if number in managed}
            woken = [number for number in offered if number not in self._asleep]
            others = [number for number in contents
                      if number not in managed and self._context.tag_info(number).active_bytes]
            dropped = [number for number in others if contents[number] == Contents.DROP]
            kept = [number for number in others if number not in dropped]
            try:
                offloaded = self._library.pause(kept, contents[kept[0]] if kept else None)
                self._to_sleep(offered)
                try:
                    return offloaded, self._library.pause(dropped, Contents.DROP)  # last, as it cannot be undone
                except BaseException:
                    self._wake(woken)
                    raise
            except BaseException:
                self._library.resume(kept)
                raise

    def _of_name(self, name):
        return self._find(name) if name else [tag.number for tag in self._context.tags()]

    # The interfaces. A name that is not offered goes as without a lease.

    def pause_name(self, name):
        """torch_memory_saver's pause()."""
        if not self._is_on or (name and name not in self._names):
            self._library.call("tms_pause", name)
        else:
            self._sleep(dict.fromkeys(self._of_name(name)))

    def resume_name(self, name):
        """torch_memory_saver's resume()."""
        if not self._is_on or (name and name not in self._names):
            self._library.call("tms_resume", name)
        else:
            self.wake_up(self._of_name(name))

    def sleep(self, kept, dropped):
        """vLLM's sleep: the contents of some tags are kept, those of others are dropped. Returns the bytes of both.

        None: by a lease the memory goes when others want it.
        """
        freed = self._sleep({**dict.fromkeys(kept, Contents.HOST), **dict.fromkeys(dropped, Contents.DROP)})
        return None if self._is_on else freed

    def wake_up(self, numbers):
        """vLLM's wake_up: all of the tags, or none."""
        with self._lock:
            managed = self._managed()
            asleep = self._asleep.intersection(numbers)
            self._wake(numbers)
            try:
                self._library.resume([number for number in numbers if number not in managed])
            except BaseException:
                self._to_sleep(dict.fromkeys(asleep))
                raise
