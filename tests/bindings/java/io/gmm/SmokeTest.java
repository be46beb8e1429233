/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import static io.gmm.Tap.check;
import static io.gmm.Tap.fails;
import static io.gmm.Tap.same;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

/** The steps of tests/bindings/SMOKE.md, on the backend that GMM_BACKEND names; the host's when it names none. */
final class SmokeTest {
    private static final int MIB = 1 << 20;

    private Context context;
    private DeviceInfo device;
    private boolean host;

    public static void main(String[] arguments) {
        new SmokeTest().run();
    }

    static ContextOptions options() {
        String backend = System.getenv("GMM_BACKEND");
        ContextOptions options = new ContextOptions();
        if (backend == null || backend.equals("host")) {
            options.backend(Backend.HOST).hostDevices(2).hostMemory(1L << 30);
        }
        return options;
    }

    private void run() {
        Tap tap = new Tap();
        tap.test("version", this::version);
        tap.test("context", this::context);
        if (context != null && device != null) {
            for (Kind kind : kinds()) {
                tap.test("alloc " + kind, () -> alloc(kind));
            }
            tap.test("zero", this::zero);
            tap.test("query", this::query);
            tap.test("errors", this::errors);
            tap.test("heap", this::heap);
            tap.test("stream", this::stream);
            tap.test("pin", this::pin);
            tap.test("residency", this::residency);
            tap.test("tag", this::tag);
            tap.test("pause", this::pause);
            PauseTest steps = new PauseTest(context);
            tap.test("progress", () -> pausing(steps::progress));
            tap.test("ticket", () -> pausing(steps::ticket));
            tap.test("range", () -> pausing(steps::range));
            tap.test("backup", () -> pausing(steps::backup));
            tap.test("read-only", () -> pausing(steps::readOnly));
            tap.test("retained", () -> pausing(steps::retained));
            tap.test("watch", () -> pausing(steps::watch));
            tap.test("closed inside a watcher", () -> pausing(steps::closedInside));
            tap.test("comm", () -> pausing(steps::comm));
            IpcTest sharing = new IpcTest(context, device);
            for (Kind kind : List.of(Kind.VMM, Kind.DEVICE, Kind.HOST)) {
                tap.test("ipc " + kind, () -> sharing.memory(kind));
            }
            tap.test("ipc garbage", sharing::garbage);
            tap.test("ipc event", sharing::event);
            tap.test("fd", sharing::fd);
            tap.test("legacy handle", sharing::legacy);
            tap.test("limit", this::limit);
            tap.test("out of memory", this::outOfMemory);
            tap.test("stats", this::stats);
            tap.test("snapshot", this::snapshot);
            tap.test("trace", this::trace);
            tap.test("trim and defer", this::trimAndDefer);
            tap.test("decommit", steps::decommit);
            tap.test("no capture", steps::noCapture);
            tap.test("log", this::log);
            tap.test("reset", this::reset);
            tap.test("close", this::close);
        }
        tap.finish();
    }

