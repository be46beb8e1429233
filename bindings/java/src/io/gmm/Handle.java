/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.lang.ref.Cleaner;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import java.util.function.LongConsumer;
import java.util.function.LongFunction;

/**
 * A native object and the count of those who need it: its owner, each call that runs on it, and each object made from
 * it. The native object ends with the last of them, so neither a close() on another thread nor the Cleaner ends it
 * during a call.
 */
final class Handle implements Runnable {
    /** Makes a native object from its parent, and from what C passes to its callbacks (0: nothing). */
    interface Maker {
        void make(long parent, long user, long[] out);
    }

    private static final Cleaner CLEANER = Cleaner.create();

    /** In state: the owner has closed it. The rest of state counts references in steps of ONE. */
    private static final int CLOSED = 1;
    private static final int ONE = 2;

    private final AtomicInteger state = new AtomicInteger(ONE);
    private final String what;
    private final long address;
    private final LongConsumer destroyer;
    private Cleaner.Cleanable cleanable;
    private volatile int generation;

    private Handle(String what, long address, LongConsumer destroyer) {
        this.what = what;
        this.address = address;
        this.destroyer = destroyer;
    }

    static Handle child(String what, Handle parent, Call call, Maker maker, LongConsumer destroyer) {
        return child(what, parent, call, maker, destroyer, Runnable::run);
    }

    /**
     * An object that keeps the one that it was made from (null: a context), and the object that its callbacks call
     * (null: none). `ender` runs its end.
     */
    static Handle child(
        String what, Handle parent, Call call, Maker maker, LongConsumer destroyer, Consumer<Runnable> ender) {
        long native_ = parent == null ? 0 : parent.acquire();
        long user = 0;
        try {
            user = call == null ? 0 : Native.newCallbacks(call);
            long kept = user;
            long[] out = new long[1];
            maker.make(native_, user, out);
            return new Handle(what, out[0], address -> ender.accept(() -> {
                try {
                    destroyer.accept(address);
                } finally {
                    letGo(parent, kept);
                }
            }));
        } catch (Throwable error) {
            letGo(parent, user);
            throw error;
        }
    }

    private static void letGo(Handle parent, long user) {
        if (user != 0) {
            Native.deleteCallbacks(user);
        }
        if (parent != null) {
            parent.release();
        }
    }

    /** Closes the handle when nobody can reach `owner` any more. */
    void guard(Object owner) {
        cleanable = CLEANER.register(owner, this);
    }

    /** Keeps `kept` reachable for as long as `holder` is. */
    static void keepReachable(Object holder, Object kept) {
        onGarbage(holder, () -> java.lang.ref.Reference.reachabilityFence(kept));
    }

    /** Runs `action` on the Cleaner's thread when nobody can reach `object` any more. */
    static void onGarbage(Object object, Runnable action) {
        CLEANER.register(object, action);
    }

    /** The address, which is good until release(). */
    long acquire() {
        int now;
        do {
            now = state.get();
            if ((now & CLOSED) != 0) {
                throw new IllegalStateException("this " + what + " is closed");
            }
        } while (!state.compareAndSet(now, now + ONE));
        return address;
    }

    /** Runs a call with the address. */
    void run(LongConsumer call) {
        long held = acquire();
        try {
            call.accept(held);
        } finally {
            release();
        }
    }

    /** The answer of a call with the address. */
    <T> T get(LongFunction<T> call) {
        long held = acquire();
        try {
            return call.apply(held);
        } finally {
            release();
        }
    }

    /** The address, for a caller that holds a reference already. */
    long address() {
        return address;
    }

    void release() {
        if (state.addAndGet(-ONE) < ONE) {
            destroyer.accept(address);
        }
    }

    /** The number of resets of a context. */
    int generation() {
        return generation;
    }

    synchronized void nextGeneration() {
        generation++;
    }

    boolean isClosed() {
        return (state.get() & CLOSED) != 0;
    }

    /** Closes the handle for its owner. A second call does nothing. */
    void close() {
        int now;
        do {
            now = state.get();
            if ((now & CLOSED) != 0) {
                return;
            }
        } while (!state.compareAndSet(now, (now | CLOSED) - ONE));
        if (cleanable != null) {
            cleanable.clean(); // forgets the owner; run() finds the handle closed
        }
        if (((now | CLOSED) - ONE) < ONE) {
            destroyer.accept(address);
        }
    }

    /** Called by the Cleaner, which would drop an exception without a message. */
    @Override
    public void run() {
        try {
            close();
        } catch (RuntimeException error) {
            System.getLogger("io.gmm")
                .log(System.Logger.Level.WARNING, "a forgotten " + what + " could not be given back", error);
        }
    }
}
