/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.util.concurrent.atomic.AtomicBoolean;

/** A caller's Exchange as C calls it, and what it threw in an operation. */
final class ExchangeCall {
    private static final int SET = 0;
    private static final int GET = 1;
    private static final byte[] FAILED = {};
    private static final byte[] ENDED = {0};

    private final Exchange exchange;
    private final AtomicBoolean running = new AtomicBoolean();
    private Throwable thrown; // this and the next: of the thread that is in the operation
    private boolean ended;

    ExchangeCall(Exchange exchange) {
        this.exchange = exchange;
    }

    /** False while an operation runs. */
    boolean begin() {
        if (!running.compareAndSet(false, true)) {
            return false;
        }
        thrown = null;
        ended = false;
        return true;
    }

    /** What the exchange threw first, or what ended the operation; null: nothing. */
    Throwable end() {
        Throwable told = thrown;
        running.set(false);
        return told;
    }

    /** Called from C. The value that stands; null: none in this time; empty: a failure; a zero: the
     * operation ends. */
    byte[] call(int operation, byte[] key, byte[] value, long timeoutMillis) {
        if (ended) {
            return ENDED;
        }
        try {
            String name = Text.decode(key);
            if (operation == SET || operation == GET) {
                return Text.encode(operation == SET ? exchange.set(name, Text.decode(value), timeoutMillis)
                    : exchange.get(name, timeoutMillis));
            }
            exchange.erase(name);
        } catch (Throwable error) {
            ended = error instanceof Error || error instanceof InterruptedException;
            if (thrown == null || ended) {
                thrown = error;
            }
        }
        return ended ? ENDED : FAILED;
    }
}
