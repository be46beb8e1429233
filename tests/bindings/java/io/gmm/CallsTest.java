/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import static io.gmm.Tap.check;
import static io.gmm.Tap.fails;
import static io.gmm.Tap.same;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Each call of the binding once: its arguments reach C, and its answer comes back. The promises of the library are
 * tested in tests/api.
 */
final class CallsTest {
    static final int MIB = 1 << 20;

    private final Context context = Context.open(options());
    private final DeviceInfo device = context.device(0);

    private CallsTest() {}

    public static void main(String[] arguments) {
        CallsTest calls = new CallsTest();
        Tap tap = new Tap();
        tap.test("version", calls::version);
        tap.test("context and device", calls::context);
        tap.test("buffers", calls::buffers);
        tap.test("options of an allocation", calls::allocOptions);
        tap.test("errors", calls::errors);
        tap.test("heap", calls::heap);
        tap.test("stream and event", calls::stream);
        tap.test("pin", calls::pin);
        tap.test("residency", calls::residency);
        tap.test("tags", calls::tags);
        tap.test("pause and resume", calls::pause);
        tap.test("backups", calls::backups);
        tap.test("ipc", calls::ipc);
        tap.test("file descriptors", calls::fd);
        tap.test("legacy handle", calls::legacy);
        tap.test("limits and statistics", calls::statistics);
        tap.test("snapshot and blocks", calls::snapshot);
        tap.test("trace", calls::trace);
        tap.test("trim, defer, compact and decommit", calls::trim);
        tap.test("options of a context", calls::contextOptions);
        tap.test("an answer of another release", calls::otherRelease);
        tap.test("reset", calls::reset);
        tap.test("close", calls::close);
        tap.finish();
    }

    /** The backend that GMM_BACKEND names; the host's with two devices when it names none. */
    static ContextOptions options() {
        String backend = System.getenv("GMM_BACKEND");
        ContextOptions options = new ContextOptions();
        if (backend == null || backend.equals("host")) {
            options.backend(Backend.HOST).hostDevices(2).hostMemory(1L << 30);
        }
        return options;
    }

    static void need(boolean capability, String what) {
        if (!capability) {
            throw new Tap.Skip("this device has no " + what);
        }
    }

    /** Bytes that count up from 1. */
    static byte[] pattern(int size) {
        byte[] bytes = new byte[size];
        for (int i = 0; i < size; i++) {
            bytes[i] = (byte) (i + 1);
        }
        return bytes;
    }

    static void sameBytes(byte[] expected, byte[] got, String what) {
        int at = Arrays.mismatch(expected, got);
        check(at < 0, what + ": differs at byte " + at);
    }

    private void version() {
        same(Context.interfaceVersion(), Context.version().split("-")[0], "the version");
    }

    private void context() {
        ContextInfo info = context.info();
        boolean host = info.backend() == Backend.HOST;
        same(host ? "host" : "cuda", info.backendName(), "the backend's name");
        check(info.deviceCount() >= 1 && !info.driverVersion().isEmpty(), "devices and driver");
        check(!device.name().isEmpty() && device.granularity() > 0, "name and granularity");
        check(device.freeMemory() <= device.totalMemory() && device.budgetBytes() > 0, "memory");
        same(16, device.uuid().length, "bytes of the uuid");
        same(8, device.luid().length, "bytes of the luid");
        check(device.has(Kind.DEVICE) && device.kinds() != 0, "kinds");
        same(host, device.isCpu(), "whether it is the host");
        same((device.capabilities() & 1) != 0, device.canPause(), "a capability");
    }

    private void buffers() throws Exception {
        for (Kind kind : new Kind[] {Kind.DEVICE, Kind.HOST}) {
            try (GmmBuffer buffer = context.alloc(MIB, kind); GmmBuffer other = context.alloc(MIB, kind)) {
                buffer.fill(0x5A);
                same((byte) 0x5A, buffer.read(MIB - 1, 1)[0], "a byte of the fill");
                buffer.write(100, pattern(1000));
                other.copyFrom(0, buffer, 100, 1000, Stream.DEFAULT);
                sameBytes(pattern(1000), other.read(0, 1000), "what was written and copied");
                fails(IndexOutOfBoundsException.class, () -> buffer.read(MIB - 7, 8));
                if (buffer.query().hostAccessible()) {
                    ByteBuffer bytes = buffer.bytes();
                    same(MIB, bytes.capacity(), "the view's size");
                    same(ByteOrder.nativeOrder(), bytes.order(), "the view's order");
                    buffer.slice(200, 8).putLong(0, 0x0102030405060708L);
                    same(0x0102030405060708L, bytes.getLong(200), "a long through two views");
                    fails(IndexOutOfBoundsException.class, () -> buffer.slice(MIB - 7, 8));
                } else {
                    fails(Result.NOT_SUPPORTED, buffer::bytes);
                }
            }
        }
    }

