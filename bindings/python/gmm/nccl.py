# SPDX-License-Identifier: Apache-2.0
"""gmm's memory with NCCL: registrations that end before a pause and come back after it.

    import gmm.nccl

    weights = gmm.alloc(1 << 30, comm=True, tag="weights")
    registration = gmm.nccl.register(weights)             # with the default group of torch.distributed
    gmm.context().pause("weights")                        # the registration ends before the pages go
    gmm.context().resume("weights")                       # and begins again with the new ones
    registration.close()

Without it NCCL keeps the old pages: the pause frees nothing, and collectives use memory that is not the block's. Every
rank registers in the same order. A window (window=True) is registered by all ranks at once: pause and resume the ranks
together, for example behind a barrier of a group without NCCL.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import Any, NamedTuple

from gmm._context import Context
from gmm._registration import LibraryError as _LibraryError
from gmm._registration import Registration as _Registration

__all__ = ["MemoryInfo", "NcclError", "Registration", "can_suspend", "memory", "register", "resume", "suspend"]

_SYMMETRIC = 1  # NCCL_WIN_COLL_SYMMETRIC
_SUSPEND_MEMORY = 1  # NCCL_SUSPEND_MEM


class MemoryInfo(NamedTuple):
    """The memory of communicators on the GPU, in bytes.

    suspendable: suspend() gives it back. persistent: it does not. suspended: how many communicators are suspended;
    their suspendable bytes are away.
    """

    suspendable: int
    persistent: int
    total: int
    suspended: int


class NcclError(_LibraryError):
    """NCCL refused. code: its ncclResult_t."""


@functools.lru_cache(maxsize=1)
def _torch():
    """PyTorch, which brings its own NCCL; None where it is not installed."""
    try:
        import torch  # pylint: disable=import-outside-toplevel # a number of a communicator needs no PyTorch
    except ImportError:
        return None
    return torch


@functools.lru_cache(maxsize=1)
def _nccl():
    """NCCL as the process has it."""
    _torch()
    try:
        found = ctypes.CDLL("libnccl.so.2")
    except OSError as error:
        raise ImportError(f"gmm.nccl needs NCCL, and libnccl.so.2 cannot be opened ({error}): install PyTorch with "
                          "CUDA, or nvidia-nccl-cu13") from error
    found.ncclGetErrorString.restype = ctypes.c_char_p
    return found


def _call(function, *arguments):
    """Calls NCCL with pointers and numbers of 64 bits."""
    library = _nccl()
    if not hasattr(library, function):
        raise NotImplementedError(f"NCCL lacks {function}(): suspend(), resume() and memory() need 2.29.7 or newer")
    code = getattr(library, function)(*(ctypes.c_size_t(one) if isinstance(one, int) else one for one in arguments))
    if code:
        raise NcclError(function, code, library.ncclGetErrorString(code).decode())


def _backend(group, device):
    import torch.distributed  # pylint: disable=import-outside-toplevel

    if group is None:
        group = torch.distributed.group.WORLD
    return group._get_backend(torch.device("cuda", device))  # pylint: disable=protected-access # PyTorch has no other


def _communicator(group, device):
    """The ncclComm_t of a process group on a device, or a number as it is."""
    if isinstance(group, int):
        return group
    pointer = getattr(_backend(group, device), "_comm_ptr", lambda: 0)()
    if not pointer:
        raise RuntimeError("the group has no NCCL communicator yet: pass device_id to init_process_group(), or run a "
                           "collective first")
    return pointer


def _groups(groups):
    return list(groups) if isinstance(groups, (list, tuple)) else [groups]


def _on(device):
    """NCCL works on the calling thread's device, which may be another one, or none on a thread of the library."""
    torch = _torch()
    return torch.cuda.device(device) if torch and torch.cuda.is_available() else contextlib.nullcontext()


class Registration(_Registration):
    """Memory that communicators of NCCL have registered. register() makes it."""

    def __init__(self, memory: Any, groups: list[Any], window: bool, **options: Any) -> None:
        self._groups = groups
        self._window = window
        self._handles = []  # in the order of the groups
        self._ends = contextlib.ExitStack()  # calls all, also when one of them fails
        super().__init__(memory, **options)

    def _begin(self):
        begin, end, *flags = ("ncclCommWindowRegister", "ncclCommWindowDeregister", ctypes.c_int(_SYMMETRIC)
                              ) if self._window else ("ncclCommRegister", "ncclCommDeregister")
        handles = []
        with _on(self.device), contextlib.ExitStack() as ends:
            for group in self._groups:
                communicator, handle = _communicator(group, self.device), ctypes.c_void_p()
                _call(begin, communicator, self.address, self.size, ctypes.byref(handle), *flags)
                handles.append(handle)
                if handle:  # else NCCL registered nothing, as the memory is not of a kind that it takes
                    ends.callback(_call, end, communicator, handle)
            self._handles, self._ends = handles, ends.pop_all()

    def _end(self):
        self._handles = []
        with _on(self.device):
            self._ends.close()

    @property
    def handles(self) -> list[int]:
        """NCCL's handles, or windows, in the order of the groups; empty while the memory is paused."""
        return [handle.value or 0 for handle in self._handles]


def register(memory: Any, group: Any = None, *, window: bool = False, context: Context | None = None,
             name: str | None = None) -> Registration:
    """Registers a block with communicators until the Registration is closed.

    memory: a Buffer, an Array, a tensor in gmm's memory, or an address; best of alloc(size, comm=True). group: a
    process group of torch.distributed, the number of an ncclComm_t, or a list of them; None: the default group. window:
    ncclCommWindowRegister(), which all ranks of the group call.
    """
    return Registration(memory, _groups(group), window, context=context, name=name)


def can_suspend() -> bool:
    """Whether this NCCL gives the memory of communicators back: 2.29.7 and newer."""
    return hasattr(_nccl(), "ncclCommSuspend")


def memory(group: Any = None, device: int = 0) -> MemoryInfo:
    """The memory of the groups' communicators on the GPU, which a pause of gmm leaves there: MemoryInfo."""
    sums = [0, 0, 0, 0]  # by ncclCommMemStat_t
    for each in _groups(group):
        communicator = _communicator(each, device)
        for stat in range(4):
            value = ctypes.c_uint64()
            _call("ncclCommMemStats", communicator, ctypes.c_int(stat), ctypes.byref(value))
            sums[stat] += value.value
    return MemoryInfo(suspendable=sums[0], suspended=sums[1], persistent=sums[2], total=sums[3])


def suspend(group: Any = None, device: int = 0) -> None:
    """Gives the memory of communicators back. All ranks of a group call it, and nothing is in flight."""
    _each("suspend", "ncclCommSuspend", group, device, ctypes.c_int(_SUSPEND_MEMORY))


def resume(group: Any = None, device: int = 0) -> None:
    """Takes the memory of suspended communicators again. All ranks of a group call it."""
    _each("resume", "ncclCommResume", group, device)


def _each(method, function, groups, device, *arguments):
    """Calls PyTorch's method of each group, where its version has one, else NCCL's function."""
    for group in _groups(groups):
        with _on(device):
            own = None if isinstance(group, int) else getattr(_backend(group, device), method, None)
            if own is not None:
                own()
            else:
                _call(function, _communicator(group, device), *arguments)
