/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import static io.gmm.Tap.check;
import static io.gmm.Tap.fails;
import static io.gmm.Tap.same;
import static io.gmm.Tap.waitFor;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;

/** Leases of one process. tests/api/conformance_lease.c and lease_processes.c have their decisions. */
final class LeaseTest {
    private static final int MIB = 1 << 20;
    private static final int CARD_MIB = 64;
    private static final int PART_MIB = 40; // two do not fit
    private static final long PART = (long) PART_MIB * MIB;

    private final Context context;
    private final List<AutoCloseable> open = new ArrayList<>();

    private LeaseTest(Path folder) {
        context = Context.open(
            new ContextOptions().backend(Backend.HOST).hostDevices(1).hostMemory((long) CARD_MIB * MIB).noLeakReport());
        context.configureIpc(new IpcOptions().directory(folder));
    }

    private interface Step {
        void run(LeaseTest of) throws Exception;
    }

    public static void main(String[] arguments) {
        Tap tap = new Tap();
        oneProcess(tap);
        tap.finish();
    }

    private static void oneProcess(Tap tap) {
        alone(tap, "the turns of one process", LeaseTest::turns);
        alone(tap, "a tag is one lease's", LeaseTest::oneLeaseATag);
        alone(tap, "requests in the background", LeaseTest::background);
        alone(tap, "an interrupt ends a request", LeaseTest::interrupt);
        alone(tap, "close in the middle of a request", LeaseTest::closeInRequest);
        alone(tap, "who is asked", LeaseTest::asked);
        alone(tap, "a handler that throws", LeaseTest::throwingHandler);
        alone(tap, "forgotten leases and tickets", LeaseTest::forgotten);
        alone(tap, "closed by one thread while others use it", LeaseTest::closeUnderUse);
    }

    private static Path folder() throws Exception {
        return Files.createTempDirectory("gmm-lease");
    }

    private static void alone(Tap tap, String name, Step step) {
        tap.test(name, () -> {
            Path folder = folder();
            LeaseTest test = new LeaseTest(folder);
            try {
                step.run(test);
            } finally {
                for (int i = test.open.size(); i-- > 0;) {
                    test.open.get(i).close();
                }
                test.context.close();
                delete(folder);
            }
        });
    }

    private static void delete(Path folder) throws Exception {
        waitFor("an empty folder", () -> {
            for (java.io.File each : folder.toFile().listFiles()) {
                each.delete();
            }
            return folder.toFile().delete();
        });
    }

    // One process: leases over tags of one context.

    private static LeaseOptions options(String name) {
        return new LeaseOptions(name).residencyMillis(1);
    }

    private Lease lease(LeaseOptions options) {
        Lease made = context.lease(options);
        open.add(made);
        return made;
    }

    private Tag tag(String name) {
        return context.tag(name, Contents.HOST, 0);
    }

    /** A lease over a tag of its name, with a block of so much, idle. */
    private Lease party(String name, int mib) {
        return party(options(name), mib);
    }

    private Lease party(LeaseOptions options, int mib) {
        Tag tag = tag(options.name);
        Lease made = lease(options.offer(tag));
        LeaseRequest request = new LeaseRequest().amount(0, (long) mib * MIB);
        try (LeaseTurn turn = made.turn(request)) {
            same(0L, turn.bytes(), "bytes that came back");
            open.add(context.alloc((long) mib * MIB, new AllocOptions().kind(Kind.VMM).tag(tag)));
        }
        return made;
    }

    private static LeaseRequest within(long millis) {
        return new LeaseRequest().timeoutMillis(millis);
    }

    private void turns() throws Exception {
        Lease first = party("first", PART_MIB);
        Lease second = party("second", PART_MIB);
        same("Lease[second, idle, 40 MiB active, 0 bytes paused]", second.toString(), "a lease");
        LeaseTurn turn = first.turn();
        same(PART, turn.bytes(), "bytes that came back");
        same(PART, second.info().pausedBytes(), "bytes that were taken");
        same(LeaseState.IN_USE, first.info().state(), "the state");
        same(2L, first.info().grants(), "grants");
        same(1L, second.info().evictions(), "pauses for others");
        check(second.info().evictedBytes() == PART && second.info().toString().contains("state=IDLE"), "" + second);
        fails(Result.BUSY, first::request);
        turn.close();
        same(LeaseState.IDLE, first.info().state(), "the state");
        check(!first.release(), "a release of what is not in use");
        same(0L, first.request(), "bytes that came back");
        turn.close(); // not that of the request
        same(LeaseState.IN_USE, first.info().state(), "the state");
        check(first.release(), "a release");
        fails(ArithmeticException.class, () -> {
            try (LeaseTurn of = second.turn()) {
                throw new ArithmeticException("in the turn");
            }
        });
        same(LeaseState.IDLE, second.info().state(), "the state");
        status();
        try (LeaseTurn of = second.turn()) {
            second.close();
            second.close();
        } // no end of a turn
        check(second.isClosed() && second.toString().equals("Lease[closed]"), "" + second);
        same("this lease is closed", fails(IllegalStateException.class, second::request).getMessage(), "the message");
        fails(IllegalStateException.class, second::release);
        fails(IllegalStateException.class, second::info);
        fails(IllegalStateException.class, () -> second.offer(tag("first")));
    }