    private void allocOptions() {
        Tag tag = context.tag("options");
        AllocOptions options = new AllocOptions().kind(Kind.VMM).device(0).tag(tag).alignment(MIB).zero().dedicated();
        try (GmmBuffer buffer = context.alloc(3 * MIB, options.name("named"))) {
            PointerInfo info = context.query(buffer.address() + 5);
            same(Kind.VMM, info.kind(), "the kind");
            same(buffer.address(), info.base(), "the base");
            same(3L * MIB, info.size(), "the size");
            check(info.reservedSize() >= info.size() && info.allocationBase() == info.base(), "a dedicated allocation");
            same(tag.number(), info.tag(), "the tag");
            same(State.ACTIVE, info.state(), "the state");
            same(0L, buffer.address() % MIB, "the alignment");
            sameBytes(new byte[3 * MIB], buffer.read(0, 3 * MIB), "zeros");
        }
        try (GmmBuffer buffer = context.alloc(MIB, new AllocOptions().comm())) {
            check(buffer.kind() == Kind.VMM && buffer.query().comm(), "memory for networks");
        }
        same(State.UNKNOWN, context.query(0).state(), "null");
    }

    private void errors() throws Exception {
        fails(Result.INVALID_SIZE, () -> context.alloc(0));
        fails(Result.INVALID_DEVICE, () -> context.alloc(MIB, new AllocOptions().device(99)));
        fails(Result.INVALID_TAG, () -> context.alloc(MIB, new AllocOptions().tag(context.tagByNumber(3999))));
        long address = context.allocate(MIB, new AllocOptions());
        GmmException error = fails(Result.INTERIOR_POINTER, () -> context.free(address + 16, Stream.DEFAULT));
        check(error.toString().contains("GMM_ERROR_INTERIOR_POINTER (-14"), "the text: " + error);
        context.free(address, Stream.DEFAULT);
        fails(Result.ALREADY_FREED, () -> context.free(address, Stream.DEFAULT));
        context.free(0, Stream.DEFAULT);
    }

    private void heap() throws Exception {
        Heap heap = context.heap(new HeapOptions().kind(Kind.VMM).minimumExtent(4 * MIB).limit(64 * MIB));
        long block = heap.allocate(MIB, Stream.DEFAULT);
        same(Kind.VMM, context.query(block).kind(), "the kind");
        fails(Result.LIMIT_EXCEEDED, () -> heap.alloc(65 * MIB));
        context.free(block, Stream.DEFAULT);
        heap.reserve(16 * MIB);
        check(context.statistics().reservedBytes() >= 16 * MIB, "the reserve is held");
        fails(IllegalArgumentException.class, () -> heap.reserve(-1));
        GmmBuffer buffer = heap.alloc(MIB, Stream.DEFAULT, "in a heap"); // it keeps the heap
        heap.close();
        buffer.fill(7);
        same((byte) 7, buffer.read(MIB - 1, 1)[0], "a byte in a closed heap");
        buffer.close();
        fails(IllegalStateException.class, () -> heap.alloc(MIB));
    }

    private void stream() {
        try (Stream first = context.stream(0); Stream second = context.stream(0); Event event = context.event(0)) {
            check(event.query(), "an event that was never recorded has passed");
            AtomicBoolean flag = new AtomicBoolean();
            AtomicBoolean seen = new AtomicBoolean();
            first.call(() -> {
                Tap.unchecked(() -> Thread.sleep(50));
                flag.set(true);
            });
            event.record(first);
            second.waitFor(event);
            second.call(() -> seen.set(flag.get()));
            second.synchronize();
            check(seen.get() && event.query(), "the second stream ran after the first");
            event.synchronize();
            GmmBuffer buffer = context.alloc(MIB, new AllocOptions().stream(first));
            buffer.fill(0, MIB, 3, first);
            buffer.recordUse(second);
            buffer.close(second);
            context.forget(Stream.of(first.address()));
            context.synchronize(Stream.DEFAULT);
        }
    }

