/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** The progress of an operation in the background. */
public final class TicketInfo {
    private final TicketState state;
    private final Result result;
    private final long bytes;
    private final long copiedBytes;
    private final long totalBytes;

    TicketInfo(gmm_ticket_info from) {
        this.state = TicketState.of(from.getState());
        this.result = Result.of(from.getResult());
        this.bytes = from.getBytes();
        this.copiedBytes = from.getCopied_bytes();
        this.totalBytes = from.getTotal_bytes();
    }

    /** Where it is. */
    public TicketState state() {
        return state;
    }

    /** The result; NOT_READY before its end. */
    public Result result() {
        return result;
    }

    /** Bytes that changed state; 0 while it runs. */
    public long bytes() {
        return bytes;
    }

    /** Bytes of contents copied so far. */
    public long copiedBytes() {
        return copiedBytes;
    }

    /** Bytes of contents to copy; 0 until that is known. */
    public long totalBytes() {
        return totalBytes;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
