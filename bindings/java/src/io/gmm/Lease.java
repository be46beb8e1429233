/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.WeakHashMap;
import java.util.concurrent.CompletableFuture;

/**
 * A process's share in the memory of its devices, until close(): processes that share a GPU use it by turns, and none
 * of them knows the others.
 *
 * <pre>{@code
 * try (Lease lease = context.lease(new LeaseOptions("trainer").offer(weights, optimizer))) {
 *     while (training) {
 *         try (LeaseTurn turn = lease.turn()) {  // waits for the turn; the tags are back, with their contents
 *             step();
 *         }
 *         ...                                    // others may have the memory now
 *     }
 * }
 * }</pre>
 *
 * Between two turns gmm pauses the offered tags when another process wants their memory, and the next turn resumes
 * them. If nobody wants it, it stays where it is. The server of the machine, the command
 * {@code gmm serve}, decides whose turn it is. The first lease starts it.
 *
 * <p>A lease that nobody refers to any more ends, so the program holds it. A handler that refers to it keeps it; the
 * lease that the handler gets does not.
 */
public final class Lease extends LeaseCalls {
    static final long DEFAULT_COST = 1;
    private static final long MOST_COST = 0xfffffffeL;

    private final String name;
    private final CompletableFuture<Void> ended;
    private final Set<Ticket> tickets = Collections.newSetFromMap(new WeakHashMap<>());

    private Lease(Handle handle, String name, CompletableFuture<Void> ended) {
        super(handle);
        this.name = name;
        this.ended = ended;
    }

    static Lease create(Handle context, LeaseOptions options) {
        Call.Asked call = options.asked == null ? null : new Call.Asked(options.asked);
        CompletableFuture<Void> ended = new CompletableFuture<>();
        Handle handle = Handle.child("lease", context, call, (native_, user, out) -> {
            Native.gmm_lease_create(native_, options.encode(user), out);
        }, Native::gmm_lease_destroy, end -> Call.Asked.end(() -> {
            try {
                end.run(); // waits for a pause for others, and for the handler
            } finally {
                ended.complete(null);
            }
        }));
        Lease lease = new Lease(handle, options.name, ended);
        if (call != null) {
            call.lease = new WeakReference<>(lease);
        }
        try {
            options.offers.forEach(lease::offer);
            return lease;
        } catch (Throwable error) {
            lease.close();
            throw error;
        }
    }

    static long checkCost(long cost) {
        if (cost < 0 || cost > MOST_COST) {
            throw new IllegalArgumentException("a cost is 0 to " + MOST_COST + ", not " + cost);
        }
        return cost;
    }

    /** The name. */
    public String name() {
        return name;
    }

    /**
     * Offers a tag, or changes its cost: what it costs to bring a byte of it back, beside other tags. The lowest goes
     * first. It waits while gmm pauses or resumes for this lease. OFFERED: another lease of the context offers the tag.
     */
    public void offer(Tag tag, long cost) {
        change(tag, (int) checkCost(cost));
    }

    /** Offers a tag, with a cost of 1. */
    public void offer(Tag tag) {
        offer(tag, DEFAULT_COST);
    }

    /** Ends an offer. The tag stays as it is, active or paused. It waits as offer() does. */
    public void withdraw(Tag tag) {
        change(tag, (int) NativeConstants.GMM_LEASE_WITHDRAW);
    }

    private void change(Tag tag, int cost) {
        Call.Watch.checkOutside("The offer of a lease", true); // the lease's pause may wait for this handler
        handle.run(address -> Native.gmm_lease_offer_wait(address, tag.number(), cost));
    }

    /** Waits for the turn for 60 s, and resumes the offered tags. */
    public long request() {
        return request(new LeaseRequest());
    }

    /**
     * Waits for the turn and resumes the offered tags. Returns the bytes that came back. The lease is in use until
     * {@link #release}. All or nothing: the memory on all devices, or none.
     *
     * <p>OUT_OF_MEMORY: free memory and what others offer can never meet it. NOT_READY: the time is over. Both messages
     * name who holds what. BUSY: the lease is in use or waits already. CANCELLED: close() on another thread ended it,
     * or an interrupt, which is the cause then; the thread stays interrupted. After an exception the lease is idle.
     */
    public long request(LeaseRequest request) {
        Ticket ticket = requestAsync(request);
        try {
            return ticket.get();
        } catch (InterruptedException interrupt) {
            Thread.currentThread().interrupt();
            throw giveUp(ticket, interrupt);
        } catch (java.util.concurrent.ExecutionException | java.util.concurrent.CancellationException error) {
            return ticket.join(); // throws the GmmException as it is
        } finally {
            ticket.close();
        }
    }

    /** Ends a request, or its grant. */
    private GmmException giveUp(Ticket ticket, InterruptedException interrupt) {
        ticket.cancel();
        try {
            ticket.join();
            endTurn();
        } catch (GmmException ended) {
            // it is not in use
        }
        GmmException cancelled =
            new GmmException(Result.CANCELLED, "Lease.request(): the thread was interrupted; the lease is idle.");
        cancelled.initCause(interrupt);
        return cancelled;
    }

    /** A request in the background, for 60 s. */
    public Ticket requestAsync() {
        return requestAsync(new LeaseRequest());
    }

    /**
     * request() in the background. The ticket's success is the grant, and its cancel() ends the request. A ticket that
     * nobody refers to any more ends its request, too.
     */
    public Ticket requestAsync(LeaseRequest request) {
        Call.Watch.checkOutside("Lease.request()", false);
        Call.Asked.checkOutside("Lease.request()");
        Ticket ticket = Ticket.request(this, handle, request);
        synchronized (tickets) {
            tickets.add(ticket);
        }
        if (handle.isClosed()) {
            ticket.cancel(); // close() may not have seen it
        }
        return ticket;
    }

    /**
     * Ends the turn: others may have the memory of the offered tags. It stays where it is until others want it. Work
     * that is queued on streams still ends, because a pause waits for the devices. False: the lease was not in use.
     */
    public boolean release() {
        return handle.get(Native::gmm_lease_return) == Result.OK.value();
    }

    /** A turn until it is closed: request() and release(). */
    public LeaseTurn turn() {
        return turn(new LeaseRequest());
    }

    /** A turn until it is closed: request() and release(). */
    public LeaseTurn turn(LeaseRequest request) {
        return new LeaseTurn(this, request(request));
    }

    void endTurn() {
        try {
            release();
        } catch (IllegalStateException closed) {
            // The lease has ended, and its turn with it.
        }
    }

    /**
     * Ends the lease. A request that waits is cancelled. Its memory stays as it is, active or paused, and is the
     * context's alone. The call waits for a pause for others and for the handler; afterwards nobody calls that. Inside
     * the handler of a lease or of a watcher it is BUSY, and the lease stays open. Closing twice does nothing.
     */
    @Override
    public void close() {
        Call.Watch.checkOutside("Lease.close()", false);
        Call.Asked.checkOutside("Lease.close()");
        if (handle.isClosed()) {
            return;
        }
        handle.close(); // from here on no request begins; the last one who needs the lease ends it
        List<Ticket> left;
        synchronized (tickets) {
            left = new ArrayList<>(tickets);
        }
        for (Ticket ticket : left) {
            ticket.abandon();
        }
        ended.join(); // an interrupt waits, too
    }

    @Override
    String describe() {
        LeaseInfo info = info();
        return name + ", " + String.valueOf(info.state()).toLowerCase(Locale.ROOT).replace('_', ' ') + ", "
            + Text.size(info.activeBytes()) + " active, " + Text.size(info.pausedBytes()) + " paused";
    }
}