    /** A lease reports the end of a turn on its own thread, later. */
    private void status() throws Exception {
        waitFor("idle leases", () -> context.leases(60000).stream().allMatch(each -> each.state() == LeaseState.IDLE));
        List<String> names = new ArrayList<>();
        for (LeaseEntryInfo entry : context.leases(60000)) {
            names.add(entry.name());
            same((int) ProcessHandle.current().pid(), entry.process(), "its process");
            same(16, entry.uuid().length, "bytes of its UUID");
            check(entry.server() != 0 && entry.serverProcess() > 0, "" + entry);
            if (entry.name().equals("second")) { // the last one to report
                check(entry.heldBytes() >= PART && entry.freeBytes() <= CARD_MIB * MIB - PART, "" + entry);
                same(PART, entry.offeredBytes(), "what " + entry + " offers");
            }
            check(entry.floorBytes() + entry.wantedBytes() + entry.grantedBytes() == 0, "" + entry);
        }
        Collections.sort(names);
        same(List.of("first", "second"), names, "leases");
    }

    private void oneLeaseATag() throws Exception {
        Lease first = party("first", PART_MIB);
        Tag tag = context.findTag("first");
        Lease second = lease(options("second"));
        fails(Result.OFFERED, () -> second.offer(tag));
        first.withdraw(tag);
        same(0L, first.info().activeBytes(), "bytes of what is not offered");
        second.offer(tag);
        same(PART, second.info().activeBytes(), "bytes of what is offered");
    }

    private void background() throws Exception {
        Lease first = party("first", PART_MIB);
        Lease second = party("second", PART_MIB);
        try (Ticket granted = first.requestAsync()) {
            same(PART, granted.get(Tap.SECONDS, TimeUnit.SECONDS), "bytes that came back");
            check(granted.isDone() && granted.info().result() == Result.OK, "" + granted);
        }
        try (Ticket late = second.requestAsync(within(1000))) {
            fails(TimeoutException.class, () -> late.get(1, TimeUnit.MILLISECONDS)); // of the question
            waitFor("its thread", () -> second.info().state() == LeaseState.WAITING);
            fails(Result.BUSY, () -> second.requestAsync().join());
            GmmException error = fails(Result.NOT_READY, late::join); // of the request
            check(error.getMessage().contains("first"), "the holder in: " + error);
            same(error, fails(ExecutionException.class, late::get).getCause(), "the cause");
        }
        check(fails(Result.NOT_READY, () -> second.request(within(50))).getMessage().contains("first"), "the holder");
        Ticket cancelled = second.requestAsync();
        check(cancelled.cancel(), "a cancellation");
        fails(CancellationException.class, cancelled::get);
        cancelled.close();
        same(LeaseState.IDLE, second.info().state(), "the state");
        CompletableFuture<Long> future = second.requestAsync().toCompletableFuture();
        check(first.release(), "a release");
        same(PART, future.get(Tap.SECONDS, TimeUnit.SECONDS), "bytes that came back");
    }

    /** Runs it on another thread; what it threw, or null. */
    private static FutureTask<Throwable> elsewhere(Tap.Step step) {
        FutureTask<Throwable> task = new FutureTask<>(() -> {
            try {
                step.run();
                return null;
            } catch (Throwable error) {
                return error;
            }
        });
        new Thread(task).start();
        return task;
    }

    private void interrupt() throws Exception {
        Lease first = party("first", PART_MIB);
        Lease second = party("second", PART_MIB);
        try (LeaseTurn turn = first.turn()) {
            Thread waiting = Thread.currentThread();
            FutureTask<Throwable> interrupting = elsewhere(() -> {
                waitFor("the request", () -> second.info().state() == LeaseState.WAITING);
                waiting.interrupt();
            });
            GmmException error = fails(Result.CANCELLED, second::request);
            check(Thread.interrupted(), "the thread stays interrupted");
            check(error.getCause() instanceof InterruptedException, "the cause of " + error);
            same(LeaseState.IDLE, second.info().state(), "the state");
            same(null, interrupting.get(), "what the other thread threw");
        }
        Thread.currentThread().interrupt(); // a grant that comes at once is returned
        fails(Result.CANCELLED, second::request);
        check(Thread.interrupted(), "the thread stays interrupted");
        same(LeaseState.IDLE, second.info().state(), "the state");
    }

    private void closeInRequest() throws Exception {
        Lease first = party("first", PART_MIB);
        Lease second = party("second", PART_MIB);
        Lease third = party("third", 1);
        try (LeaseTurn turn = first.turn()) {
            FutureTask<Throwable> blocked = elsewhere(second::request);
            waitFor("the request", () -> second.info().state() == LeaseState.WAITING);
            Ticket ticket = third.requestAsync(new LeaseRequest().amount(0, PART));
            third.close();
            check(ticket.isDone() && ticket.isCancelled(), "a ticket outlives its lease");
            ticket.close();
            second.close();
            GmmException error = (GmmException) blocked.get(Tap.SECONDS, TimeUnit.SECONDS);
            same(Result.CANCELLED, error.result(), "the result of: " + error);
            waitFor("a server that has forgotten them",
                () -> context.leases(60000).size() == 1);
        }
    }

