# SPDX-License-Identifier: Apache-2.0
"""Buffers and arrays sent through multiprocessing.

Nothing is copied: the receiver gets a Buffer or an Array over the same memory.

    import multiprocessing

    def work(queue):
        buffer = queue.get()                      # a gmm.Buffer over the sender's memory
        buffer.fill(7)

    queue = multiprocessing.get_context("spawn").Queue()
    queue.put(gmm.alloc(1 << 20, gmm.Kind.HOST))  # or as an argument of Process, through a Pipe, a Pool, an executor

`import gmm` switches this on. Pickling in any other way is a TypeError. DEVICE, VMM and HOST memory can be sent;
MANAGED memory cannot.

Lifetime. The sender refers to a buffer from the moment it is pickled until the receiver has imported it, so the program
may forget it. From then on both sides hold the memory: it is given back when the sender has freed it and the last
receiver has closed it. Memory that the sender frees earlier (by free(), close(), the end of a with block, of the
context or of the process) is gone: the receiver gets IPCPeerGoneError. wait_until_received() waits for the receivers; a
process that multiprocessing started waits at its end, for 5 seconds at most. The reference stays until discard() or the
end of the context in two cases: the receiver died, or it could not tell the sender. The second case is a RuntimeWarning
in the receiver.

Contents. Pickling waits for the buffer's own stream. The sender finishes work on other streams first, or sends an event
too.

Events of Context.event(ipc=True) travel in the same way; a receiver's stream waits for what the sender recorded last.

CUDA does not work in a child after fork(): use the start method "spawn" or "forkserver".

A process that unpickles what it has sent itself gets the same object. A receiver may send a buffer on until the first
sender has freed it.

enable_torch() does the same for PyTorch tensors over gmm's memory in torch.multiprocessing; importing gmm.torch calls
it.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from gmm._multiprocessing import parcel as _parcel
from gmm._multiprocessing import reducers as _reducers  # noqa: F401: registers with the pickler
from gmm._multiprocessing import transit as _transit

if TYPE_CHECKING:
    from gmm._core.typing import Context

__all__ = ["discard", "enable_torch", "in_transit", "use_context", "wait_until_received"]


def in_transit() -> int:
    """The number of objects that this process has sent and that have not arrived yet."""
    return len(_transit.transit.objects)


def wait_until_received(timeout: float | None = None) -> bool:
    """Waits until everything that was sent has arrived; False after timeout seconds.

    A queue must have pickled it: see Queue.join_thread().
    """
    return _transit.transit.wait(timeout)


def discard() -> int:
    """Releases what was sent and has not arrived, for example because its receiver died.

    Returns the number of objects.
    """
    return _transit.transit.discard()


def use_context(context: Context | None) -> None:
    """Sets the context that receives memory of its backend.

    None: the default context, or a context that gmm opens where the default one has another backend.
    """
    _parcel.use_context(context)


def enable_torch() -> None:
    """Lets torch.multiprocessing send PyTorch tensors over gmm's memory without a copy. Imports PyTorch.

    A second call does nothing.
    This is for programs that make tensors over gmm's memory by DLPack. `import gmm.torch` calls it, and so does the
    arrival of such a tensor.
    """
    from gmm._multiprocessing import tensors  # pylint: disable=import-outside-toplevel # it imports PyTorch

    tensors.enable()
