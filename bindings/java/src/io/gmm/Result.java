/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** What a call came to; see {@link GmmException#result()}. */
public enum Result {
    /** Success. */
    OK(0),
    /** Success: everything was as asked already. */
    UNCHANGED(1),
    /** Success: it has not ended yet, or the time to wait was over first. */
    NOT_READY(2),
    /** A required argument is NULL. */
    NULL_ARGUMENT(-1),
    /** A size is zero where bytes are needed, or reaches past the memory. */
    INVALID_SIZE(-2),
    /** A size is beyond what any backend can address. */
    SIZE_OVERFLOW(-3),
    /** Not a power of two, too large, or an address that is not aligned. */
    INVALID_ALIGNMENT(-4),
    /** An unknown memory kind, or one the operation does not take. */
    INVALID_KIND(-5),
    /** No such device. */
    INVALID_DEVICE(-6),
    /** No such tag. */
    INVALID_TAG(-7),
    /** Unknown flags, or flags that exclude each other. */
    INVALID_FLAGS(-8),
    /** Struct_size too small, or unknown or reserved fields not zero. */
    INVALID_DESCRIPTOR(-9),
    /** Another argument is out of its range. */
    INVALID_VALUE(-10),
    /** A context, heap, stream or event that is not (or no longer) one. */
    INVALID_HANDLE(-11),
    /** The address was not given out by this context. */
    UNKNOWN_POINTER(-12),
    /** The block was freed before. */
    ALREADY_FREED(-13),
    /** Inside a block where its start is required. */
    INTERIOR_POINTER(-14),
    /** The range overlaps one that is pinned differently. */
    OVERLAP(-15),
    /** No pin starts at this address. */
    NOT_PINNED(-16),
    /** A pop, end or close without its push, begin or import. */
    UNBALANCED(-17),
    /** The device has no room, even after trimming. */
    OUT_OF_MEMORY(-20),
    /** The host has no room for data or bookkeeping. */
    OUT_OF_HOST_MEMORY(-21),
    /** A limit set by gmm_set_limit() would be passed. */
    LIMIT_EXCEEDED(-22),
    /** The memory is paused: resume its tag first. */
    PAUSED(-23),
    /** Live blocks, importers or pins hold what the call would change. */
    BUSY(-24),
    /** Not allowed while a stream is being captured into a graph. */
    CAPTURING(-25),
    /** This backend, device or kind cannot do it. */
    NOT_SUPPORTED(-26),
    /** The backend asked for has no driver or no device here. */
    NO_BACKEND(-27),
    /** The context belongs to the parent process. */
    FORKED(-28),
    /** The program asked for the end of the operation, which was undone. */
    CANCELLED(-29),
    /** The driver refused a call. */
    DRIVER(-30),
    /** The operating system refused a call. */
    SYSTEM(-31),
    /** A file could not be written or read whole. */
    IO(-32),
    /** What was kept is not what was written: a checksum differs. */
    CORRUPT(-33),
    /** These bytes are not a handle of gmm, or of another version. */
    IPC_INVALID_HANDLE(-40),
    /** The exporting process ended, or freed the memory. */
    IPC_PEER_GONE(-41),
    /** The exporter refused: another user, or a wrong token. */
    IPC_REFUSED(-42),
    /** The exporter did not answer in time. */
    IPC_TIMEOUT(-43),
    /** The exporter took the memory back: a forced pause. */
    IPC_REVOKED(-44),
    /** A code of a newer library. */
    UNKNOWN(-2147483648);

    private final int value;

    Result(int value) {
        this.value = value;
    }

    /** The number in the C interface. */
    public int value() {
        return value;
    }

    /** The constant with that number, or UNKNOWN. */
    static Result of(int value) {
        for (Result each : values()) {
            if (each.value == value) {
                return each;
            }
        }
        return UNKNOWN;
    }
}
