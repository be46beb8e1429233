/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** A caller's Progress as C calls it, with its exception. */
final class ProgressCall {
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
        long user = call == null ? 0 : Native.newCallbacks(call);
        long[] out = new long[1];
        try {
            byte[] desc = options.encode(tags, user);
            context.run(address -> operation.call(address, desc, out));
            return out[0];
        } catch (GmmException error) {
            rethrow(thrown(call));
            throw error;
        } finally {
            if (user != 0) {
                Native.deleteCallbacks(user);
            }
        }
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
