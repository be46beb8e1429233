# SPDX-License-Identifier: Apache-2.0
"""Jobs: several processes pause and resume tags as one transaction, or not at all.

    job = gmm.job.Job(gmm.job.Folder("/shared/run-17"), rank=rank, ranks=4)     # or gmm.job.Job(gmm.job.Store())
    with job.paused("weights", "optimizer"):                                    # on every rank, in the same order
        ...                                                                     # the GPUs are free for others
    loss = step()

All ranks agree first, then each keeps the contents of its memory, and only when all have done so does one give any
memory up. A resume holds the pages of all ranks before one of them maps any. A rank that refuses, fails, dies, hangs or
is late ends the call on all ranks within their timeout, with an exception that names it; everything is as before.

A rank that cannot reach the exchange after it agreed gets NotReadyError, and job.info().state is JobState.IN_DOUBT. Its
memory may be used. Calling the same method again finds out what was decided, and keeps the contents of that time.

The ranks talk over an exchange, never over NCCL:
- Store: a store of torch.distributed, by default the one that init_process_group() made, with gloo or any other
  backend.
- Folder: a folder that all ranks see.
- any object with set(key, value, timeout) and get(key, timeout), in seconds, that return the text which stands or None.
  set() changes a key without a value only. erase(key) may be there, too.

A pause leaves contexts, communicators, graphs and workspaces of libraries on the GPU. suspend_process() takes a whole
process off it, by the driver's checkpoint, and resume_process() brings it back:

    gmm.pause()                                     # gmm copies its tags faster than the driver does
    suspended = gmm.job.suspend_process()           # this process, or those with the given numbers
    ...                                             # no call of CUDA or gmm here: it would wait
    gmm.job.resume_process(suspended)
    gmm.resume()
"""
import contextlib
import enum
import os
import queue
import tempfile
import threading
import time
from typing import NamedTuple

from gmm import _native as native
from gmm._core.scope import Scope
from gmm._core.stream import _Closing
from gmm._core.tag import tag_number
from gmm._core.ticket import milliseconds, pause_desc
from gmm._default import context as default_context
from gmm._suspend import (
    CheckpointError, ProcessState, ProcessStuckError, Suspended, process_state, resume_process, suspend_process)

__all__ = ["CheckpointError", "Folder", "Job", "JobInfo", "JobState", "ProcessState", "ProcessStuckError", "Store",
           "Suspended", "process_state", "resume_process", "suspend_process"]

for _public in (CheckpointError, ProcessState, ProcessStuckError, Suspended, process_state, resume_process,
                suspend_process):
    _public.__module__ = __name__
del _public

_HANDLE_JOB = 7  # native.h: HandleKind


class JobState(enum.IntEnum):
    """What a job did last."""

    IDLE = 0
    COMMITTED = 1
    ABORTED = 2
    IN_DOUBT = 3
    RUNNING = 4


class JobInfo(NamedTuple):
    """The last operation of a job. failed_rank: the rank that refused, failed or did not answer in time; None: none."""

    state: JobState
    epoch: int
    failed_rank: "int | None"
    cause: int
    bytes: int
    job_bytes: int

    @classmethod
    def _of(cls, state, epoch, failed_rank, *rest):
        return cls(JobState(state), epoch, None if failed_rank < 0 else failed_rank, *rest)