    private void pin() throws Exception {
        need(device.canPin(), "pinning");
        ByteBuffer memory = ByteBuffer.allocateDirect(4 * MIB);
        Pin first = context.pin(memory);
        long address = first.address();
        check(first.devicePointer() != 0, "a device pointer");
        same(State.PINNED, context.query(address).state(), "the state");
        try (Pin second = context.pin(address, 4 * MIB, 0, false)) {
            first.close();
            same(State.PINNED, context.query(address).state(), "the state after one of two unpins");
        }
        fails(Result.NOT_PINNED, () -> Native.gmm_unpin(context.address(), address));
        fails(IllegalArgumentException.class, () -> context.pin(ByteBuffer.allocate(64)));
    }

    private void residency() throws Exception {
        need(device.has(Kind.MANAGED), "managed memory");
        try (GmmBuffer buffer = context.alloc(4 * MIB, Kind.MANAGED); Stream stream = context.stream(0)) {
            buffer.write(0, pattern(4 * MIB));
            buffer.advise(Advice.SET_PREFERRED_LOCATION, 0);
            buffer.prefetch(Context.HOST_LOCATION, stream);
            buffer.move(Context.HOST_LOCATION);
            buffer.move(0, new MoveOptions().stream(stream).nonBlocking());
            stream.synchronize();
            sameBytes(pattern(4 * MIB), buffer.read(0, 4 * MIB), "the contents");
        }
        try (GmmBuffer buffer = context.alloc(MIB, Kind.HOST)) {
            fails(Result.INVALID_KIND, () -> buffer.advise(Advice.SET_READ_MOSTLY, 0));
        }
    }

    private void tags() throws Exception {
        Tag tag = context.tag("Ünïcödé \uD83D\uDE00",
            new TagOptions().contents(Contents.HOST).priority(-3).readOnly().pageable());
        PauseInfo info = tag.info();
        same("Ünïcödé \uD83D\uDE00", info.name(), "the name");
        check(info.contents() == Contents.HOST && info.priority() == -3 && info.readOnly() && info.pageable()
            && !info.checksum(), "the options: " + info);
        same(tag.number(), context.findTag(info.name()).number(), "the tag that was found");
        fails(Result.INVALID_TAG, () -> context.findTag("no such tag"));
        tag.update(new TagOptions());
        check(!tag.info().readOnly() && tag.info().contents() == Contents.DROP, "the update");
        for (int i = 0; i < 20; i++) { // more than the first list has room for
            context.tag("tag " + i);
        }
        same(1, context.tags().get(0).number(), "the first of the tags");
        check(context.tags().stream().anyMatch(each -> each.info().name().equals("tag 19")), "the last of the tags");
        try (Tag.Scope scope = tag.push()) {
            same(tag.number(), tagOfNewBlock(), "the tag that was pushed");
            AtomicBoolean bad = new AtomicBoolean();
            Thread other = new Thread(() -> Tap.unchecked(() -> fails(IllegalStateException.class, scope::close)));
            other.setUncaughtExceptionHandler((thread, error) -> bad.set(true));
            other.start();
            other.join();
            check(!bad.get(), "a scope cannot be closed on another thread");
        }
        context.setProcessDefaultTag(tag);
        same(tag.number(), tagOfNewBlock(), "the default tag");
        context.setProcessDefaultTag(context.defaultTag());
        same(1, tagOfNewBlock(), "the tag at last");
        context.tag("destroyed").destroy();
        fails(Result.INVALID_TAG, () -> context.findTag("destroyed"));
    }

    private int tagOfNewBlock() {
        try (GmmBuffer buffer = context.alloc(MIB, Kind.VMM)) {
            return buffer.query().tag();
        }
    }