    private List<Kind> kinds() {
        List<Kind> kinds = new ArrayList<>();
        for (Kind kind : Kind.values()) {
            if (kind != Kind.UNSPECIFIED && device.has(kind)) {
                kinds.add(kind);
            }
        }
        return kinds;
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

    private static byte[] repeat(int value, int size) {
        byte[] bytes = new byte[size];
        Arrays.fill(bytes, (byte) value);
        return bytes;
    }

    static void sameBytes(byte[] expected, byte[] got, String what) {
        int at = Arrays.mismatch(expected, got);
        check(at < 0, what + ": differs at byte " + at);
    }

    private void version() {
        same(Context.interfaceVersion(), Context.version().split("-")[0], "the version");
        check(Context.version().matches("\\d+\\.\\d+\\.\\d+(-rc)?"), "the form of " + Context.version());
    }

    private void context() {
        context = Context.open(options());
        ContextInfo info = context.info();
        host = info.backend() == Backend.HOST;
        same(host ? "host" : "cuda", info.backendName(), "the backend's name");
        check(host ? info.deviceCount() == 2 : info.deviceCount() >= 1, "devices: " + info.deviceCount());
        check(!info.driverVersion().isEmpty(), "a driver version");
        DeviceInfo found = context.device(0);
        check(!found.name().isEmpty(), "a name");
        check(found.kinds() != 0 && found.granularity() > 0, "kinds and granularity");
        check(found.freeMemory() <= found.totalMemory() && found.totalMemory() > 0,
            "free " + found.freeMemory() + " of " + found.totalMemory());
        same(16, found.uuid().length, "bytes of the uuid");
        same(host, found.isCpu(), "whether it is the host");
        device = found;
    }

    private void alloc(Kind kind) {
        try (GmmBuffer buffer = context.alloc(MIB, kind)) {
            same(0L, buffer.address() % 256, "the alignment");
            buffer.fill(0x5A);
            sameBytes(repeat(0x5A, MIB), buffer.read(0, MIB), "the fill");
            buffer.write(100, pattern(1000));
            sameBytes(pattern(1000), buffer.read(100, 1000), "what was written");
            if (buffer.query().hostAccessible()) {
                ByteBuffer bytes = buffer.bytes();
                same(MIB, bytes.capacity(), "the view's size");
                same(java.nio.ByteOrder.nativeOrder(), bytes.order(), "the view's order");
                same((byte) 1, bytes.get(100), "a byte of the view");
                buffer.slice(200, 8).putLong(0, 0x0102030405060708L);
                same(0x0102030405060708L, bytes.getLong(200), "a long through two views");
                same(8, buffer.slice(MIB - 8, 8).capacity(), "the last slice");
                Tap.unchecked(() -> fails(IndexOutOfBoundsException.class, () -> buffer.slice(MIB - 7, 8)));
            }
        }
    }

    private void zero() {
        for (Kind kind : kinds()) {
            try (GmmBuffer dirty = context.alloc(MIB, kind)) {
                dirty.fill(0xFF);
            }
            try (GmmBuffer buffer = context.alloc(MIB, new AllocOptions().kind(kind).zero())) {
                sameBytes(new byte[MIB], buffer.read(0, MIB), "zeros of " + kind);
            }
        }
    }

    private void query() {
        try (GmmBuffer first = context.alloc(MIB, Kind.VMM); GmmBuffer second = context.alloc(MIB, Kind.VMM)) {
            for (GmmBuffer buffer : List.of(first, second)) {
                for (long offset : new long[] {0, 1, MIB / 2, MIB - 1}) {
                    PointerInfo info = context.query(buffer.address() + offset);
                    same(Kind.VMM, info.kind(), "the kind");
                    same(buffer.address(), info.base(), "the base");
                    same((long) MIB, info.size(), "the size");
                    check(info.reservedSize() >= MIB, "the reserved size");
                    same(0, info.device(), "the device");
                    same(context.defaultTag().number(), info.tag(), "the tag");
                    same(State.ACTIVE, info.state(), "the state");
                }
            }
            long past = Math.max(first.address(), second.address()) + MIB;
            PointerInfo info = context.query(past);
            check(info.state() != State.ACTIVE || info.base() == past, "one past the last block: " + info.state());
        }
        long foreign = Native.addressOf(ByteBuffer.allocateDirect(64));
        same(State.UNKNOWN, context.query(foreign).state(), "foreign memory");
        same(State.UNKNOWN, context.query(0).state(), "null");
    }

    private void errors() throws Exception {
        fails(Result.INVALID_SIZE, () -> context.alloc(0));
        try (GmmBuffer buffer = context.alloc(MIB)) {
            GmmException error =
                fails(Result.INTERIOR_POINTER, () -> context.free(buffer.address() + 16, Stream.DEFAULT));
            check(error.toString().contains("GMM_ERROR_INTERIOR_POINTER (-14"), "the text: " + error);
        }
        ByteBuffer foreign = ByteBuffer.allocateDirect(64);
        fails(Result.UNKNOWN_POINTER, () -> context.free(Native.addressOf(foreign), Stream.DEFAULT));
        fails(Result.INVALID_DEVICE, () -> context.alloc(MIB, new AllocOptions().device(99)));
        fails(Result.INVALID_TAG, () -> context.alloc(MIB, new AllocOptions().tag(context.tagByNumber(3999))));
        long address = context.allocate(MIB, new AllocOptions());
        context.free(address, Stream.DEFAULT);
        fails(Result.ALREADY_FREED, () -> context.free(address, Stream.DEFAULT));
        context.free(0, Stream.DEFAULT);
    }

    private void heap() throws Exception {
        Heap heap = context.heap(new HeapOptions().kind(Kind.VMM));
        long first = heap.allocate(MIB, Stream.DEFAULT);
        long second = heap.allocate(3 * MIB, Stream.DEFAULT);
        same(Kind.VMM, context.query(second).kind(), "the kind");
        long[] low = new long[1];
        Native.gmm_heap_create(context.address(), new HeapOptions().kind(Kind.VMM).encode(), low);
        long[] block = new long[1];
        Native.gmm_heap_alloc(low[0], MIB, 0, 0, 0, block);
        fails(Result.BUSY, () -> Native.gmm_heap_destroy(low[0]));
        context.free(block[0], Stream.DEFAULT);
        same(0, Native.gmm_heap_destroy(low[0]), "the destroy of an empty heap");
        context.free(first, Stream.DEFAULT);
        context.free(second, Stream.DEFAULT);
        heap.reserve(16 * MIB);
        same(true, context.statistics().reservedBytes() >= 16 * MIB, "the reserve is held");
        context.trim();
        same(true, context.statistics().reservedBytes() >= 16 * MIB, "a trim leaves the reserve");
        fails(IllegalArgumentException.class, () -> heap.reserve(-1));
        CompactInfo compacted = context.compact(null, 0, 0);
        same(true, compacted.largestFree() >= 16 * MIB, "the reserve is free in one piece");
        same(0L, compacted.movedBytes(), "what lies together is not moved");
        same(0L, context.compact(null, 0, 0, true).releasedBytes(), "a compaction with live blocks leaves the reserve");
        heap.reserve(0);
        // Buffers keep their heap: its end waits for them.
        GmmBuffer buffer = heap.alloc(MIB);
        heap.close();
        buffer.fill(7);
        sameBytes(repeat(7, MIB), buffer.read(0, MIB), "the block of a closed heap");
        buffer.close();
        heap.close();
        fails(IllegalStateException.class, () -> heap.alloc(MIB));
    }

    private void stream() {
        try (Stream first = context.stream(0); Stream second = context.stream(0); Event event = context.event(0)) {
            check(event.query(), "an event that was never recorded has passed");
            AtomicBoolean flag = new AtomicBoolean();
            AtomicBoolean seen = new AtomicBoolean();
            first.call(() -> {
                pause50();
                flag.set(true);
            });
            event.record(first);
            second.waitFor(event);
            second.call(() -> seen.set(flag.get()));
            second.synchronize();
            check(flag.get() && seen.get(), "the second stream ran after the first");
            check(event.query(), "the event has passed");
            event.synchronize();
            GmmBuffer buffer = context.alloc(MIB, new AllocOptions().stream(first));
            buffer.fill(0, MIB, 3, first);
            buffer.recordUse(second);
            buffer.close(second);
            first.synchronize();
            context.synchronize(Stream.DEFAULT);
        }
    }

    private static void pause50() {
        try {
            Thread.sleep(50);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private void pin() throws Exception {
        need(device.canPin(), "pinning");
        ByteBuffer memory = ByteBuffer.allocateDirect(4 * MIB);
        Pin first = context.pin(memory);
        long address = first.address();
        check(first.devicePointer() != 0, "a device pointer");
        same(State.PINNED, context.query(address).state(), "the state");
        Pin second = context.pin(memory);
        second.close();
        same(State.PINNED, context.query(address).state(), "the state after one of two unpins");
        first.close();
        first.close();
        same(State.UNKNOWN, context.query(address).state(), "the state after both");
        fails(Result.NOT_PINNED, () -> Native.gmm_unpin(context.address(), address));
        fails(IllegalArgumentException.class, () -> context.pin(ByteBuffer.allocate(64)));
    }

    private void residency() throws Exception {
        need(device.has(Kind.MANAGED), "managed memory");
        try (GmmBuffer buffer = context.alloc(4 * MIB, Kind.MANAGED); Stream stream = context.stream(0)) {
            long address = buffer.address();
            buffer.write(0, pattern(4 * MIB));
            buffer.advise(Advice.SET_PREFERRED_LOCATION, 0);
            buffer.prefetch(0, stream);
            buffer.prefetch(Context.HOST_LOCATION, stream);
            stream.synchronize();
            buffer.move(Context.HOST_LOCATION);
            buffer.move(0, stream, true);
            stream.synchronize();
            same(address, buffer.query().base(), "the address");
            sameBytes(pattern(4 * MIB), buffer.read(0, 4 * MIB), "the contents");
            buffer.advise(Advice.UNSET_PREFERRED_LOCATION, 0);
        }
        try (GmmBuffer buffer = context.alloc(MIB, Kind.HOST)) {
            fails(Result.INVALID_KIND, () -> buffer.advise(Advice.SET_READ_MOSTLY, 0));
        }
    }

    private void tag() throws Exception {
        Tag tag = context.tag("smoke", Contents.HOST, 3);
        same(tag.number(), context.findTag("smoke").number(), "the tag that was found");
        same(tag.number(), context.tag("smoke").number(), "the tag of the same name");
        fails(Result.INVALID_TAG, () -> context.findTag("no such tag"));
        same(1, context.tags().get(0).number(), "the first of the tags");
        check(context.tags().stream().anyMatch(listed -> listed.number() == tag.number()
            && listed.info().name().equals("smoke")), "the tag among the tags");
        fails(Result.INVALID_VALUE, () -> context.tag(""));
        GmmBuffer buffer;
        try (Tag.Scope scope = tag.push()) {
            buffer = context.alloc(MIB, Kind.VMM);
            Thread other = new Thread(() -> Tap.unchecked(() -> fails(IllegalStateException.class, scope::close)));
            AtomicBoolean bad = new AtomicBoolean();
            other.setUncaughtExceptionHandler((thread, error) -> bad.set(true));
            other.start();
            other.join();
            check(!bad.get(), "a scope cannot be closed on another thread");
        }
        same(tag.number(), buffer.query().tag(), "the tag of the block");
        try (GmmBuffer after = context.alloc(MIB, Kind.VMM)) {
            same(context.defaultTag().number(), after.query().tag(), "the tag after the pop");
        }
        buffer.close();
        Tag named = context.tag("Ünïcödé \uD83D\uDE00");
        same("Ünïcödé \uD83D\uDE00", named.info().name(), "the name of a tag");
    }

    private void pause() throws Exception {
        need(device.canPause(), "pausing");
        Tag tag = context.tag("smoke", Contents.HOST, 3);
        try (GmmBuffer buffer = context.alloc(8 * MIB, new AllocOptions().kind(Kind.VMM).tag(tag))) {
            long address = buffer.address();
            buffer.write(0, pattern(8 * MIB));
            long before = tag.info().pauses();
            long paused = tag.pause();
            check(paused >= 8 * MIB, "bytes that went back: " + paused);
            same(State.PAUSED, buffer.query().state(), "the state");
            fails(Result.PAUSED, () -> buffer.read(0, 16));
            fails(Result.PAUSED, buffer::bytes);
            same(0L, tag.pause(), "the bytes of a second pause");
            PauseInfo info = tag.info();
            same(before + 1, info.pauses(), "pauses");
            same(paused, info.pausedBytes(), "paused bytes");
            check(info.backupHostBytes() > 0, "contents kept in host memory");
            same(Contents.HOST, info.contents(), "contents");
            same(3, info.priority(), "priority");
            same(paused, tag.resume(), "bytes that came back");
            same(State.ACTIVE, buffer.query().state(), "the state");
            same(address, buffer.query().base(), "the address");
            sameBytes(pattern(8 * MIB), buffer.read(0, 8 * MIB), "the contents");
            same(0L, context.resume(), "the bytes of a second resume");
        }
    }

    private void pausing(Tap.Step step) throws Exception {
        need(device.canPause(), "pausing");
        step.run();
    }

    private void limit() throws Exception {
        need(context.info().deviceCount() > 1, "second device");
        Scope scope = new Scope().device(1);
        AllocOptions there = new AllocOptions().device(1);
        context.setLimit(scope, 64L * MIB);
        fails(Result.LIMIT_EXCEEDED, () -> context.alloc(128L * MIB, there));
        context.setLimit(scope, Context.NO_LIMIT);
        context.alloc(128L * MIB, there).close();
        fails(Result.INVALID_FLAGS, () -> context.setLimit(new Scope().kind(Kind.VMM), 1));
    }

    private void outOfMemory() throws Exception {
        need(host, "small memory: the step would fill a GPU");
        AllocOptions vmm = new AllocOptions().kind(Kind.VMM).device(1);
        long size = 700L * MIB;
        AtomicLong requested = new AtomicLong();
        AtomicInteger attempt = new AtomicInteger();
        GmmBuffer[] ballast = {context.alloc(size, vmm)};
        context.setOomHandler(info -> {
            requested.set(info.requestedBytes());
            attempt.compareAndSet(0, info.attempt());
            same(Kind.VMM, info.kind(), "the kind");
            same(1, info.device(), "the device");
            return false;
        });
        fails(Result.OUT_OF_MEMORY, () -> context.alloc(size, vmm));
        check(requested.get() >= size, "bytes requested: " + requested.get());
        same(1, attempt.get(), "the first attempt");
        context.setOomHandler(info -> {
            throw new IllegalArgumentException("from the handler");
        });
        same("from the handler", fails(IllegalArgumentException.class, () -> context.alloc(size, vmm)).getMessage(),
            "the exception of a handler");
        context.setOomHandler(info -> {
            boolean first = ballast[0] != null;
            if (first) {
                ballast[0].close();
                ballast[0] = null;
            }
            return first;
        });
        context.alloc(size, vmm).close();
        check(ballast[0] == null, "the handler was asked");
        context.setOomHandler(null);
        context.trim();
    }

    private void stats() {
        Tag tag = context.tag("counted");
        Statistics before = context.statistics();
        same(0L, context.statistics(new Scope().tag(tag)).liveBlocks(), "blocks of the tag before");
        try (GmmBuffer tagged = context.alloc(MIB, new AllocOptions().kind(Kind.VMM).tag(tag));
             GmmBuffer other = context.alloc(2 * MIB, Kind.HOST)) {
            Statistics now = context.statistics();
            same(before.liveBlocks() + 2, now.liveBlocks(), "live blocks");
            same(before.liveBytes() + 3 * MIB, now.liveBytes(), "live bytes");
            check(now.reservedBytes() >= now.liveBytes() && now.allocations() == before.allocations() + 2,
                "reserved bytes and allocations");
            Statistics scope = context.statistics(new Scope().tag(tag));
            same(1L, scope.liveBlocks(), "blocks of the tag");
            same((long) MIB, scope.liveBytes(), "bytes of the tag");
            check(context.statistics(new Scope().kind(Kind.HOST)).liveBytes() >= 2 * MIB, "bytes of HOST");
        }
        same(before.liveBlocks(), context.statistics().liveBlocks(), "live blocks after the frees");
        same(before.liveBytes(), context.statistics().liveBytes(), "live bytes after the frees");
    }

    private void snapshot() throws Exception {
        try (GmmBuffer buffer = context.alloc(1234567, Kind.VMM)) {
            String text = context.snapshot();
            check(text.startsWith("{") && text.trim().endsWith("}") && text.contains("\"gmm-snapshot\""),
                "a gmm-snapshot");
            check(text.replace(" ", "").contains("\"version\":1,"), "the version");
            String block = "\"address\":\"0x" + Long.toHexString(buffer.address()) + "\",\"size\":1234567,";
            check(text.contains(block), "the block's address and size");
            BlockInfo found = null;
            for (BlockInfo listed : context.blocks(new Scope().kind(Kind.VMM))) {
                found = listed.address() == buffer.address() ? listed : found;
            }
            check(found != null && found.size() == 1234567 && found.reservedSize() >= 1234567, "the block's sizes");
            check(found != null && found.kind() == Kind.VMM && found.state() == State.ACTIVE && found.tag() == 1
                && found.device() == 0 && found.name().isEmpty(), "the block's kind, state, tag and device");
            check(!context.blocks().isEmpty(), "the blocks of the context");
            same(0, context.blocks(new Scope().kind(Kind.MANAGED).tag(context.tag("no block"))).size(), "no blocks");
            fails(Result.IO, () -> context.snapshot(piece -> false));
            same("from the writer", fails(IllegalArgumentException.class, () -> context.snapshot(piece -> {
                throw new IllegalArgumentException("from the writer");
            })).getMessage(), "the exception of a writer");
        }
        names();
    }

    private void names() throws Exception {
        long before = context.statistics().liveBlocks();
        try (Heap heap = context.heap(new HeapOptions());
             GmmBuffer inHeap = heap.alloc(5000, Stream.DEFAULT, "Gr\u00f6\u00dfe");
             GmmBuffer buffer = context.alloc(MIB, new AllocOptions().name("weights"))) {
            String text = context.snapshot();
            check(text.contains("\"name\":\"Gr\u00f6\u00dfe\"") && text.contains("\"name\":\"weights\""),
                "the names of two blocks");
            buffer.setName("heads");
            context.name(buffer.address() + 1, "bodies");
            text = context.snapshot();
            check(text.contains("\"name\":\"bodies\"") && !text.contains("weights") && !text.contains("heads"),
                "a name that replaced others");
            buffer.setName(null);
            check(!context.snapshot().contains("bodies"), "no name");
            String tooLong = new String(new char[64]).replace('\0', 'n');
            fails(Result.INVALID_VALUE, () -> context.alloc(MIB, new AllocOptions().name(tooLong)));
            fails(Result.INVALID_VALUE, () -> heap.alloc(5000, Stream.DEFAULT, tooLong));
            same(before + 2, context.statistics().liveBlocks(), "live blocks");
            check(inHeap.address() != 0, "the buffer of the heap");
        }
        check(!context.snapshot().contains("\"name\""), "names of blocks that are free");
    }

    private void trace() throws Exception {
        Path file = Files.createTempFile("gmm-trace-", ".trace");
        try {
            context.traceBegin(file.toString());
            fails(Result.BUSY, () -> context.traceBegin(file.toString()));
            context.alloc(123456, Kind.VMM).close();
            context.traceEnd();
            fails(Result.UNBALANCED, context::traceEnd);
            ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(file)).order(ByteOrder.LITTLE_ENDIAN);
            same(
                "gmmtrace", new String(bytes.array(), 0, 8, StandardCharsets.US_ASCII), "the first bytes of the trace");
            same(1, bytes.getInt(8), "the version of the trace");
            List<String> events = new ArrayList<>();
            for (int chunk = 64; chunk < bytes.limit(); chunk += 32 + bytes.getInt(chunk + 4)) {
                int end = chunk + 32 + bytes.getInt(chunk + 4);
                for (int record = chunk + 32; record < end; record += (bytes.get(record) & 7) * 8) {
                    long address = (bytes.getLong(record) >>> 16) << 8;
                    switch ((bytes.get(record) & 0xff) >> 3) {
                        case 4:
                            events.add("alloc " + address + " " + (bytes.getLong(record + 8) & 0xffffffffffffL));
                            break;
                        case 5:
                            events.add("free " + address);
                            break;
                        case 14:
                            events.add("end " + bytes.getLong(record + 8));
                            break;
                        default:
                            break;
                    }
                }
            }
            same(3, events.size(), "events of the trace");
            check(events.get(0).matches("alloc \\d+ 123456"), "the alloc: " + events.get(0));
            same("free " + events.get(0).split(" ")[1], events.get(1), "the free");
            same("end 0", events.get(2), "the end");
        } finally {
            Files.delete(file);
        }
        fails(Result.IO, () -> context.traceBegin("/nowhere/at/all.trace"));
    }

    private void trimAndDefer() throws Exception {
        context.trim();
        context.alloc(64 * MIB, Kind.VMM).close();
        check(context.statistics().cachedBytes() >= 64 * MIB, "cached bytes");
        Context.Deferral deferral = context.defer();
        same(0L, context.trim(), "a trim inside a deferral");
        deferral.close();
        deferral.close();
        check(context.statistics().cachedBytes() < 64 * MIB, "the deferred trim");
        context.alloc(64 * MIB, Kind.VMM).close();
        long cached = context.statistics().cachedBytes();
        long bytes = context.trim();
        check(bytes >= 64 * MIB, "bytes that went back: " + bytes);
        check(context.statistics().cachedBytes() < cached, "cached bytes fall");
    }

    private void log() {
        List<String> heard = new ArrayList<>();
        try (Context logged = Context.open(options().logger((level, message) -> {
            synchronized (heard) {
                heard.add(level + " " + message);
            }
        }))) {
            synchronized (heard) {
                check(heard.stream().anyMatch(line -> line.startsWith("INFO ")), "a line of level INFO among " + heard);
            }
            check(!logged.isClosed(), "open");
        }
        for (boolean report : new boolean[] {true, false}) {
            heard.clear();
            ContextOptions options = options().logger((level, message) -> {
                synchronized (heard) {
                    heard.add(level + " " + message);
                }
            });
            try (Context leaking = Context.open(report ? options : options.noLeakReport())) {
                leaking.allocate(12345, new AllocOptions().name("left over"));
            }
            synchronized (heard) {
                same(report,
                    heard.stream().anyMatch(line -> line.startsWith("WARNING ")
                        && line.contains("1 x 12345 bytes of DEVICE") && line.contains("\"left over\"")),
                    "a report of the leak among " + heard);
            }
        }
    }

    private void reset() throws Exception {
        GmmBuffer buffer = context.alloc(MIB, Kind.VMM);
        long address = buffer.address();
        context.reset();
        same(0L, context.statistics().liveBlocks(), "live blocks");
        State state = context.query(address).state();
        check(state == State.UNKNOWN || state == State.FREE, "the state of the old address: " + state);
        fails(IllegalStateException.class, buffer::query);
        // The block that takes the old address now is not freed by the old object.
        try (GmmBuffer next = context.alloc(MIB, Kind.VMM)) {
            buffer.close();
            same(State.ACTIVE, next.query().state(), "the next block");
        }
    }

    private void close() throws Exception {
        GmmBuffer buffer = context.alloc(MIB);
        context.close();
        context.close();
        check(context.isClosed(), "closed");
        fails(IllegalStateException.class, () -> context.alloc(1));
        fails(IllegalStateException.class, context::info);
        buffer.fill(9);
        sameBytes(repeat(9, 16), buffer.read(0, 16), "a buffer keeps its context");
        buffer.close();
        fails(IllegalStateException.class, buffer::address);
    }
}
