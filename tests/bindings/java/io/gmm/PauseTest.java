/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import static io.gmm.Tap.check;
import static io.gmm.Tap.fails;
import static io.gmm.Tap.same;

import java.io.File;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** The steps of tests/bindings/SMOKE.md about pause, resume, tickets and kept contents. */
final class PauseTest {
    private static final int SIZE = 4 << 20;
    private static final int LARGE = 64 << 20; // several chunks, so that progress is told between them

    private final Context context;

    PauseTest(Context context) {
        this.context = context;
    }

    /** A progress that stands still until it is let go. */
    private static final class Gate implements Progress {
        private final CountDownLatch reached = new CountDownLatch(1);
        private final CountDownLatch open = new CountDownLatch(1);

        @Override
        public boolean report(long done, long total) {
            reached.countDown();
            try {
                return open.await(Tap.SECONDS, TimeUnit.SECONDS);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }

        void waitUntilReached() throws InterruptedException {
            check(reached.await(Tap.SECONDS, TimeUnit.SECONDS), "the progress is told");
        }
    }

    private static boolean refuse(long done, long total) {
        throw new IllegalArgumentException("from the progress");
    }

    void comm() throws Exception {
        try (GmmBuffer buffer = context.alloc(SIZE, new AllocOptions().comm())) {
            same(Kind.VMM, buffer.kind(), "the kind");
            check(buffer.query().comm(), "memory for networks");
        }
        fails(Result.INVALID_KIND, () -> context.alloc(SIZE, new AllocOptions().kind(Kind.HOST).comm()));
    }

    private GmmBuffer alloc(Tag tag) {
        return alloc(tag, SIZE);
    }

    private GmmBuffer alloc(Tag tag, int size) {
        GmmBuffer buffer = context.alloc(size, new AllocOptions().kind(Kind.VMM).tag(tag).dedicated());
        buffer.write(0, SmokeTest.pattern(size));
        return buffer;
    }

    private static void checkContents(GmmBuffer buffer) {
        int size = (int) buffer.size();
        SmokeTest.sameBytes(SmokeTest.pattern(size), buffer.read(0, size), "the contents");
    }

    void progress() throws Exception {
        Tag tag = context.tag("progress", Contents.HOST, 0);
        try (GmmBuffer buffer = alloc(tag, LARGE)) {
            List<Long> told = new ArrayList<>();
            long went = tag.pause(new PauseOptions().progress((done, total) -> {
                same((long) LARGE, total, "all bytes");
                return told.add(done);
            }));
            same((long) LARGE, told.get(told.size() - 1), "the last that is told");
            List<Long> sorted = new ArrayList<>(told);
            Collections.sort(sorted);
            same(sorted, told, "growing bytes");
            told.clear();
            same(went, tag.resume((done, total) -> told.add(done)), "bytes that came back");
            same((long) LARGE, told.get(told.size() - 1), "the last that is told by the resume");
            for (long stop : new long[] {0, LARGE / 2}) {
                fails(Result.CANCELLED, () -> tag.pause(new PauseOptions().progress((done, total) -> done < stop)));
                same(State.ACTIVE, buffer.query().state(), "the state");
                checkContents(buffer);
            }
            IllegalArgumentException thrown =
                fails(IllegalArgumentException.class, () -> tag.pause(new PauseOptions().progress(PauseTest::refuse)));
            same("from the progress", thrown.getMessage(), "the exception of a progress");
            same(State.ACTIVE, buffer.query().state(), "the state");
            try (Tag.Paused paused = tag.paused()) {
                same(went, paused.bytes(), "bytes that went back");
                fails(Result.CANCELLED, () -> tag.resume((done, total) -> false));
                same(State.PAUSED, buffer.query().state(), "the state");
            }
            checkContents(buffer);
        }
    }