    private void pause() throws Exception {
        need(device.canPause(), "pausing");
        Tag tag = context.tag("paused", Contents.HOST, 0);
        AllocOptions options = new AllocOptions().kind(Kind.VMM).tag(tag).dedicated();
        try (GmmBuffer first = context.alloc(4 * MIB, options); GmmBuffer second = context.alloc(4 * MIB, options)) {
            first.write(0, pattern(4 * MIB));
            long paused = context.pause(tag);
            check(paused >= 8 * MIB, "bytes that went back: " + paused);
            same(0L, tag.pause(), "the bytes of a second pause");
            fails(Result.PAUSED, first::bytes);
            same(paused, tag.info().pausedBytes(), "paused bytes");
            long back = first.resume();
            check(back > 0 && back < paused, "bytes of a part: " + back);
            same(State.PARTLY_PAUSED, tag.info().state(), "the state");
            check(first.waitReady(1, TimeUnit.SECONDS) && !second.waitReady(20, TimeUnit.MILLISECONDS), "readiness");
            same(paused - back, tag.resume(), "the rest");
            sameBytes(pattern(4 * MIB), first.read(0, 4 * MIB), "the contents");
            try (Tag.Paused scope = tag.paused()) {
                same(paused, scope.bytes(), "bytes of a scope");
            }
            same(State.ACTIVE, first.query().state(), "the state");
            context.pauseForced(tag);
            tag.resume(new PauseOptions());
            fails(Result.UNKNOWN_POINTER, () -> context.resumeRange(16, 4096));
            fails(Result.INVALID_FLAGS, () -> tag.resume(new PauseOptions().force()));
        }
    }

    private void backups() throws Exception {
        need(device.canPause(), "pausing");
        Tag tag = context.tag("kept", Contents.HOST, 0);
        Path folder = Files.createTempDirectory("gmm-kept");
        try (GmmBuffer buffer = context.alloc(4 * MIB, new AllocOptions().kind(Kind.VMM).tag(tag))) {
            buffer.write(0, pattern(4 * MIB));
            fails(Result.INVALID_VALUE, () -> buffer.backup(0, 16));
            context.prepareBackup(0, 4 * MIB);
            check(context.backupInfo().arenaBytes() >= 4 * MIB, "the arena that was prepared");
            tag.pause();
            sameBytes(pattern(1000), buffer.backup(0, 1000), "the kept contents");
            check(buffer.backupView(0, 4 * MIB).isReadOnly(), "a view of them");
            tag.resume(new PauseOptions().retain());
            sameBytes(pattern(1000), buffer.backup(0, 1000), "the retained contents");
            context.setBackup(new BackupOptions().directory(folder.toString()).namedFiles().noArena().threads(1));
            tag.pause(new PauseOptions().contents(Contents.FILE));
            same(4L * MIB, tag.info().backupFileBytes(), "contents in a file");
            same(1, folder.toFile().list().length, "files with names");
            same(4L * MIB, tag.discardBackup(), "bytes that were kept");
            tag.resume();
            tag.pause(new PauseOptions().contents(Contents.DROP));
            same(0L, tag.info().backupHostBytes(), "kept against the tag");
            tag.resume();
            fails(Result.IO, () -> context.setBackup(new BackupOptions().directory("/nowhere/at/all")));
            fails(IllegalArgumentException.class, () -> context.setBackup(new BackupOptions().directory("a\0b")));
        } finally {
            context.setBackup(null);
            context.trim();
            Files.delete(folder);
        }
    }

    private void ipc() throws Exception {
        try (GmmBuffer buffer = context.alloc(MIB, Kind.VMM)) {
            need(buffer.query().fdIpc() || buffer.query().legacyIpc(), "IPC");
            byte[] before = pattern(MIB - 4096);
            buffer.write(4096, before);
            Child.run(context.exportHandle(buffer.address() + 4096), "import", Integer.toString(MIB - 4096));
            for (int i = 0; i < before.length; i++) {
                before[i] = (byte) ~before[i];
            }
            sameBytes(before, buffer.read(4096, before.length), "what the second process wrote");
            same(Context.IPC_HANDLE_SIZE, buffer.exportHandle().length, "bytes of a handle");
        }
        fails(Result.IPC_INVALID_HANDLE, () -> context.importMemory(new byte[Context.IPC_HANDLE_SIZE]));
        fails(IllegalArgumentException.class, () -> context.importMemory(new byte[10]));
        fails(IllegalArgumentException.class, () -> context.importMemory(null));
        try (Stream stream = context.stream(0); Event event = context.ipcEvent(0); Event plain = context.event(0)) {
            event.record(stream);
            try (Event imported = context.importEvent(event.exportHandle(), 0, 0)) {
                stream.waitFor(imported);
                imported.synchronize();
                check(imported.query(), "the event has passed");
            }
            fails(Result.INVALID_HANDLE, plain::exportHandle);
        }
        fails(Result.BUSY, () -> context.configureIpc(new IpcOptions().directory(Paths.get("/tmp"))));
        try (Context other = Context.open(Backend.HOST)) {
            fails(Result.INVALID_VALUE, () -> other.configureIpc(new IpcOptions().user(1))); // the list reaches C
            other.configureIpc(new IpcOptions());
        }
    }

