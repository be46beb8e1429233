# SPDX-License-Identifier: Apache-2.0
"""A simple model of gmm, and the steps of a program on both: each step calls the library and says what must be true.

A step names its operands by slots, so a program stays meaningful when steps are left out. A step that means nothing
where it stands does nothing.
"""

import ctypes
import errno
import mmap
import os
import resource
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_uint32, c_uint64, c_void_p, create_string_buffer

from interface import (CHECKSUM, COMPACT_LIVE, DEDICATED, DROP, FILE, FORCE, HOST, KEEP_FILE, KEEP_HOST, KIB, MIB, NONE,
                       PAUSE_DROP, READ_ONLY, SCOPE_DEVICE, SCOPE_TAG, ZERO, AllocDesc, BackupDesc, BackupInfo,
                       BlockInfo, CompactDesc, CompactInfo, ContextDesc, Handle, HeapDesc, HostAllocator, ImportDesc,
                       Kind, PauseDesc, PointerInfo, Result, ScopeDesc, SnapshotInfo, State, StatsInfo, StreamDesc,
                       TagDesc, TagInfo, result_name)

SIZES = [1, 256, 1000, 4096, 20_000, 64 * KIB, 128 * KIB, 128 * KIB + 1, 300_000, MIB, 2 * MIB - 256, 2 * MIB, 3 * MIB,
         5 * MIB + 123, 9 * MIB, 20 * MIB]
ALIGNMENTS = [0, 256, 4096, 64 * KIB, 2 * MIB]
LIMITS = [NONE, NONE, 64 * MIB, 16 * MIB, 4 * MIB, 0]
SLOTS, TAGS, STREAMS, HANDLES, IMPORTS, HEAPS = 8, 4, 4, 3, 4, 2
PAGE = 2 * MIB
SOON_S = 20

UNDEFINED, DROPPED = None, "dropped"  # bytes that hold anything, and those of paused memory that no backup holds


class Failed(Exception):
    """What must be true is not."""


def require(condition, words, *values):
    if not condition:
        raise Failed(words.format(*values))


class Patterns:
    """Random bytes that blocks are filled from. A seed is a shift, so that bytes of a wrong place or block differ."""

    def __init__(self):
        import random
        self.size = SIZES[-1] + 9 * MIB
        self.memory = mmap.mmap(-1, self.size)
        self.memory.write(random.Random(13).randbytes(self.size))
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def address(self, seed, offset):
        return self.base + (seed * 4099 * 7) % (8 * MIB) + offset


class Segments:
    """The contents of [0, size): UNDEFINED, DROPPED, ("pattern", seed) or ("byte", value) of each part."""

    def __init__(self, size, value):
        self.size, self.parts = size, [(0, size, value)]

    def put(self, begin, end, value):
        kept = []
        for a, b, v in self.parts:
            if a < begin:
                kept.append((a, min(b, begin), v))
            if b > end:
                kept.append((max(a, end), b, v))
        self.parts = sorted(kept + [(begin, end, value)], key=lambda part: part[0])

    def within(self, begin, end):
        return [(max(a, begin), min(b, end), v) for a, b, v in self.parts if a < end and b > begin]

    def replace(self, old, new):
        self.parts = [(a, b, new if v is old else v) for a, b, v in self.parts]


class Reader:
    """Compares memory of a context with what it should hold."""

    def __init__(self, library, patterns):
        self.library, self.patterns, self.buffer = library, patterns, None

    def room(self, size):
        if self.buffer is None:
            self.memory = mmap.mmap(-1, SIZES[-1] + 4096)
            self.buffer = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        return self.buffer

    def difference(self, address, contents, begin, end):
        """`address` holds what [begin, end) should hold. Returns words, or None."""
        helper = self.library.helper
        for a, b, value in contents.within(begin, end):
            if value in (UNDEFINED, DROPPED):
                continue
            at = address + a - begin
            if value[0] == "pattern":
                same = helper.model_differs(at, self.patterns.address(value[1], a), b - a)
            else:
                same = helper.model_differs_from_value(at, value[1], b - a)
            if same != b - a:
                byte = ctypes.string_at(at + same, 1)[0]
                return f"byte {a + same} is {byte:#04x}, in [{a}, {b}) which holds {value}"
        return None

    def check(self, context, address, contents, begin, end, words):
        """Reads [begin, end) of a block of the context by gmm_copy()."""
        if all(value in (UNDEFINED, DROPPED) for _, _, value in contents.within(begin, end)):
            return
        room = self.room(end - begin)
        ctypes.memset(room, 0xD7, min(end - begin, 4096))
        result = self.library.copy(context, room, address, end - begin, None)
        require(result == 0, "{}: the copy gave {}: {}", words, result_name(result), self.library.message())
        result = self.library.stream_synchronize(context, None)
        require(result == 0, "{}: the wait gave {}: {}", words, result_name(result), self.library.message())
        wrong = self.difference(room, contents, begin, end)
        require(wrong is None, "{}: {}", words, wrong)


class Block:
    def __init__(self, address, size, kind, device, tag, contents):
        self.address, self.size, self.kind, self.device, self.tag = address, size, kind, device, tag
        self.contents = contents
        self.heap = None
        self.dedicated = False
        self.moved = False  # to the host
        self.state = State.ACTIVE
        self.generation = None
        self.pending, self.recorded = set(), set()  # streams with work on it, and those that gmm knows of
        self.sealed = False  # read-only contents that were paused and kept
        self.pauses = 0
        self.forced = 0
        self.live = True
        self.own_imports, self.peer_imports = 0, 0
        self.exported = False

    def __str__(self):
        return (f"block {self.address:#x} of {self.size} bytes ({self.kind.name}, device {self.device}, "
                f"{self.tag.name}, {self.state.name}{'' if self.live else ', freed'})")

    @property
    def end(self):
        return self.address + self.size


class Tag:
    def __init__(self, number, name):
        self.number, self.name, self.contents, self.flags = number, name, DROP, 0


class Stream:
    def __init__(self, handle, device):
        self.handle, self.device = handle, device


class Import:
    def __init__(self, block, offset, address, by_peer):
        self.block, self.offset, self.address, self.by_peer = block, offset, address, by_peer
        self.forced = block.forced

    @property
    def revoked(self):
        return self.by_peer and self.forced != self.block.forced


class Held:
    """What the process holds of the system and of the fake driver."""
    OF_DRIVER = ("allocations reservations handles mappings registrations imports streams events context_references "
                 "device_bytes host_bytes managed_bytes").split()

    def __init__(self, library):
        self.values = {"descriptors": len(os.listdir("/proc/self/fd")), "memory files": 0, "reserved bytes": 0}
        threads = 0
        for task in os.listdir("/proc/self/task"):
            try:
                with open(f"/proc/self/task/{task}/comm", encoding="ascii") as file:
                    threads += file.read() != "fake driver\n"
            except OSError:
                pass  # it has ended
        self.values["threads"] = threads
        with open("/proc/self/maps", encoding="utf-8") as maps:
            for line in maps:
                self.values["memory files"] += "memfd:gmm" in line
                words = line.split()
                begin, end = (int(word, 16) for word in words[0].split("-"))
                if words[1].startswith("---") and end - begin >= 256 * MIB and ".so" not in line:
                    self.values["reserved bytes"] += end - begin
        if library.fake is not None:
            live = library.fake_live()
            self.values.update({"driver's " + name: live[name] for name in self.OF_DRIVER})

    def more_than(self, other):
        return [f"{name}: {other.values[name]} before, {value} now" for name, value in self.values.items()
                if value > other.values[name]]