    void ticket() throws Exception {
        Tag tag = context.tag("ticket", Contents.HOST, 0);
        try (GmmBuffer buffer = alloc(tag)) {
            List<Thread> told = Collections.synchronizedList(new ArrayList<>());
            long went;
            try (Ticket ticket =
                     tag.pauseAsync(new PauseOptions().progress((done, total) -> told.add(Thread.currentThread())))) {
                went = ticket.get(30, TimeUnit.SECONDS);
                check(went >= SIZE, "bytes that went back: " + went);
                check(ticket.isDone() && !ticket.isCancelled(), "it is done");
                check(!told.isEmpty() && !told.contains(Thread.currentThread()), "the progress runs on another thread");
                TicketInfo info = ticket.info();
                check(info.done() && info.result() == Result.OK && info.bytes() == went && info.totalBytes() == SIZE,
                    "its figures");
            }
            same(State.PAUSED, buffer.query().state(), "the state");
            Ticket back = tag.resumeAsync();
            back.close();
            back.close();
            same(went, back.get(), "the bytes, asked for after close()");
            checkContents(buffer);
            same(went, tag.pauseAsync().toCompletableFuture().thenApply(bytes -> bytes).get(30, TimeUnit.SECONDS),
                "as a CompletableFuture");
            same(went, tag.resumeAsync().join(), "join()");
            cancelled(tag, buffer);
            Ticket thrower = tag.pauseAsync(new PauseOptions().progress(PauseTest::refuse));
            Throwable cause = fails(ExecutionException.class, thrower::get).getCause();
            check(cause instanceof IllegalArgumentException, "what the progress threw: " + cause);
            fails(IllegalArgumentException.class, thrower::join);
            thrower.close();
            fails(IllegalArgumentException.class, () -> {
                try (Ticket untold = tag.pauseAsync(new PauseOptions().progress(PauseTest::refuse))) {
                    // its end tells
                }
            });
            same(State.ACTIVE, buffer.query().state(), "the state");
            fails(Result.INVALID_TAG, () -> context.pauseAsync(context.tagByNumber(3999)));
        }
    }

    private void cancelled(Tag tag, GmmBuffer buffer) throws Exception {
        Gate gate = new Gate();
        Ticket ticket = tag.pauseAsync(new PauseOptions().progress(gate));
        try (ticket) {
            gate.waitUntilReached();
            check(!ticket.isDone(), "it runs");
            same(Result.NOT_READY, ticket.info().result(), "its result meanwhile");
            fails(TimeoutException.class, () -> ticket.get(10, TimeUnit.MILLISECONDS));
            Thread.currentThread().interrupt();
            fails(InterruptedException.class, ticket::get);
            check(ticket.cancel(), "it had not ended");
            gate.open.countDown();
        }
        fails(CancellationException.class, ticket::get);
        fails(Result.CANCELLED, ticket::join);
        check(ticket.isCancelled() && !ticket.cancel(), "it is cancelled once");
        same(State.ACTIVE, buffer.query().state(), "the state");
        checkContents(buffer);
    }

    void range() throws Exception {
        Tag tag = context.tag("range", Contents.HOST, 0);
        try (GmmBuffer first = alloc(tag); GmmBuffer second = alloc(tag)) {
            long went = tag.pause();
            long back = first.resume();
            check(back > 0 && back < went, "bytes of a part: " + back + " of " + went);
            same(State.ACTIVE, first.query().state(), "the first block");
            same(State.PAUSED, second.query().state(), "the second block");
            same(State.PARTLY_PAUSED, tag.info().state(), "the tag");
            checkContents(first);
            same(0L, first.resume(), "the bytes of a second resume");
            check(first.waitReady(0, TimeUnit.SECONDS), "the first is ready");
            check(!second.waitReady(20, TimeUnit.MILLISECONDS), "the second is not");
            Gate gate = new Gate();
            try (Ticket rest = tag.resumeAsync(gate)) {
                gate.waitUntilReached();
                check(!second.waitReady(0, TimeUnit.SECONDS), "the second is not ready yet");
                gate.open.countDown();
                check(second.waitReady(Tap.SECONDS, TimeUnit.SECONDS), "the second is ready");
                same(went - back, rest.get(), "the rest");
            }
            checkContents(second);
            same(State.ACTIVE, tag.info().state(), "the tag");
            fails(Result.UNKNOWN_POINTER, () -> context.resumeRange(16, 4096));
            fails(IndexOutOfBoundsException.class, () -> first.resume(SIZE, 1));
        }
    }

