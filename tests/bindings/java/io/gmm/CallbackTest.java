/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import static io.gmm.Tap.check;
import static io.gmm.Tap.eachFails;
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

/** Callbacks: their values, their threads, and the way of their exceptions. Tickets are Futures. */
final class CallbackTest {
    private static final int SIZE = 4 << 20;

    private final Context context = Context.open(CallsTest.options());

    private interface Step {
        void run(Tag tag, GmmBuffer buffer) throws Exception;
    }

    public static void main(String[] arguments) {
        CallbackTest callbacks = new CallbackTest();
        Tap tap = new Tap();
        tap.test("log", callbacks::log);
        tap.test("out of memory", callbacks::outOfMemory);
        tap.test("a writer of snapshots", callbacks::writer);
        tap.test("a task of a stream that throws", callbacks::task);
        callbacks.paused(tap, "progress", callbacks::progress);
        callbacks.paused(tap, "a ticket is a Future", callbacks::ticket);
        callbacks.paused(tap, "a cancelled ticket", callbacks::cancelled);
        callbacks.paused(tap, "a held pause", callbacks::held);
        callbacks.paused(tap, "watchers", callbacks::watch);
        callbacks.paused(tap, "a watcher refuses", callbacks::refuse);
        callbacks.paused(tap, "closed inside a watcher", callbacks::closedInside);
        tap.finish();
    }

    /** A test with a tag of its name and a block of that tag. */
    private void paused(Tap tap, String name, Step step) {
        tap.test(name, () -> {
            Tag tag = context.tag(name, Contents.HOST, 0);
            try (GmmBuffer buffer = alloc(tag)) {
                step.run(tag, buffer);
            }
        });
    }