    private void fd() throws Exception {
        need(device.canExportFd(), "file descriptors of memory");
        try (GmmBuffer buffer = context.alloc(MIB, new AllocOptions().kind(Kind.VMM).dedicated())) {
            ExportedFd exported = buffer.exportFd();
            check(exported.size() >= exported.offset() + MIB, "the allocation holds the block");
            FdType type = device.isCpu() ? FdType.FILE : FdType.OPAQUE;
            try (GmmBuffer again = context.importFd(exported.fd(), type, exported.size(), 0)) {
                same(exported.size(), again.size(), "the size of the import");
                buffer.write(0, pattern(MIB));
                sameBytes(pattern(MIB), again.read(exported.offset(), MIB), "the contents, through the import");
                fails(UnsupportedOperationException.class, () -> again.close(Stream.DEFAULT));
            }
            exported.close();
            exported.close();
            fails(IllegalStateException.class, exported::fd);
            ExportedFd taken = buffer.exportFd(FdType.DEFAULT);
            Native.closeDescriptor(taken.detach());
            fails(IllegalStateException.class, taken::detach);
        }
    }

    private void legacy() throws Exception {
        try (GmmBuffer buffer = context.alloc(MIB, Kind.DEVICE)) {
            if (buffer.query().legacyIpc()) {
                LegacyHandle handle = buffer.exportLegacy();
                same(LegacyHandle.SIZE, handle.bytes().length, "bytes of the handle");
                check(handle.size() >= handle.offset() + MIB, "the allocation holds the block");
            } else {
                fails(Result.NOT_SUPPORTED, buffer::exportLegacy);
            }
        }
    }

    private void statistics() throws Exception {
        Tag tag = context.tag("counted");
        Scope scope = new Scope().device(0).tag(tag).kind(Kind.VMM);
        try (GmmBuffer tagged = context.alloc(MIB, new AllocOptions().kind(Kind.VMM).tag(tag));
             GmmBuffer other = context.alloc(MIB, Kind.HOST)) {
            same(1L, context.statistics(scope).liveBlocks(), "blocks of the scope");
            same(1L, context.statistics(new Scope().tag(tag)).liveBlocks(), "blocks of the tag");
            check(context.statistics().liveBytes() >= 2 * MIB, "bytes of the context");
        }
        context.setLimit(new Scope().tag(tag), 2 * MIB);
        same(2L * MIB, context.statistics(new Scope().tag(tag)).limitBytes(), "the limit");
        fails(Result.LIMIT_EXCEEDED, () -> context.alloc(64 * MIB, new AllocOptions().kind(Kind.VMM).tag(tag)));
        context.setLimit(new Scope().tag(tag), Context.NO_LIMIT);
        same(Context.NO_LIMIT, context.statistics(new Scope().tag(tag)).limitBytes(), "no limit");
    }

