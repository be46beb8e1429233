# SPDX-License-Identifier: Apache-2.0
"""gmm.Context: one backend with its memory."""
from __future__ import annotations

import functools
import json
import operator
import os
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterable

from gmm import _native as native
from gmm._core import sycl
from gmm._core.array import Array, array, asarray, empty, from_dlpack, host_view, zeros
from gmm._core.buffer import Buffer, Heap, Pin
from gmm._core.elastic import reserve
from gmm._core.enums import Backend, FdType, Kind, LogLevel, WatchEvent, as_kind, by_name, milliseconds, tag_number
from gmm._core.errors import Error, InvalidSizeError, InvalidTagError, size
from gmm._core.stream import Event, Stream, as_stream, stream_number
from gmm._core.tag import Tag
from gmm._core.ticket import Pausing, Scope, wait_in_slices
from gmm._core.values import (
    BackupInfo, BlockInfo, CompactInfo, ContextInfo, DeviceInfo, OutOfMemoryInfo, PointerInfo, PublishedInfo,
    SnapshotInfo, Statistics, TagInfo, WatchInfo, attach_desc, backup_desc, compact_desc, context_desc, event_desc,
    heap_desc, ipc_desc, ipc_fd_desc, ipc_import_desc, pause_desc, pin_desc, publish_desc, scope_desc, stream_desc,
    tag_desc, trace_desc, watch_desc)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gmm._core.typing import Address, ContentsLike, FdTypeLike, KindLike, OnWatch, Path, TagLike

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
    return scope_desc(device=device, tag=None if tag is None else tag_number(context, tag), kind=as_kind(kind))


class Watcher(native.Handle):
    """A watch of memory or of a budget, until close() or the end of its with block. Context.watch() makes it."""

    __slots__ = ()

    def __repr__(self):
        return "<gmm.Watcher closed>" if self.closed else "<gmm.Watcher>"


