# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver's interface over gmm: pauses the memory of PyTorch tensors, whose addresses stay.

    from gmm.memory_saver import torch_memory_saver

    with torch_memory_saver.region(tag="weights", enable_cpu_backup=True):
        model = make_model().cuda()
    torch_memory_saver.pause("weights")
    torch_memory_saver.resume("weights")

A failure that ends the process there raises gmm.Error here and changes nothing, so that the program may try again.

A program that imports the package torch_memory_saver by name gets gmm when it starts with

    python -m gmm.memory_saver run COMMAND...

or after `eval "$(python -m gmm.memory_saver)"`, and so do all processes that it starts.
"""
from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from typing import Any, Literal

from gmm import _native
from gmm._core.enums import Contents, State
from gmm._memory_saver import by_name as _by_name
from gmm._memory_saver import preload as _preload
from gmm._torch import pools as _pools

__all__ = ["TorchMemorySaver", "configure_subprocess", "memory_saver", "register_hook_mode", "torch_memory_saver"]

_TAG_DEFAULT = "default"
_hook_modes = {}


class HookModeError(AssertionError, AttributeError, RuntimeError):
    """The hook mode was set after the first use. Each base is the exception of one version of torch_memory_saver."""


def register_hook_mode(name: str, factory: Callable[[], Any], *, uses_preload: bool = True) -> None:
    """Defines a hook mode. factory() returns an object with region, cuda_graph, pause and resume."""
    if name in _hook_modes:
        raise ValueError(f"Hook mode {name!r} is already registered")
    _hook_modes[name] = (factory, uses_preload)


class _MemorySaver:
    """The memory saver in one hook mode. It needs PyTorch."""

    def __init__(self, hook_mode):
        import torch  # pylint: disable=import-outside-toplevel # the module loads without PyTorch

        self._torch, self._hook_mode = torch, hook_mode
        is_pluggable = hook_mode == "torch"
        # The second name is upstream's: programs look for its cdll.
        self._library = self._binary_wrapper = _preload.load(
            _preload.find_library() if is_pluggable else _preload.preloaded_library())
        self._pools = _pools.Pools(torch, self._library.pluggable_allocator() if is_pluggable else None)
        if name := _pools.expandable_segments():
            raise RuntimeError("TorchMemorySaver is disabled for the current process because expandable_segments is "
                               f"not supported yet: it is on in {name}")
        self._uses_files = self._library.cdll.tms_get_enable_disk_backup()
        atexit.register(self._end)  # before PyTorch and the driver are torn down

    def _end(self):
        self._pools.clear()
        if self._uses_files and self._library.cdll.gmm_preload_active():  # they have names
            self._library.context.discard_backup()
            self._library.context.trim()

    @contextlib.contextmanager
    def region(self, tag, enable_cpu_backup, enable_disk_backup=False, cpu_backup_backend=None):
        self._uses_files = self._uses_files or enable_disk_backup
        backend = enable_cpu_backup and (cpu_backup_backend or self._library.cdll.tms_get_cpu_backup_backend().decode())
        with self._pools.use((tag, enable_cpu_backup, enable_disk_backup, backend)):
            with self._library.region(tag, enable_cpu_backup, cpu_backup_backend, enable_disk_backup):
                yield

    @contextlib.contextmanager
    def cuda_graph(self, cuda_graph, pool, stream, capture_error_mode, tag, enable_cpu_backup, cpu_backup_backend=None):
        if self._hook_mode != "preload":
            raise AssertionError("Only hook_mode=preload supports pauseable CUDA Graph currently")
        # Leaves the pools of an active region, which PyTorch would use before the graph's.
        outside = _pools.use(self._torch, [])
        with outside, _pools.capturing(self._torch):
            graph = self._torch.cuda.graph(cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode)
            with graph, self._library.region(tag, enable_cpu_backup, cpu_backup_backend):
                yield

    @contextlib.contextmanager
    def disable(self):
        cdll = self._library.cdll
        if not cdll.tms_get_interesting_region():
            raise AssertionError("disable() should be called only when tms is active")
        cdll.tms_set_interesting_region(False)
        try:
            with _pools.Pools(self._torch).use(keep=False):
                yield
        finally:
            cdll.tms_set_interesting_region(True)

    def pause(self, tag=None):
        self._library.turns.change_name(tag or None, asleep=True)

    def resume(self, tag=None):
        self._library.turns.change_name(tag or None, asleep=False)

    def get_cpu_backup(self, x, zero_copy=False):
        if not x.is_cuda:
            raise AssertionError(f"not a CUDA tensor: {x.device=}")
        if not x.is_contiguous():
            raise AssertionError(f"not contiguous: {x.shape=} {x.stride()=} {x.dtype=}")
        if not x.nbytes:
            return self._torch.empty(x.shape, dtype=x.dtype)
        context = self._library.context
        info = context.query(x.data_ptr())
        if info.state == State.PAUSED and context.tag_info(info.tag).contents == Contents.FILE:
            return None  # as in the original
        try:
            pointer = _native.gmm_backup_map(context, x.data_ptr(), x.nbytes)[1]
        except ValueError:
            if info.state == State.ACTIVE:
                return None  # nothing is retained of it
            raise
        kept_bytes = (ctypes.c_uint8 * x.nbytes).from_address(pointer)
        kept = self._torch.frombuffer(kept_bytes, dtype=self._torch.uint8).view(x.dtype).view(x.shape)
        return kept if zero_copy else kept.clone()


register_hook_mode("preload", lambda: _MemorySaver("preload"))
register_hook_mode("torch", lambda: _MemorySaver("torch"))


def _passed(**newer):
    """The newer arguments that were passed: a registered hook mode may lack the others."""
    return {name: value for name, value in newer.items() if value}


class TorchMemorySaver:
    """Pauses and resumes the memory of tensors that were made inside its regions."""

    def __init__(self) -> None:
        self._hook_mode = "preload"
        self._impl = None

    @contextlib.contextmanager
    def region(self, tag: str = _TAG_DEFAULT, enable_cpu_backup: bool = False, enable_disk_backup: bool = False,
               cpu_backup_backend: Literal["mmap", "pinned"] | None = None) -> Iterator[None]:
        """Tensors that are made in its with block can be paused, by a tag. Regions nest; the innermost counts.

        enable_cpu_backup: a pause keeps the contents in host memory; else they are lost. enable_disk_backup: a pause
        keeps them in a file, in the folder of set_disk_backup_dir() or TMS_DISK_BACKUP_DIR. cpu_backup_backend:
        "pinned" or "mmap" (not page-locked).
        """
        self._check_backend(enable_cpu_backup, cpu_backup_backend)
        implementation = self._ensure_initialized()
        if enable_cpu_backup and enable_disk_backup:
            raise AssertionError("enable_cpu_backup and enable_disk_backup are mutually exclusive")
        newer = _passed(enable_disk_backup=enable_disk_backup, cpu_backup_backend=cpu_backup_backend)
        with implementation.region(tag=tag, enable_cpu_backup=enable_cpu_backup, **newer):
            yield

    @contextlib.contextmanager
    def cuda_graph(self, cuda_graph: Any, pool: Any = None, stream: Any = None, capture_error_mode: str = "global",
                   tag: str = _TAG_DEFAULT, enable_cpu_backup: bool = False,
                   cpu_backup_backend: Literal["mmap", "pinned"] | None = None) -> Iterator[None]:
        """torch.cuda.graph() whose own memory can be paused. Only in hook mode "preload"."""
        self._check_backend(enable_cpu_backup, cpu_backup_backend)
        with self._ensure_initialized().cuda_graph(
                cuda_graph=cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode, tag=tag,
                enable_cpu_backup=enable_cpu_backup, **_passed(cpu_backup_backend=cpu_backup_backend)):
            yield

    def disable(self) -> contextlib.AbstractContextManager[None]:
        """Leaves the active region for its with block.

        The end of the block returns the memory that was freed in it to the driver.
        """
        return self._ensure_initialized().disable()

    def pause(self, tag: str | None = None) -> None:
        """Returns the memory of a tag to the driver; None or "": of all tags.

        A tag without memory, and one that is paused already, changes nothing.
        """
        self._ensure_initialized().pause(tag=tag)

    def resume(self, tag: str | None = None) -> None:
        """Gives a tag physical memory again, at the same addresses; None or "": all tags.

        After gmm.OutOfMemoryError all of it is still paused, and its kept contents are intact.
        """
        self._ensure_initialized().resume(tag=tag)

    @property
    def enabled(self) -> bool:
        """True."""
        return True

    @property
    def hook_mode(self) -> str:
        """How gmm takes allocations: "preload", the default, or "torch". It can only be set, before the first use.

        "preload" puts libgmm_preload.so in front of the CUDA runtime: start the program inside configure_subprocess(),
        or by `gmm run --regions --`. "torch" is a pluggable allocator of PyTorch and needs nothing in the environment,
        but has no cuda_graph().
        """
        raise AttributeError("hook_mode can only be set")

    @hook_mode.setter
    def hook_mode(self, hook_mode: str) -> None:
        if self._impl is not None:
            raise HookModeError("Cannot configure after initialization")
        if hook_mode not in _hook_modes:
            raise ValueError(f"Unknown hook mode {hook_mode!r}; the modes are {', '.join(_hook_modes)}")
        self._hook_mode = hook_mode

    @property
    def memory_margin_bytes(self) -> int:
        """Bytes of the device that allocations in regions leave free. It can only be set."""
        raise NotImplementedError("Only setter is supported")

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        self._cdll.set_memory_margin_bytes(value)

    @property
    def retain_cpu_backup(self) -> bool:
        """Whether a resume keeps backups in host memory: get_cpu_backup() then answers for active tensors too."""
        return self._cdll.tms_get_retain_cpu_backup()

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        self._cdll.tms_set_retain_cpu_backup(value)

    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
        """The kept contents of a paused CUDA tensor as a CPU tensor; None when the tensor is active.

        With retain_cpu_backup it answers for active tensors too, with the contents of their last pause.
        zero_copy: the result lies over the backup itself. It is valid until a resume without retain_cpu_backup, and the
        end of the tensor. A later call, after another pause, brings its contents up to date.
        """
        return self._ensure_initialized().get_cpu_backup(x, zero_copy=zero_copy)

    def set_disk_backup_dir(self, path: str | os.PathLike[str]) -> None:
        """Sets the folder of backup files for the whole process. A missing folder is made.

        The files have names there: one an allocation of PyTorch's cache; beyond 48 files they are shared.
        """
        os.makedirs(path, exist_ok=True)
        self._cdll.tms_set_disk_backup_dir(os.fsencode(path))

    @staticmethod
    def _check_backend(enable_cpu_backup, cpu_backup_backend):
        if cpu_backup_backend is None:
            return
        if not enable_cpu_backup:
            raise ValueError("cpu_backup_backend requires enable_cpu_backup=True")
        if cpu_backup_backend not in ("mmap", "pinned"):
            raise ValueError(f"cpu_backup_backend={cpu_backup_backend!r}: use 'mmap' or 'pinned'")

    def _ensure_initialized(self):
        """The implementation, which the first use makes. The name is upstream's, whose own tests call it."""
        if self._impl is None:
            self._impl = _hook_modes[self._hook_mode][0]()
        return self._impl

    @property
    def _cdll(self):
        return self._ensure_initialized()._binary_wrapper.cdll


#: The instance of the process.
torch_memory_saver = TorchMemorySaver()
#: Its name in an earlier release of torch_memory_saver.
memory_saver = torch_memory_saver


def configure_subprocess() -> contextlib.AbstractContextManager[None]:
    """In its with block the environment makes new processes load the preload library, for hook mode "preload"."""
    uses_preload = _hook_modes[torch_memory_saver._hook_mode][1]
    return _preload.preloading(_preload.find_library()) if uses_preload else contextlib.nullcontext()


if __name__ == "__main__":
    _by_name.main()
