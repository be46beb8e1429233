/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import static io.gmm.Tap.check;
import static io.gmm.Tap.eachFails;
import static io.gmm.Tap.elsewhere;
import static io.gmm.Tap.fails;
import static io.gmm.Tap.same;
import static io.gmm.Tap.waitFor;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;

/** Leases as Java has them: turns, tickets, interrupts, handlers and the collector. tests/api has their decisions. */
final class LeaseTest {
    private static final int MIB = 1 << 20;
    private static final long CARD = 64L * MIB;
    private static final long PART = 40L * MIB; // two do not fit
    private static final int PROCESS = (int) ProcessHandle.current().pid();

    private final List<AutoCloseable> open = new ArrayList<>();
    private final Context context =
        Context.open(new ContextOptions().backend(Backend.HOST).hostDevices(1).hostMemory(CARD).noLeakReport());

    private interface Step {
        void run(LeaseTest of) throws Exception;
    }

    public static void main(String[] arguments) {
        Tap tap = new Tap();
        alone(tap, "turns and offers", LeaseTest::turns);
        alone(tap, "an interrupt ends a request", LeaseTest::interrupt);
        alone(tap, "a handler that throws, then refuses calls and releases", LeaseTest::asked);
        alone(tap, "forgotten leases and tickets", LeaseTest::forgotten);
        alone(tap, "closed under a request, a user and a handler", LeaseTest::closeUnderUse);
        tap.finish();
    }

    private static void alone(Tap tap, String name, Step step) {
        tap.test(name, () -> {
            Path folder = Files.createTempDirectory("gmm-lease");
            LeaseTest test = new LeaseTest();
            try {
                test.context.configureIpc(new IpcOptions().directory(folder));
                step.run(test);
            } finally {
                for (int i = test.open.size(); i-- > 0;) {
                    test.open.get(i).close();
                }
                test.context.close();
            }
            waitFor("an empty folder", () -> {
                for (java.io.File each : folder.toFile().listFiles()) {
                    each.delete();
                }
                return folder.toFile().delete();
            });
        });
    }

    private Lease lease(LeaseOptions options) {
        Lease made = context.lease(options.residencyMillis(1));
        open.add(made);
        return made;
    }

    private static LeaseRequest amount(long bytes) {
        return new LeaseRequest().amount(0, bytes);
    }

    /** A lease over a tag of its name, with a block of 40 MiB, idle. */
    private Lease party(LeaseOptions options) {
        Tag tag = context.tag(options.name, Contents.HOST, 0);
        Lease made = lease(options.offer(tag));
        try (LeaseTurn turn = made.turn(amount(PART))) {
            same(0L, turn.bytes(), "bytes that came back");
            open.add(context.alloc(PART, new AllocOptions().kind(Kind.VMM).tag(tag)));
        }
        return made;
    }

    private void turns() throws Exception {
        Lease first = party(new LeaseOptions("first"));
        Lease second = party(new LeaseOptions("second"));
        same("Lease[second, idle, 40 MiB active, 0 bytes paused]", second.toString(), "a lease");
        try (LeaseTurn turn = first.turn()) {
            same(PART, turn.bytes(), "bytes that came back");
            check(first.info().state() == LeaseState.IN_USE && second.info().evictions() == 1, "" + second.info());
            fails(Result.BUSY, first::request);
            turn.close();
            first.request();
        } // not the end of the second turn
        check(first.release() && !first.release(), "a release, and another one");
        Tag tag = context.findTag("first");
        fails(Result.OFFERED, () -> second.offer(tag));
        first.withdraw(tag);
        same(0L, first.info().activeBytes(), "bytes of no offer");
        first.offer(tag);
        LeaseEntryInfo entry = context.leases(60000).get(0);
        check(entry.process() == PROCESS && entry.uuid().length == 16, "" + entry);
        try (GmmBuffer block = context.alloc(1 << 20, Kind.VMM)) {
            block.fill(7);
            block.publish("of Java");
            try (GmmBuffer attached = context.attach("of Java", true, 60000)) {
                check(attached.read(0, 1)[0] == 7 && context.published(60000).get(0).readers() == 1, "a reader");
            }
            context.unpublish("of Java");
        }
        try (LeaseTurn turn = second.turn()) {
            second.close();
        } // no end of a turn
        same("this lease is closed", fails(IllegalStateException.class, second::request).getMessage(), "the message");
    }

