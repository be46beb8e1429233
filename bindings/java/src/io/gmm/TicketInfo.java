/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** How far a pause or resume in the background is. */
public final class TicketInfo {
    private final boolean done;
    private final Result result;
    private final long bytes;
    private final long copiedBytes;
    private final long totalBytes;

    TicketInfo(gmm_ticket_info from) {
        this.done = from.getDone() != 0;
        this.result = Result.of(from.getResult());
        this.bytes = from.getBytes();
        this.copiedBytes = from.getCopied_bytes();
        this.totalBytes = from.getTotal_bytes();
    }

    /** Whether it has ended, however. */
    public boolean done() {
        return done;
    }

    /** What it came to; NOT_READY while it runs. */
    public Result result() {
        return result;
    }

    /** Bytes that changed state; 0 while it runs. */
    public long bytes() {
        return bytes;
    }

    /** Of the contents, so far. */
    public long copiedBytes() {
        return copiedBytes;
    }

    /** Of contents to copy; 0 until that is known. */
    public long totalBytes() {
        return totalBytes;
    }
}
