/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

/** Runs tests one after the other and tells in the test anything protocol (TAP). */
final class Tap {
    /** For what must come, on a machine however busy. */
    static final long SECONDS = 60;

    interface Step {
        void run() throws Exception;
    }

    /** Thrown by a step that this backend or machine cannot do. */
    static final class Skip extends RuntimeException {
        private static final long serialVersionUID = 1L;

        Skip(String reason) {
            super(reason);
        }
    }

    private int count;
    private int failed;

    void test(String name, Step step) {
        count++;
        try {
            step.run();
            System.out.println("ok " + count + " - " + name);
        } catch (Skip skip) {
            System.out.println("ok " + count + " - " + name + " # SKIP " + skip.getMessage());
        } catch (Throwable error) {
            failed++;
            System.out.println("not ok " + count + " - " + name);
            System.out.println("# " + error.toString().replace("\n", "\n# "));
            for (StackTraceElement frame : error.getStackTrace()) {
                System.out.println("#   at " + frame);
            }
        }
        System.out.flush();
    }

    /** Ends the program. */
    void finish() {
        System.out.println("1.." + count);
        System.out.flush();
        System.exit(failed == 0 ? 0 : 1);
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static void same(Object expected, Object got, String what) {
        if (!Objects.equals(expected, got)) {
            throw new AssertionError(what + ": expected " + expected + ", got " + got);
        }
    }

    static <E extends Throwable> E fails(Class<E> type, Step step) throws Exception {
        try {
            step.run();
        } catch (Throwable error) {
            if (type.isInstance(error)) {
                return type.cast(error);
            }
            throw new AssertionError("expected " + type.getSimpleName() + ", got " + error, error);
        }
        throw new AssertionError("expected " + type.getSimpleName() + ", nothing was thrown");
    }

    /** A GmmException with exactly this result, whose message says something. */
    static GmmException fails(Result result, Step step) throws Exception {
        GmmException error = fails(GmmException.class, step);
        same(result, error.result(), "the result of: " + error);
        same(result.value(), error.code(), "the code of: " + error);
        same("GMM_ERROR_" + result.name(), error.name(), "the name of: " + error);
        check(!error.getMessage().isEmpty(), "a message");
        return error;
    }

    static void unchecked(Step step) {
        try {
            step.run();
        } catch (Exception error) {
            throw new AssertionError(error);
        }
    }

    static void waitFor(String what, BooleanSupplier condition) throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
        while (System.nanoTime() < end) {
            if (condition.getAsBoolean()) {
                return;
            }
            System.gc();
            Thread.sleep(10);
        }
        throw new AssertionError("waited in vain for " + what);
    }
}
