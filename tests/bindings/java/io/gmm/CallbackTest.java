/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import static io.gmm.Tap.check;
import static io.gmm.Tap.fails;
import static io.gmm.Tap.same;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;

/** Callbacks: their values, their threads, and the way of their exceptions. Tickets are Futures. */
final class CallbackTest {
    private static final int SIZE = 4 << 20;

    private final Context context = Context.open(CallsTest.options());

    private CallbackTest() {}

    public static void main(String[] arguments) {
        CallbackTest callbacks = new CallbackTest();
        boolean pauses = callbacks.context.device(0).canPause();
        Tap tap = new Tap();
        tap.test("log", callbacks::log);
        tap.test("out of memory", callbacks::outOfMemory);
        tap.test("a writer of snapshots", callbacks::writer);
        if (pauses) {
            tap.test("progress", callbacks::progress);
            tap.test("a ticket is a Future", callbacks::ticket);
            tap.test("a cancelled ticket", callbacks::cancelled);
            tap.test("a held pause", callbacks::held);
            tap.test("watchers", callbacks::watch);
            tap.test("a watcher refuses", callbacks::refuse);
            tap.test("closed inside a watcher", callbacks::closedInside);
            tap.test("a forgotten watcher ends", callbacks::forget);
        }
        tap.finish();
    }

    /** A progress that stands still until it is let go. */
    private static final class Gate implements Progress {
        private final CountDownLatch reached = new CountDownLatch(1);
        private final CountDownLatch open = new CountDownLatch(1);

        @Override
        public boolean report(long done, long total) {
            reached.countDown();
            Tap.unchecked(() -> check(open.await(Tap.SECONDS, TimeUnit.SECONDS), "it is let go"));
            return true;
        }

        void waitUntilReached() throws InterruptedException {
            check(reached.await(Tap.SECONDS, TimeUnit.SECONDS), "the progress is reported");
        }
    }

    private static boolean refuse(long done, long total) {
        throw new IllegalArgumentException("from the progress");
    }

    private GmmBuffer alloc(Tag tag) {
        GmmBuffer buffer = context.alloc(SIZE, new AllocOptions().kind(Kind.VMM).tag(tag).dedicated());
        buffer.fill(7);
        return buffer;
    }

    private void log() {
        List<String> heard = Collections.synchronizedList(new ArrayList<>());
        ContextOptions options = CallsTest.options().logger((level, message) -> heard.add(level + " " + message));
        try (Context leaking = Context.open(options)) {
            leaking.allocate(12345, new AllocOptions().name("left over"));
        }
        check(heard.stream().anyMatch(line -> line.startsWith("INFO ")), "a line of level INFO among " + heard);
        check(heard.stream().anyMatch(line -> line.startsWith("WARNING ") && line.contains("\"left over\"")),
            "a report of the leak among " + heard);
    }

    private void outOfMemory() throws Exception {
        context.setLimit(null, 64L << 20);
        List<OomInfo> asked = new ArrayList<>();
        context.setOomHandler(info -> {
            asked.add(info);
            if (info.attempt() == 1) {
                context.setLimit(null, Context.NO_LIMIT);
            }
            return true;
        });
        context.alloc(65L << 20, Kind.VMM).close();
        same(1, asked.size(), "calls");
        OomInfo info = asked.get(0);
        check(info.kind() == Kind.VMM && info.device() == 0 && info.tag() == 1 && info.requestedBytes() >= 65L << 20
            && info.cause() == Result.LIMIT_EXCEEDED, "the info: " + info);
        context.trim();
        context.setLimit(null, 64L << 20);
        context.setOomHandler(again -> {
            throw new IllegalArgumentException("from the handler");
        });
        same("from the handler", fails(IllegalArgumentException.class,
            () -> context.alloc(65L << 20, Kind.VMM)).getMessage(), "the exception");
        context.setOomHandler(null);
        fails(Result.LIMIT_EXCEEDED, () -> context.alloc(65L << 20, Kind.VMM));
        context.setLimit(null, Context.NO_LIMIT);
    }

    private void writer() throws Exception {
        fails(Result.IO, () -> context.snapshot(piece -> false));
        same("from the writer", fails(IllegalArgumentException.class, () -> context.snapshot(piece -> {
            throw new IllegalArgumentException("from the writer");
        })).getMessage(), "the exception");
    }

