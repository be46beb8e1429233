# SPDX-License-Identifier: Apache-2.0
"""gmm.Context: one backend with its memory."""
from __future__ import annotations

import json
import os
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterable

from gmm import _native as native
from gmm._core import sycl
from gmm._core.array import Array, array, asarray, empty, from_dlpack, zeros
from gmm._core.buffer import Buffer, heap, import_fd, ipc_import, pin
from gmm._core.enums import Backend, Kind, LogLevel, as_kind, by_name, flags, tag_number
from gmm._core.errors import ERRORS, Error, size
from gmm._core.stream import event, ipc_import_event, stream
from gmm._core.tag import Tag, tag
from gmm._core.ticket import Pausing, Scope, wait_in_slices
from gmm._core.values import (
    BackupInfo, BlockInfo, CompactInfo, ContextInfo, DeviceInfo, OutOfMemoryInfo, PointerInfo, SnapshotInfo, Statistics,
    TagInfo)
from gmm._core.watch import watch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gmm._core.typing import Address, KindLike, Path, TagLike

InvalidTagError = ERRORS["InvalidTagError"]
contexts = weakref.WeakSet()  # all contexts that were opened in this process and still live, closed ones too
os.register_at_fork(after_in_child=contexts.clear)


def members(objects):
    """The objects of a WeakSet as a list, while other threads add to it."""
    while True:
        try:
            return list(objects)
        except RuntimeError:  # another thread changed it
            pass


def _scope(context, device, tag, kind):
    return {"flags": flags((native.GMM_SCOPE_DEVICE, device is not None), (native.GMM_SCOPE_TAG, tag is not None),
                           (native.GMM_SCOPE_KIND, kind is not None)),
            "device": device, "tag": None if tag is None else tag_number(context, tag), "kind": as_kind(kind)}