class Folder:
    """An exchange in a folder that all ranks see. Each job of a folder needs a name of its own."""

    def __init__(self, path):
        self._path = os.fspath(path)
        os.makedirs(self._path, exist_ok=True)

    def _file(self, key):
        return os.path.join(self._path, key.replace("/", ","))

    def set(self, key, value, timeout):
        """Sets a key that has no value. Returns the value that stands."""
        handle, name = tempfile.mkstemp(dir=self._path, prefix=".")
        try:
            with open(handle, "w", encoding="ascii") as file:
                file.write(value)
            with contextlib.suppress(FileExistsError):
                os.link(name, self._file(key))  # whole, and the first one only
        finally:
            os.unlink(name)
        return self.get(key, timeout)

    def get(self, key, timeout):
        """The value of a key, or None."""
        try:
            with open(self._file(key), encoding="ascii") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def erase(self, key):
        """Removes a key."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file(key))


class _Patient:
    """Calls functions on a thread of its own, and gives up on one that does not return in time.

    The two meet in queues alone, which are C: an interrupt inside an Event of threading may leave its lock held.
    """

    def __init__(self):
        self._calls = queue.SimpleQueue()
        self._is_started = False

    def _work(self):
        while True:
            function, answer, given_up = self._calls.get()
            if function is None:
                return
            if not given_up:
                try:
                    answer.put((function(), None))
                except Exception as error:
                    answer.put((None, error))
            del function, answer, given_up  # while it waits it holds nothing

    def call(self, function, timeout):
        """function(), or None when it takes longer, or when an earlier one still runs."""
        if not self._is_started:
            threading.Thread(target=self._work, name="gmm exchange", daemon=True).start()
            self._is_started = True  # not before: a thread that cannot start is tried again
        answer, given_up = queue.SimpleQueue(), []
        try:
            self._calls.put((function, answer, given_up))
            value, error = answer.get(timeout=max(0.0, timeout))
        except queue.Empty:
            return None
        finally:
            given_up.append(True)
        if error is not None:
            raise error
        return value

    def close(self):
        """Ends the thread after what it does."""
        if self._is_started:
            self._calls.put((None, None, None))


class Store:
    """An exchange over a store of torch.distributed (TCPStore, FileStore, PrefixStore, HashStore).

    store: None takes the store of the default process group, whatever its backend is. A store that does not answer, as
    its process was stopped, holds nobody up beyond the job's timeout.
    """

    #: A look takes as long as an answer of the store, at most this many seconds.
    _LOOK = 1.0

    def __init__(self, store=None):
        if store is None:
            from torch.distributed import distributed_c10d
            store = distributed_c10d._get_default_store()
        self._store = store
        self._patient = _Patient()

    def __del__(self):
        patient = getattr(self, "_patient", None)
        if patient is not None:
            patient.close()

    def _call(self, function, timeout):
        try:
            return self._patient.call(function, max(timeout, self._LOOK if timeout == 0 else 0))
        except RuntimeError:  # the store's process is gone: the library asks again until its time is over
            return None

    def set(self, key, value, timeout):
        """Sets a key that has no value. Returns the value that stands."""
        stands = self._call(lambda: self._store.compare_set(key, "", value), timeout)
        return None if stands is None else stands.decode("ascii")

    def get(self, key, timeout):
        """The value of a key, or None."""
        stands = self._call(lambda: self._store.get(key) if self._store.check([key]) else None, timeout)
        return None if stands is None else stands.decode("ascii")

    def erase(self, key):
        """Removes a key."""
        self._call(lambda: self._store.delete_key(key), self._LOOK)


class Job(_Closing, native.Handle):
    """One rank of a job, until close() or the end of its with block.

    exchange: how the ranks talk. rank and ranks: None takes those of torch.distributed. timeout: seconds of each
    operation; they include the copies of the slowest rank. name: no other job of the exchange had it.
    """

    __slots__ = ("context",)

    def __init__(self, exchange, *, rank=None, ranks=None, name="job", timeout=60.0, context=None):
        if rank is None or ranks is None:
            from torch import distributed
            rank = distributed.get_rank() if rank is None else rank
            ranks = distributed.get_world_size() if ranks is None else ranks
        erase = getattr(exchange, "erase", None)

        def call(operation, key, value, timeout_ms):
            if operation == "erase":
                return erase(key)
            seconds = timeout_ms / 1000
            return exchange.get(key, seconds) if operation == "get" else exchange.set(key, value, seconds)

        self.context = default_context() if context is None else context
        self._watch = call
        self._open(_HANDLE_JOB, self.context, native.job_create, self, self.context, name, rank, ranks,
                   milliseconds(timeout), erase is not None)

    def _run(self, pauses, tags, **options):
        flags = pause_desc(self.context, (), **options)[0].flags
        numbers = tuple(tag_number(self.context, tag) for tag in tags)
        return JobInfo._of(*native.job_run(self, pauses, flags, numbers))

    def pause(self, *tags, force=False, contents=None):
        """Pauses the tags on all ranks, or on none: JobInfo. No tags: all tags. force, contents: as Context.pause()."""
        return self._run(True, tags, force=force, contents=contents)

    def resume(self, *tags, retain=False):
        """Resumes the tags on all ranks, or on none: JobInfo. No tags: all tags. retain: as Context.resume()."""
        return self._run(False, tags, retain=retain)

    def paused(self, *tags, force=False, contents=None):
        """Pauses for the time of a with block. The block gets the JobInfo of the pause."""
        def pause():
            epoch = self.info().epoch
            try:
                return self.pause(*tags, force=force, contents=contents)
            except BaseException:  # an interrupt may come when the pause is over
                now = self.info()
                if now.state == JobState.COMMITTED and now.epoch != epoch:
                    self.resume(*tags)
                raise

        return Scope(pause, (), lambda: self.resume(*tags), ())

    def info(self):
        """The last operation, also after its failure: JobInfo."""
        return JobInfo._of(*native.job_query(self))

    def __repr__(self):
        return "<gmm.job.Job closed>" if self.closed else "<gmm.job.Job>"
