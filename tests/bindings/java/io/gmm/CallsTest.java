/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import static io.gmm.Tap.check;
import static io.gmm.Tap.fails;
import static io.gmm.Tap.pattern;
import static io.gmm.Tap.same;
import static io.gmm.Tap.sameBytes;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

/** Each way in which values cross into C and back, and each call that is written by hand. */
final class CallsTest {
    private static final int MIB = 1 << 20;
    private static final String NAME = "Gr\u00f6\u00dfe \uD83D\uDE00"; // beyond the basic plane

    private final Context context = Context.open(options());
    private final DeviceInfo device = context.device(0);

    private CallsTest() {}

    public static void main(String[] arguments) {
        CallsTest calls = new CallsTest();
        Tap tap = new Tap();
        tap.test("answers", calls::answers);
        tap.test("options", calls::options_);
        tap.test("errors", calls::errors);
        tap.test("sizes and text that C cannot take", calls::refused);
        tap.test("buffers and their views", calls::buffers);
        tap.test("heap", calls::heap);
        tap.test("stream and event", calls::stream);
        tap.test("pin", calls::pin);
        tap.test("tags", calls::tags);
        tap.test("pause, resume and backups", calls::pause);
        tap.test("handles for another process", calls::ipc);
        tap.test("file descriptors", calls::fd);
        tap.test("statistics, names and trims", calls::statistics);
        tap.test("the text of each object", calls::printed);
        tap.test("reset", calls::reset);
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

    private void answers() {
        same(Context.interfaceVersion(), Context.version().split("rc")[0], "the version");
        ContextInfo info = context.info();
        boolean host = info.backend() == Backend.HOST;
        same(host ? "host" : "cuda", info.backendName(), "text");
        check(info.deviceCount() >= 1 && device.freeMemory() <= device.totalMemory(), "numbers");
        check(device.uuid().length == 16 && device.luid().length == 8, "bytes");
        check(device.has(Kind.DEVICE) && device.kinds() != 0, "a mask");
        same(host, device.isCpu(), "a flag");
        same(State.UNKNOWN, context.query(0).state(), "an enumerator");
        // An older library's answer is shorter, and a newer one's has enumerators without a name here.
        byte[] bytes = BlockInfo.bytesForC();
        ByteBuffer.wrap(bytes).order(ByteOrder.nativeOrder()).putInt(4, 99).putInt(8, 7);
        BlockInfo other = new BlockInfo(Arrays.copyOf(bytes, 16));
        check(other.kind() == null && other.device() == 7 && other.name().isEmpty(), "the block: " + other);
        same(Result.UNKNOWN, Result.of(-12345), "an unknown result");
    }

    private void options_() throws Exception {
        Tag tag = context.tag(NAME, new TagOptions().contents(Contents.HOST).priority(-3).readOnly().pageable());
        PauseInfo info = tag.info();
        check(info.name().equals(NAME) && info.contents() == Contents.HOST && info.priority() == -3 && info.readOnly()
            && info.pageable() && !info.checksum(), "the options of a tag: " + info);
        tag.update(new TagOptions());
        check(!tag.info().readOnly() && tag.info().contents() == Contents.DROP, "the update");
        AllocOptions options = new AllocOptions().kind(Kind.VMM).device(0).tag(tag).alignment(MIB).zero().dedicated();
        try (GmmBuffer buffer = context.alloc(3 * MIB, options)) {
            PointerInfo block = context.query(buffer.address() + 5);
            check(block.kind() == Kind.VMM && block.base() == buffer.address() && block.size() == 3L * MIB
                && block.tag() == tag.number() && block.allocationBase() == block.base(), "the block: " + block);
            same(0L, buffer.address() % MIB, "the alignment");
            sameBytes(new byte[3 * MIB], buffer.read(0, 3 * MIB), "zeros");
        }
        ContextOptions all = options().noCapture().noLeakReport().strictHost().decommitAfterMillis(5000);
        try (Context other = Context.open(all)) {
            check(other.info().decommitAfterMillis() == 5000 && other.info().noCapture() && other.info().noLeakReport()
                && other.info().strictHost(), "the options of a context: " + other.info());
            fails(Result.INVALID_VALUE, () -> other.configureIpc(new IpcOptions().user(1))); // a list without directory
        }
        fails(Result.NO_BACKEND, () -> Context.open(Backend.SYCL));
    }

    private void errors() throws Exception {
        long address = context.allocate(MIB, new AllocOptions());
        GmmException error = fails(Result.INTERIOR_POINTER, () -> context.free(address + 16, Stream.DEFAULT));
        check(error.toString().contains("GMM_ERROR_INTERIOR_POINTER (-14") && error.nativeCode() == 0, "" + error);
        context.free(address, Stream.DEFAULT);
        context.free(0, Stream.DEFAULT);
        GmmException io = fails(Result.IO, () -> context.traceBegin("/nowhere/at/all"));
        check(io.getMessage().contains("/nowhere/at/all") && io.nativeCode() == 2, "a path and ENOENT: " + io);
        fails(Result.NULL_ARGUMENT, () -> context.tag(null));
    }

    private void refused() throws Exception {
        try (Heap heap = context.heap(new HeapOptions()); GmmBuffer buffer = context.alloc(MIB)) {
            for (Tap.Step step : List.<Tap.Step>of(() -> context.alloc(-1), () -> heap.alloc(-1),
                     () -> context.allocate(-1, new AllocOptions()), () -> heap.allocate(-1, Stream.DEFAULT),
                     () -> context.fill(buffer.address(), 0, -1, Stream.DEFAULT), () -> context.setLimit(null, -2),
                     () -> new HeapOptions().limit(-1), () -> new LeaseRequest().amount(0, -1))) {
                String message = fails(IllegalArgumentException.class, step).getMessage();
                check(message.endsWith("is negative"), message);
            }
        }
        context.setLimit(null, Context.NO_LIMIT);
        fails(IllegalArgumentException.class, () -> context.tag("a\0b"));
        fails(IllegalArgumentException.class, () -> context.setBackup(new BackupOptions().directory("a\0b")));
    }

    private void buffers() throws Exception {
        try (GmmBuffer buffer = context.alloc(MIB, Kind.HOST); GmmBuffer other = context.alloc(MIB)) {
            buffer.fill(0x5A);
            same((byte) 0x5A, buffer.read(MIB - 1, 1)[0], "a byte of the fill");
            buffer.write(100, pattern(1000));
            other.copyFrom(0, buffer, 100, 1000, Stream.DEFAULT);
            sameBytes(pattern(1000), other.read(0, 1000), "the bytes of a write and a copy");
            other.fill(500, 1, 7, Stream.DEFAULT);
            same((byte) 7, other.read(500, 1)[0], "a byte of a part");
            fails(IndexOutOfBoundsException.class, () -> buffer.read(MIB - 7, 8));
            ByteBuffer bytes = buffer.bytes();
            check(bytes.capacity() == MIB && bytes.order() == ByteOrder.nativeOrder(), "the view");
            buffer.slice(200, 8).putLong(0, 0x0102030405060708L);
            same(0x0102030405060708L, bytes.getLong(200), "a long through two views");
            fails(IndexOutOfBoundsException.class, () -> buffer.slice(MIB - 7, 8));
            if (!other.query().hostAccessible()) {
                fails(Result.NOT_SUPPORTED, other::bytes);
            }
        }
    }

    private void heap() throws Exception {
        HeapOptions options = new HeapOptions().kind(Kind.VMM).minimumExtent(4 * MIB).limit(64 * MIB);
        try (Heap heap = context.heap(options)) {
            long block = heap.allocate(MIB, Stream.DEFAULT);
            same(Kind.VMM, context.query(block).kind(), "the kind");
            heap.alloc(MIB, Stream.DEFAULT, "in a heap").close();
            fails(Result.BUSY, heap::close); // the failure of an end comes out of close()
            context.free(block, Stream.DEFAULT);
        }
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
            event.synchronize();
            check(seen.get() && event.query(), "the second stream ran after the first");
            GmmBuffer buffer = context.alloc(MIB, new AllocOptions().stream(first));
            buffer.recordUse(second);
            buffer.close(second);
            context.forget(Stream.of(first.address()));
            context.synchronize(Stream.DEFAULT);
        }
    }

