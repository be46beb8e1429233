# SPDX-License-Identifier: Apache-2.0
"""Objects that were sent to other processes and have not arrived yet.

The sender holds a reference to each object that it sends. The receiver imports the memory, or fails to, and then sends
the object's receipt back: 16 random bytes in a datagram. The sender drops the reference when the receipt arrives. The
socket has a name in the abstract namespace, which needs no file and ends with the process. Only receipts of the same
user count.
"""
from __future__ import annotations

import multiprocessing
import os
import socket
import struct
import sys
import threading
import warnings
import weakref

RECEIPT_SIZE = 16
EXIT_SECONDS = 5  # a child process waits so long for receivers at its end
REPLY_SECONDS = 1  # a receiver waits so long when the sender does not read
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


class Transit:
    """The objects that this process has sent and that have not arrived."""

    def __init__(self):
        self.changed = threading.Condition()
        self.name = None  # of the socket, which the first object opens
        self.objects = {}  # by receipt

    def send(self, thing):
        """Holds an object until it has arrived. Returns (name of the socket, receipt) for the receiver."""
        with self.changed:
            if self.name is None:
                self._listen()
            for receipt in [receipt for receipt, held in self.objects.items() if getattr(held, "closed", False)]:
                del self.objects[receipt]  # it was closed, alone or with its context
            receipt = os.urandom(RECEIPT_SIZE)
            self.objects[receipt] = thing
            return self.name, receipt

    def arrived(self, receipt):
        """Drops an object and returns it; None when it has arrived before."""
        with self.changed:
            thing = self.objects.pop(receipt, None)
            self.changed.notify_all()
            return thing

    def _listen(self):
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        name = b"\0gmm-" + os.urandom(16).hex().encode()
        receiver.bind(name)
        # A thread that has nothing to do costs nothing; it must not hold the transit of a parent process.
        threading.Thread(target=_receive, args=(weakref.ref(self), receiver), name="gmm-transit", daemon=True).start()
        self.name = name
        self.receiver = receiver


def _receive(transit, receiver):
    while True:
        try:
            receipt, ancillary, flags, _ = receiver.recvmsg(RECEIPT_SIZE + 1, socket.CMSG_SPACE(_CREDENTIALS.size))
        except OSError:  # a child closes it after fork()
            return
        for level, kind, data in ancillary:
            is_identity = (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
            if is_identity and _CREDENTIALS.unpack(data)[1] == os.getuid():
                there = transit()
                if there is None:
                    return
                there.arrived(receipt)
                del there


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


transit = Transit()
_waits_at_exit = False


def in_transit() -> int:
    """The number of objects that this process has sent and that have not arrived yet."""
    return len(transit.objects)


def wait_until_received(timeout: float | None = None) -> bool:
    """Waits until everything that was sent has arrived; False after timeout seconds.

    A queue must have pickled it: see Queue.join_thread().
    """
    with transit.changed:
        return transit.changed.wait_for(lambda: not transit.objects, timeout)


def discard() -> int:
    """Releases what was sent and has not arrived, for example because its receiver died.

    Returns the number of objects.
    """
    with transit.changed:
        gone, transit.objects = transit.objects, {}
        transit.changed.notify_all()
    return len(gone)


def _start_anew():
    """In a child after fork: objects in transit are the parent's."""
    global transit
    if transit.name is not None:
        transit.receiver.close()
    transit = Transit()
    _let_processes_wait()


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
