/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * A pause or resume, or a request of a lease, that a thread of the library carries out. Its value is the number of
 * bytes that changed state. close() waits for the end. A pause or resume whose ticket nobody closes runs to its end.
 * The handler of a watcher cannot wait for one, which would wait for the handler: that is BUSY, but for BUDGET. The
 * handler of a lease cannot ask for the state of a lease's ticket: BUSY, too.
 */
public final class Ticket extends TicketCalls implements Future<Long> {
    private final ProgressCall progress;
    private final Lease lease; // whose request it is, which must outlive it; null: a pause or resume
    private volatile CompletableFuture<Long> outcome;
    private volatile boolean reported;
    private volatile boolean cancelAsked;

    private Ticket(Handle handle, ProgressCall progress, Lease lease) {
        super(handle);
        this.progress = progress;
        this.lease = lease;
    }

    static Ticket start(Handle context, ProgressCall.Operation operation, PauseOptions options, Tag... tags) {
        ProgressCall call = ProgressCall.of(options.progress);
        return new Ticket(Handle.child("ticket", context, call,
            (native_, user, out) -> operation.call(native_, options.encode(tags, user), out),
            Native::gmm_ticket_destroy), call, null); // waits
    }

    static Ticket request(Lease lease, Handle handle, LeaseRequest request) {
        return new Ticket(Handle.child("ticket", handle, null, (native_, user, out) -> {
            Native.gmm_lease_request(native_, request.encode(), out);
        }, address -> {
            Native.gmm_ticket_cancel(address); // nobody has it any more
            Native.gmm_ticket_destroy(address);
        }, Call.Asked::end), null, lease);
    }

    private static CompletableFuture<Long> failed(Throwable failure) {
        boolean isCancelled = failure instanceof GmmException && ((GmmException) failure).result() == Result.CANCELLED;
        return CompletableFuture.failedFuture(
            isCancelled ? new CancellationException(failure.getMessage()).initCause(failure) : failure);
    }

    /** The outcome, or null on timeout. */
    private CompletableFuture<Long> look(long millis) {
        if (outcome != null) {
            return outcome;
        }
        if (millis != 0) {
            Call.Watch.checkOutside("The wait for a ticket", true); // its operation may wait for this handler
        }
        if (lease != null) {
            Call.Asked.checkOutside("A look at a ticket of a lease");
        }
        long[] bytes = new long[1];
        int[] done = new int[1];
        try {
            handle.run(address -> Native.gmm_ticket_look(address, millis, bytes, done));
            if (done[0] == 0) {
                return null;
            }
            Throwable thrown = ProgressCall.thrown(progress);
            outcome = thrown != null ? failed(thrown) : CompletableFuture.completedFuture(bytes[0]);
        } catch (GmmException error) {
            Throwable thrown = ProgressCall.thrown(progress);
            outcome = failed(thrown != null ? thrown : error);
        } catch (IllegalStateException closed) {
            if (outcome == null) { // else close() on another thread has waited for it
                throw closed;
            }
        }
        return outcome;
    }

    private CompletableFuture<Long> await() {
        while (look(Slices.MILLIS) == null) {
            // it has not ended
        }
        return outcome;
    }

    /** Whether it has ended, with success or failure. */
    @Override
    public boolean isDone() {
        return look(0) != null;
    }

    /**
     * Requests cancellation and does not wait. An operation that has committed completes normally; any other is undone
     * and ends with CANCELLED. Returns true when it had not ended yet.
     */
    @Override
    public boolean cancel(boolean mayInterruptIfRunning) {
        boolean canLook = lease == null || !Call.Asked.isInside();
        if ((canLook ? look(0) : outcome) != null) {
            return false;
        }
        try {
            handle.run(address -> {
                cancelAsked = true;
                Native.gmm_ticket_cancel(address);
            });
            return true;
        } catch (IllegalStateException closed) {
            return false;
        }
    }

    /** Waits until an operation with hold() is held. One that has ended instead throws its failure. */
    public void waitHeld() throws InterruptedException {
        Call.Watch.checkOutside("The wait for a ticket", true);
        Slices.await(millis -> handle.get(address -> Native.gmm_ticket_wait_held(address, millis))
            != Result.NOT_READY.value());
    }

    /** Carries out the held operation, and does not wait. If it has failed or was undone, its failure is thrown. */
    public void commit() {
        if (handle.get(Native::gmm_ticket_commit) == Result.NOT_READY.value()) {
            throw new IllegalStateException("the operation is not held; waitHeld() waits for that");
        }
    }

    /** Does the same as {@link #cancel(boolean)}. */
    public boolean cancel() {
        return cancel(true);
    }

    /** Whether cancel() or the progress ended it. */
    @Override
    public boolean isCancelled() {
        CompletableFuture<Long> ended = look(0);
        return ended != null && ended.isCancelled();
    }

    /**
     * Waits for its end and returns the bytes that changed state. The cause of the ExecutionException is a
     * GmmException, or what the progress threw.
     */
    @Override
    public Long get() throws InterruptedException, ExecutionException {
        Slices.await(millis -> look(millis) != null);
        reported = true;
        return outcome.get();
    }

    /** Does the same as get(), with a timeout. */
    @Override
    public Long get(long timeout, TimeUnit unit) throws InterruptedException, ExecutionException, TimeoutException {
        if (!Slices.await(timeout, unit, millis -> look(millis) != null)) {
            throw new TimeoutException("the operation has not ended in " + timeout + " "
                + unit.toString().toLowerCase(java.util.Locale.ROOT));
        }
        reported = true;
        return outcome.get();
    }

    /**
     * Waits for its end and returns the bytes that changed state. It throws the GmmException, or what the progress
     * threw, as it is.
     */
    public long join() {
        CompletableFuture<Long> ended = await();
        reported = true;
        try {
            return ended.join();
        } catch (CompletionException | CancellationException error) {
            ProgressCall.rethrow(error.getCause()); // a GmmException, or what the progress threw
            throw error;
        }
    }

    /** Its value as a CompletableFuture, for which a thread waits. Cancelling that one does not cancel the ticket. */
    public CompletableFuture<Long> toCompletableFuture() {
        return CompletableFuture.supplyAsync(this::join, waiting -> {
            Thread thread = new Thread(waiting, "gmm ticket");
            thread.setDaemon(true);
            thread.start();
        });
    }

    /**
     * Waits for the end and releases the ticket. The outcome can still be asked for. A failure that nobody has heard of
     * yet is thrown, unless cancel() asked for it. Inside the handler of a watcher it is BUSY, and the ticket stays
     * open. Closing twice does nothing.
     */
    @Override
    public void close() {
        if (handle.isClosed()) {
            return;
        }
        Call.Watch.checkOutside("Ticket.close()", false);
        await();
        handle.close();
        if (!reported && !cancelAsked) {
            join();
        }
    }

    /** Ends a request without a word: a lease ends. The outcome can still be asked for. */
    void abandon() {
        cancel();
        await();
        handle.close();
    }

    @Override
    String describe() {
        TicketInfo info = info();
        return info.state() == TicketState.DONE ? info.result() + ", " + Text.size(info.bytes())
            : "running, " + Text.size(info.copiedBytes()) + " of " + Text.size(info.totalBytes()) + " copied";
    }
}