    private void pin() throws Exception {
        ByteBuffer memory = ByteBuffer.allocateDirect(4 * MIB);
        try (Pin first = context.pin(memory); Pin second = context.pin(first.address(), 4 * MIB, 0, false)) {
            check(first.devicePointer() != 0, "a device pointer");
            first.close();
            same(State.PINNED, context.query(second.address()).state(), "the state after one of two unpins");
        }
        fails(IllegalArgumentException.class, () -> context.pin(ByteBuffer.allocate(64)));
    }

    private void tags() throws Exception {
        Tag tag = context.tag("pushed");
        same(tag.number(), context.findTag("pushed").number(), "the tag that was found");
        for (int i = 0; i < 20; i++) { // more than the first list holds
            context.tag("tag " + i);
        }
        same(1, context.tags().get(0).number(), "the first of the tags");
        check(context.tags().stream().anyMatch(each -> each.info().name().equals("tag 19")), "the last of the tags");
        try (Tag.Scope scope = tag.push()) {
            same(tag.number(), tagOfNewBlock(), "the tag that was pushed");
            Tap.join(Tap.elsewhere(() -> fails(IllegalStateException.class, scope::close)));
        }
        context.setProcessDefaultTag(tag);
        same(tag.number(), tagOfNewBlock(), "the default tag");
        context.setProcessDefaultTag(context.defaultTag());
        context.tag("destroyed").destroy();
        fails(Result.INVALID_TAG, () -> context.findTag("destroyed"));
    }