def check_end(library, before, whose):
    """A thread that is ending, and a peer's connection, are there for a moment more."""
    end = time.monotonic() + SOON_S
    while (more := Held(library).more_than(before)) and time.monotonic() < end:
        time.sleep(0.002)
    require(not more, "{} holds more than before its context: {}", whose, "; ".join(more))
    require(library.helper.model_allocated_blocks() == 0, "{} left {} blocks of the host allocator", whose,
            library.helper.model_allocated_blocks())
    require(library.helper.model_allocator_mistakes() == 0, "{} used the host allocator wrongly", whose)


def open_context(library, **values):
    allocator = HostAllocator()
    library.helper.model_refuse(0)
    library.helper.model_host_allocator(byref(allocator))
    desc, context = ContextDesc(host_allocator=allocator, flags=2, **values), c_void_p()  # no report of leaks
    result = library.context_create(byref(desc), byref(context))
    require(result == 0, "gmm_context_create gave {}: {}", result_name(result), library.message())
    return context


def warm_up(library, **values):
    """What stays for the process comes with its first context."""
    library.context_release(open_context(library, **values))
    return Held(library)


class Peer:
    """The other process's side: it imports, reads and writes. Each answer is None or the words of a failure."""

    def __init__(self, library, patterns, devices):
        self.library, self.reader = library, Reader(library, patterns)
        self.patterns = patterns
        self.before = warm_up(library, host_devices=devices)
        self.context = open_context(library, host_devices=devices)

    def do_import(self, handle, device):
        desc, out = ImportDesc(device=device, timeout_ms=60_000), c_void_p()
        result = self.library.ipc_import(self.context, byref(Handle.from_buffer_copy(handle)), byref(desc), byref(out))
        return result, out.value, self.library.message() if result < 0 else ""

    def do_close(self, address):
        return self.library.ipc_close(self.context, address), self.library.message()

    def do_query(self, address):
        info = PointerInfo()
        self.library.query(self.context, address, byref(info))
        return info.state, info.base, info.size

    def do_fill(self, address, value, size):
        result = self.library.fill(self.context, address, value, size, None)
        if result == 0:
            result = self.library.stream_synchronize(self.context, None)
        return result, self.library.message()

    def do_check(self, address, contents, words):
        self.reader.check(self.context, address, contents, 0, contents.size, words)

    def do_end(self):
        result = self.library.context_release(self.context)
        require(result == 0, "the peer's gmm_context_release gave {}", result_name(result))
        check_end(self.library, self.before, "the peer")


