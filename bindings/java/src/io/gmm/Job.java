/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/**
 * One rank of a job, until close(): the processes of a job pause and resume tags as one transaction, or not at all.
 *
 * <pre>{@code
 * try (Job job = context.job(exchange, new JobOptions().rank(rank, 4))) {
 *     job.pause(weights, optimizer);  // on every rank, in the same order
 *     ...                             // the GPUs are free for others
 *     job.resume(weights, optimizer);
 * }
 * }</pre>
 *
 * A rank that refuses, fails, dies, hangs or is late ends the operation on all ranks in time, with an exception that
 * names it. Everything is as before then. A rank that cannot reach the exchange after it agreed gets NOT_READY, and
 * {@link #info} says IN_DOUBT: calling the same method again finds out what was decided.
 */
public final class Job implements AutoCloseable {
    private final Handle handle;
    private final ExchangeCall exchange;

    private Job(Handle handle, ExchangeCall exchange) {
        this.handle = handle;
        this.exchange = exchange;
        handle.guard(this);
    }

    static Job create(Handle context, Exchange exchange, JobOptions options) {
        if (exchange == null) {
            throw new IllegalArgumentException("the ranks of a job need an exchange");
        }
        ExchangeCall call = new ExchangeCall(exchange);
        return new Job(Handle.child("job", context, call, (native_, user, out) -> {
            try (gmm_job_desc desc = new gmm_job_desc()) {
                options.fill(desc, user);
                Native.gmm_job_create(native_, desc, out);
            }
        }, Native::gmm_job_destroy), call);
    }

    /** Pauses the tags on all ranks, or on none. Without tags it covers every tag. */
    public JobInfo pause(Tag... tags) {
        return pause(new PauseOptions(), tags);
    }

    /** The same with options, which are equal on all ranks. */
    public JobInfo pause(PauseOptions options, Tag... tags) {
        return run(true, options.flags(), options.progress, tags);
    }

    /**
     * Resumes the tags on all ranks, or on none. Without tags it covers every tag. All ranks hold their pages before
     * one maps any. A rank that cannot have its pages ends it, and all stay paused with their contents.
     */
    public JobInfo resume(Tag... tags) {
        return resume(new ResumeOptions(), tags);
    }

    /** The same with options, which are equal on all ranks. */
    public JobInfo resume(ResumeOptions options, Tag... tags) {
        return run(false, options.flags(), options.progress, tags);
    }

    private JobInfo run(boolean pause, int flags, Progress progress, Tag... tags) {
        long address = handle.acquire();
        long user = 0;
        ProgressCall call = ProgressCall.of(progress);
        try (gmm_pause_desc desc = new gmm_pause_desc(); gmm_job_info info = new gmm_job_info()) {
            user = call == null ? 0 : Native.newCallbacks(call);
            Context.fill(desc, flags, user, tags);
            if (!exchange.begin()) {
                throw new GmmException(Result.BUSY,
                    "Job: another thread, or the caller of its exchange, is in an operation of the job; wait for it.");
            }
            RuntimeException failure = null;
            try {
                if (pause) {
                    Native.gmm_job_pause(address, desc, info);
                } else {
                    Native.gmm_job_resume(address, desc, info);
                }
            } catch (GmmException error) {
                failure = error;
            }
            Throwable thrown = exchange.end();
            if (thrown instanceof Error) {
                throw (Error) thrown;
            }
            if (thrown instanceof InterruptedException) {
                Thread.currentThread().interrupt();
            }
            if (failure == null) {
                return new JobInfo(info);
            }
            ProgressCall.rethrow(ProgressCall.thrown(call));
            if (thrown != null) {
                failure.initCause(thrown);
            }
            throw failure;
        } finally {
            if (user != 0) {
                Native.deleteCallbacks(user);
            }
            handle.release();
        }
    }

    /** The last operation, also after its failure. */
    public JobInfo info() {
        long address = handle.acquire();
        try (gmm_job_info info = new gmm_job_info()) {
            Native.gmm_job_query(address, info);
            return new JobInfo(info);
        } finally {
            handle.release();
        }
    }

    /** Whether close() was called. */
    public boolean isClosed() {
        return handle.isClosed();
    }

    /**
     * Ends this process's part of the job, once its operation on another thread has ended. An operation that is in
     * doubt is undone. Inside the handler of a watcher it is BUSY, and the job stays. Closing twice does nothing.
     */
    @Override
    public void close() {
        WatchCall.checkOutside("Job.close()", false);
        handle.close();
    }

    @Override
    public String toString() {
        return handle.isClosed() ? "Job[closed]" : "Job[open]";
    }
}