class Context(Pausing, native.Handle):
    """Binds the library to one backend. Several contexts may live at once.

    close() frees all memory of the context, live buffers included, and closes them. While views of the memory live, it
    raises BufferError.
    """

    def __init__(self, backend: Backend | int | str = Backend.AUTO, *,
                 log: Callable[[LogLevel, str], object] | None = None, host_memory: int = 0, host_devices: int = 0,
                 decommit_after_ms: int | None = 0, capture: bool = True, leak_report: bool = True,
                 strict_host: bool = False, control: bool = False) -> None:
        """Opens a backend.

        backend: a Backend or its name ("auto", "host", "cuda", "sycl", "hip"). log: log(level, message), called on any
        thread.
        host_memory: bytes of each device of the host backend. host_devices: the number of its devices.
        decommit_after_ms: see the property; 0: GMM_DECOMMIT_AFTER_MS of the environment, else never. capture: False
        when the program allocates nothing while it captures a CUDA graph. Allocations on a stream then make no call of
        the driver. leak_report: the log hears of the blocks that are live when the context is closed.
        strict_host: on the host backend the CPU faults on DEVICE and VMM memory, as it would with a GPU.
        control: the command gmm may look into the context and pause its tags: `gmm ps`, `gmm pause --pid`.
        """
        backend = by_name(Backend, backend)
        if backend == Backend.SYCL or (backend == Backend.AUTO and os.environ.get("GMM_BACKEND") == "sycl"):
            sycl.load_library()
        if log is not None:
            self._held = lambda level, message: log(LogLevel(level), message)
        self._adopt(native.gmm_context_create, context_desc(
            backend=backend, host_memory=host_memory, host_devices=host_devices, no_capture=not capture,
            strict_host=strict_host, no_leak_report=not leak_report, control=control, log=None if log is None else self,
            decommit_after_ms=native.GMM_DECOMMIT_NEVER if decommit_after_ms is None else decommit_after_ms))
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

    empty, zeros, array, reserve = empty, zeros, array, reserve

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

    def heap(self, kind: KindLike = Kind.DEVICE, *, device: int = 0, tag: TagLike = 0, minimum_extent: int = 0,
             limit: int = 0, peer_devices: int = 0, exportable: bool = False) -> Heap:
        """Makes a Heap. Its blocks share no extent with other heaps. exportable: each block has a file descriptor."""
        made = Heap()
        made.kind, made.device = Kind(as_kind(kind)), device
        made._open("heap", self, native.gmm_heap_create, self, heap_desc(
            kind=made.kind, device=device, tag=tag_number(self, tag), minimum_extent=minimum_extent, limit=limit,
            peer_devices=peer_devices, exportable=exportable))
        return made

    def copy(self, destination: Address, source: Address, size: int, *, stream: Any = None) -> None:
        """Queues a copy between any two addresses, which are numbers or buffers."""
        native.gmm_copy(self, destination, source, size, stream)

    def pin(self, obj: Any, *, device: int = 0, read_only: bool = False) -> Pin:
        """Page-locks the memory of an object with the buffer protocol until the Pin is closed.

        The object cannot be resized until then.
        """
        view, made = host_view(obj, writable=not read_only), Pin()
        made._held, made._nbytes = view, view.nbytes
        options = pin_desc(device=device, read_only=read_only)
        made.device_pointer = made._open(
            "pin", self, native.gmm_pin, self, native.view_address(view), view.nbytes, options)[1]
        return made

    # Streams.

    def stream(self, device: int = 0) -> Stream:
        """Makes a Stream."""
        return self._part(Stream(), "stream", device, native.gmm_stream_create, self, stream_desc(device=device))

    def event(self, device: int = 0, *, ipc: bool = False) -> Event:
        """Makes an Event. ipc: other processes can wait for it, see Event.ipc_export()."""
        options = event_desc(device=device, shared=ipc)
        return self._part(Event(), "event", device, native.gmm_event_create, self, options)

    def ipc_import_event(self, handle: bytes, *, device: int = 0, timeout: float | None = None) -> Event:
        """Opens another process's event, for Stream.wait(), Event.synchronize() and Event.done.

        They see what the process that made the event recorded last. Only that process records.
        """
        made, options = Event(), ipc_import_desc(device=device, timeout_ms=milliseconds(timeout))
        made._held = bytes(memoryview(handle))  # by which it can be sent on
        return self._part(made, "event", device, native.gmm_event_import, self, made._held, options)

    def _part(self, made, kind, device, *call):
        """Opens a stream or an event, which ends before the context."""
        made.device = device
        made._open(kind, self, *call)
        self._parts.add(made)
        return made

    def synchronize(self, stream: Any = None) -> None:
        """Waits until the work queued on a stream so far is done."""
        native.gmm_stream_synchronize(self, stream)

    def forget_stream(self, stream: Any) -> None:
        """Tells gmm that another package's stream, which was used here, is about to be destroyed."""
        native.gmm_stream_forget(self, stream)

    # Tags and pause.

    def tag(self, name: str, contents: ContentsLike | None = None, priority: int | None = None, *,
            read_only: bool | None = None, checksum: bool | None = None, pageable: bool | None = None) -> Tag:
        """Makes a Tag, or finds the tag of that name. In a with block it is the thread's current tag.

        contents: what a pause does with the contents; None: Contents.DROP. priority: higher resumes first. read_only:
        contents that a backup keeps are not copied again. checksum: a resume verifies the kept contents. pageable:
        contents in host memory are not page-locked, and the process shrinks by them at the resume. Options that
        contradict those of an existing tag are an error.
        """
        options = None
        if any(option is not None for option in (contents, priority, read_only, checksum, pageable)):
            options = tag_desc(contents=contents, priority=priority, read_only=read_only, checksum=checksum,
                               pageable=pageable)
        return Tag(self, native.gmm_tag_create(self, name, options)[1], name)

    def tags(self) -> list[Tag]:
        """The tags of the context, as a list of Tag in the order of their making. The first is the default tag."""
        found, numbers, count = [], (), 1
        while count > len(numbers):  # other threads may make tags between two calls
            numbers = memoryview(bytearray(4 * (count + 8))).cast("I")
            _, count = native.gmm_tag_list(self, native.view_address(numbers), len(numbers))
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

    def resume_ranges(self, ranges: Iterable[tuple[int, int]], *, zero: bool = False, prepare: bool = False,
                      stream: Any = None) -> int:
        """Resumes parts of memory, each an (address, size): all or none. Returns the bytes taken.

        Parts of blocks of alloc(paused=True) get memory where they have none. zero: new pages read as zero. prepare:
        they get pages and stay paused, so that a later call is quick. stream: see pause_ranges().
        """
        return self._in_parts(native.gmm_resume, ranges, stream, zero=zero, prepare=prepare)

    def pause_ranges(self, ranges: Iterable[tuple[int, int]], *, force: bool = False,
                     contents: ContentsLike | None = None, stream: Any = None) -> int:
        """Takes the memory of parts of blocks of alloc(paused=True): all or none. Returns the bytes given back.

        Each part is an (address, size) of whole pages of 2 MiB, and of whole pieces of what was taken at once. Where
        contents are dropped, the pages stay until somebody wants them; trim() returns them to the driver. stream: what
        is queued there may still use them, and the call does not wait; None: it waits for the device.
        """
        return self._in_parts(native.gmm_pause, ranges, stream, force=force, contents=contents)

    def _in_parts(self, function, ranges, stream, zero=False, prepare=False, **options):
        context, options = self._options((), **options)
        ranges = list(ranges)  # the library takes an empty list for all memory
        desc = pause_desc(**options, ranges=ranges, zero=zero, prepare=prepare, ordered=stream is not None,
                          stream=stream_number(as_stream(stream)))
        return function(context, desc)[1] if ranges else 0

    def wait_ready(self, address: Address, size: int, timeout: float | None = None) -> bool:
        """Waits until another caller's resume has made the range usable. False after timeout seconds.

        The call starts no resume.
        """
        return wait_in_slices(
            lambda ms: native.gmm_resume_wait(self, address, size, ms) != native.GMM_ERROR_NOT_READY, timeout)

    def watch(self, tag: TagLike | None = None, *, memory: Address | None = None, size: int | None = None,
              prepare: OnWatch = None, losing: OnWatch = None, restored: OnWatch = None, failed: OnWatch = None,
              budget: OnWatch = None, below: int = 0, device: int = 0, order: int = 0,
              name: str | None = None) -> Watcher:
        """Watches a tag's VMM memory, or a range of it, until the Watcher is closed or its with block ends.

            with context.watch("weights", losing=cache.forget, restored=cache.renew):
                context.pause("weights")

        memory: a buffer or an address, in place of a tag. size: bytes from there; None: the rest of the block. The
        operation calls these functions with a WatchInfo on its own thread, and waits for them. They must not block:

        - prepare: the memory is about to lose its pages. False or an exception ends the operation with BusyError.
        - losing: the devices are idle, and the pages go after it has returned.
        - restored: the memory has pages and contents again.
        - failed: the operation ended without effect.
        - budget: the memory that is left for this process on `device` has fallen below `below` bytes. A thread of the
          library calls it.

        prepare and losing are called in ascending `order` of the watchers, restored and failed in descending order. The
        functions may not allocate, and except for budget not pause, resume or move. Their exceptions go to
        sys.unraisablehook.
        """
        functions = {WatchEvent.PREPARE: prepare, WatchEvent.LOSING: losing, WatchEvent.RESTORED: restored,
                     WatchEvent.FAILED: failed, WatchEvent.BUDGET: budget}
        functions = {event: function for event, function in functions.items() if function is not None}
        for event, function in functions.items():
            if not callable(function):
                raise TypeError(f"{event.name.lower()} is called with a WatchInfo, but got {type(function).__name__}")
        if not functions:
            raise TypeError("a watcher hears nothing without prepare, losing, restored, failed or budget")
        if functions.keys() != {WatchEvent.BUDGET} and (tag is None) == (memory is None):
            raise TypeError("a watcher watches a tag or memory: pass one of the two")
        address = getattr(memory, "address", memory)
        if memory is not None and size is None:
            around = self.query(memory)
            size = around.base + around.size - address

        def call(data):
            info = WatchInfo.unpack(data)
            return functions[info.event](info)

        made = Watcher()
        made._held = call
        made._open("watcher", self, native.gmm_watch, self, watch_desc(
            events=functools.reduce(operator.or_, functions), device=device, address=address, tag=tag_number(self, tag),
            size=size, budget_bytes=below, order=order, name=name, callback=made))
        return made

    # Backups.

    def set_backup(self, *, arena: bool = True, pageable: bool = True, arena_limit: int = 0, pageable_limit: int = 0,
                   directory: Path | None = None, threads: int = 0, named_files: bool = False) -> None:
        """Configures where later pauses keep contents. Without arguments it restores the defaults.

        arena: page-locked memory, at most arena_limit bytes. pageable: other host memory, at most pageable_limit bytes.
        Contents that fit in neither go to files in the directory. Limits of 0: GMM_BACKUP_ARENA_LIMIT,
        GMM_BACKUP_PAGEABLE_LIMIT, else the memory that the host has left. directory: None: GMM_BACKUP_DIR, else /tmp.
        threads: the number of threads that copy and scan; 0: one for each core, at most 16. named_files: the files are
        visible in the directory, one a block, at most 48.
        """
        native.gmm_backup_configure(self, backup_desc(
            no_arena=not arena, no_pageable=not pageable, named_files=named_files, arena_limit=arena_limit,
            pageable_limit=pageable_limit, threads=threads, directory=directory and os.fsdecode(directory)))

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

    def ipc_import(self, handle: bytes, *, device: int = 0, timeout: float | None = None,
                   nbytes: int | None = None) -> Buffer:
        """Maps another process's memory as a Buffer of nbytes; None: of all bytes of the block after the address.

        timeout: seconds to wait for the exporter; None: 5.
        """
        handle = bytes(memoryview(handle))
        # The buffer holds the handle, by which it can be sent on.
        return self._import(nbytes, handle, native.gmm_ipc_import, handle,
                            ipc_import_desc(device=device, timeout_ms=milliseconds(timeout)))

    def import_fd(self, fd: int, size: int, *, type: FdTypeLike = FdType.DEFAULT, device: int = 0) -> Buffer:
        """Maps the memory of a descriptor as a Buffer.

        Vulkan, another library, or another process's Buffer.ipc_export_fd() has made the descriptor. size: the bytes of
        the allocation, which its maker knows. The caller still owns the descriptor and may close it at once.
        """
        return self._import(size, None, native.gmm_ipc_import_fd, fd, ipc_fd_desc(type=type, size=size, device=device))

    def _import(self, nbytes, held, function, *arguments):
        """A Buffer of what the native function imports. A failure closes the import."""
        buffer = Buffer()
        buffer._held = held
        result = buffer._open("imported buffer", self, function, self, *arguments)
        if result[0] == native.GMM_UNCHANGED:  # a claim
            return None
        try:
            info = self.query(buffer)
            rest = info.base + info.size - buffer.address
            if nbytes is not None and nbytes > rest:
                raise InvalidSizeError(f"{nbytes} bytes of another process's memory were asked for; "
                                       f"its block has {rest} bytes from the address on")
            buffer._nbytes = rest if nbytes is None else nbytes
        except BaseException:
            buffer.free()
            raise
        return buffer

    def publish(self, memory: Address, name: str, *, timeout: float | None = None) -> None:
        """Publishes the VMM block that a buffer or an address lies in: other processes attach() it by the name.

        The memory outlives the process, until unpublish(). timeout: seconds to wait for the server; None: 5.
        """
        native.gmm_publish(self, memory, name, publish_desc(timeout_ms=milliseconds(timeout)))

    def unpublish(self, name: str) -> bool:
        """Withdraws a name, and ends this context's claim of it. False: nothing was published by it."""
        return native.gmm_unpublish(self, name) == native.GMM_OK

    def attach(self, name: str, *, read_only: bool = True, same_address: bool = False, or_claim: bool = False,
               generation: int = 0, timeout: float | None = None) -> Buffer | None:
        """Maps published memory as a Buffer. Waits for the name, up to timeout seconds; None: 5.

        same_address: at the address that it has in its publisher. generation: of published(); 0: any. or_claim: the
        result is None where nothing is published, and this context has the claim to publish. Others wait for it.
        """
        return self._import(None, None, native.gmm_attach, name, attach_desc(
            read_only=read_only, same_address=same_address, or_claim=or_claim, generation=generation,
            timeout_ms=milliseconds(timeout)))

    def published(self, *, timeout: float = 5.0) -> list[PublishedInfo]:
        """The memory that is published on the machine. gmm.NotReadyError: no server runs, or none answers in time."""
        found = []
        while True:
            code, entry = native.gmm_published_list(self, len(found), milliseconds(timeout))
            if code == native.GMM_UNCHANGED:
                return found
            found.append(PublishedInfo.unpack(entry))

    def ipc_configure(self, *, directory: Path | None = None, users: Iterable[int] = ()) -> None:
        """Configures the folder of this context's socket, and the users who may share memory with it.

        It must be called before the first export or import. directory: None: $GMM_IPC_DIR, else $XDG_RUNTIME_DIR/gmm,
        else /tmp/gmm-UID. users: ids of other users, for exports and imports. They require a directory.
        """
        native.gmm_ipc_configure(self, ipc_desc(directory=directory and os.fsdecode(directory), users=tuple(users)))

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

        write(bytes) receives the JSON piece by piece instead, until it returns False.
        """
        pieces = []
        native.gmm_snapshot_write(self._snapshot(), pieces.append if write is None else write)
        return json.loads(b"".join(pieces)) if write is None else None

    def metrics(self) -> list[Any]:
        """The metrics as metric families of the package prometheus_client.

        A collector whose collect() returns them is registered with `prometheus_client.REGISTRY.register()`.
        """
        from prometheus_client.parser import text_string_to_metric_families
        pieces = []
        native.gmm_metrics_write(self, pieces.append)
        return list(text_string_to_metric_families(b"".join(pieces).decode()))

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
        options = compact_desc(live=live, max_bytes=max_bytes, max_us=max_us)
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

    def trace(self, path: Path, *, stack_bytes: int = 0) -> AbstractContextManager[Context]:
        """In its with block gmm records every alloc and free into a file, for `gmm replay` and `gmm trace`.

        With stack_bytes, one allocation in so many bytes has its stack, of Python and of C; 1: every allocation.
        """
        begin = (self, os.fsdecode(path), trace_desc(stack_bytes=stack_bytes))
        return Scope(native.gmm_trace_begin, begin, native.gmm_trace_end, (self,), self)

    def _repr_html_(self):
        """For notebooks: a bar of the live bytes, divided by tag."""
        import html
        tags = [] if self.closed else [(html.escape(tag.name), self.stats(tag=tag)) for tag in self.tags()]
        parts = (f'<div title="{name}: {size(stats.live_bytes)}, {size(stats.paused_bytes)} paused" style="overflow: '
                 f'hidden; flex: {stats.live_bytes} 0 0; background: hsl({210 + 137 * i} 60% 75%)">{name}</div>'
                 for i, (name, stats) in enumerate(tags))
        return f'{html.escape(repr(self))}<div style="display: flex">{"".join(parts)}</div>'

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