class Model:
    """The context, what must be true of it, and a method do_NAME for each step."""

    def __init__(self, library, patterns, peer, folder, config):
        self.library, self.patterns, self.ask = library, patterns, peer
        self.reader = Reader(library, patterns)
        self.devices = config["devices"]
        self.memory = config["memory"] * MIB
        self.short = self.memory != 0
        if self.short:
            os.environ["FAKE_CUDA_MEMORY"] = str(self.memory)
        os.environ["FAKE_CUDA_DEVICES"] = str(self.devices)
        self.leave = config["leave"]
        values = dict(host_devices=self.devices, host_memory=self.memory)
        self.before = warm_up(library, **values)
        self.context = open_context(library, **values)
        backup = BackupDesc(arena_limit=config["arena"] * MIB, pageable_limit=config["pageable"] * MIB,
                            flags=config["backup"], threads=1, directory=folder.encode())
        self.must("backup_configure", self.context, byref(backup))
        self.at_start = Held(library)
        self.blocks = [None] * SLOTS
        self.ghosts = []  # freed, but imported at home
        self.freed = []  # addresses
        self.streams = [Stream(None, 0)] + [None] * (STREAMS - 1)
        self.destroyed = None
        self.heaps = [None] * HEAPS
        self.handles = [None] * HANDLES
        self.imports = [None] * IMPORTS
        self.limits = {}
        self.held_at_limit = {}
        self.deferred = 0
        self.armed = None
        self.thread = None
        self.peer_lives, self.peer_imported = True, False
        self.allocations = self.frees = 0
        self.tags = [Tag(1, "default")]
        for i in range(1, TAGS):
            self.make_tag(i)
        for i, policy in enumerate(config["policies"]):
            self.do_configure(tag=i, contents=policy % 3, flags=policy // 3)

    def make_tag(self, i):
        number = c_uint32()
        self.must("tag_create", self.context, f"tag {i}".encode(), None, byref(number))
        self.tags[i:i + 1] = [Tag(number.value, f"tag {i}")]

    # --- Calls ------------------------------------------------------------------------------------------------------

    def must(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        require(result in (0, 1), "gmm_{} gave {}: {}", name, result_name(result), self.library.message())
        return result

    def plain(self, function, arguments, thread):
        if not thread:
            return function(*arguments), self.library.message()
        if self.thread is None:
            self.thread = ThreadPoolExecutor(1)
        return self.thread.submit(lambda: (function(*arguments), self.library.message())).result()

    def arm(self):
        """Lets something fail during the next call. Returns what tells whether it did, and takes it back."""
        kind, k = self.armed[:2]
        if kind == "driver":
            fake, before = self.library.fake, self.library.fake.fake_cuda_failures()
            fake.fake_cuda_fail(None, k, self.armed[2])

            def disarm():
                happened = fake.fake_cuda_failures() > before
                fake.fake_cuda_fail(None, 0, 0)
                return happened
        elif kind == "host":
            self.library.helper.model_refuse(k)

            def disarm():
                happened = self.library.helper.model_refused() != 0
                self.library.helper.model_refuse(0)
                return happened
        else:
            what = resource.RLIMIT_NOFILE if kind == "files" else resource.RLIMIT_FSIZE
            old = resource.getrlimit(what)
            if kind == "files":
                k += max(int(name) for name in os.listdir("/proc/self/fd")) + 1
            resource.setrlimit(what, (k, old[1]))

            def disarm():
                resource.setrlimit(what, old)
                return True
        self.armed = None
        return disarm

    def call(self, name, *arguments, allowed=(0,), begun=False, thread=0, failed=None):
        """Calls gmm_NAME. With a failure armed: a failed call has changed nothing, and a retry works.

        `begun`: a failure may leave a part of the work done. `failed`: looks at the outputs of a failed call.
        """
        function = getattr(self.library, name)
        if self.armed is None:
            result, message = self.plain(function, arguments, thread)
        else:
            words, disarm = str(self.armed), self.arm()
            result, message = self.plain(function, arguments, thread)
            if disarm() and result < 0 and result not in allowed:
                require(len(message) > 20, "gmm_{} gave {} (failing: {}) with the message \"{}\"", name,
                        result_name(result), words, message)
                if failed is not None:
                    failed()
                if not begun:
                    try:
                        self.check_states()
                        self.check_stats()
                        self.check_contents()
                    except Failed as failure:
                        raise Failed(f"after gmm_{name} gave {result_name(result)} (failing: {words}; {message}): "
                                     f"{failure}") from None
                first = f"; before it gave {result_name(result)} (failing: {words}; {message})"
                result, message = self.plain(function, arguments, thread)
                require(result in allowed or begun and result == 1, "the retry of gmm_{} gave {}: {}{}", name,
                        result_name(result), message, first)
                return result
        require(result in allowed, "gmm_{} gave {}: {}", name, result_name(result), message)
        return result

    # --- What must be true ------------------------------------------------------------------------------------------

    def live(self):
        return [block for block in self.blocks if block is not None]

    def known(self):
        return self.live() + self.ghosts

    def query(self, address):
        info = PointerInfo()
        self.must("query", self.context, address, byref(info))
        return info

    def stats(self, scope=None):
        info = StatsInfo()
        self.must("stats_query", self.context, byref(scope) if scope else None, byref(info))
        return info

    def check_states(self):
        for block in self.live():
            for address in (block.address, block.address + block.size // 2, block.end - 1):
                info = self.query(address)
                require(info.base == block.address and info.size == block.size and info.kind == block.kind and
                        info.tag == block.tag.number,
                        "{}: gmm_query({:#x}) gave base {:#x}, {} bytes, kind {}, tag {}, state {}", block, address,
                        info.base or 0, info.size, info.kind, info.tag, info.state)
                require(info.device == block.device or block.moved, "{}: gmm_query gave device {}", block, info.device)
                require(info.state == block.state, "{}: gmm_query gave state {}", block, State(info.state).name)
                require(info.reserved_size >= block.size, "{}: {} bytes reserved", block, info.reserved_size)
                # A block may lie over several: that of its start.
                require(info.allocation_base <= block.address < info.allocation_base + info.allocation_size,
                        "{}: the allocation is {:#x} of {} bytes", block, info.allocation_base, info.allocation_size)
            if block.generation is None:
                block.generation = info.generation
            require(info.generation == block.generation, "{}: generation {} became {}", block, block.generation,
                    info.generation)
        for block in self.ghosts:
            info = self.query(block.address)
            require(info.state == State.IMPORTED and info.base == block.address and info.size == block.size,
                    "{}, imported at home: state {}, base {:#x}, {} bytes", block, info.state, info.base or 0,
                    info.size)

    def check_overlap(self, made):
        for block in self.known():
            require(block is made or block.end <= made.address or made.end <= block.address, "{} overlaps {}", made,
                    block)

    def check_stats(self):
        live = self.live()
        scopes = [(None, live)]
        scopes += [(ScopeDesc(flags=SCOPE_TAG, tag=tag.number), [b for b in live if b.tag is tag])
                   for tag in self.tags]
        scopes += [(ScopeDesc(flags=SCOPE_DEVICE, device=device), [b for b in live if b.device == device])
                   for device in range(self.devices)]
        for scope, blocks in scopes:
            info = self.stats(scope)
            words = "whole" if scope is None else f"tag {scope.tag}, device {scope.device}"
            require(info.live_blocks == len(blocks) and info.live_bytes == sum(b.size for b in blocks),
                    "{}: {} bytes in {} blocks are live, gmm_stats_query gave {} in {}", words,
                    sum(b.size for b in blocks), len(blocks), info.live_bytes, info.live_blocks)
            paused = sum(b.size for b in blocks if b.state == State.PAUSED)
            require(info.paused_bytes >= paused, "{}: {} of {} paused bytes are counted", words, info.paused_bytes,
                    paused)
            active = sum(b.size for b in blocks if b.state == State.ACTIVE and not b.moved)
            require(info.reserved_bytes >= active, "{}: {} bytes are live, and {} reserved", words, active,
                    info.reserved_bytes)
            if scope is None:
                require(info.allocations == self.allocations and info.frees == self.frees,
                        "{} allocations and {} frees were counted as {} and {}", self.allocations, self.frees,
                        info.allocations, info.frees)
            limit = self.limits.get((scope.flags, scope.tag, scope.device) if scope else (0, 0, 0))
            if limit is not None:
                require(info.reserved_bytes <= limit, "{}: {} bytes reserved, at most {} are allowed", words,
                        info.reserved_bytes, limit)

    def check_tags(self):
        for tag in self.tags:
            info = TagInfo()
            self.must("tag_query", self.context, tag.number, byref(info))
            blocks = [b for b in self.live() if b.tag is tag and b.kind == Kind.VMM]
            paused = sum(b.size for b in blocks if b.state == State.PAUSED)
            active = sum(b.size for b in blocks if b.state == State.ACTIVE)
            require(info.paused_bytes >= paused and info.active_bytes >= active,
                    "{}: {} bytes paused and {} active, gmm_tag_query gave {} and {}", tag.name, paused, active,
                    info.paused_bytes, info.active_bytes)
            if blocks:
                states = {b.state for b in blocks}
                wanted = states.pop() if len(states) == 1 else State.PARTLY_PAUSED
                # Free memory and imported blocks count too.
                require(info.state in (wanted, State.PARTLY_PAUSED), "{}: state {} of blocks that are {}", tag.name,
                        State(info.state).name, wanted.name)
            require(info.contents == tag.contents and info.flags == tag.flags, "{}: settings {} {}", tag.name,
                    info.contents, info.flags)

    def check_contents(self, blocks=None):
        for block in self.known() if blocks is None else blocks:
            self.settle(block)
            if block.state == State.ACTIVE:
                self.reader.check(self.context, block.address, block.contents, 0, block.size, str(block))
            elif block.kind == Kind.VMM and block.live:
                self.check_kept(block, 0, block.size)

    def check_imports(self):
        for i in self.imports:
            if i is None or not i.by_peer:
                continue
            if i.revoked:
                end = time.monotonic() + SOON_S
                while (state := self.ask("query", i.address)[0]) != State.REVOKED and time.monotonic() < end:
                    time.sleep(0.002)
                require(state == State.REVOKED, "{}: the peer's query says {} after a forced pause", i.block, state)
                result, message = self.ask("fill", i.address, 1, 1)
                require(result == Result.REVOKED, "{}: the peer's fill of revoked memory gave {}: {}", i.block,
                        result_name(result), message)
                continue
            state, base, size = self.ask("query", i.address)
            require(state == State.IMPORTED and size == i.block.size and base == i.address - i.offset,
                    "{}: the peer's query gave state {}, base {:#x}, {} bytes; the import is {:#x}", i.block, state,
                    base or 0, size, i.address)
            self.settle(i.block)
            contents = Segments(i.block.size, UNDEFINED)
            contents.parts = i.block.contents.parts
            self.ask("check", i.address - i.offset, contents, f"{i.block}, as the peer sees it")

    def check_snapshot(self):
        snapshot = c_void_p()
        self.must("snapshot_create", self.context, None, byref(snapshot))
        info = SnapshotInfo()
        self.must("snapshot_query", snapshot, byref(info))
        seen = {}
        for index in range(info.block_count):
            block = BlockInfo()
            self.must("snapshot_query_block", snapshot, index, byref(block))
            seen[block.address] = block
        self.must("snapshot_destroy", snapshot)
        live = self.live()
        require(set(seen) == {b.address for b in live} and info.live_bytes == sum(b.size for b in live),
                "the snapshot has {} ({} bytes), live are {}", sorted(map(hex, seen)), info.live_bytes,
                sorted(hex(b.address) for b in live))
        for b in live:
            s = seen[b.address]
            require(s.size == b.size and s.kind == b.kind and s.tag == b.tag.number and s.reserved_size >= b.size,
                    "{}: the snapshot has {} bytes, kind {}, tag {}", b, s.size, s.kind, s.tag)
            require(s.state == b.state or b.state == State.PARTLY_PAUSED, "{}: the snapshot says {}", b, s.state)
        intervals = sorted((s.address, s.address + s.reserved_size) for s in seen.values())
        for (_, end), (begin, _) in zip(intervals, intervals[1:]):
            require(end <= begin, "two blocks of the snapshot overlap at {:#x}", begin)

    def check_all(self):
        self.check_states()
        self.check_stats()
        self.check_tags()
        self.check_snapshot()
        self.check_contents()
        self.check_imports()

    def check_light(self):
        self.check_states()
        self.check_stats()

    def check_nothing(self):
        """After a trim with nothing live, imported, deferred or queued."""
        end = time.monotonic() + SOON_S
        while True:
            info = self.stats()
            left = {name: getattr(info, name) for name in
                    "live_bytes live_blocks cached_bytes reserved_bytes paused_bytes imported_bytes extents".split()
                    if getattr(info, name)}
            if self.library.fake is not None:
                now, start = Held(self.library).values, self.at_start.values
                left.update({name: (start[name], now[name]) for name in
                             ("driver's allocations", "driver's reservations", "driver's handles", "driver's mappings",
                              "driver's device_bytes", "driver's managed_bytes") if now[name] > start[name]})
            backups = BackupInfo()
            self.must("backup_query", self.context, byref(backups))
            left.update({name: getattr(backups, name) for name in
                         "arena_bytes arena_used pageable_bytes file_bytes zero_bytes".split()
                         if getattr(backups, name)})
            if not left:
                return
            # A peer's close, or its death, comes a moment later.
            if time.monotonic() > end or not self.peer_imported:
                raise Failed(f"nothing is live, and after a trim there is {left}")
            time.sleep(0.002)
            self.must("trim", self.context, None, None)

    # --- Contents and streams ---------------------------------------------------------------------------------------

    def settle(self, block):
        for stream in list(block.pending):
            self.must("stream_synchronize", self.context, stream.handle)
        block.pending.clear()

    def order_behind(self, block, stream):
        """Work on the stream may use the block."""
        for other in list(block.pending):
            if other is not stream:
                self.must("stream_synchronize", self.context, other.handle)
                block.pending.discard(other)

    def stream_for(self, number, device):
        stream = self.streams[number % STREAMS]
        return stream if stream is not None and (stream.device == device or stream.handle is None) else self.streams[0]

    def write(self, block, begin, end, value, stream):
        """Queues a write. The caller has ordered the stream behind other work on the block."""
        if value[0] == "pattern":
            result = self.library.copy(self.context, block.address + begin, self.patterns.address(value[1], begin),
                                       end - begin, stream.handle)
        else:
            result = self.library.fill(self.context, block.address + begin, value[1], end - begin, stream.handle)
        require(result == 0, "{}: a write of [{}, {}) gave {}: {}", block, begin, end, result_name(result),
                self.library.message())
        block.contents.put(begin, end, value)
        block.pending.add(stream)

    @staticmethod
    def part(block, number):
        """A range of the block: all, the first or second half, one byte, the last page, the middle."""
        size = block.size
        ranges = [(0, size), (0, (size + 1) // 2), (size // 2, size), (size - 1, size), (0, 1),
                  (max(0, size - 4096), size), (size // 3, max(size // 3 + 1, size * 2 // 3)),
                  (min(size - 1, PAGE), min(size, 2 * PAGE) if size > PAGE else size)]
        return ranges[number % len(ranges)]

    @staticmethod
    def filled(slots, number):
        """The first filled slot from `number` on; that one if there is none."""
        for i in range(len(slots)):
            if slots[(number + i) % len(slots)] is not None:
                return (number + i) % len(slots)
        return number % len(slots)

    def block_at(self, slot):
        return self.blocks[self.filled(self.blocks, slot)]

    # --- Steps: blocks ----------------------------------------------------------------------------------------------

    def may_lack(self, block_tag, device):
        """The results of an allocation or resume that memory or a limit may refuse."""
        allowed = []
        if self.short:
            allowed += [Result.OUT_OF_MEMORY]
        if self.limits:
            allowed += [Result.LIMIT_EXCEEDED]
        return allowed

    def do_alloc(self, slot, kind, size, tag, stream, flags, alignment, device, heap, try_first, thread, seed):
        if self.blocks[slot % SLOTS] is not None:
            self.do_free(slot=slot, stream=stream, thread=thread, try_first=False, checked=False)
        kind, device, size = Kind(kind), device % self.devices, SIZES[size % len(SIZES)]
        tag = self.tags[tag % TAGS]
        heap = self.heaps[heap - 1] if heap else None
        if heap is not None:
            kind, device, tag = heap["kind"], heap["device"], heap["tag"]
        chosen = self.stream_for(stream, device)
        out = c_void_p()
        allowed = (0, *self.may_lack(tag, device))
        alignment = ALIGNMENTS[alignment % len(ALIGNMENTS)]
        desc = AllocDesc(kind=kind, device=device, tag=tag.number, stream=chosen.handle, alignment=alignment,
                         flags=flags)
        result = Result.NOT_READY

        def failed():
            require(out.value is None, "a failed allocation gave {}", out.value)
            # A block that could not be zeroed was counted, and counted as freed.
            info = self.stats()
            more = info.allocations - self.allocations
            require(more == info.frees - self.frees and 0 <= more <= (1 if flags & ZERO else 0),
                    "a failed allocation was counted as {} allocations", more)
            self.allocations, self.frees = info.allocations, info.frees

        if try_first and heap is None:
            result, _ = self.plain(self.library.try_alloc, (self.context, size, byref(desc), byref(out)), thread)
            require(result in (0, Result.NOT_READY), "gmm_try_alloc gave {}", result_name(result))
        if result == Result.NOT_READY and heap is None:
            result = self.call("alloc", self.context, size, byref(desc), byref(out), allowed=allowed, thread=thread,
                               failed=failed)
        elif result == Result.NOT_READY:
            result = self.call("heap_alloc", heap["handle"], size, alignment, flags, chosen.handle, byref(out),
                               allowed=allowed, thread=thread, failed=failed)
        if result != 0:
            failed()
            return
        self.allocations += 1
        require(out.value % (alignment or 256) == 0, "{:#x} is not aligned to {}", out.value, alignment or 256)
        block = Block(out.value, size, kind, device, tag, Segments(size, ("byte", 0) if flags & ZERO else UNDEFINED))
        block.heap, block.dedicated = heap, bool(flags & DEDICATED)
        self.check_overlap(block)
        self.blocks[slot % SLOTS] = block
        block.pending.add(chosen)
        if seed:
            self.write(block, 0, size, ("pattern", seed), chosen)

    def do_write(self, slot, part, seed, stream):
        block = self.block_at(slot)
        if block is None or block.state != State.ACTIVE or block.sealed:
            return
        chosen = self.stream_for(stream, block.device)
        self.order_behind(block, chosen)
        self.write(block, *self.part(block, part), ("pattern", seed) if seed < 200 else ("byte", seed - 200), chosen)

    def do_late_write(self, slot, stream, part, value):
        """Another stream uses the block behind work that takes a while, and gmm is told."""
        block = self.block_at(slot)
        if block is None or block.state != State.ACTIVE or block.sealed:
            return
        chosen = self.stream_for(stream, block.device)
        self.call("record_use", self.context, block.address + block.size // 2, chosen.handle)
        self.order_behind(block, chosen)
        self.must("stream_call", self.context, chosen.handle, ctypes.cast(self.library.helper.model_hold, c_void_p), 5)
        self.write(block, *self.part(block, part), ("byte", value), chosen)
        block.recorded.add(chosen)

    def do_free(self, slot, stream, thread, try_first, checked):
        """Stream STREAMS: one that was destroyed, as a garbage collector frees."""
        slot = self.filled(self.blocks, slot)
        block = self.blocks[slot]
        if block is None:
            return
        if checked:
            self.check_contents([block])
        if stream == STREAMS and self.destroyed is not None and self.destroyed.device == block.device:
            self.settle(block)
            chosen = self.destroyed
        else:
            chosen = self.stream_for(stream, block.device)
            for other in list(block.pending):
                if other is not chosen and other not in block.recorded:
                    self.must("stream_synchronize", self.context, other.handle)
                    block.pending.discard(other)
        result = Result.NOT_READY
        if try_first:
            result, _ = self.plain(self.library.try_free, (self.context, block.address, chosen.handle), thread)
            require(result in (0, Result.NOT_READY), "gmm_try_free gave {}", result_name(result))
        if result == Result.NOT_READY:
            self.call("free", self.context, block.address, chosen.handle, thread=thread)
        self.frees += 1
        self.blocks[slot] = None
        block.live = False
        self.freed = self.freed[-20:] + [block]
        if block.own_imports:
            self.ghosts.append(block)
            if block.state == State.PARTLY_PAUSED:
                self.forget(block)

    @staticmethod
    def forget(ghost):
        """Nobody tells which parts of a freed block are paused."""
        ghost.contents.put(0, ghost.size, UNDEFINED)
        ghost.state = State.PAUSED

    def do_bad_free(self, slot, which):
        """Frees that must be refused: of the inside of a block, and of a block that was freed."""
        block = self.block_at(slot)
        if which == 0 and block is not None and block.size > 1:
            self.refused("free", (Result.INTERIOR_POINTER,), self.context, block.address + block.size // 2, None)
        elif which == 1 and self.freed:
            gone = self.freed[slot % len(self.freed)]
            if any(b.address < gone.end and gone.address < b.end for b in self.known()):
                return
            self.refused("free", (Result.ALREADY_FREED, Result.UNKNOWN_POINTER, Result.INTERIOR_POINTER), self.context,
                         gone.address, None)
            info = self.query(gone.address)
            require(info.state in (State.FREE, State.UNKNOWN), "{}: state {} after the free", gone, info.state)
        elif which == 2 and block is not None and block.state == State.PAUSED:
            self.refused("fill", (Result.PAUSED,), self.context, block.address, 1, 1, None)
            self.refused("ipc_export", (Result.PAUSED,), self.context, block.address, byref(Handle()))
        elif which == 3 and block is not None:
            wrong = (Result.INVALID_SIZE,) if block.state == State.ACTIVE else (Result.INVALID_SIZE, Result.PAUSED)
            self.refused("fill", wrong, self.context, block.address + block.size // 2, 1,
                         block.size - block.size // 2 + 1, None)

    def refused(self, name, allowed, *arguments):
        result = getattr(self.library, name)(*arguments)
        require(result in allowed, "gmm_{} gave {}: {}; it should be one of {}", name, result_name(result),
                self.library.message() if result < 0 else "", [r.name for r in allowed])

    def do_move(self, slot, location):
        block = self.block_at(slot)
        if block is None or block.kind not in (Kind.VMM, Kind.MANAGED):
            return
        location = -1 if location == 0 else block.device
        self.settle(block)
        allowed = [0]
        if block.kind == Kind.VMM:
            allowed += [1, Result.NOT_SUPPORTED]
            if block.state != State.ACTIVE:
                allowed = [Result.PAUSED]
            elif not block.dedicated or block.peer_imports or block.own_imports:
                allowed += [Result.BUSY]
            allowed += self.may_lack(block.tag, block.device)
        result = self.call("move", self.context, block.address, location, None, allowed=tuple(allowed))
        if result == 0 and block.kind == Kind.VMM:
            block.moved = location == -1
            block.generation = None

    # --- Steps: streams, threads, heaps -----------------------------------------------------------------------------

    def do_stream(self, number, device):
        """Creates the stream, or destroys it."""
        number = 1 + number % (STREAMS - 1)
        stream = self.streams[number]
        if stream is None:
            made, device = c_void_p(), device % self.devices
            self.call("stream_create", self.context, byref(StreamDesc(device=device)), byref(made))
            self.streams[number] = Stream(made.value, device)
            return
        self.call("stream_destroy", self.context, stream.handle)
        self.destroyed, self.streams[number] = stream, None
        for block in self.known() + [i.block for i in self.imports if i is not None]:
            block.pending.discard(stream)
            block.recorded.discard(stream)

    def do_hold(self, number, milliseconds):
        """Work that takes a while."""
        stream = self.streams[number % STREAMS]
        if stream is not None:
            self.call("stream_call", self.context, stream.handle,
                      ctypes.cast(self.library.helper.model_hold, c_void_p), milliseconds)

    def do_end_thread(self):
        if self.thread is not None:
            self.thread.shutdown()
            self.thread = None

    def do_heap(self, number, kind, device, tag):
        """Creates the heap, or destroys it."""
        number %= HEAPS
        heap = self.heaps[number]
        if heap is None:
            kind, device, tag, made = Kind(kind), device % self.devices, self.tags[tag % TAGS], c_void_p()
            desc = HeapDesc(kind=kind, device=device, tag=tag.number)
            self.call("heap_create", self.context, byref(desc), byref(made))
            self.heaps[number] = dict(handle=made.value, kind=kind, device=device, tag=tag)
            return
        if any(block.heap is heap for block in self.live()):
            self.refused("heap_destroy", (Result.BUSY,), heap["handle"])
            return
        if any(block.heap is heap for block in self.ghosts) or any(
                i is not None and i.block.heap is heap for i in self.imports):
            return
        self.soon("heap_destroy", heap["handle"])
        self.heaps[number] = None
        self.recount()

    def recount(self):
        """Counts of heaps that ended, or were reset, may be gone."""
        info = self.stats()
        require(info.allocations <= self.allocations, "{} allocations were counted as {}", self.allocations,
                info.allocations)
        self.allocations, self.frees = info.allocations, info.frees

    def soon(self, name, *arguments, allowed=(0,)):
        """A peer's close, or its death, comes a moment later."""
        end = time.monotonic() + SOON_S
        while True:
            result = self.call(name, *arguments, allowed=(*allowed, Result.BUSY), begun=True)
            if result != Result.BUSY:
                return result
            waits = self.peer_imported
            require(waits and time.monotonic() < end, "gmm_{} gave BUSY: {}", name, self.library.message())
            time.sleep(0.002)

    # --- Steps: pause and resume ------------------------------------------------------------------------------------

    def pages(self, block):
        """[begin, end, whether it is usable] of the block, by gmm_resume_wait()."""
        found, begin = [], 0
        while begin < block.size:
            end = min(block.size, (block.address + begin) // PAGE * PAGE + PAGE - block.address)
            result = self.library.resume_wait(self.context, block.address + begin, end - begin, 0)
            require(result in (0, Result.NOT_READY), "{}: gmm_resume_wait of [{}, {}) gave {}", block, begin, end,
                    result_name(result))
            found.append((begin, end, result == 0))
            begin = end
        return found

    def affected(self, mask):
        tags = [tag for i, tag in enumerate(self.tags) if mask >> i & 1] or self.tags
        blocks = [b for b in self.known() if b.kind == Kind.VMM and b.tag in tags]
        if len(tags) == TAGS:
            return tags, blocks, PauseDesc()
        numbers = (c_uint32 * len(tags))(*(tag.number for tag in tags))
        desc = PauseDesc(tags=numbers, tag_count=len(tags))
        desc.keep = numbers
        return tags, blocks, desc

    def run(self, name, desc, bytes_out, background, allowed):
        if not background:
            return self.call(name, self.context, byref(desc), byref(bytes_out), allowed=allowed)
        ticket = c_void_p()
        function = name + "_async"
        armed = self.armed is not None
        result = self.call(function, self.context, byref(desc), byref(ticket), allowed=(0, *allowed))
        if result != 0:
            require(result in allowed, "gmm_{} gave {}", function, result_name(result))
            return result
        if background == 2:
            self.must("ticket_cancel", ticket)
        result = self.library.ticket_wait(ticket, NONE, byref(bytes_out))
        message = self.library.message()
        require(result in allowed or background == 2 and result == Result.CANCELLED or armed and result < 0,
                "the ticket of gmm_{} gave {}: {}", function, result_name(result), message)
        self.must("ticket_destroy", ticket)
        return result

    def do_pause(self, tags, flags, force, background):
        flags = (0, PAUSE_DROP, KEEP_HOST, KEEP_FILE)[flags % 4]
        tags, blocks, desc = self.affected(tags)
        desc.flags = flags | (FORCE if force else 0)
        active = [b for b in blocks if b.state != State.PAUSED]
        peers = {i.block for i in self.imports if i is not None and i.by_peer and not i.revoked}
        busy = not force and any(
            b.kind == Kind.VMM and b.tag in tags and b.state != State.PAUSED for b in peers)
        lost = {b: [(begin, end) for begin, end, usable in self.pages(b) if usable]
                for b in active if b.state == State.PARTLY_PAUSED}
        for b in blocks:
            self.settle(b)
        end, bytes_out = time.monotonic() + SOON_S, c_uint64()
        while True:
            allowed = [1] if not any(b.live for b in active) else []
            allowed += [Result.BUSY] if busy or self.peer_imported else []
            result = self.run("pause", desc, bytes_out, background, (0, *allowed))
            if result != Result.BUSY or busy:
                break
            require(time.monotonic() < end, "gmm_pause gave BUSY long after the last import was closed: {}",
                    self.library.message())
            time.sleep(0.002)
        require(not busy or result not in (0, 1), "gmm_pause gave {} though importers were in its way",
                result_name(result))
        if result != 0:
            return
        for b in blocks:
            if b.state == State.PAUSED:
                b.generation = None  # it counts the pauses of its neighbours too
        for b in active:
            policy = {PAUSE_DROP: DROP, KEEP_HOST: HOST, KEEP_FILE: FILE}.get(flags, b.tag.contents)
            if policy == DROP:
                for begin, to in lost.get(b, [(0, b.size)]):
                    b.contents.put(begin, to, DROPPED)
            else:
                b.sealed = True
            b.state = State.PAUSED
            b.pauses += 1
            b.forced += bool(force)
            if b.live:
                generation = self.query(b.address).generation
                require(b.generation is None or generation > b.generation,
                        "{}: generation {} became {} by a pause", b, b.generation, generation)
                b.generation = generation
        if force:
            for b in peers - set(active):
                if b.tag in tags and b.kind == Kind.VMM:
                    b.forced += 1
        self.begin_epochs(tags, flags)

    def begin_epochs(self, tags, flags):
        """After contents of a tag were dropped the program may write all of its memory anew."""
        for tag in tags:
            if any(b.tag is tag and any(v == DROPPED for _, _, v in b.contents.parts) for b in self.live()):
                if flags == PAUSE_DROP or flags == 0 and tag.contents == DROP:
                    for b in self.live():
                        if b.tag is tag:
                            b.sealed = False

    def became_active(self, block):
        block.contents.replace(DROPPED, UNDEFINED)
        block.state = State.ACTIVE
        if not block.tag.flags & READ_ONLY:
            block.sealed = False

    def do_resume(self, tags, background):
        tags, blocks, desc = self.affected(tags)
        paused = [b for b in blocks if b.state != State.ACTIVE]
        allowed = [0] + ([1] if not any(b.live for b in paused) else [])
        for tag in tags:
            allowed += self.may_lack(tag, 0)
        bytes_out = c_uint64()
        result = self.run("resume", desc, bytes_out, background, tuple(allowed))
        if result in (0, 1):
            for b in paused:
                self.became_active(b)

    def do_cycle(self, tags, flags, slot, part, again, seed):
        """Pauses, resumes a part of a block and pauses again, each of them or not, resumes and writes."""
        self.do_pause(tags=tags, flags=flags, force=False, background=0)
        if part:
            self.do_resume_range(slot=slot, part=part)
        if again < 4:
            self.do_pause(tags=tags, flags=again, force=False, background=0)
        self.do_resume(tags=tags, background=0)
        if seed:
            for number in range(SLOTS):
                self.do_write(slot=number, part=0, seed=(seed + number) % 200, stream=0)

    def do_resume_range(self, slot, part):
        block = self.block_at(slot)
        if block is None or block.kind != Kind.VMM:
            return
        begin, end = self.part(block, part)
        allowed = [0] if block.state == State.PAUSED else [0, 1]
        if block.state == State.ACTIVE:
            allowed = [1]
        allowed += self.may_lack(block.tag, block.device)
        bytes_out = c_uint64()
        result = self.call("resume_range", self.context, block.address + begin, end - begin, byref(bytes_out),
                           allowed=tuple(allowed))
        if result != 0:
            return
        for b in self.live():
            if b.kind != Kind.VMM or b.state == State.ACTIVE:
                continue
            state = State(self.query(b.address).state)
            require(state in (State.ACTIVE, State.PARTLY_PAUSED) or state == b.state and b.tag is block.tag or
                    state == b.state, "{}: state {} after gmm_resume_range", b, state.name)
            require(b.tag is block.tag and b.heap is block.heap and b.device == block.device or state == b.state,
                    "{}: state {} after gmm_resume_range of another heap's memory", b, state.name)
            if state == State.ACTIVE:
                self.became_active(b)
            else:
                b.state = state
                if state == State.PARTLY_PAUSED:
                    for from_, to, usable in self.pages(b):
                        if usable:
                            for p, q, value in b.contents.within(from_, to):
                                if value == DROPPED:
                                    b.contents.put(p, q, UNDEFINED)
        require(all(usable for from_, to, usable in self.pages(block) if from_ < end and begin < to),
                "{}: [{}, {}) is not usable after gmm_resume_range", block, begin, end)
        for ghost in self.ghosts:
            if ghost.tag is block.tag and ghost.state != State.ACTIVE:
                self.forget(ghost)
        if block.state == State.PARTLY_PAUSED:
            self.reader.check(self.context, block.address + begin, block.contents, begin, end, str(block))

    def check_kept(self, block, begin, end):
        """gmm_backup_read() of a paused or partly paused block."""
        if block.state == State.PARTLY_PAUSED:
            pages = [(max(a, begin), min(b, end), usable) for a, b, usable in self.pages(block)
                     if a < end and b > begin]
        else:
            pages = [(begin, end, False)]
        for a, b, usable in pages:
            if usable:
                self.reader.check(self.context, block.address + a, block.contents, a, b, str(block))
                continue
            values = [value for _, _, value in block.contents.within(a, b)]
            room = self.reader.room(b - a)
            result = self.library.backup_read(self.context, block.address + a, b - a, room)
            if DROPPED in values:
                require(result == Result.INVALID_VALUE, "{}: gmm_backup_read of dropped [{}, {}) gave {}", block, a, b,
                        result_name(result))
                continue
            require(result == 0, "{}: gmm_backup_read of [{}, {}) gave {}: {}", block, a, b, result_name(result),
                    self.library.message())
            wrong = self.reader.difference(room, block.contents, a, b)
            require(wrong is None, "{}: what gmm_backup_read gave: {}", block, wrong)

    def do_read_kept(self, slot, part, mapped):
        block = self.block_at(slot)
        if block is None or block.kind != Kind.VMM:
            return
        begin, end = self.part(block, part)
        if block.state == State.ACTIVE:
            self.refused("backup_read", (Result.INVALID_VALUE,), self.context, block.address + begin, end - begin,
                         self.reader.room(end - begin))
        elif not mapped or block.state == State.PARTLY_PAUSED:
            self.check_kept(block, begin, end)
        else:
            out = c_void_p()
            dropped = any(value == DROPPED for _, _, value in block.contents.within(begin, end))
            self.call("backup_map", self.context, block.address + begin, end - begin, byref(out),
                      allowed=(Result.INVALID_VALUE,) if dropped else (0,))
            if not dropped:
                wrong = self.reader.difference(out.value, block.contents, begin, end)
                require(wrong is None, "{}: what gmm_backup_map gave: {}", block, wrong)

    def do_discard(self, tags):
        tags, blocks, desc = self.affected(tags)
        paused = [b for b in blocks if b.state != State.ACTIVE]
        parts = {b: [(0, b.size)] if b.state == State.PAUSED else
                 [(begin, end) for begin, end, usable in self.pages(b) if not usable] for b in paused}
        kept = {b for b in paused if b.live and any(value != DROPPED for begin, end in parts[b]
                                                    for _, _, value in b.contents.within(begin, end))}
        result = self.call("backup_discard", self.context, byref(desc), None, allowed=(0,) if kept else (0, 1))
        if result != 0:
            return
        for b in paused:
            for begin, end in parts[b]:
                b.contents.put(begin, end, DROPPED)
        for tag in {b.tag for b in kept}:
            for b in self.live():
                if b.tag is tag:
                    b.sealed = False

    def do_configure(self, tag, contents, flags):
        tag = self.tags[tag % TAGS]
        contents, flags = contents % 3, flags % 4
        result = self.call("tag_configure", self.context, tag.number, byref(TagDesc(contents=contents, flags=flags)),
                           allowed=(0, Result.NOT_SUPPORTED) if flags & CHECKSUM else (0,))
        if result == 0:
            tag.contents, tag.flags = contents, flags
            if not flags & READ_ONLY:
                for b in self.known():
                    if b.tag is tag and b.state == State.ACTIVE:
                        b.sealed = False

    def do_renew_tag(self, tag):
        """Destroys a tag and makes another one."""
        number = 1 + tag % (TAGS - 1)
        tag = self.tags[number]
        if any(b.tag is tag for b in self.live()) or any(h is not None and h["tag"] is tag for h in self.heaps):
            self.refused("tag_destroy", (Result.BUSY,), self.context, tag.number)
            return
        if any(b.tag is tag for b in self.ghosts) or any(i is not None and i.block.tag is tag for i in self.imports):
            return
        self.soon("tag_destroy", self.context, tag.number)
        self.limits.pop((SCOPE_TAG, tag.number, 0), None)
        self.make_tag(number)
        self.recount()

    # --- Steps: sharing ---------------------------------------------------------------------------------------------

    def do_export(self, slot, handle, part):
        block = self.block_at(slot)
        if block is None:
            return
        out, offset = Handle(), self.part(block, part)[0]
        allowed = (0,)
        if block.kind == Kind.MANAGED:
            allowed = (Result.INVALID_KIND,)
        elif block.state != State.ACTIVE:
            allowed = (Result.PAUSED,)
        elif block.moved:
            allowed = (0, Result.NOT_SUPPORTED, Result.PAUSED)
        if self.call("ipc_export", self.context, block.address + offset, byref(out), allowed=allowed) == 0:
            block.exported = True
            self.handles[handle % HANDLES] = (bytes(out), block, offset, block.pauses)

    def do_import_block(self, handle, slot, by_peer):
        found = self.handles[self.filled(self.handles, handle)]
        if found is None or self.imports[slot % IMPORTS] is not None or by_peer and not self.peer_lives:
            return
        handle, block, offset, pauses = found
        if by_peer:
            self.settle(block)
            self.peer_imported = True
            result, address, message = self.ask("import", handle, block.device)
        else:
            desc, out = ImportDesc(device=block.device), c_void_p()
            good = block.live and block.state == State.ACTIVE and block.pauses == pauses
            result = self.call("ipc_import", self.context, byref(Handle.from_buffer_copy(handle)), byref(desc),
                               byref(out), allowed=(0,) if good else (0, *(r for r in Result if r < 0)))
            address, message = out.value, self.library.message()
        words = f"{block}: an import {'by the peer' if by_peer else 'at home'} gave {result_name(result)}: {message}"
        imported = any(i is not None and i.block is block and i.by_peer == by_peer for i in self.imports)
        if result != 0:
            require(address is None, "{} and an address", words)
            require(not (block.live and block.state == State.ACTIVE and block.pauses == pauses), words)
            if not block.live:
                require(result in (Result.PEER_GONE, Result.REVOKED), words)
            return
        require(block.live or imported, "{} though the block was freed", words)
        require(by_peer or address == block.address + offset, "{} and another address", words)
        self.imports[slot % IMPORTS] = made = Import(block, offset, address, by_peer)
        if by_peer:
            require(block.state == State.ACTIVE, "{} though the block is paused", words)
            block.peer_imports += 1
            self.check_imports()
        else:
            block.own_imports += 1
            require(made.address == block.address + offset, "{}", words)

    def do_peer_write(self, slot, value):
        i = self.imports[self.filled(self.imports, slot)]
        if i is None or not i.by_peer or i.revoked or i.block.sealed:
            return
        self.settle(i.block)
        size = i.block.size - i.offset
        result, message = self.ask("fill", i.address, value, size)
        require(result == 0, "{}: the peer's fill gave {}: {}", i.block, result_name(result), message)
        i.block.contents.put(i.offset, i.block.size, ("byte", value))
        result, _ = self.ask("fill", i.address, value, size + 1)
        require(result == Result.INVALID_SIZE, "{}: the peer's fill past the end gave {}", i.block,
                result_name(result))

    def do_close(self, slot):
        slot = self.filled(self.imports, slot)
        i = self.imports[slot]
        if i is None:
            return
        self.settle(i.block)
        self.imports[slot] = None
        if i.by_peer:
            result, message = self.ask("close", i.address)
            require(result == 0, "{}: the peer's gmm_ipc_close gave {}: {}", i.block, result_name(result), message)
            i.block.peer_imports -= 1
            return
        self.call("ipc_close", self.context, i.address, begun=True)
        i.block.own_imports -= 1
        if not i.block.live and not i.block.own_imports:
            self.ghosts.remove(i.block)

    def do_kill_peer(self):
        if self.peer_lives:
            self.ask(None)
            self.peer_lives = False
            for slot, i in enumerate(self.imports):
                if i is not None and i.by_peer:
                    self.imports[slot] = None
                    i.block.peer_imports -= 1

    # --- Steps: the whole context -----------------------------------------------------------------------------------

    def idle(self):
        """Nothing is live or imported, so a trim gives everything back."""
        return not self.live() and not self.ghosts and not self.deferred and not any(
            i is not None for i in self.imports)

    def do_trim(self, tag):
        scope = None if tag >= TAGS else ScopeDesc(flags=SCOPE_TAG, tag=self.tags[tag].number)
        self.call("trim", self.context, byref(scope) if scope else None, None,
                  allowed=(1,) if self.deferred else (0,), begun=True)
        if scope is None and self.idle():
            self.check_nothing()
        elif scope is None and not self.deferred and not self.ghosts and not any(
                b.state != State.ACTIVE for b in self.live()) and not any(i is not None for i in self.imports):
            info, backups = self.stats(), BackupInfo()
            self.must("backup_query", self.context, byref(backups))
            require(info.paused_bytes == 0, "no live block is paused, and after a trim {} bytes are",
                    info.paused_bytes)
            if not any(tag.flags & READ_ONLY for tag in self.tags):
                left = backups.arena_bytes + backups.pageable_bytes + backups.file_bytes + backups.zero_bytes
                require(left == 0, "no live block is paused, and after a trim backups hold {} bytes", left)

    def do_compact(self, heap, reserve, scope, budget):
        """With a reserve of one heap meanwhile: then there is free memory that moves."""
        own, bytes_, info = self.heaps[heap % HEAPS], (0, 4, 16, 40)[reserve % 4] * MIB, CompactInfo()
        most = (0, 2, 8, 0)[budget % 4] * MIB
        if own is not None and own["kind"] == Kind.VMM and bytes_:
            self.call("heap_reserve", own["handle"], bytes_, allowed=(0, *self.may_lack(own["tag"], own["device"])))
        desc = CompactDesc(flags=COMPACT_LIVE if budget >= 4 else 0, max_bytes=most,
                           max_us=50 if budget % 4 == 3 else 0)
        within = None if scope >= TAGS else ScopeDesc(flags=SCOPE_TAG, tag=self.tags[scope].number)
        result = self.call("compact", self.context, byref(within) if within else None, byref(desc), byref(info),
                           allowed=(0, 1), begun=True)
        if result >= 0:
            done = info.moved_bytes + info.released_bytes
            require((done == 0) == (result == 1), "gmm_compact gave {} and did {} bytes", result, done)
            require(most == 0 or done <= most, "{} bytes were moved or given back, {} were allowed", done, most)
            require(not self.deferred or done == 0, "{} bytes were moved or given back inside of a deferral", done)
        if own is not None:
            self.call("heap_reserve", own["handle"], 0)

    def do_defer(self, begin):
        if begin and self.deferred < 2:
            self.call("defer_begin", self.context)
            self.deferred += 1
        elif not begin and self.deferred:
            self.call("defer_end", self.context, begun=True)
            self.deferred -= 1

    def do_limit(self, scope, tag, device, limit):
        limit, tag, device = LIMITS[limit % len(LIMITS)], self.tags[tag % TAGS].number, device % self.devices
        desc, key = [(None, (0, 0, 0)), (ScopeDesc(flags=SCOPE_TAG, tag=tag), (SCOPE_TAG, tag, 0)),
                     (ScopeDesc(flags=SCOPE_DEVICE, device=device), (SCOPE_DEVICE, 0, device))][scope % 3]
        self.call("limit_set", self.context, byref(desc) if desc else None, limit)
        if limit == NONE:
            self.limits.pop(key, None)
        else:
            self.limits[key] = max(limit, self.stats(desc).reserved_bytes)

    def do_decommit(self, milliseconds):
        self.call("context_set_decommit", self.context, milliseconds or NONE)

    def do_reset(self):
        if self.ghosts or any(i is not None and not i.by_peer for i in self.imports) or self.deferred:
            return
        busy = any(i is not None and not i.revoked for i in self.imports)
        if busy:
            self.refused("reset", (Result.BUSY,), self.context)
            return
        for block in self.live():
            self.settle(block)
        self.soon("reset", self.context)
        for slot, block in enumerate(self.blocks):
            if block is not None:
                block.live = False
                self.freed = self.freed[-20:] + [block]
                self.blocks[slot] = None
        self.recount()

    def do_fork(self):
        """In the child the context is the parent's; on the host backend it may have one of its own."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                out, info = c_void_p(), PointerInfo()
                wrong = [self.library.alloc(self.context, 100, None, byref(out)),
                         self.library.query(self.context, 1, byref(info)),
                         self.library.trim(self.context, None, None), self.library.reset(self.context),
                         self.library.context_release(self.context)]
                code = 2
                if all(result == Result.FORKED for result in wrong):
                    code = 3
                    if self.library.fake is not None or self.try_context():
                        code = 0
            finally:
                os._exit(code)
        end = time.monotonic() + SOON_S
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise Failed("a forked child is stuck")
            time.sleep(0.0005)
        require(status == 0, "a forked child ended with status {} (256: an exception, 512: not FORKED, 768: its own "
                "context)", status)

    def try_context(self):
        context, out = c_void_p(), c_void_p()
        if self.library.context_create(None, byref(context)) != 0:
            return False
        for kind in Kind:
            desc = AllocDesc(kind=kind)
            good = (self.library.alloc(context, 10_000, byref(desc), byref(out)) == 0 and
                    self.library.fill(context, out, 7, 10_000, None) == 0 and
                    self.library.stream_synchronize(context, None) == 0 and
                    self.library.free(context, out, None) == 0)
            if not good:
                return False
        return self.library.context_release(context) == 0

    def do_check(self):
        self.check_all()

    # --- Steps: what fails during the next call ---------------------------------------------------------------------

    def do_fail(self, k, memory):
        """The kth call of the driver fails."""
        if self.library.fake is not None:
            self.armed = ("driver", k, 2 if memory else 999)

    def do_refuse(self, k):
        """The kth request to the host allocator is refused."""
        self.armed = ("host", k)

    def do_exhaust(self, files, amount):
        """Descriptors or the size of files run out."""
        self.armed = ("files", amount) if files else ("file size", amount * 700 * KIB)

    # --- The end ----------------------------------------------------------------------------------------------------

    def finish(self):
        self.armed = None
        self.check_all()
        if not self.leave:
            for slot in range(IMPORTS):
                self.do_close(slot=slot)
            while self.deferred:
                self.do_defer(begin=False)
            for key in list(self.limits):
                flags, tag, device = key
                self.must("limit_set", self.context, byref(ScopeDesc(flags=flags, tag=tag, device=device)), NONE)
                self.limits.pop(key)
            for slot in range(SLOTS):
                self.do_free(slot=slot, stream=slot, thread=0, try_first=False, checked=False)
            self.do_end_thread()
            self.check_stats()
            self.do_trim(tag=TAGS)
            for number, heap in enumerate(self.heaps):
                if heap is not None:
                    self.do_heap(number=number, kind=1, device=0, tag=0)
            for number in range(1, STREAMS):
                if self.streams[number] is not None:
                    self.do_stream(number=number - 1, device=0)
            if self.short:
                self.take_nearly_all()
        self.do_end_thread()
        result = self.library.context_release(self.context)
        require(result == 0, "gmm_context_release gave {}: {}", result_name(result), self.library.message())
        if self.peer_lives:
            self.ask("end")
            self.peer_lives = False
        check_end(self.library, self.before, "the process")

    def take_nearly_all(self):
        """What ran out is there again."""
        for kind in (Kind.VMM, Kind.DEVICE):
            out, size = c_void_p(), self.memory * 3 // 4 // PAGE * PAGE
            desc = AllocDesc(kind=kind, device=self.devices - 1)
            result = self.library.alloc(self.context, size, byref(desc), byref(out))
            require(result == 0, "nothing is live, and {} of {} bytes of {} cannot be had: {}: {}", size, self.memory,
                    kind.name, result_name(result), self.library.message())
            self.must("free", self.context, out, None)
            self.must("trim", self.context, None, None)
