/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.lang.ref.WeakReference;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.LongConsumer;

/** A callback of the program as C calls it. C holds the object from Native.newCallbacks() until deleteCallbacks(). */
interface Call {
    /** Called from C with two numbers and bytes, each as far as the callback has them. Returns its answer. */
    boolean call(long first, long second, byte[] bytes);

    /** Runs a call of C with the pointer to a callback; null: 0. C does not call it afterwards. */
    static void during(Call call, LongConsumer use) {
        long user = call == null ? 0 : Native.newCallbacks(call);
        try {
            use.accept(user);
        } finally {
            if (user != 0) {
                Native.deleteCallbacks(user);
            }
        }
    }

    /** An exception without a caller goes to the thread's handler of uncaught exceptions. */
    static void uncaught(Throwable error) {
        Thread thread = Thread.currentThread();
        thread.getUncaughtExceptionHandler().uncaughtException(thread, error);
    }

    /**
     * The logger of a context, and its handler for exhausted memory, which may be replaced while another thread is
     * inside it. The handler's exception comes out of the allocation.
     */
    final class OfContext implements Call {
        private final Logger logger;
        volatile OomHandler oomHandler;
        long context; // the native one

        OfContext(Logger logger) {
            this.logger = logger;
        }

        /** level: -1 for exhausted memory. */
        @Override
        public boolean call(long level, long none, byte[] bytes) {
            if (level < 0) {
                OomHandler handler = oomHandler;
                if (bytes == null) {
                    return collect();
                }
                return handler != null && handler.outOfMemory(new OomInfo(bytes));
            }
            try {
                logger.log(LogLevel.of((int) level), Text.decode(bytes));
            } catch (Throwable error) {
                uncaught(error);
            }
            return true;
        }

        /**
         * Collects garbage, and waits until the Cleaner has come to it, for at most half a second, and while the number
         * of live blocks falls. Returns whether it fell.
         */
        private boolean collect() {
            long before = liveBlocks();
            CountDownLatch cleans = new CountDownLatch(1);
            Handle.onGarbage(new Object(), cleans::countDown);
            System.gc();
            long now = before;
            try {
                cleans.await(500, TimeUnit.MILLISECONDS);
                for (long last = -1; now != last; now = liveBlocks()) {
                    last = now;
                    Thread.sleep(5);
                }
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
            return now < before;
        }

        private long liveBlocks() {
            byte[] info = Statistics.bytesForC();
            Native.gmm_stats_query(context, null, info);
            return new Statistics(info).liveBlocks();
        }
    }

    /** A task of a stream, which runs once. */
    final class Task implements Call {
        private final Runnable task;
        private final long user = Native.newCallbacks(this);

        private Task(Runnable task) {
            this.task = task;
        }

        static void queue(long context, long stream, Runnable task) {
            Task made = new Task(task);
            try {
                Native.gmm_stream_call(context, stream, made.user);
            } catch (Throwable error) {
                Native.deleteCallbacks(made.user); // it will never run
                throw error;
            }
        }

        @Override
        public boolean call(long first, long second, byte[] bytes) {
            try {
                task.run();
            } catch (Throwable error) {
                uncaught(error);
            } finally {
                Native.deleteCallbacks(user);
            }
            return true;
        }
    }

    /** A watcher's handler. */
    final class Watch implements Call {
        private static final ThreadLocal<WatchEvent> INSIDE = new ThreadLocal<>();

        private final WatchHandler handler;

        Watch(WatchHandler handler) {
            this.handler = handler;
        }

        /**
         * Throws BUSY inside a watcher's handler, before the caller changes anything. budget: not in that of BUDGET,
         * for which no operation waits.
         */
        static void checkOutside(String what, boolean budget) {
            WatchEvent event = INSIDE.get();
            if (event != null && !(budget && event == WatchEvent.BUDGET)) {
                throw new GmmException(Result.BUSY,
                    what + ": the caller is the handler of a watcher; call it on another thread.");
            }
        }

        @Override
        public boolean call(long first, long second, byte[] bytes) {
            WatchInfo info = new WatchInfo(bytes);
            if (info.event() == null) {
                return true; // of a newer library
            }
            INSIDE.set(info.event());
            try {
                return handler.hear(info);
            } catch (Throwable error) {
                uncaught(error);
                return false;
            } finally {
                INSIDE.remove();
            }
        }
    }

    /** A lease's handler. It does not keep the lease, which ends when the program forgets it. */
    final class Asked implements Call {
        private static final ThreadLocal<Boolean> INSIDE = new ThreadLocal<>();

        private final LeaseHandler handler;
        volatile WeakReference<Lease> lease = new WeakReference<>(null); // until it is made

        Asked(LeaseHandler handler) {
            this.handler = handler;
        }

        /** Whether this thread runs the handler of a lease. */
        static boolean isInside() {
            return INSIDE.get() != null;
        }

        /** Throws BUSY inside a lease's handler, before the caller changes anything. */
        static void checkOutside(String what) {
            if (isInside()) {
                throw new GmmException(Result.BUSY,
                    what + ": the caller is the handler of a lease; call it after the handler returned.");
            }
        }

        /** Ends a lease, or a ticket of one: C refuses that on the thread of a handler, which may have used it last. */
        static void end(Runnable end) {
            if (isInside()) {
                new Thread(end, "gmm lease").start();
            } else {
                end.run();
            }
        }

        @Override
        public boolean call(long first, long second, byte[] ask) {
            Lease asked = lease.get();
            if (asked == null) {
                return true;
            }
            INSIDE.set(true);
            try {
                handler.asked(asked, new LeaseAsk(ask));
            } catch (Throwable error) {
                if (!(error instanceof IllegalStateException && asked.isClosed())) { // else closed under the handler
                    uncaught(error);
                }
            } finally {
                INSIDE.remove();
            }
            return true;
        }
    }
}
