/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** The last operation of a job. Sizes are bytes. */
public final class JobInfo {
    private final JobState state;
    private final long epoch;
    private final int failedRank;
    private final Result cause;
    private final long bytes;
    private final long jobBytes;

    JobInfo(gmm_job_info from) {
        this.state = JobState.of(from.getState());
        this.epoch = from.getEpoch();
        this.failedRank = from.getFailed_rank();
        this.cause = Result.of(from.getCause());
        this.bytes = from.getBytes();
        this.jobBytes = from.getJob_bytes();
    }

    /** What happened; null for a state of a newer library. */
    public JobState state() {
        return state;
    }

    /** Its number, from 1 on; 0: there was none. */
    public long epoch() {
        return epoch;
    }

    /** The rank that refused, failed, or did not answer in time; -1: none. */
    public int failedRank() {
        return failedRank;
    }

    /** What that rank says; NOT_READY: it did not answer in time. */
    public Result cause() {
        return cause;
    }

    /** Bytes of this rank that changed state. */
    public long bytes() {
        return bytes;
    }

    /** Bytes of all ranks, as far as they told. */
    public long jobBytes() {
        return jobBytes;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
