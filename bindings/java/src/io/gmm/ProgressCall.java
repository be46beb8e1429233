/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** A caller's Progress as C calls it, with its exception. */
final class ProgressCall implements Call {
    private final Progress progress;
    private volatile Throwable thrown;

    private ProgressCall(Progress progress) {
        this.progress = progress;
    }

    /** A pause or resume, or the start of one in the background. */
    interface Operation {
        int call(long context, byte[] desc, long[] out);
    }

    /** Pauses or resumes on this thread, and returns the bytes. */
    static long run(Handle context, Operation operation, PauseOptions options, Tag... tags) {
        ProgressCall call = of(options.progress);
        long[] out = new long[1];
        try {
            Call.during(call, user -> {
                byte[] desc = options.encode(tags, user);
                context.run(address -> operation.call(address, desc, out));
            });
            return out[0];
        } catch (GmmException error) {
            rethrow(thrown(call));
            throw error;
        }
    }

    /** The callback for C; null for none. */
    static ProgressCall of(Progress progress) {
        return progress == null ? null : new ProgressCall(progress);
    }

    @Override
    public boolean call(long done, long total, byte[] bytes) {
        try {
            return progress.report(done, total);
        } catch (Throwable error) {
            thrown = error;
            return false;
        }
    }

    /** The exception of the program, or null. */
    static Throwable thrown(ProgressCall call) {
        return call == null ? null : call.thrown;
    }

    /** Throws the exception of the program. */
    static void rethrow(Throwable thrown) {
        if (thrown instanceof Error) {
            throw (Error) thrown;
        }
        if (thrown != null) {
            throw (RuntimeException) thrown; // report() declares nothing else
        }
    }
}
