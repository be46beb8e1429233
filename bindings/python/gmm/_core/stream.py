# SPDX-License-Identifier: Apache-2.0
"""Streams and events."""
from __future__ import annotations

from typing import Any, Callable

from gmm import _native as native
from gmm._core import sycl
from gmm._core.enums import STREAM_DEFAULT


def as_stream(stream):
    """A stream as the library takes it: None, a number, a gmm.Stream, or the handle of another package's stream."""
    if stream is None or isinstance(stream, (int, Stream)):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return (protocol() if callable(protocol) else protocol)[1]
    address = getattr(stream, "addressof_ref", None)
    if address is not None:  # dpctl.SyclQueue
        return address()
    for name in ("cuda_stream", "ptr", "handle"):  # PyTorch, CuPy, Numba
        value = getattr(stream, name, None)
        if value is not None:
            return int(getattr(value, "value", value) or 0)
    raise TypeError(f"expected a stream, its handle as a number, or None, got {type(stream).__name__}")


def stream_number(stream):
    """A stream as the plain number that a descriptor's field takes."""
    if stream is None:
        return STREAM_DEFAULT
    return stream.handle if isinstance(stream, Stream) else stream


class Stream(native.Handle):
    """A stream: work that is queued on it runs in order. Context.stream() makes it."""

    __slots__ = ("device",)

    def synchronize(self) -> None:
        """Waits until the work queued so far is done."""
        native.gmm_stream_synchronize(self.context, self)

    def call(self, function: Callable[[], object]) -> None:
        """Queues a call of function() on a thread of the backend.

        The function must not call gmm. Its exceptions go to sys.unraisablehook.
        """
        native.gmm_stream_call(self.context, self, function)

    def wait(self, event: Event) -> None:
        """Makes later work of the stream wait for the event. Does not block."""
        native.gmm_stream_wait_event(self.context, self, event, 0)

    def record(self, event: Event | None = None) -> Event:
        """Records an event (None: a new one) behind the work queued so far, and returns it."""
        if event is None:
            event = self.context.event(self.device)
        native.gmm_event_record(event, 0, self)
        return event

    def __cuda_stream__(self) -> tuple[int, int]:
        """(0, handle): the protocol by which Python's CUDA packages take each other's streams."""
        if self.context.info.backend_name != "cuda":
            raise TypeError(f"this stream belongs to the {self.context.info.backend_name} backend, not to CUDA")
        return (0, self.handle)

    @property
    def sycl_queue(self) -> Any:
        """The stream as a dpctl.SyclQueue: the same SYCL queue. Only on the SYCL backend."""
        if self.context.info.backend_name != "sycl":
            raise AttributeError(f"sycl_queue: this stream belongs to the {self.context.info.backend_name} backend, "
                                 "not to SYCL")
        return sycl.queue_of(self)

    def __repr__(self):
        return "<gmm.Stream closed>" if self.closed else f"<gmm.Stream 0x{self.handle:x} of device {self.device}>"


class Event(native.Handle):
    """A point in a stream's order.

    Context.event() and Stream.record() make it; Context.ipc_import_event() opens another process's.
    """

    __slots__ = ("device",)

    def ipc_export(self) -> bytes:
        """A handle for another process of the same user, as bytes: see Context.ipc_import_event().

        Only events made with ipc=True have one.
        """
        return native.gmm_event_export(self)[1]

    def record(self, stream: Any = None) -> None:
        """Records the event behind the work queued on the stream so far."""
        native.gmm_event_record(self, 0, stream)

    def synchronize(self) -> None:
        """Waits until the event has passed. An event that was never recorded has passed."""
        native.gmm_event_synchronize(self, 0, native.GMM_FOREVER)

    @property
    def done(self) -> bool:
        """True when the event has passed."""
        return bool(native.gmm_event_query(self)[1])

    def __repr__(self):
        return "<gmm.Event closed>" if self.closed else f"<gmm.Event 0x{self.handle:x}>"
