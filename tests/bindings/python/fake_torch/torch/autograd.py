# SPDX-License-Identifier: Apache-2.0
"""Part of the fake of PyTorch."""
import threading


class _Threads(threading.local):
    multithreading = True


_threads = _Threads()


class set_multithreading_enabled:
    def __init__(self, mode):
        self._before, _threads.multithreading = _threads.multithreading, mode

    def __enter__(self):
        pass

    def __exit__(self, *exception):
        _threads.multithreading = self._before


def backward(function):
    """As Tensor.backward() chooses its thread: runs the function on a thread of autograd's, or on this one."""
    if not _threads.multithreading:
        return function()
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]