    private GmmBuffer alloc(Tag tag) {
        GmmBuffer buffer = context.alloc(SIZE, new AllocOptions().kind(Kind.VMM).tag(tag).dedicated());
        buffer.fill(7);
        return buffer;
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

    private static <T> T refuse() {
        throw new IllegalArgumentException("from the callback");
    }

    private static void throwsIt(Tap.Step step) throws Exception {
        same("from the callback", fails(IllegalArgumentException.class, step).getMessage(), "the exception");
    }

    private void log() {
        List<String> heard = Collections.synchronizedList(new ArrayList<>());
        ContextOptions options = CallsTest.options().logger((level, message) -> heard.add(level + " " + message));
        try (Context leaking = Context.open(options)) {
            leaking.allocate(12345, new AllocOptions().name("left over"));
        }
        check(heard.stream().anyMatch(line -> line.startsWith("WARNING ") && line.contains("\"left over\"")),
            "a report of the leak among " + heard);
    }

    private void outOfMemory() throws Exception {
        context.setLimit(null, 64L << 20);
        List<OomInfo> asked = new ArrayList<>();
        context.setOomHandler(info -> {
            context.setLimit(null, Context.NO_LIMIT);
            return asked.add(info);
        });
        context.alloc(65L << 20, Kind.VMM).close();
        same(1, asked.size(), "calls");
        OomInfo info = asked.get(0);
        check(info.kind() == Kind.VMM && info.device() == 0 && info.tag() == 1 && info.requestedBytes() >= 65L << 20
                && info.cause() == Result.LIMIT_EXCEEDED,
            "the info: " + info);
        context.trim();
        context.setLimit(null, 64L << 20);
        context.setOomHandler(again -> refuse());
        throwsIt(() -> context.alloc(65L << 20, Kind.VMM));
        context.setOomHandler(null);
        String text = fails(GmmOutOfMemoryException.class, () -> context.alloc(65L << 20, Kind.VMM)).toString();
        check(text.startsWith("io.gmm.GmmOutOfMemoryException: GMM_ERROR_LIMIT_EXCEEDED (")
                && text.contains(": Context.alloc of 68157440 bytes failed."), text);
        same("Lease.request(): x; Context.heap, Tag.info() and gmm_no_such()",
            Text.inJava("gmm_lease_request(): x; gmm_heap_create, gmm_tag_query() and gmm_no_such()"), "a message");
        for (String method : Methods.OF.values()) {
            String[] names = method.split("[.]");
            check(Arrays.stream(Class.forName("io.gmm." + names[0]).getMethods())
                .anyMatch(each -> each.getName().equals(names[1])), "messages name " + method);
        }
        context.setLimit(null, Context.NO_LIMIT);
        asked.clear();
        try (Context small = Context.open()) {
            small.setLimit(null, 16L << 20);
            small.setOomHandler(again -> asked.add(again) && again.attempt() < 2);
            for (int i = 0; i < 64; i++) {
                small.alloc(1L << 20, Kind.VMM); // forgotten: garbage is collected before the handler hears
            }
            same(0, asked.size(), "calls while there was garbage");
            fails(Result.LIMIT_EXCEEDED, () -> small.alloc(32L << 20, Kind.VMM));
            check(asked.size() == 2 && asked.get(0).attempt() == 1, "the attempts: " + asked);
        }
    }

    private void writer() throws Exception {
        fails(Result.IO, () -> context.snapshot(piece -> false));
        throwsIt(() -> context.snapshot(piece -> refuse()));
    }

    private void task() throws Exception {
        try (Stream stream = context.stream(0)) {
            List<String> uncaught = Tap.uncaughtIn(() -> {
                stream.call(CallbackTest::refuse);
                stream.synchronize();
            });
            Tap.waitFor("the exception of a task", () -> uncaught.equals(List.of("from the callback")));
        }
    }

    private void progress(Tag tag, GmmBuffer buffer) throws Exception {
        List<Long> reported = new ArrayList<>();
        tag.pause(new PauseOptions().progress((done, total) -> total == SIZE && reported.add(done)));
        same((long) SIZE, reported.get(reported.size() - 1), "the last progress");
        fails(Result.CANCELLED, () -> tag.resume(new PauseOptions().progress((done, total) -> false)));
        tag.resume();
        throwsIt(() -> tag.pause(new PauseOptions().progress((done, total) -> refuse())));
    }

    private void ticket(Tag tag, GmmBuffer buffer) throws Exception {
        List<Thread> reported = Collections.synchronizedList(new ArrayList<>());
        PauseOptions options = new PauseOptions().progress((done, total) -> reported.add(Thread.currentThread()));
        long went;
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
        PauseOptions thrower = new PauseOptions().progress((done, total) -> refuse());
        Ticket thrown = tag.pauseAsync(thrower);
        Throwable cause = fails(ExecutionException.class, thrown::get).getCause();
        check(cause instanceof IllegalArgumentException, "the cause: " + cause);
        throwsIt(thrown::join);
        thrown.close();
        throwsIt(() -> tag.pauseAsync(thrower).close()); // nobody has asked for its end
    }

    private void cancelled(Tag tag, GmmBuffer buffer) throws Exception {
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

    private void held(Tag tag, GmmBuffer buffer) throws Exception {
        try (Ticket ticket = tag.pauseAsync(new PauseOptions().hold())) {
            ticket.waitHeld();
            same(State.ACTIVE, buffer.query().state(), "the state before the commit");
            ticket.commit();
            check(ticket.join() >= SIZE && buffer.query().state() == State.PAUSED, "the commit: " + ticket);
        }
        tag.resume();
        try (Ticket undone = tag.pauseAsync(new PauseOptions().hold())) {
            undone.waitHeld();
            undone.cancel();
            eachFails(Result.CANCELLED, undone::join, undone::commit);
        }
    }

    private void watch(Tag tag, GmmBuffer buffer) throws Exception {
        List<WatchInfo> heard = Collections.synchronizedList(new ArrayList<>());
        try (Watcher all = context.watch(new WatchOptions().tag(tag).name("cache"), heard::add);
             Watcher range =
                 context.watch(new WatchOptions().memory(buffer).events(WatchEvent.LOSING).order(-1), heard::add)) {
            tag.pause();
            tag.resume();
        }
        tag.pause(); // nobody watches
        tag.resume();
        same(Arrays.asList(WatchEvent.PREPARE, WatchEvent.LOSING, WatchEvent.LOSING, WatchEvent.RESTORED),
            Arrays.asList(heard.stream().map(WatchInfo::event).toArray()), "the events");
        WatchInfo losing = heard.get(1);
        check(losing.address() == buffer.address() && losing.size() == SIZE && losing.tag() == tag.number(),
            "the values: " + losing);
        fails(IllegalArgumentException.class, () -> context.watch(new WatchOptions().tag(tag), null));
        try (Watcher budget = context.watch(new WatchOptions().budget(0, 8 << 20), heard::add)) {
            context.setLimit(new Scope().device(0), 4 << 20);
            Tap.waitFor("a budget that falls", () -> heard.get(heard.size() - 1).event() == WatchEvent.BUDGET);
        } finally {
            context.setLimit(new Scope().device(0), Context.NO_LIMIT);
        }
    }

    /** False and exceptions refuse PREPARE. */
    private void refuse(Tag tag, GmmBuffer buffer) throws Exception {
        try (Watcher no = context.watch(new WatchOptions().tag(tag).name("says no"), info -> false)) {
            check(fails(Result.BUSY, tag::pause).getMessage().contains("says no"), "the watcher's name");
        }
        try (Watcher thrower = context.watch(new WatchOptions().tag(tag), info -> refuse())) {
            same(List.of("from the callback"), Tap.uncaughtIn(() -> fails(Result.BUSY, tag::pause)), "uncaught");
        }
    }

    /** Calls that wait for an operation are BUSY in its handler, and the objects stay usable. */
    private void closedInside(Tag tag, GmmBuffer buffer) throws Exception {
        Tag elsewhere = context.tag("ticket inside", Contents.HOST, 0);
        List<Boolean> looks = Collections.synchronizedList(new ArrayList<>());
        Gate gate = new Gate();
        try (GmmBuffer paused = alloc(elsewhere); Heap heap = context.heap(new HeapOptions().kind(Kind.HOST));
             Ticket ticket = elsewhere.pauseAsync(new PauseOptions().progress(gate))) {
            gate.waitUntilReached();
            Watcher[] self = new Watcher[1];
            self[0] = context.watch(new WatchOptions().tag(tag).events(WatchEvent.LOSING), info -> {
                Tap.unchecked(()
                                  -> eachFails(Result.BUSY, heap::close, ticket::close, ticket::join, context::close,
                                      self[0] ::close, () -> context.alloc(100), () -> tag.pause()));
                return looks.add(ticket.isDone());
            });
            tag.pause();
            tag.resume();
            self[0].close();
            same(List.of(false), looks, "a look at the ticket, after calls that are refused inside");
            heap.alloc(SIZE).close();
            gate.open.countDown();
            check(ticket.join() >= SIZE, "the ticket's bytes");
            elsewhere.resume();
        }
    }
}
