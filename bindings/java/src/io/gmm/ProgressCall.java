/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** A caller's Progress as C calls it, with what it threw. */
final class ProgressCall {
    private final Progress progress;
    private volatile Throwable thrown;

    private ProgressCall(Progress progress) {
        this.progress = progress;
    }

    /** The object that Native.newCallbacks() keeps for C; null for none. */
    static ProgressCall of(Progress progress) {
        return progress == null ? null : new ProgressCall(progress);
    }

    /** Called from C. */
    boolean call(long done, long total) {
        try {
            return progress.report(done, total);
        } catch (Throwable error) {
            thrown = error;
            return false;
        }
    }

    /** What the program threw, or null. */
    static Throwable thrown(ProgressCall call) {
        return call == null ? null : call.thrown;
    }

    /** Throws what the program threw. */
    static void rethrow(Throwable thrown) {
        if (thrown instanceof Error) {
            throw (Error) thrown;
        }
        if (thrown != null) {
            throw (RuntimeException) thrown; // report() declares nothing else
        }
    }
}
