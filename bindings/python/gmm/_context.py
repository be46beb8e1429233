# SPDX-License-Identifier: Apache-2.0
"""Contexts: one backend with its memory."""
import contextlib
import json
import os
import weakref

from gmm import _native as native
from gmm._arrays.imports import asarray, copied_array, from_dlpack
from gmm._core import sycl
from gmm._core.buffer import PINNED, Buffer, Pin
from gmm._core.enums import Backend, FdType, Kind, LogLevel
from gmm._core.heap import Heap
from gmm._core.info import BackupInfo, ContextInfo, DeviceInfo, OutOfMemoryInfo, PointerInfo, Statistics, read
from gmm._core.ipc import adopt_import, import_block, import_desc
from gmm._core.stream import HANDLE_CONTEXT, Event, Stream, as_stream
from gmm._core.tag import Tag, tag_info, tag_number
from gmm._core.ticket import Ticket, carry_out, pause_desc, wait_in_slices

contexts = weakref.WeakSet()  # those that were opened in this process and are referred to, closed ones too
os.register_at_fork(after_in_child=contexts.clear)


def _scope(context, device, tag, kind):
    if device is None and tag is None and kind is None:
        return None
    scope = native.gmm_scope()
    if device is not None:
        scope.flags |= native.GMM_SCOPE_DEVICE
        scope.device = device
    if tag is not None:
        scope.flags |= native.GMM_SCOPE_TAG
        scope.tag = tag_number(context, tag)
    if kind is not None:
        scope.flags |= native.GMM_SCOPE_KIND
        scope.kind = kind
    return scope


native.set_helper("tag_number", lambda pair: tag_number(*pair))


