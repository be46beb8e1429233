# SPDX-License-Identifier: Apache-2.0
"""Objects that were sent to other processes and have not arrived yet.

The sender holds a reference to each object that it sends. The receiver imports the memory, or fails to, and then sends
the object's receipt back: 16 random bytes in a datagram. The sender drops the reference when the receipt arrives. The
socket has a name in the abstract namespace, which needs no file and ends with the process. Other users can find that
name, but cannot guess a receipt.
"""
from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import threading
import warnings

RECEIPT_SIZE = 16
EXIT_SECONDS = 5  # a child process waits so long for receivers at its end
REPLY_SECONDS = 1  # a receiver waits so long when the sender does not read

objects = {}  # what this process has sent and has not arrived, by receipt
_changed = threading.Condition()  # guards them
_receiver = None  # the socket, which the first object opens
name = None  # of the socket


def send(thing):
    """Holds an object until it has arrived. Returns (name of the socket, receipt) for the receiver."""
    with _changed:
        if name is None:
            _listen()
        for receipt in [receipt for receipt, held in objects.items() if getattr(held, "closed", False)]:
            del objects[receipt]  # it was closed, alone or with its context
        receipt = os.urandom(RECEIPT_SIZE)
        objects[receipt] = thing
        return name, receipt


def arrived(receipt):
    """Drops an object and returns it; None when it has arrived before."""
    with _changed:
        thing = objects.pop(receipt, None)
        _changed.notify_all()
        return thing


def _listen():
    global _receiver, name  # pylint: disable=global-statement # the process's
    _receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    name = b"\0gmm-" + os.urandom(16).hex().encode()
    _receiver.bind(name)
    threading.Thread(target=_receive, args=(_receiver,), name="gmm-transit", daemon=True).start()


def _receive(receiver):
    while True:
        arrived(receiver.recv(RECEIPT_SIZE + 1))


def acknowledge(name, receipt):
    """Tells the sender that an object has arrived.

    A sender that has ended needs none. A receipt that does not reach a sender is a RuntimeWarning here.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reply:
            reply.settimeout(REPLY_SECONDS)
            reply.connect(name)
            reply.send(receipt)
    except ConnectionError:
        pass
    except OSError as error:
        warnings.warn(f"gmm.multiprocessing: the sender of an object could not be told that it has arrived: {error}; "
                      "it holds its reference until gmm.multiprocessing.discard() there", RuntimeWarning, stacklevel=2)


def in_transit() -> int:
    """The number of objects that this process has sent and that have not arrived yet."""
    return len(objects)


def wait_until_received(timeout: float | None = None) -> bool:
    """Waits until everything that was sent has arrived; False after timeout seconds.

    A queue must have pickled it: see Queue.join_thread().
    """
    with _changed:
        return _changed.wait_for(lambda: not objects, timeout)


def discard() -> int:
    """Releases what was sent and has not arrived, for example because its receiver died.

    Returns the number of objects.
    """
    with _changed:
        gone = list(objects.values())
        objects.clear()
        _changed.notify_all()
    return len(gone)


def _start_anew():
    """In a child after fork: objects in transit are the parent's, and so is the thread."""
    global _changed, _receiver, name  # pylint: disable=global-statement # the process's
    if _receiver is not None:
        _receiver.close()
    _receiver = name = None
    _changed = threading.Condition()
    objects.clear()
    _let_processes_wait()


_waits_at_exit = False


def _let_processes_wait():
    """Makes a process that multiprocessing starts wait at its exit until what it sent right before has arrived.

    A program that starts such a process has imported multiprocessing.util. No other needs it, and it takes long.
    """
    global _waits_at_exit
    util = sys.modules.get("multiprocessing.util")
    if util is None or _waits_at_exit:
        return
    _waits_at_exit = True

    def begin(_=None):
        # After the threads of queues, which flush at -5.
        util.Finalize(None, _wait_at_exit, exitpriority=-10)

    util.register_after_fork(_wait_at_exit, begin)  # fork() drops what the parent does at exit
    begin()


def _wait_at_exit():
    if multiprocessing.parent_process() is not None:
        wait_until_received(EXIT_SECONDS)


os.register_at_fork(after_in_child=_start_anew)
_let_processes_wait()
