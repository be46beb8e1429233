# SPDX-License-Identifier: Apache-2.0
"""gmm.Elastic: an array over reserved addresses, whose rows take memory and give it back."""
from __future__ import annotations

import operator
import threading
from typing import TYPE_CHECKING, Any, Sequence, Union

from gmm import _native as native
from gmm._core.array import Array, as_dtype, as_shape, c_layout
from gmm._core.enums import Contents
from gmm._core.errors import ERRORS

if TYPE_CHECKING:
    from gmm._core.typing import Context, Shape, TagLike

Rows = Union[int, Sequence[int]]
PAGE = 2 << 20  # bytes of the smallest part that a block of alloc(paused=True) takes


class Elastic(Array):
    """An Array over reserved addresses: rows, the elements of its first dimension, have memory while they are taken.

    Context.reserve() and gmm.torch.reserve() make it. Using a row that is not taken is a fault; on a GPU that ends the
    CUDA context. Views of taken rows, such as array[3:5], are ordinary arrays. Other packages may take the whole array
    by DLPack at any time. A page has memory while a row that touches it is taken. A pause of the tag takes the memory
    of taken rows away, and its resume brings it back.
    """

    def take(self, first: Rows, count: int = 1, *, zero: bool = False, stream: Any = None) -> int:
        """Gives rows memory: all of them, or none after a failure. Returns the bytes that have become usable.

        first: a row, or several: then `count` rows from each one on. zero: they read as zero; else their contents are
        undefined. stream: work that is queued there finds the rows, and the call waits for none; None: it waits for
        work that may still use their pages. InvalidSizeError: a row is outside of the array. OverlapError: a row is
        taken already.
        """
        def act(pages, shared):
            for address, size in shared if zero else ():
                self._queue(native.gmm_fill, (address, 0, size), stream)
            return self.context.resume_ranges(pages, zero=zero, stream=stream)

        return self._change(first, count, True, act)

    def give_back(self, first: Rows, count: int = 1, *, stream: Any = None) -> int:
        """Ends the use of rows, whose contents are lost. Returns the bytes that nobody uses any more.

        The pages stay for the next take() until other memory needs them; Context.trim() returns them to the driver.
        first, count, InvalidSizeError: see take(). AlreadyFreedError: a row is not taken. stream: work that is queued
        there may still use the rows; None: the call waits for the device. After a failure all rows are as before.
        """
        return self._change(
            first, count, False,
            lambda pages, shared: self.context.pause_ranges(pages, contents=Contents.DROP, stream=stream))

    def _change(self, first, count, taken, act):
        """Marks rows, and calls act() with the pages that no other row uses and the rows' parts of other pages.

        It holds the lock, as a page has memory for another row only once act() has returned. The lock is reentrant:
        act() may call a handler of the program that gives other rows back.
        """
        row_bytes = self.strides[0]
        with self._lock:
            native.gmm_query(self.context, self)  # ClosedError, as the addresses may have another owner by now
            marked, pages, shared = [], {}, []
            try:
                for start in map(operator.index, first if hasattr(first, "__iter__") else (first,)):
                    end = start + count
                    if not 0 <= start < end <= len(self._taken):
                        raise ERRORS["InvalidSizeError"](
                            f"{count} rows from {start} on are not all among the {len(self._taken)} rows of the array")
                    wrong = self._taken.find(taken, start, end)
                    if wrong >= 0:
                        raise ERRORS["OverlapError" if taken else "AlreadyFreedError"](
                            f"row {wrong} is {'taken already' if taken else 'not taken'}")
                    marked.append(slice(start, end))
                    self._taken[start:end] = bytes(count)  # so that only other rows use a page
                    begin, stop = start * row_bytes, end * row_bytes
                    for low in range(begin - begin % self._page, stop, self._page):
                        high = min(low + self._page, self.nbytes)
                        if self._taken.find(1, low // row_bytes, -(-high // row_bytes)) < 0:
                            pages[low] = (self.address + low, high - low)
                        elif low not in pages:
                            shared.append((self.address + max(low, begin), min(high, stop) - max(low, begin)))
                    self._taken[start:end] = bytes((taken,)) * count
                return act(list(pages.values()), shared)
            except BaseException:
                for rows in marked:
                    self._taken[rows] = bytes((not taken,)) * count
                raise

    def _check_active(self):
        """Exports are of the addresses."""


def reserve(self: Context, shape: Shape, dtype: Any = "float64", *, device: int = 0, tag: TagLike = 0,
            page: int = PAGE, name: str | None = None) -> Elastic:
    """Reserves addresses for an Elastic array of this shape, which may be larger than the device.

    page: bytes that rows take and give back at once, a multiple of 2 MiB. Larger pages cost the driver less and hold
    more where rows are scattered. The bookkeeping takes a byte of host memory for each row.
    """
    shape, dtype = as_shape(shape), as_dtype(dtype)
    strides, nbytes = c_layout(shape, dtype.itemsize)
    if not shape or not nbytes:
        raise ERRORS["InvalidSizeError"](f"the shape {shape} has no rows")
    if operator.index(page) < PAGE or page % PAGE:
        raise ERRORS["InvalidSizeError"](f"a page of {page} bytes is no multiple of 2 MiB")
    buffer = self.alloc(nbytes, device=device, tag=tag, paused=True, name=name)
    made = native.View.__new__(Elastic, buffer, buffer.address, shape, strides, dtype, False)
    made._page, made._taken, made._lock = page, bytearray(shape[0]), threading.RLock()
    return made