    private void interrupt() throws Exception {
        Lease first = party(new LeaseOptions("first"));
        Lease second = party(new LeaseOptions("second"));
        try (LeaseTurn turn = first.turn()) {
            Thread waiting = Thread.currentThread();
            FutureTask<Void> interrupting = elsewhere(() -> {
                waitFor("the request", () -> second.info().state() == LeaseState.WAITING);
                waiting.interrupt();
            });
            GmmException error = fails(Result.CANCELLED, second::request);
            check(Thread.interrupted() && error.getCause() instanceof InterruptedException, "the cause of " + error);
            Tap.join(interrupting);
        }
        Thread.currentThread().interrupt(); // a grant that comes at once is returned
        fails(Result.CANCELLED, second::request);
        check(Thread.interrupted(), "the thread stays interrupted");
        same(LeaseState.IDLE, second.info().state(), "the state");
    }

    private void asked() throws Exception {
        List<LeaseAsk> heard = Collections.synchronizedList(new ArrayList<>());
        CompletableFuture<Ticket> waiting = new CompletableFuture<>();
        Lease first = party(new LeaseOptions("first").asked((lease, ask) -> {
            heard.add(ask);
            if (heard.size() == 1) { // it is asked again after a second
                throw new IllegalStateException("from the handler");
            }
            Ticket ticket = waiting.join();
            Tap.unchecked(()
                              -> eachFails(Result.BUSY, lease::request, lease::requestAsync, lease::close, ticket::join,
                                  ticket::isDone, ticket::close));
            check(lease.release(), "a release");
        }));
        Lease second = party(new LeaseOptions("second").priority(5));
        List<String> uncaught = Tap.uncaughtIn(() -> {
            first.request();
            try (Ticket ticket = second.requestAsync()) {
                waiting.complete(ticket);
                same(PART, ticket.join(), "bytes that came back");
            }
        });
        same(List.of("from the handler"), uncaught, "exceptions of the handler");
        LeaseAsk ask = heard.get(1);
        check(ask.name().equals("second") && ask.priority() == 5 && ask.bytes() == PART && ask.waitingMillis() > 0
                && ask.process() == PROCESS,
            "" + ask);
    }

    /** Nobody holds the lease and the tickets that this makes. */
    private void forget(Lease holder) throws Exception {
        LeaseOptions options = new LeaseOptions("forgotten").asked((lease, ask) -> {});
        Ticket first = context.lease(options).requestAsync(amount(PART));
        Ticket second = holder.requestAsync(amount(CARD));
        waitFor("a third member", () -> context.leases(60000).size() == 3);
        check(!first.isDone() && !second.isDone(), "they wait");
    }

    private void forgotten() throws Exception {
        Lease first = party(new LeaseOptions("first"));
        Lease second = lease(new LeaseOptions("second"));
        first.request();
        forget(second);
        waitFor("the Cleaner to end a lease", () -> context.leases(60000).size() == 2);
        waitFor("the Cleaner to end a request", () -> second.info().state() == LeaseState.IDLE);
    }

    private void closeUnderUse() throws Exception {
        CompletableFuture<Void> inside = new CompletableFuture<>();
        Lease holder = lease(new LeaseOptions("holder").asked((lease, ask) -> {
            inside.complete(null);
            while (true) {
                lease.info();
            }
        }));
        holder.request(amount(PART));
        Lease third = lease(new LeaseOptions("third"));
        List<String> uncaught = Tap.uncaughtIn(() -> {
            FutureTask<Void> blocked = elsewhere(() -> fails(Result.CANCELLED, () -> third.request(amount(PART))));
            inside.get(Tap.SECONDS, TimeUnit.SECONDS);
            Ticket ticket = lease(new LeaseOptions("fourth")).requestAsync(amount(PART));
            third.close();
            Tap.join(blocked);
            holder.close();
            same(0L, ticket.join(), "the bytes that came back to the next one");
        });
        same(List.of(), uncaught, "the handler ends with its lease");
    }
}