class Context(native.Handle):
    """Binds the library to one backend. Several may live at once.

    Closing it gives all its memory back, live buffers included; they are closed then. Refused with BufferError while views of its memory live.
    """

    def __init__(self, backend=Backend.AUTO, *, log=None, host_memory=0, host_devices=0, decommit_after_ms=0, capture=True):
        """Opens a backend.

        backend: a Backend or its name ("auto", "host", "cuda", "sycl"). log: log(level, message), called on any thread.
        host_memory: bytes that each device of the host backend pretends to have. host_devices: how many devices it shows.
        decommit_after_ms: as the property; 0: what GMM_DECOMMIT_AFTER_MS in the environment says, else never.
        capture: False when the program allocates nothing while it captures a CUDA graph: an allocation on a stream then asks the driver nothing.
        """
        if isinstance(backend, str):
            try:
                backend = Backend[backend.upper()]
            except KeyError:
                names = ", ".join(member.name.lower() for member in Backend)
                raise ValueError(f"there is no backend {backend!r}; there are {names}") from None
        if backend == Backend.SYCL or (backend == Backend.AUTO and os.environ.get("GMM_BACKEND") == "sycl"):
            sycl.load_library()
        desc = native.gmm_context_desc()
        desc.backend = backend
        desc.flags = 0 if capture else native.GMM_CONTEXT_NO_CAPTURE
        desc.host_memory = host_memory
        desc.host_devices = host_devices
        desc.decommit_after_ms = native.GMM_DECOMMIT_NEVER if decommit_after_ms is None else decommit_after_ms
        if log is not None:
            self._log = lambda level, message: log(LogLevel(level), message)
            desc.set_log(self)
        self._adopt(HANDLE_CONTEXT, native.gmm_context_create(desc)[1], None)
        self._queues = weakref.WeakSet()
        self._sycl_context = None
        self._tickets = set()  # those that run, also when nobody else refers to them
        struct = native.gmm_context_info()
        native.gmm_context_get_info(self, struct)
        self._info = read(ContextInfo, struct)
        contexts.add(self)

    # Life.

    def close(self):
        """Gives everything back, after the pauses and resumes in the background. Closing twice does nothing."""
        if self.closed:
            return
        if self._exports:
            self._close()  # says what is in the way, before any stream is ended
        for ticket in list(self._tickets):
            ticket.close()
        for queue in list(self._queues):
            queue.close()
        self._close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    @property
    def info(self):
        """What was opened: ContextInfo."""
        return self._info

    @property
    def sycl_object(self):
        """The dpctl.SyclContext in which the memory is allocated, dpctl's own default one. Only on the SYCL backend, where dpctl is installed."""
        if self._info.backend_name != "sycl":
            raise AttributeError(f"sycl_object: this context is of the {self._info.backend_name} backend, not of SYCL")
        if self._sycl_context is None:
            try:
                self._sycl_context = sycl.context_of(self)
            except ImportError as error:
                raise AttributeError(f"sycl_object: {error}; pip install dpctl") from error
        return self._sycl_context

    def device_info(self, device=0):
        """Describes a device: DeviceInfo, with its free memory as it is now."""
        struct = native.gmm_device_info()
        native.gmm_device_get_info(self, device, struct)
        return read(DeviceInfo, struct)

    # Memory.

    # Written in C, as Python code would cost more than the allocation (native/allocate.c).
    alloc = native.context_alloc
    empty = native.context_empty
    zeros = native.context_zeros

    def array(self, source, dtype=None, kind=Kind.DEVICE, *, device=0, tag=0, stream=None):
        """A new Array with a copy of the elements of an array of any package, of a buffer, of a number, or of nested lists of numbers.

        dtype: that of the source when None, which it must be for arrays; of Python's numbers those that hold them. Without a stream it waits for the
        copy.
        """
        return copied_array(self, source, dtype, kind, device=device, tag=tag, stream=stream)

    def from_dlpack(self, obj, *, device=None, copy=None, stream=None):
        """gmm.from_dlpack() with this context for a copy."""
        return from_dlpack(obj, device=device, copy=copy, stream=stream, context=self)

    def asarray(self, obj, *, copy=None, stream=None):
        """gmm.asarray() with this context for a copy."""
        return asarray(obj, copy=copy, stream=stream, context=self)

    def query(self, address):
        """Tells what an address (a number or a buffer) is: PointerInfo. Foreign and interior addresses are welcome."""
        struct = native.gmm_pointer_info()
        native.gmm_query(self, address, struct)
        return read(PointerInfo, struct)

    def free(self, memory, stream=None):
        """Frees a buffer, or a block by its address (only one that no Buffer stands for)."""
        if isinstance(memory, Buffer):
            memory.free(stream)
        else:
            native.gmm_free(self, memory, as_stream(stream))

    def heap(self, kind=Kind.DEVICE, *, device=0, tag=0, minimum_extent=0, limit=0, peer_devices=0):
        """Makes a Heap: its blocks share no extent with others."""
        return Heap(self, kind, device=device, tag=tag, minimum_extent=minimum_extent, limit=limit, peer_devices=peer_devices)

    def copy(self, destination, source, size, *, stream=None):
        """Queues a copy between any two addresses (numbers or buffers)."""
        native.gmm_copy(self, destination, source, size, as_stream(stream))

    def pin(self, obj, *, device=0, read_only=False):
        """Page-locks the memory of an object with the buffer protocol until the Pin is closed; the object cannot be resized meanwhile."""
        view = native.HostView(obj, writable=not read_only)
        desc = native.gmm_pin_desc()
        desc.device = device
        desc.flags = native.GMM_PIN_READ_ONLY if read_only else 0
        device_pointer = native.gmm_pin(self, view.address, view.nbytes, desc)[1]
        pin = Pin()
        pin._adopt(PINNED, view.address, view.nbytes, self, None, None, view)
        pin.device_pointer = device_pointer
        return pin

    # Streams.

    def stream(self, device=0):
        """Makes a Stream."""
        stream = Stream(self, device)
        self._queues.add(stream)
        return stream

    def event(self, device=0, *, ipc=False):
        """Makes an Event. ipc: other processes can wait for it, see Event.ipc_export()."""
        event = Event(self, device, ipc=ipc)
        self._queues.add(event)
        return event

    def synchronize(self, stream=None):
        """Waits until everything queued on a stream so far is done."""
        native.gmm_stream_synchronize(self, as_stream(stream))

    def forget_stream(self, stream):
        """To be called before somebody else's stream is destroyed that was used here."""
        native.gmm_stream_forget(self, as_stream(stream))

    # Tags and pause.

    def tag(self, name, contents=None, priority=None, *, read_only=None, checksum=None):
        """Makes a Tag, or finds it: a name that exists gives the same tag. In a with block it is the thread's current tag.

        contents: what a pause does with them; Contents.DROP by itself. priority: higher resumes first. read_only: what was kept once is not
        copied again. checksum: what is kept is compared at the resume. A tag that exists must agree with what is said.
        """
        return Tag(self, name, contents, priority, read_only=read_only, checksum=checksum)

    def set_process_default_tag(self, tag):
        """Sets the current tag of every thread that has pushed none."""
        native.gmm_tag_set_process_default(self, tag_number(self, tag))

    def tag_info(self, tag):
        """How a tag (its object, number or name) stands: TagInfo."""
        return tag_info(self, tag)

    def pause(self, *tags, force=False, contents=None, progress=None):
        """Gives the physical memory of the tags' VMM blocks (of all: no tags) back and keeps every address.

        Returns the bytes that went back; 0 when nothing was active. Views of the memory stay, but must not be looked through until resume().
        force: also when importers hold the memory. contents: Contents.DROP, HOST or FILE this time, whatever the tags say.
        progress: progress(done, total) in bytes while contents are copied; False ends it with CancelledError, an exception ends it and comes
        out of this call, and all is as before. It must not call gmm.
        """
        return carry_out(native.gmm_pause, self, *pause_desc(self, tags, force=force, contents=contents, progress=progress))

    def resume(self, *tags, progress=None):
        """Gives paused memory its pages back at the same addresses. Returns the bytes taken; 0 when nothing was paused. progress: as for pause()."""
        return carry_out(native.gmm_resume, self, *pause_desc(self, tags, progress=progress))

    @contextlib.contextmanager
    def paused(self, *tags, force=False, contents=None, progress=None):
        """Pauses for the time of a with block, and says how many bytes went back."""
        went = self.pause(*tags, force=force, contents=contents, progress=progress)
        try:
            yield went
        finally:
            self.resume(*tags, progress=progress)

    def pause_async(self, *tags, force=False, contents=None, progress=None):
        """pause() by a thread of the library: a Ticket. progress is called on that thread."""
        return Ticket(self, native.gmm_pause_async, *pause_desc(self, tags, force=force, contents=contents, progress=progress))

    def resume_async(self, *tags, progress=None):
        """resume() by a thread of the library: a Ticket."""
        return Ticket(self, native.gmm_resume_async, *pause_desc(self, tags, progress=progress))

    def resume_range(self, address, size):
        """Resumes a part: what lies in the range, and what shares pages of the driver with it. Returns the bytes taken."""
        return native.gmm_resume_range(self, address, size)[1]

    def wait_ready(self, address, size, timeout=None):
        """Waits until a resume by somebody else has made the range usable; starts none. False when the time (seconds) was over first."""
        return wait_in_slices(lambda left: native.gmm_resume_wait(self, address, size, left) != native.GMM_NOT_READY, timeout)

    # Kept contents.

    def set_backup(self, *, arena=True, pageable=True, arena_limit=0, pageable_limit=0, directory=None, threads=0):
        """Says where contents are kept, from the next pause on. Without arguments: the defaults.

        arena: page-locked memory, of arena_limit bytes at most. pageable: other host memory, of pageable_limit bytes at most. What fits in neither
        goes to files in the directory. Limits of 0: GMM_BACKUP_ARENA_LIMIT, GMM_BACKUP_PAGEABLE_LIMIT, or what the host can spare.
        directory: None: GMM_BACKUP_DIR, or /tmp. threads: that copy and scan; 0: one for each core, 16 at most.
        """
        desc = native.gmm_backup_desc()
        desc.flags = (0 if arena else native.GMM_BACKUP_NO_ARENA) | (0 if pageable else native.GMM_BACKUP_NO_PAGEABLE)
        desc.arena_limit = arena_limit
        desc.pageable_limit = pageable_limit
        desc.threads = threads
        if directory is not None:
            desc.set_directory(os.fsdecode(directory))
        native.gmm_set_backup(self, desc)

    def prepare_backup(self, size, device=0):
        """Page-locks memory for size bytes of contents of a device ahead of time, so that the first pause is as fast as later ones."""
        native.gmm_backup_prepare(self, device, size)

    @property
    def backup_info(self):
        """Where kept contents lie: BackupInfo."""
        struct = native.gmm_backup_info()
        native.gmm_backup_query(self, struct)
        return read(BackupInfo, struct)

    def discard_backup(self, *tags):
        """Forgets the kept contents of the tags' paused memory: after a resume the bytes are undefined. Returns their bytes."""
        return native.gmm_backup_discard(self, pause_desc(self, tags)[0])[1]

    # Sharing.

    def ipc_export(self, memory):
        """A handle for the block that a buffer or an address lies in, as bytes to send to another process of the same user."""
        return native.gmm_ipc_export(self, memory)[1]

    def ipc_import(self, handle, *, device=0, timeout=None):
        """Maps another process's memory as a Buffer. timeout: seconds to wait for the exporter; None: 5."""
        return import_block(self, handle, device=device, timeout=timeout)

    def ipc_import_event(self, handle, *, device=0, timeout=None):
        """Opens another process's event, for Stream.wait(), Event.synchronize() and Event.done: they see what its maker recorded last. Only the maker records."""
        event = Event._import(self, handle, import_desc(device, timeout))
        self._queues.add(event)
        return event

    def ipc_configure(self, *, directory=None, users=()):
        """Says where this context's socket stands, and who may share with it beside this user, before anything is exported or imported.

        directory: None: $GMM_IPC_DIR, else $XDG_RUNTIME_DIR/gmm, else /tmp/gmm-<uid>. users: further user ids, in both directions; they need a directory.
        """
        config = native.gmm_ipc_config()
        if directory is not None:
            config.set_directory(os.fsdecode(directory))
        for user in users:
            config.add_user(user)
        native.gmm_ipc_configure(self, config)

    def import_fd(self, fd, size, *, type=FdType.DEFAULT, device=0):
        """Maps the memory behind a descriptor of somebody else's (Vulkan, another library, Buffer.ipc_export_fd() of another process) as a Buffer.

        size: bytes of the allocation, as its maker tells. The descriptor stays the caller's, who may close it at once.
        """
        desc = native.gmm_import_fd_desc()
        desc.type = type
        desc.size = size
        desc.device = device
        return adopt_import(self, native.gmm_import_fd(self, fd, desc)[1], size, None)

    # Limits and counters.

    def set_limit(self, limit, *, device=None, tag=None):
        """Limits the bytes that a device, a tag, or a tag on a device may hold from the driver. None takes the limit away."""
        native.gmm_set_limit(self, _scope(self, device, tag, None), native.GMM_NO_LIMIT if limit is None else limit)

    def set_oom_handler(self, handler):
        """Sets handler(OutOfMemoryInfo) -> bool, asked when memory is short even after trimming: True to try again. None: no handler.

        It runs on the allocating thread and may free, pause and trim, but not allocate. Its exceptions reach the caller of alloc().
        """
        if handler is None:
            native.gmm_set_oom_handler(self, None)
            self._oom_handler = None
            return

        def call(device, kind, tag, requested, reserved, attempt, cause):
            return handler(OutOfMemoryInfo(device, Kind(kind), tag, requested, reserved, attempt, cause))

        self._oom_handler = call
        native.gmm_set_oom_handler(self, self)

    def stats(self, *, device=None, tag=None, kind=None):
        """The counters of a scope (everything by default): Statistics."""
        struct = native.gmm_statistics()
        native.gmm_stats(self, _scope(self, device, tag, kind), struct)
        return read(Statistics, struct)

    def snapshot(self, write=None):
        """Describes every heap, extent and live block: as a dict, or as JSON given to write(bytes) piece by piece."""
        if write is not None:
            native.gmm_snapshot(self, write)
            return None
        pieces = []
        native.gmm_snapshot(self, pieces.append)
        return json.loads(b"".join(pieces))

    @property
    def decommit_after_ms(self):
        """Milliseconds after which free memory that nobody uses goes back to the driver by itself; None: never. Set to 0: the default."""
        struct = native.gmm_context_info()
        native.gmm_context_get_info(self, struct)
        after = struct.decommit_after_ms
        return None if after == native.GMM_DECOMMIT_NEVER else after

    @decommit_after_ms.setter
    def decommit_after_ms(self, milliseconds):
        native.gmm_set_decommit(self, native.GMM_DECOMMIT_NEVER if milliseconds is None else milliseconds)

    def trim(self, *, device=None, tag=None, kind=None):
        """Gives free memory back to the driver. Returns the bytes that went back; 0 inside defer()."""
        return native.gmm_trim(self, _scope(self, device, tag, kind))[1]

    def reset(self):
        """Frees everything that was allocated, live buffers too: they are closed then. Imported and pinned memory stays.

        No other thread may be inside of a call on the context, or call it meanwhile: RuntimeError. Buffers stay open when it is refused (BusyError,
        CapturingError); after a failure of the driver they are closed.
        """
        self._reset()

    @contextlib.contextmanager
    def defer(self):
        """In its with block nothing expensive is done on behalf of a free; it is done at the end."""
        native.gmm_defer_begin(self)
        try:
            yield self
        finally:
            native.gmm_defer_end(self)

    @contextlib.contextmanager
    def trace(self, path):
        """In its with block every alloc and free is recorded into a file, which `gmm replay` runs and `gmm trace` prints."""
        native.gmm_trace_begin(self, os.fsdecode(path))
        try:
            yield self
        finally:
            native.gmm_trace_end(self)

    def __repr__(self):
        if self.closed:
            return "<gmm.Context closed>"
        return f"<gmm.Context of the {self.info.backend_name} backend, {self.info.device_count} devices>"