    private void progress() throws Exception {
        Tag tag = context.tag("progress", Contents.HOST, 0);
        try (GmmBuffer buffer = alloc(tag)) {
            List<Long> reported = new ArrayList<>();
            tag.pause(new PauseOptions().progress((done, total) -> total == SIZE && reported.add(done)));
            same((long) SIZE, reported.get(reported.size() - 1), "the last progress");
            fails(Result.CANCELLED, () -> tag.resume(new PauseOptions().progress((done, total) -> false)));
            tag.resume();
            same("from the progress", fails(IllegalArgumentException.class,
                () -> tag.pause(new PauseOptions().progress(CallbackTest::refuse))).getMessage(), "the exception");
            same(State.ACTIVE, buffer.query().state(), "the state");
        }
    }

    private void ticket() throws Exception {
        Tag tag = context.tag("ticket", Contents.HOST, 0);
        try (GmmBuffer buffer = alloc(tag)) {
            List<Thread> reported = Collections.synchronizedList(new ArrayList<>());
            long went;
            PauseOptions options =
                new PauseOptions().progress((done, total) -> reported.add(Thread.currentThread()));
            try (Ticket ticket = tag.pauseAsync(options)) {
                went = ticket.get(30, TimeUnit.SECONDS);
                check(ticket.isDone() && !ticket.isCancelled(), "it is done");
                check(!reported.isEmpty() && !reported.contains(Thread.currentThread()), "another thread's progress");
                TicketInfo info = ticket.info();
                check(info.state() == TicketState.DONE && info.result() == Result.OK && info.bytes() == went
                    && info.totalBytes() == SIZE,
                    "its figures: " + info);
            }
            Ticket back = tag.resumeAsync();
            back.close();
            back.close();
            same(went, back.get(), "the bytes, asked for after close()");
            same(went, tag.pauseAsync().toCompletableFuture().get(30, TimeUnit.SECONDS), "as a CompletableFuture");
            same(went, tag.resumeAsync(new PauseOptions().retain()).join(), "join()");
            Ticket thrower = tag.pauseAsync(new PauseOptions().progress(CallbackTest::refuse));
            Throwable cause = fails(ExecutionException.class, thrower::get).getCause();
            check(cause instanceof IllegalArgumentException, "the cause: " + cause);
            fails(IllegalArgumentException.class, thrower::join);
            thrower.close();
            fails(IllegalArgumentException.class, () -> {
                try (Ticket unheard = tag.pauseAsync(new PauseOptions().progress(CallbackTest::refuse))) {
                    // its end tells
                }
            });
            fails(Result.INVALID_TAG, () -> context.pauseAsync(context.tagByNumber(3999)));
        }
    }

    private void cancelled() throws Exception {
        Tag tag = context.tag("cancelled", Contents.HOST, 0);
        try (GmmBuffer buffer = alloc(tag)) {
            Gate gate = new Gate();
            Ticket ticket = tag.pauseAsync(new PauseOptions().progress(gate));
            try (ticket) {
                gate.waitUntilReached();
                check(!ticket.isDone() && ticket.info().result() == Result.NOT_READY, "it runs: " + ticket);
                fails(TimeoutException.class, () -> ticket.get(10, TimeUnit.MILLISECONDS));
                Thread.currentThread().interrupt();
                fails(InterruptedException.class, ticket::get);
                check(ticket.cancel(), "it had not ended");
                gate.open.countDown();
            }
            fails(CancellationException.class, ticket::get);
            fails(Result.CANCELLED, ticket::join);
            check(ticket.isCancelled() && !ticket.cancel(), "it is cancelled once");
        }
    }

    private void held() throws Exception {
        Tag tag = context.tag("held", Contents.HOST, 0);
        try (GmmBuffer buffer = alloc(tag); Ticket ticket = tag.pauseAsync(new PauseOptions().hold())) {
            ticket.waitHeld();
            same(State.ACTIVE, buffer.query().state(), "the state before the commit");
            ticket.commit();
            check(ticket.join() >= SIZE && buffer.query().state() == State.PAUSED, "the commit: " + ticket);
            tag.resume();
            try (Ticket undone = tag.pauseAsync(new PauseOptions().hold())) {
                undone.waitHeld();
                undone.cancel();
                fails(Result.CANCELLED, undone::join);
                fails(Result.CANCELLED, undone::commit);
            }
        }
    }