    private int tagOfNewBlock() {
        try (GmmBuffer buffer = context.alloc(MIB, Kind.VMM)) {
            return buffer.query().tag();
        }
    }

    private void pause() throws Exception {
        Tag tag = context.tag("paused", Contents.HOST, 0);
        AllocOptions options = new AllocOptions().kind(Kind.VMM).tag(tag).dedicated();
        try (GmmBuffer first = context.alloc(4 * MIB, options); GmmBuffer second = context.alloc(4 * MIB, options)) {
            first.write(0, pattern(4 * MIB));
            long paused = context.pause(tag);
            same(paused, tag.info().pausedBytes(), "paused bytes");
            sameBytes(pattern(1000), first.backup(0, 1000), "the kept contents");
            check(first.backupView(0, 4 * MIB).isReadOnly(), "a view of them");
            long back = first.resume();
            check(first.waitReady(1, TimeUnit.SECONDS) && !second.waitReady(20, TimeUnit.MILLISECONDS), "readiness");
            same(paused - back, tag.resume(new PauseOptions().retain()), "the rest");
            sameBytes(pattern(4 * MIB), first.read(0, 4 * MIB), "the contents");
            try (Tag.Paused scope = tag.paused()) {
                same(paused, scope.bytes(), "bytes of a scope");
            }
            tag.pause(new PauseOptions().contents(Contents.FILE));
            same(4L * MIB, tag.info().backupFileBytes(), "contents in a file"); // those of the second block are zero
            same(8L * MIB, tag.discardBackup(), "bytes that were kept");
            tag.resume();
        }
    }

    private void ipc() throws Exception {
        try (GmmBuffer buffer = context.alloc(MIB, Kind.VMM)) {
            buffer.write(4096, pattern(1000));
            byte[] handle = context.exportHandle(buffer.address() + 4096);
            try (Context other = Context.open(options()); GmmBuffer imported = other.importMemory(handle)) {
                sameBytes(pattern(1000), imported.read(0, 1000), "the bytes of an import");
                same(MIB - 4096L, imported.size(), "the size of an import");
            }
        }
        fails(Result.IPC_INVALID_HANDLE, () -> context.importMemory(new byte[Context.IPC_HANDLE_SIZE]));
        fails(IllegalArgumentException.class, () -> context.importMemory(new byte[10]));
        try (Stream stream = context.stream(0); Event event = context.ipcEvent(0)) {
            event.record(stream);
            try (Event imported = context.importEvent(event.exportHandle(), 0, 0)) {
                stream.waitFor(imported);
                imported.synchronize();
                check(imported.query(), "the event has passed");
            }
        }
        try (GmmBuffer buffer = context.alloc(MIB, Kind.DEVICE)) {
            if (buffer.query().legacyIpc()) {
                same(LegacyHandle.SIZE, buffer.exportLegacy().bytes().length, "bytes of a legacy handle");
            }
        }
    }

