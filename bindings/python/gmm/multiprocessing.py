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
from gmm._multiprocessing.parcel import use_context
from gmm._multiprocessing.transit import discard, in_transit, wait_until_received

__all__ = ["discard", "enable_torch", "in_transit", "use_context", "wait_until_received"]


def enable_torch() -> None:
    """Lets torch.multiprocessing send PyTorch tensors over gmm's memory without a copy. Imports PyTorch.

    A second call does nothing.
    This is for programs that make tensors over gmm's memory by DLPack. `import gmm.torch` calls it, and so does the
    arrival of such a tensor.
    """
    from gmm._multiprocessing import tensors  # pylint: disable=import-outside-toplevel # it imports PyTorch

    tensors.enable()