    private void watch() throws Exception {
        Tag tag = context.tag("watched", Contents.HOST, 0);
        List<WatchInfo> heard = Collections.synchronizedList(new ArrayList<>());
        try (GmmBuffer buffer = alloc(tag);
                Watcher all = context.watch(new WatchOptions().tag(tag).name("cache"), heard::add);
                Watcher range = context.watch(
                    new WatchOptions().memory(buffer).events(WatchEvent.LOSING).order(-1), heard::add)) {
            tag.pause();
            tag.resume();
            range.close();
            all.close();
            tag.pause();
            tag.resume();
            same(Arrays.asList(WatchEvent.PREPARE, WatchEvent.LOSING, WatchEvent.LOSING, WatchEvent.RESTORED),
                Arrays.asList(heard.stream().map(WatchInfo::event).toArray()), "the events");
            WatchInfo losing = heard.get(1);
            check(losing.address() == buffer.address() && losing.size() == SIZE && losing.tag() == tag.number(),
                "the values: " + losing);
        }
        fails(IllegalArgumentException.class, () -> context.watch(new WatchOptions().tag(tag), null));
        try (Watcher budget = context.watch(new WatchOptions().budget(0, 8 << 20), heard::add)) {
            context.setLimit(new Scope().device(0), 4 << 20);
            Tap.waitFor("a budget that falls", () -> heard.get(heard.size() - 1).event() == WatchEvent.BUDGET);
        } finally {
            context.setLimit(new Scope().device(0), Context.NO_LIMIT);
        }
    }

    /** False and exceptions refuse PREPARE. */
    private void refuse() throws Exception {
        Tag tag = context.tag("refused", Contents.HOST, 0);
        List<String> uncaught = Collections.synchronizedList(new ArrayList<>());
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> uncaught.add(error.getMessage()));
        try (GmmBuffer buffer = alloc(tag)) {
            try (Watcher no = context.watch(new WatchOptions().tag(tag).name("says no"), info -> false)) {
                check(fails(Result.BUSY, tag::pause).getMessage().contains("says no"), "the watcher's name");
            }
            try (Watcher throws_ = context.watch(new WatchOptions().tag(tag), info -> {
                throw new IllegalStateException("from the watcher");
            })) {
                fails(Result.BUSY, tag::pause);
            }
        } finally {
            Thread.setDefaultUncaughtExceptionHandler(null);
        }
        same(List.of("from the watcher"), uncaught, "the exception of the handler");
    }

    /** Calls that wait for an operation are BUSY in its handler, and the objects stay usable. */
    private void closedInside() throws Exception {
        Tag tag = context.tag("closed inside", Contents.HOST, 0);
        Tag elsewhere = context.tag("ticket inside", Contents.HOST, 0);
        List<GmmException> refused = Collections.synchronizedList(new ArrayList<>());
        Gate gate = new Gate();
        try (GmmBuffer buffer = alloc(tag); GmmBuffer paused = alloc(elsewhere);
                Heap heap = context.heap(new HeapOptions().kind(Kind.HOST));
                Ticket ticket = elsewhere.pauseAsync(new PauseOptions().progress(gate))) {
            gate.waitUntilReached();
            Watcher[] self = new Watcher[1];
            self[0] = context.watch(new WatchOptions().tag(tag).events(WatchEvent.LOSING), info -> {
                Tap.unchecked(() -> {
                    refused.add(fails(Result.BUSY, heap::close));
                    refused.add(fails(Result.BUSY, ticket::close));
                    refused.add(fails(Result.BUSY, ticket::join));
                    refused.add(fails(Result.BUSY, context::close));
                    refused.add(fails(Result.BUSY, self[0]::close));
                    refused.add(fails(Result.BUSY, () -> context.alloc(100)));
                    refused.add(fails(Result.BUSY, () -> tag.pause()));
                    check(!ticket.isDone(), "a look at the ticket");
                });
                return true;
            });
            tag.pause();
            tag.resume();
            self[0].close();
            same(7, refused.size(), "calls that are refused inside");
            heap.alloc(SIZE).close();
            gate.open.countDown();
            check(ticket.join() >= SIZE, "the ticket's bytes");
            elsewhere.resume();
        }
    }

    /** The Cleaner ends a watcher that nobody holds, while pauses call it. */
    private void forget() throws Exception {
        Tag tag = context.tag("forgotten watchers", Contents.DROP, 0);
        AtomicLong calls = new AtomicLong();
        try (GmmBuffer buffer = alloc(tag)) {
            for (int i = 0; i < 10; i++) {
                context.watch(new WatchOptions().tag(tag).events(WatchEvent.PREPARE),
                    info -> calls.incrementAndGet() > 0);
            }
            Tap.waitFor("the Cleaner to end 10 watchers", () -> {
                long reported = calls.get();
                tag.pause();
                tag.resume();
                return calls.get() == reported;
            });
        }
    }
}