    private void fd() throws Exception {
        try (GmmBuffer buffer = context.alloc(MIB, new AllocOptions().kind(Kind.VMM).dedicated())) {
            ExportedFd exported = buffer.exportFd();
            FdType type = device.isCpu() ? FdType.FILE : FdType.OPAQUE;
            try (GmmBuffer again = context.importFd(exported.fd(), type, exported.size(), 0)) {
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

    private void statistics() throws Exception {
        Tag tag = context.tag("counted");
        Scope scope = new Scope().device(0).tag(tag).kind(Kind.VMM);
        AllocOptions options = new AllocOptions().kind(Kind.VMM).tag(tag);
        try (GmmBuffer buffer = context.alloc(MIB, options.name("a " + NAME)); GmmBuffer other = context.alloc(MIB)) {
            same(1L, context.statistics(scope).liveBlocks(), "blocks of the scope");
            check(context.snapshot().contains("\"a " + NAME + "\""), "a snapshot");
            BlockInfo found = context.blocks(scope).get(0);
            check(found.address() == buffer.address() && found.size() == MIB && found.name().equals("a " + NAME),
                "the block: " + found);
            buffer.setName(null);
            context.name(other.address() + 1, "inside");
            String text = context.snapshot();
            check(!text.contains("a " + NAME) && text.contains("\"inside\""), "other names");
        }
        context.alloc(64 * MIB, Kind.VMM).close();
        try (Context.Deferral deferral = context.defer()) {
            same(0L, context.trim(), "a trim inside a deferral");
            deferral.close();
        }
        check(context.statistics().cachedBytes() < 64 * MIB, "the deferred trim");
        CompactOptions bounded = new CompactOptions().maxBytes(MIB).maxMicros(1000).live();
        same(0L, context.compact(new Scope().kind(Kind.VMM), bounded).releasedBytes(), "nothing to release");
        context.setDecommitAfterMillis(Context.DECOMMIT_NEVER);
        same(Context.DECOMMIT_NEVER, context.info().decommitAfterMillis(), "a number that stands for never");
    }

    /** A text is no address of an object, and never throws. */
    private void printed() throws Exception {
        Context other = Context.open(Backend.HOST);
        Tag tag = other.tag("printed", Contents.HOST, 0);
        GmmBuffer buffer = other.alloc(3 * MIB / 2, new AllocOptions().kind(Kind.VMM).tag(tag).name("here"));
        Ticket ticket = tag.resumeAsync();
        ticket.join();
        List<AutoCloseable> closed = List.of(other.stream(0), other.event(0), other.heap(new HeapOptions()), buffer,
            ticket, other.pin(ByteBuffer.allocateDirect(8192)), buffer.exportFd(), other);
        List<Object> all = new ArrayList<>(closed);
        all.addAll(List.of(Stream.DEFAULT, Stream.PER_THREAD, tag, other.device(0), buffer.query(), tag.info(),
            other.blocks().get(0), ticket.info(), new AllocOptions(), new IpcOptions(), new Scope(),
            new LeaseOptions("lease").offer(tag), new LeaseRequest().amount(0, 1)));
        for (Object each : all) {
            check(!each.toString().contains("@") && each.toString().contains("["), "printed: " + each);
        }
        check(buffer.toString().matches("GmmBuffer\\[1.5 MiB at 0x[0-9a-f]+, VMM of device 0, ACTIVE]"), "" + buffer);
        check(other.toString().contains("1 blocks of 1.5 MiB live") && tag.toString().contains("\"printed\""), "names");
        check(other.statistics().toString().startsWith("Statistics[liveTags="), "" + other.statistics());
        for (AutoCloseable each : closed) {
            each.close();
            check(!each.toString().contains("@"), "printed when closed: " + each);
        }
        same("GmmBuffer[closed]", buffer.toString(), "a closed buffer");
    }

    private void reset() throws Exception {
        GmmBuffer buffer = context.alloc(MIB, Kind.VMM);
        context.reset();
        fails(IllegalStateException.class, buffer::query);
        try (GmmBuffer next = context.alloc(MIB, Kind.VMM)) {
            buffer.close(); // does not free the block that has the old address now
            same(State.ACTIVE, next.query().state(), "the next block");
        }
    }
}