class Context(Pausing, native.Handle):
    """Binds the library to one backend. Several contexts may live at once.

    close() frees all memory of the context, live buffers included, and closes them. While views of the memory live, it
    raises BufferError.
    """

    def __init__(self, backend: Backend | int | str = Backend.AUTO, *,
                 log: Callable[[LogLevel, str], object] | None = None, host_memory: int = 0, host_devices: int = 0,
                 decommit_after_ms: int | None = 0, capture: bool = True, leak_report: bool = True,
                 strict_host: bool = False) -> None:
        """Opens a backend.

        backend: a Backend or its name ("auto", "host", "cuda", "sycl"). log: log(level, message), called on any thread.
        host_memory: bytes of each device of the host backend. host_devices: the number of its devices.
        decommit_after_ms: see the property; 0: GMM_DECOMMIT_AFTER_MS of the environment, else never. capture: False
        when the program allocates nothing while it captures a CUDA graph. Allocations on a stream then make no call of
        the driver. leak_report: the log hears of the blocks that are live when the context is closed.
        strict_host: on the host backend the CPU faults on DEVICE and VMM memory, as it would with a GPU.
        """
        backend = by_name(Backend, backend)
        if backend == Backend.SYCL or (backend == Backend.AUTO and os.environ.get("GMM_BACKEND") == "sycl"):
            sycl.load_library()
        if log is not None:
            self._held = lambda level, message: log(LogLevel(level), message)
        self._adopt(native.gmm_context_create, {
            "backend": backend, "host_memory": host_memory, "host_devices": host_devices,
            "flags": flags((native.GMM_CONTEXT_NO_CAPTURE, not capture), (native.GMM_CONTEXT_STRICT_HOST, strict_host),
                           (native.GMM_CONTEXT_NO_LEAK_REPORT, not leak_report)),
            "log": None if log is None else self,
            "decommit_after_ms": native.GMM_DECOMMIT_NEVER if decommit_after_ms is None else decommit_after_ms})
        contexts.add(self)

    def _adopt(self, make, *arguments):
        """Opens the handle with the context that the function makes."""
        self._open("context", None, make, *arguments)
        self._parts = weakref.WeakSet()  # streams, events and leases, which end before it
        self._sycl_queues = {}
        self._tickets = set()  # operations under way, also those whose ticket the program has dropped
        self._info = ContextInfo.unpack(native.gmm_context_query(self)[1])
        # The library calls this handle. It collects garbage first, and then calls its attribute, the program's handler.
        native.gmm_context_set_oom_handler(self, self)

    # Life.

    def close(self) -> None:
        """Waits for the pauses and resumes in the background, and frees everything. A second call does nothing."""
        if self.closed:
            return
        if self._exports:
            super().close()  # raises the error before any stream is closed
        for part in members(self._parts):
            part.close()
        for ticket in list(self._tickets):
            ticket.close()
        super().close()

    def _chosen(self, tags):
        return self, tags

    @property
    def info(self) -> ContextInfo:
        """The backend of the context: ContextInfo."""
        return self._info

    @property
    def sycl_object(self) -> Any:
        """The dpctl.SyclContext of the memory, which is dpctl's default one.

        Only on the SYCL backend with dpctl installed.
        """
        if self._info.backend_name != "sycl":
            raise AttributeError(f"sycl_object: this context has the {self._info.backend_name} backend, not SYCL")
        return self._sycl_queue(0).sycl_context

    def _sycl_queue(self, device):
        """dpctl's queue of a device. Only on the SYCL backend with dpctl installed."""
        if device not in self._sycl_queues:
            try:
                self._sycl_queues[device] = sycl.cached_queue(self, device)
            except ImportError as error:
                raise AttributeError(f"dpctl's objects: {error}; pip install dpctl") from error
        return self._sycl_queues[device]

    def device_info(self, device: int = 0) -> DeviceInfo:
        """Describes a device and its free memory now: DeviceInfo."""
        return DeviceInfo.unpack(native.gmm_device_query(self, device)[1])

    # Memory.

    alloc = native.context_alloc  # in C (native/allocate.c), because Python code would cost more than the allocation

    empty, zeros, array = empty, zeros, array

    def from_dlpack(self, obj: Any, *, device: Any = None, copy: bool | None = None, stream: Any = None) -> Array:
        """gmm.from_dlpack() with this context for copies and streams."""
        return from_dlpack(obj, device=device, copy=copy, stream=stream, context=self)

    def asarray(self, obj: Any, *, copy: bool | None = None, stream: Any = None) -> Array:
        """gmm.asarray() with this context for copies and streams."""
        return asarray(obj, copy=copy, stream=stream, context=self)

    def query(self, address: Address) -> PointerInfo:
        """Describes the memory at an address, which is a number or a buffer: PointerInfo.

        The address may lie inside a block, and may belong to another library.
        """
        return PointerInfo.unpack(native.gmm_query(self, address)[1])

    def name(self, memory: Address, name: str | None) -> None:
        """Names the block around an address, which is a number or a buffer; see Buffer.set_name()."""
        native.gmm_name(self, memory, name)

    def free(self, memory: Address, stream: Any = None) -> None:
        """Frees a buffer. An address is accepted for a block that no Buffer stands for."""
        if isinstance(memory, Buffer):
            memory.free(stream)
        else:
            native.gmm_free(self, memory, stream)

    heap = heap

    def copy(self, destination: Address, source: Address, size: int, *,
             stream: Any = None) -> None:
        """Queues a copy between any two addresses, which are numbers or buffers."""
        native.gmm_copy(self, destination, source, size, stream)

    pin = pin

    # Streams.

    stream, event = stream, event

    def synchronize(self, stream: Any = None) -> None:
        """Waits until the work queued on a stream so far is done."""
        native.gmm_stream_synchronize(self, stream)

    def forget_stream(self, stream: Any) -> None:
        """Tells gmm that another package's stream, which was used here, is about to be destroyed."""
        native.gmm_stream_forget(self, stream)

    # Tags and pause.

    tag = tag

    def tags(self) -> list[Tag]:
        """The tags of the context, as a list of Tag in the order of their making. The first is the default tag."""
        found, numbers, count = [], (), 1
        while count > len(numbers):  # other threads may make tags between two calls
            _, numbers, count = native.gmm_tag_list(self, count + 8)
        for number in numbers[:count]:
            try:
                found.append(Tag(self, number, self.tag_info(number).name))
            except InvalidTagError:
                pass  # another thread destroyed it
        return found

    def set_process_default_tag(self, tag: TagLike) -> None:
        """Sets the current tag of every thread that is in no with block of a tag."""
        native.gmm_tag_set_default(self, tag_number(self, tag))

    def tag_info(self, tag: TagLike) -> TagInfo:
        """The state of a tag, which is given by its object, number or name: TagInfo."""
        return TagInfo.unpack(native.gmm_tag_query(self, tag_number(self, tag))[1])

    def resume_range(self, address: Address, size: int) -> int:
        """Resumes the memory of a range, and what shares pages of the driver with it. Returns the bytes taken."""
        return native.gmm_resume_range(self, address, size)[1]

    def wait_ready(self, address: Address, size: int, timeout: float | None = None) -> bool:
        """Waits until another caller's resume has made the range usable. False after timeout seconds.

        The call starts no resume.
        """
        def look(milliseconds):
            return native.gmm_resume_wait(self, address, size, milliseconds) != native.GMM_ERROR_NOT_READY

        return wait_in_slices(look, timeout)

    watch = watch

    # Backups.

    def set_backup(self, *, arena: bool = True, pageable: bool = True, arena_limit: int = 0, pageable_limit: int = 0,
                   directory: Path | None = None, threads: int = 0,
                   named_files: bool = False) -> None:
        """Configures where later pauses keep contents. Without arguments it restores the defaults.

        arena: page-locked memory, at most arena_limit bytes. pageable: other host memory, at most pageable_limit bytes.
        Contents that fit in neither go to files in the directory. Limits of 0: GMM_BACKUP_ARENA_LIMIT,
        GMM_BACKUP_PAGEABLE_LIMIT, else the memory that the host has left. directory: None: GMM_BACKUP_DIR, else /tmp.
        threads: the number of threads that copy and scan; 0: one for each core, at most 16. named_files: the files are
        visible in the directory, one a block, at most 48.
        """
        native.gmm_backup_configure(self, {
            "flags": flags((native.GMM_BACKUP_NO_ARENA, not arena), (native.GMM_BACKUP_NO_PAGEABLE, not pageable),
                           (native.GMM_BACKUP_NAMED_FILES, named_files)),
            "arena_limit": arena_limit, "pageable_limit": pageable_limit, "threads": threads,
            "directory": directory and os.fsdecode(directory)})

    def prepare_backup(self, size: int, device: int = 0) -> None:
        """Page-locks host memory for size bytes of a device's contents.

        The first pause is then as fast as later ones.
        """
        native.gmm_backup_reserve(self, device, size)

    @property
    def backup_info(self) -> BackupInfo:
        """Where backups keep contents: BackupInfo."""
        return BackupInfo.unpack(native.gmm_backup_query(self)[1])

    # Sharing.

    def ipc_export(self, memory: Address) -> bytes:
        """A handle, as bytes, for the block that a buffer or an address lies in.

        Another process of the same user opens it.
        """
        return native.gmm_ipc_export(self, memory)[1]

    ipc_import, ipc_import_event, import_fd = ipc_import, ipc_import_event, import_fd

    def ipc_configure(self, *, directory: Path | None = None,
                      users: Iterable[int] = ()) -> None:
        """Configures the folder of this context's socket, and the users who may share memory with it.

        It must be called before the first export or import. directory: None: $GMM_IPC_DIR, else $XDG_RUNTIME_DIR/gmm,
        else /tmp/gmm-<uid>. users: ids of other users, for exports and imports. They require a directory.
        """
        native.gmm_ipc_configure(self, {"directory": directory and os.fsdecode(directory), "users": tuple(users)})

    # Quotas and counters.

    def set_limit(self, limit: int | None, *, device: int | None = None, tag: TagLike | None = None) -> None:
        """Sets the quota, in bytes from the driver, of the context, a device, a tag, or a tag on a device.

        None removes it.
        """
        native.gmm_limit_set(self, _scope(self, device, tag, None), native.GMM_NO_LIMIT if limit is None else limit)

    def set_oom_handler(self, handler: Callable[[OutOfMemoryInfo], object] | None) -> None:
        """Sets handler(OutOfMemoryInfo) -> bool, for when neither a trim nor gc.collect() has freed enough memory.

        True makes the library try again. None removes the handler. It runs on the allocating thread and may free, pause
        and trim, but not allocate. Its exceptions reach the caller of alloc().
        """
        def call(data):
            return bool(handler(OutOfMemoryInfo.unpack(data)))

        native.gmm_context_set_oom_handler(self, self)  # again, as the call waits for handlers that run
        self._oom_handler = None if handler is None else call

    def stats(self, *, device: int | None = None, tag: TagLike | None = None,
              kind: KindLike | None = None) -> Statistics:
        """The counters of a scope, which is everything unless arguments narrow it: Statistics."""
        return Statistics.unpack(native.gmm_stats_query(self, _scope(self, device, tag, kind))[1])

    def _snapshot(self, scope=None):
        snapshot = native.Handle()
        snapshot._open("snapshot", self, native.gmm_snapshot_create, self, scope)
        return snapshot

    def snapshot(self, write: Callable[[bytes], object] | None = None) -> Any:
        """Describes every heap, extent and live block as a dict.

        write(bytes) receives the JSON piece by piece instead.
        """
        pieces = []
        native.gmm_snapshot_write(self._snapshot(), pieces.append if write is None else write)
        return json.loads(b"".join(pieces)) if write is None else None

    def blocks(self, *, device: int | None = None, tag: TagLike | None = None,
               kind: KindLike | None = None) -> list[BlockInfo]:
        """The live blocks of a scope, which is everything unless arguments narrow it: a list of BlockInfo.

        The list is copied at one moment for each heap, and does not keep the blocks.
        """
        snapshot = self._snapshot(_scope(self, device, tag, kind))
        count = SnapshotInfo.unpack(native.gmm_snapshot_query(snapshot)[1]).block_count
        return [BlockInfo.unpack(native.gmm_snapshot_query_block(snapshot, i)[1]) for i in range(count)]

    @property
    def decommit_after_ms(self) -> int | None:
        """Milliseconds after which unused free memory goes back to the driver. None: never.

        Setting 0 restores the default.
        """
        after = ContextInfo.unpack(native.gmm_context_query(self)[1]).decommit_after_ms
        return None if after == native.GMM_DECOMMIT_NEVER else after

    @decommit_after_ms.setter
    def decommit_after_ms(self, milliseconds: int | None) -> None:
        native.gmm_context_set_decommit(self, native.GMM_DECOMMIT_NEVER if milliseconds is None else milliseconds)

    def trim(self, *, device: int | None = None, tag: TagLike | None = None, kind: KindLike | None = None) -> int:
        """Returns free memory to the driver. The result is its bytes; 0 inside defer()."""
        return native.gmm_trim(self, _scope(self, device, tag, kind))[1]

    def compact(self, *, max_bytes: int = 0, max_us: int = 0, live: bool = False, device: int | None = None,
                tag: TagLike | None = None) -> CompactInfo:
        """Moves the free VMM memory of a scope side by side and returns what no reserve keeps to the driver.

        No address of a live buffer changes, and buffers may be used during the call. It moves and returns at most
        max_bytes together, and begins nothing more after max_us microseconds; 0 is no bound. `live` moves live buffers
        to other pages, too, and waits for the devices; nobody may use buffers of the scope or allocate there
        during the call. The result is a CompactInfo.
        """
        options = {"flags": native.GMM_COMPACT_LIVE if live else 0, "max_bytes": max_bytes, "max_us": max_us}
        return CompactInfo.unpack(native.gmm_compact(self, _scope(self, device, tag, None), options)[1])

    def reset(self) -> None:
        """Frees everything that was allocated, live buffers too, and closes them. Imported and pinned memory stays.

        RuntimeError when another thread is inside a call on the context, and for calls that come during the reset.
        BusyError and CapturingError leave the buffers open. After a failure of the driver they are closed.
        """
        self._reset()

    def defer(self) -> AbstractContextManager[Context]:
        """In its with block a free makes no expensive call; the end of the block makes them."""
        return Scope(native.gmm_defer_begin, (self,), native.gmm_defer_end, (self,), self)

    def trace(self, path: Path) -> AbstractContextManager[Context]:
        """In its with block gmm records every alloc and free into a file, for `gmm replay` and `gmm trace`."""
        return Scope(native.gmm_trace_begin, (self, os.fsdecode(path)), native.gmm_trace_end, (self,), self)

    def __repr__(self):
        if self.closed:
            return "<gmm.Context closed>"
        what = f"<gmm.Context of the {self.info.backend_name} backend, {self.info.device_count} devices"
        try:
            stats = self.stats()
        except Error:  # in the child of a fork
            return what + ">"
        return (f"{what}, {stats.live_blocks} blocks of {size(stats.live_bytes)} live, "
                f"{size(stats.reserved_bytes)} reserved>")