    void backup() throws Exception {
        Tag tag = context.tag("backup", Contents.HOST, 0);
        try (GmmBuffer buffer = alloc(tag)) {
            fails(Result.INVALID_VALUE, () -> buffer.backup(0, 16));
            tag.pause();
            byte[] all = SmokeTest.pattern(SIZE);
            SmokeTest.sameBytes(
                Arrays.copyOfRange(all, SIZE - 1000, SIZE), buffer.backup(SIZE - 1000, 1000), "the kept contents");
            ByteBuffer view = buffer.backupView(0, SIZE);
            check(view.isReadOnly() && view.get(SIZE - 1) == all[SIZE - 1] && view.get(12345) == all[12345],
                "a view of them");
            same(State.PAUSED, buffer.query().state(), "the state");
            same((long) SIZE, tag.info().backupHostBytes(), "bytes that are kept");
            same((long) SIZE, tag.discardBackup(), "bytes that were kept");
            same(0L, tag.discardBackup(), "bytes that are left");
            same(0L, context.discardBackup(), "bytes that are left of all tags");
            fails(Result.INVALID_VALUE, () -> buffer.backup(0, 16));
            check(tag.resume() >= SIZE, "the resume");
            same(State.ACTIVE, buffer.query().state(), "the state");
            tag.pause(new PauseOptions().contents(Contents.DROP));
            same(0L, tag.info().backupHostBytes() + tag.info().backupZeroBytes(), "kept against the tag");
            tag.resume();
            context.prepareBackup(0, 4 << 20);
            check(context.backupInfo().arenaBytes() >= 4 << 20, "the arena that was prepared");
            context.trim(); // what is unused of the arena goes
            context.setBackup(new BackupOptions().noArena().threads(1));
            buffer.write(0, all);
            try (Tag.Paused paused = tag.paused()) {
                same(0L, context.backupInfo().arenaUsed(), "the arena that is switched off");
                same((long) SIZE, context.backupInfo().pageableBytes(), "contents in other memory");
            }
            checkContents(buffer);
            context.setBackup(
                new BackupOptions().noArena().noPageable().directory(System.getProperty("java.io.tmpdir")));
            try (Tag.Paused paused = tag.paused()) {
                same((long) SIZE, tag.info().backupFileBytes(), "contents in a file");
            }
            checkContents(buffer);
            fails(Result.IO, () -> context.setBackup(new BackupOptions().directory("/nowhere/at/all")));
            context.setBackup(null);
            fails(Result.INVALID_DEVICE, () -> context.prepareBackup(99, 1 << 20));
        }
    }

    void readOnly() throws Exception {
        TagOptions options = new TagOptions().contents(Contents.HOST).priority(5).readOnly();
        Tag tag = context.tag("read-only", options);
        check(tag.info().readOnly() && !tag.info().checksum() && tag.info().priority() == 5, "what the tag says");
        fails(Result.INVALID_VALUE, () -> context.tag("read-only", Contents.HOST, 5));
        try (GmmBuffer buffer = alloc(tag)) {
            tag.paused().close();
            same((long) SIZE, tag.info().backupActiveBytes(), "what stays kept");
            tag.paused().close();
            checkContents(buffer);
            tag.update(new TagOptions().contents(Contents.HOST).priority(5));
            check(!tag.info().readOnly() && tag.info().priority() == 5, "the update");
            tag.paused().close();
            same(0L, tag.info().backupActiveBytes(), "what stays kept");
            same(3L, tag.info().pauses(), "pauses");
            checkContents(buffer);
            checksum(tag);
            checkContents(buffer);
        }
    }

    /** Where the library has checksums. */
    private static void checksum(Tag tag) {
        try {
            tag.update(new TagOptions().contents(Contents.HOST).checksum());
        } catch (GmmException error) {
            same(Result.NOT_SUPPORTED, error.result(), "built without xxhash: " + error);
            return;
        }
        check(tag.info().checksum() && tag.info().priority() == 0, "the update");
        tag.paused().close();
    }

    void retained() throws Exception {
        TagOptions options = new TagOptions().contents(Contents.HOST);
        Tag tag = context.tag("retained", options.pageable());
        check(tag.info().pageable() && !tag.info().readOnly(), "what the tag says");
        byte[] first = SmokeTest.pattern(SIZE);
        byte[] second = new byte[SIZE];
        Arrays.fill(second, (byte) 0x11);
        File folder = Files.createTempDirectory("gmm-retained").toFile();
        try (GmmBuffer buffer = alloc(tag)) {
            tag.pause();
            check(tag.info().backupHostBytes() >= SIZE && tag.info().backupPinnedBytes() == 0, "nothing page-locked");
            tag.resume(new PauseOptions().retain());
            buffer.write(0, second);
            SmokeTest.sameBytes(first, buffer.backup(0, SIZE), "the contents of the last pause");
            check(buffer.backupView(0, SIZE).get(SIZE - 1) == first[SIZE - 1], "a view of them");
            tag.pause();
            try (Ticket ticket = tag.resumeAsync(new PauseOptions().retain())) {
                check(ticket.get(30, TimeUnit.SECONDS) >= SIZE, "the bytes that came back");
            }
            SmokeTest.sameBytes(second, buffer.backup(0, SIZE), "the contents of the next pause");
            tag.pause();
            tag.resume(new PauseOptions());
            fails(Result.INVALID_VALUE, () -> buffer.backup(0, 16));
            context.setBackup(new BackupOptions().directory(folder.getPath()).namedFiles());
            tag.update(new TagOptions().contents(Contents.FILE));
            check(!tag.info().pageable(), "the update");
            tag.pause();
            File[] files = folder.listFiles();
            check(files.length == 1 && files[0].length() == SIZE, "one file of the block's size");
            tag.resume();
            SmokeTest.sameBytes(second, buffer.read(0, SIZE), "the contents");
            context.trim();
            same(0, folder.list().length, "files after a trim");
        } finally {
            context.setBackup(null);
            folder.delete();
        }
    }

