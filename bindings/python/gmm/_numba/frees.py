# SPDX-License-Identifier: Apache-2.0
"""Deferred release of memory that Numba has dropped.

Numba names no stream when it drops an array: the finalizer runs when the last reference goes, while kernels on any
stream may still use the memory. Programs rely on cuMemFree(), which waits for all of them. Here a block returns to the
pool once the work is done that was queued in the CUDA context when Numba dropped it. Nothing waits for that: blocks
gather in in-flight batches, each behind one event of the whole context. Later allocations and frees ask which events
have passed.
"""
import atexit
import collections
import os
import threading

from numba.cuda.core import config
from numba.cuda.cudadrv.driver import CudaAPIError, binding, driver

#: A batch closes when it has so many bytes, or more blocks than Numba's own queue takes (NUMBA_CUDA_DEALLOCS_COUNT).
BATCH_BYTES = 32 << 20
#: The driver's version that has cuCtxRecordEvent(). With an older one, closing a batch waits for the context, as
#: cuMemFree() does.
RECORDS_CONTEXTS = (12, 5)

_ending = False


def _end():
    global _ending
    _ending = True


atexit.register(_end)


def _capturing(code):
    """Whether a call failed because a graph is being captured. The blocks wait until the capture ends."""
    result = binding.CUresult
    return result.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED <= code <= result.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD


#: Blocks that Numba dropped before an event of the context was recorded; None when their work is done.
Batch = collections.namedtuple("Batch", "event blocks nbytes")


class Frees:
    """The deferred releases of one CUDA context. A block has nbytes and close().

    numba_queue: Numba's queue of memory of its own, which defer_cleanup() disables.
    """

    def __init__(self, handle, numba_queue):
        self._handle = handle  # of the CUDA context
        self._numba_queue = numba_queue
        self._process = os.getpid()
        self._dropped = collections.deque()
        self._dropped_bytes = 0  # approximate: finalizers add without a lock
        self._batches = collections.deque()
        self._batched_bytes = 0
        self._events = []  # passed events, for later batches
        self._records = None  # whether the driver records events of a context; None: not known yet
        self._lock = threading.Lock()

    def add(self, block):
        """Takes a block from a finalizer, which may run on any thread, and inside a method of this class too."""
        if _ending or os.getpid() != self._process:
            return  # the end of the process frees memory; a child has none of it
        self._dropped.append(block)
        self._dropped_bytes += block.nbytes
        if self._is_full:
            self.collect()

    @property
    def _is_full(self):
        return len(self._dropped) > config.CUDA_DEALLOCS_COUNT or self._dropped_bytes >= BATCH_BYTES

    @property
    def deferred(self):
        """Inside defer_cleanup()."""
        return self._numba_queue.is_disabled

    def __len__(self):
        return len(self._dropped) + sum(len(batch.blocks) for batch in tuple(self._batches))

    def collect(self, wait=False, limit=None, last=False):
        """Releases the blocks that the GPU has finished with.

        It waits only when `wait` is set, or while more than `limit` bytes are in flight. last: destroys all events of
        the CUDA context too.
        """
        if not wait and (self.deferred or not (self._batches or self._is_full)):
            return
        # A wait could deadlock: a finalizer may run on the thread that holds the lock.
        if not self._lock.acquire(blocking=wait):
            return
        try:
            driver.cuCtxPushCurrent(self._handle)  # a finalizer's thread may be in another context or in none
            try:
                if wait or self._is_full:
                    self._close_batch()
                while self._batches:
                    batch = self._batches[0]
                    over = limit is not None and self._batched_bytes > limit
                    if not self._passed(batch.event, wait or over):
                        break
                    self._batches.popleft()
                    self._batched_bytes -= batch.nbytes
                    if batch.event is not None:
                        self._events.append(batch.event)
                    _give_back(batch.blocks)
                while last and self._events:
                    driver.cuEventDestroy(self._events.pop())
            finally:
                driver.cuCtxPopCurrent()
        finally:
            self._lock.release()

    def _close_batch(self):
        blocks = []
        self._dropped_bytes = 0
        while self._dropped:
            blocks.append(self._dropped.popleft())
        if not blocks:
            return
        try:
            event = self._record()
        except BaseException as error:
            self._dropped.extendleft(reversed(blocks))
            self._dropped_bytes = sum(block.nbytes for block in blocks)
            if isinstance(error, CudaAPIError) and _capturing(error.code):
                return
            raise
        batch = Batch(event, blocks, sum(block.nbytes for block in blocks))
        self._batched_bytes += batch.nbytes
        self._batches.append(batch)

    def _record(self):
        """An event behind the work queued in the context; None when that work is done."""
        if self._records is None:
            self._records = hasattr(binding, "cuCtxRecordEvent") and driver.get_version() >= RECORDS_CONTEXTS
        if self._records:
            if self._events:
                event = self._events.pop()
            else:
                event = driver.cuEventCreate(binding.CUevent_flags.CU_EVENT_DISABLE_TIMING.value)
            try:
                driver.cuCtxRecordEvent(self._handle, event)
                return event
            except CudaAPIError as error:
                self._events.append(event)
                if _capturing(error.code):
                    raise
                self._records = False  # any other error shows again in the wait below
        driver.cuCtxSynchronize()
        return None

    def _passed(self, event, wait):
        if event is None:
            return True
        if wait:
            driver.cuEventSynchronize(event)
            return True
        (result,) = binding.cuEventQuery(event)  # Numba's wrapper would log each "not ready"
        if result == binding.CUresult.CUDA_SUCCESS:
            return True
        if result == binding.CUresult.CUDA_ERROR_NOT_READY or _capturing(result):
            return False
        raise CudaAPIError(result, f"Call to cuEventQuery results in {result.name}")


def _give_back(blocks):
    """Closes all blocks, also when one of them fails."""
    refused = None
    for block in blocks:
        try:
            block.close()
        except Exception as error:  # raised below
            refused = refused or error
    if refused is not None:
        raise refused