    private void snapshot() throws Exception {
        try (GmmBuffer buffer = context.alloc(1234567, new AllocOptions().kind(Kind.VMM).name("Gr\u00f6\u00dfe"))) {
            String text = context.snapshot();
            check(text.contains("\"gmm-snapshot\"") && text.contains("\"Gr\u00f6\u00dfe\""), "a snapshot");
            List<BlockInfo> blocks = context.blocks(new Scope().kind(Kind.VMM));
            BlockInfo found =
                blocks.stream().filter(each -> each.address() == buffer.address()).findAny().orElseThrow();
            check(found.size() == 1234567 && found.kind() == Kind.VMM && found.state() == State.ACTIVE
                && found.name().equals("Gr\u00f6\u00dfe"), "the block: " + found);
            buffer.setName(null);
            check(!context.snapshot().contains("Gr\u00f6\u00dfe"), "no name");
            context.name(buffer.address() + 1, "inside");
            check(context.snapshot().contains("\"inside\""), "a name by an address");
            long before = context.statistics().liveBlocks();
            fails(Result.INVALID_VALUE, () -> context.alloc(MIB, new AllocOptions().name("n".repeat(64))));
            same(before, context.statistics().liveBlocks(), "a block whose name is refused is freed");
        }
    }

    private void trace() throws Exception {
        Path file = Files.createTempFile("gmm-trace-", ".trace");
        context.traceBegin(file.toString());
        context.alloc(123456, Kind.VMM).close();
        context.traceEnd();
        check(new String(Files.readAllBytes(file), 0, 8).equals("gmmtrace"), "the first bytes of the trace");
        Files.delete(file);
        fails(Result.UNBALANCED, context::traceEnd);
    }

    private void trim() throws Exception {
        context.alloc(64 * MIB, Kind.VMM).close();
        try (Context.Deferral deferral = context.defer()) {
            same(0L, context.trim(), "a trim inside a deferral");
            check(context.statistics().cachedBytes() >= 64 * MIB, "cached bytes");
            deferral.close();
        }
        check(context.statistics().cachedBytes() < 64 * MIB, "the deferred trim");
        context.alloc(64 * MIB, Kind.VMM).close();
        check(context.trim(new Scope().kind(Kind.VMM)) >= 64 * MIB, "bytes that went back");
        check(context.compact().movedBytes() >= 0, "a compaction");
        same(0L, context.compact(new Scope().kind(Kind.VMM),
            new CompactOptions().maxBytes(MIB).maxMicros(1000).live()).releasedBytes(), "nothing to release");
        context.setDecommitAfterMillis(10000);
        same(10000L, context.info().decommitAfterMillis(), "the time");
        context.setDecommitAfterMillis(Context.DECOMMIT_NEVER);
        same(Context.DECOMMIT_NEVER, context.info().decommitAfterMillis(), "never");
    }

    private void contextOptions() {
        ContextOptions all = options().noCapture().noLeakReport().strictHost().decommitAfterMillis(5000);
        try (Context other = Context.open(all); GmmBuffer buffer = other.alloc(MIB, Kind.DEVICE)) {
            same(5000L, other.info().decommitAfterMillis(), "the time");
            check(other.info().noCapture() && other.info().noLeakReport() && other.info().strictHost(), "the flags");
            same(false, buffer.query().hostAccessible(), "whether the host may use its memory");
        }
    }

    /** An older library's answer is shorter, and a newer one's has enumerators without a name here. */
    private void otherRelease() {
        byte[] bytes = BlockInfo.bytesForC();
        ByteBuffer.wrap(bytes).order(ByteOrder.nativeOrder()).putInt(4, 99).putInt(8, 7);
        BlockInfo info = new BlockInfo(Arrays.copyOf(bytes, 16));
        same(null, info.kind(), "an unknown kind");
        same(7, info.device(), "the device");
        same("", info.name(), "what is missing");
        same(Result.UNKNOWN, Result.of(-12345), "an unknown result");
    }

    private void reset() throws Exception {
        GmmBuffer buffer = context.alloc(MIB, Kind.VMM);
        context.reset();
        same(0L, context.statistics().liveBlocks(), "live blocks");
        fails(IllegalStateException.class, buffer::query);
        try (GmmBuffer next = context.alloc(MIB, Kind.VMM)) {
            buffer.close(); // does not free the block that has the old address now
            same(State.ACTIVE, next.query().state(), "the next block");
        }
    }

    private void close() throws Exception {
        GmmBuffer buffer = context.alloc(MIB);
        context.close();
        context.close();
        check(context.isClosed(), "closed");
        fails(IllegalStateException.class, context::info);
        buffer.fill(9);
        same((byte) 9, buffer.read(0, 1)[0], "a buffer keeps its context");
        buffer.close();
        fails(IllegalStateException.class, buffer::address);
    }
}