    void decommit() throws Exception {
        same(Context.DECOMMIT_NEVER, context.info().decommitAfterMillis(), "what is set");
        context.alloc(SIZE, Kind.VMM).close();
        check(context.statistics().cachedBytes() >= SIZE, "cached bytes");
        context.setDecommitAfterMillis(10);
        same(10L, context.info().decommitAfterMillis(), "what is set");
        Tap.waitFor("free memory to go back by itself", () -> context.statistics().cachedBytes() < SIZE);
        context.setDecommitAfterMillis(Context.DECOMMIT_NEVER);
        same(Context.DECOMMIT_NEVER, context.info().decommitAfterMillis(), "what is set");
    }

    void noCapture() throws Exception {
        try (Context other = Context.open(SmokeTest.options().noCapture()); Stream stream = other.stream(0);
             GmmBuffer buffer = other.alloc(SIZE, new AllocOptions().stream(stream))) {
            buffer.fill(5);
            stream.synchronize();
            same((byte) 5, buffer.read(SIZE - 1, 1)[0], "a byte");
        }
        try (Context strict = Context.open(SmokeTest.options().strictHost());
             GmmBuffer buffer = strict.alloc(SIZE, Kind.DEVICE)) {
            buffer.fill(6);
            same((byte) 6, buffer.read(SIZE - 1, 1)[0], "a byte of a strict context");
            same(false, buffer.query().hostAccessible(), "whether the host may use its memory");
        }
    }

    void watch() throws Exception {
        Tag tag = context.tag("watched", Contents.HOST, 0);
        List<WatchInfo> heard = Collections.synchronizedList(new ArrayList<>());
        try (GmmBuffer buffer = alloc(tag)) {
            List<GmmException> refused = new ArrayList<>();
            try (Watcher first = context.watch(new WatchOptions().tag(tag).name("cache"), heard::add);
                    Watcher range = context.watch(
                        new WatchOptions().memory(buffer).events(WatchEvent.LOSING).order(-1), info -> {
                            heard.add(info);
                            Tap.unchecked(() -> {
                                refused.add(fails(Result.BUSY, () -> context.alloc(100)));
                                refused.add(fails(Result.BUSY, () -> tag.pause()));
                                refused.add(fails(Result.BUSY, first::close));
                            });
                            return false; // has no effect but for PREPARE
                        })) {
                check(!range.isClosed() && !first.isClosed(), "watchers that are open");
                tag.pause();
                tag.resume();
            }
            checkContents(buffer);
            same(Arrays.asList(WatchEvent.PREPARE, WatchEvent.LOSING, WatchEvent.LOSING, WatchEvent.RESTORED),
                Arrays.asList(heard.stream().map(WatchInfo::event).toArray()), "the events");
            same(Arrays.asList(0L, buffer.address(), 0L, 0L),
                Arrays.asList(heard.stream().map(WatchInfo::address).toArray()), "their addresses");
            WatchInfo losing = heard.get(1);
            same((long) SIZE, losing.size(), "the size");
            same(tag.number(), losing.tag(), "the tag");
            check(losing.generation() != buffer.query().generation(), "another generation");
            check(losing.remainingMillis() > 0 && losing.remainingMillis() <= 10000, "the time");
            same(3, refused.size(), "calls that are refused inside");
            tag.pause();
            tag.resume();
            same(4, heard.size(), "what closed watchers hear");
            refuse(tag, buffer);
            forget(tag);
        }
        List<WatchInfo> fell = Collections.synchronizedList(new ArrayList<>());
        try (Watcher budget = context.watch(new WatchOptions().budget(0, 8 << 20), fell::add)) {
            context.setLimit(new Scope().device(0), 4 << 20);
            Tap.waitFor("a budget that falls", () -> !fell.isEmpty());
        } finally {
            context.setLimit(new Scope().device(0), Context.NO_LIMIT);
        }
        same(WatchEvent.BUDGET, fell.get(0).event(), "the event");
        check(fell.get(0).budgetBytes() <= 4 << 20, "the budget");
        fails(Result.INVALID_FLAGS, () -> context.watch(new WatchOptions(), info -> true));
        fails(IllegalArgumentException.class, () -> context.watch(new WatchOptions().tag(tag), null));
    }