    private void asked() throws Exception {
        List<LeaseAsk> heard = Collections.synchronizedList(new ArrayList<>());
        AtomicInteger refused = new AtomicInteger();
        CompletableFuture<Ticket> waiting = new CompletableFuture<>();
        Lease first = party(options("first").asked((lease, ask) -> {
            Ticket ticket = waiting.join();
            Tap.unchecked(() -> {
                for (Tap.Step step : List.<Tap.Step>of(lease::request, lease::requestAsync, lease::close, ticket::join,
                         ticket::isDone, ticket::close)) {
                    fails(Result.BUSY, step);
                    refused.incrementAndGet();
                }
            });
            same(LeaseState.IN_USE, lease.info().state(), "the state");
            heard.add(ask);
            check(lease.release(), "a release");
        }), PART_MIB);
        Lease second = party(options("second").priority(5), PART_MIB);
        same(PART, first.request(), "bytes that came back");
        try (Ticket ticket = second.requestAsync(within(5000))) {
            waiting.complete(ticket);
            same(PART, ticket.join(), "bytes that came back");
        }
        same(1, heard.size(), "calls");
        same(6, refused.get(), "calls that are refused inside");
        LeaseAsk ask = heard.get(0);
        same("second", ask.name(), "who waits");
        same(5, ask.priority(), "its priority");
        same(PART, ask.bytes(), "what it wants");
        same((int) ProcessHandle.current().pid(), ask.process(), "its process");
        check(ask.waitingMillis() >= 0 && ask.toString().contains("name=second"), "" + ask);
        same(LeaseState.IDLE, first.info().state(), "the state");
        same(1L, first.info().asked(), "calls, as the lease counts them");
    }

    private void throwingHandler() throws Exception {
        List<String> uncaught = Collections.synchronizedList(new ArrayList<>());
        Thread.UncaughtExceptionHandler before = Thread.getDefaultUncaughtExceptionHandler();
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> uncaught.add(error.getMessage()));
        try {
            AtomicInteger calls = new AtomicInteger();
            Lease first = party(options("first").asked((lease, ask) -> {
                if (calls.incrementAndGet() == 1) {
                    throw new IllegalStateException("from the handler");
                }
                lease.release();
            }), PART_MIB);
            Lease second = party("second", PART_MIB);
            first.request();
            same(PART, second.request(), "bytes that came back"); // it is asked again after a second
            same(2, calls.get(), "calls");
            same(List.of("from the handler"), uncaught, "what the handler threw");
        } finally {
            Thread.setDefaultUncaughtExceptionHandler(before);
        }
    }

    /** Nobody holds what this makes. */
    private void forget(Lease holder) throws Exception {
        Ticket first = context.lease(options("forgotten").offer(tag("forgotten")).asked((lease, ask) -> {}))
                           .requestAsync(new LeaseRequest().amount(0, PART));
        Ticket second = holder.requestAsync(new LeaseRequest().amount(0, PART));
        waitFor("a third member", () -> context.leases(60000).size() == 3);
        check(!first.isDone() && !second.isDone(), "they wait");
    }

    private void forgotten() throws Exception {
        Lease first = party("first", PART_MIB);
        Lease second = party("second", 1);
        first.request();
        forget(second);
        waitFor("the Cleaner to end a lease", () -> context.leases(60000).size() == 2);
        waitFor("the Cleaner to end a request", () -> second.info().state() == LeaseState.IDLE);
        lease(options("again").offer(tag("forgotten")));
    }

    /** Also by its handler. */
    private void closeUnderUse() throws Exception {
        List<Throwable> uncaught = Collections.synchronizedList(new ArrayList<>());
        Thread.UncaughtExceptionHandler before = Thread.getDefaultUncaughtExceptionHandler();
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> uncaught.add(error));
        for (int round = 0; round < 8; round++) {
            CompletableFuture<Void> inside = new CompletableFuture<>();
            Lease holder = lease(options("holder").asked((lease, ask) -> {
                inside.complete(null);
                while (true) {
                    lease.info();
                }
            }));
            holder.request(new LeaseRequest().amount(0, PART));
            Lease waiter = lease(options("waiter"));
            Ticket waiting = waiter.requestAsync(new LeaseRequest().amount(0, PART));
            inside.get(Tap.SECONDS, TimeUnit.SECONDS);
            FutureTask<Throwable> user = elsewhere(() -> {
                while (true) {
                    holder.info();
                }
            });
            holder.close();
            same(0L, waiting.join(), "what the waiter gets from the closed one");
            waiter.close();
            check(user.get(Tap.SECONDS, TimeUnit.SECONDS) instanceof IllegalStateException, "use after close");
        }
        Thread.setDefaultUncaughtExceptionHandler(before);
        same(List.of(), uncaught, "failures of threads");
    }

    // Processes.
}
