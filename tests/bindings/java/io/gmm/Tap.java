/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

/** Runs tests one after the other, reports them in the test anything protocol (TAP), and has what they share. */
final class Tap {
    /** For what must come, on a machine however busy. */
    static final long SECONDS = 60;

    interface Step {
        void run() throws Exception;
    }

    private int count;
    private int failed;

    void test(String name, Step step) {
        count++;
        try {
            step.run();
            System.out.println("ok " + count + " - " + name);
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

    /** Each of the steps fails with this result. */
    static void eachFails(Result result, Step... steps) throws Exception {
        for (Step step : steps) {
            fails(result, step);
        }
    }

    /** Bytes that count up from 1. */
    static byte[] pattern(int size) {
        byte[] bytes = new byte[size];
        for (int i = 0; i < size; i++) {
            bytes[i] = (byte) (i + 1);
        }
        return bytes;
    }

    static void sameBytes(byte[] expected, byte[] got, String what) {
        int at = Arrays.mismatch(expected, got);
        check(at < 0, what + ": differs at byte " + at);
    }

    /** Runs the step on another thread. */
    static FutureTask<Void> elsewhere(Step step) {
        FutureTask<Void> task = new FutureTask<>(() -> {
            step.run();
            return null;
        });
        new Thread(task).start();
        return task;
    }

    static void join(FutureTask<Void> task) throws Exception {
        task.get(SECONDS, TimeUnit.SECONDS);
    }

    /** Runs the step; the messages of the exceptions that no thread has caught until now. */
    static List<String> uncaughtIn(Step step) throws Exception {
        List<String> messages = Collections.synchronizedList(new ArrayList<>());
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> messages.add(error.getMessage()));
        try {
            step.run();
        } finally {
            Thread.setDefaultUncaughtExceptionHandler(null);
        }
        return messages;
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