    /** What waits for an operation is BUSY in the handler for which it waits, and stays usable. */
    void closedInside() throws Exception {
        Tag tag = context.tag("closed inside", Contents.HOST, 0);
        List<GmmException> refused = Collections.synchronizedList(new ArrayList<>());
        Gate gate = new Gate();
        try (GmmBuffer buffer = alloc(tag); Heap heap = context.heap(new HeapOptions().kind(Kind.HOST));
                Context other = Context.open(SmokeTest.options())) {
            Tag elsewhere = context.tag("ticket inside", Contents.HOST, 0);
            try (GmmBuffer large = alloc(elsewhere, LARGE);
                    Ticket ticket = elsewhere.pauseAsync(new PauseOptions().progress(gate))) {
                gate.waitUntilReached();
                try (Watcher watcher = context.watch(new WatchOptions().tag(tag).events(WatchEvent.LOSING), info -> {
                    Tap.unchecked(() -> {
                        refused.add(fails(Result.BUSY, heap::close));
                        refused.add(fails(Result.BUSY, ticket::close));
                        refused.add(fails(Result.BUSY, ticket::join));
                        refused.add(fails(Result.BUSY, () -> ticket.get(1, TimeUnit.SECONDS)));
                        refused.add(fails(Result.BUSY, other::close));
                        check(!ticket.isDone(), "a look at the ticket");
                    });
                    return true;
                })) {
                    tag.pause();
                    tag.resume();
                }
                same(5, refused.size(), "calls that are refused inside");
                try (GmmBuffer of = heap.alloc(SIZE)) {
                    of.fill(1);
                }
                other.alloc(SIZE).close();
                gate.open.countDown();
                check(ticket.join() >= LARGE, "the ticket's bytes");
                elsewhere.resume();
            }
            checkContents(buffer);
        }
    }

    /** False and exceptions refuse PREPARE. */
    private void refuse(Tag tag, GmmBuffer buffer) throws Exception {
        List<WatchInfo> failed = Collections.synchronizedList(new ArrayList<>());
        List<String> uncaught = Collections.synchronizedList(new ArrayList<>());
        Thread.UncaughtExceptionHandler before = Thread.getDefaultUncaughtExceptionHandler();
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> uncaught.add(error.getMessage()));
        try (Watcher agrees = context.watch(
                 new WatchOptions().tag(tag).events(WatchEvent.PREPARE, WatchEvent.FAILED).order(-1),
                 info -> info.event() == WatchEvent.PREPARE || failed.add(info))) {
            try (Watcher no = context.watch(new WatchOptions().tag(tag).name("says no"), info -> false)) {
                check(fails(Result.BUSY, tag::pause).getMessage().contains("says no"), "the watcher's name");
            }
            try (Watcher throws_ = context.watch(new WatchOptions().tag(tag), info -> {
                throw new IllegalStateException("from the watcher");
            })) {
                fails(Result.BUSY, tag::pause);
            }
        } finally {
            Thread.setDefaultUncaughtExceptionHandler(before);
        }
        same(2, failed.size(), "failures");
        same(Result.BUSY, failed.get(0).cause(), "the cause");
        same(Arrays.asList("from the watcher"), uncaught, "what the handler threw");
        same(State.ACTIVE, buffer.query().state(), "the state");
    }

    /** The Cleaner ends a watcher that nobody holds, while pauses call it. */
    private void forget(Tag tag) throws Exception {
        java.util.concurrent.atomic.AtomicLong calls = new java.util.concurrent.atomic.AtomicLong();
        for (int i = 0; i < 10; i++) {
            context.watch(new WatchOptions().tag(tag).events(WatchEvent.PREPARE), info -> calls.incrementAndGet() > 0);
        }
        Tap.waitFor("the Cleaner to end 10 watchers", () -> {
            long told = calls.get();
            tag.pause();
            tag.resume();
            return calls.get() == told;
        });
    }
}
