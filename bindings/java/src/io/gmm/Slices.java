/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.util.concurrent.TimeUnit;
import java.util.function.LongPredicate;

/** Waits of C in slices, so that an interrupt ends a wait between two of them. */
final class Slices {
    static final long MILLIS = 50;

    private Slices() {}

    /** Asks `ended`, which waits for so many milliseconds, until it is true or the time is over: then false. */
    static boolean await(long timeout, TimeUnit unit, LongPredicate ended) throws InterruptedException {
        long start = System.nanoTime();
        long nanos = unit.toNanos(timeout);
        for (;;) {
            if (Thread.interrupted()) {
                throw new InterruptedException();
            }
            long left = nanos - (System.nanoTime() - start);
            if (ended.test(left <= 0 ? 0 : Math.min(MILLIS, left / 1000000 + 1))) {
                return true;
            }
            if (left <= 0) {
                return false;
            }
        }
    }

    static void await(LongPredicate ended) throws InterruptedException {
        while (!await(1, TimeUnit.DAYS, ended)) {
            // it may take longer
        }
    }
}
