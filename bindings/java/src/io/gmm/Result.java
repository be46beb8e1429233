/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** The result of a call; see {@link GmmException#result()}. */
public enum Result {
    /** Success. */
    OK(0),
    /** Success: the state was already as requested, so the call changed nothing. */
    UNCHANGED(1),
    /** A required argument is NULL. */
    NULL_ARGUMENT(-1),
    /** A size is zero where bytes are needed, or reaches past the memory. */
    INVALID_SIZE(-2),
    /** A size is beyond what any backend can address. */
    SIZE_OVERFLOW(-3),
    /** Not a power of two, too large, or the address is not aligned. */
    INVALID_ALIGNMENT(-4),
    /** An unknown memory kind, or one that the operation does not take. */
    INVALID_KIND(-5),
    /** The device does not exist. */
    INVALID_DEVICE(-6),
    /** The tag does not exist. */
    INVALID_TAG(-7),
    /** Unknown flags, or flags that exclude each other. */
    INVALID_FLAGS(-8),
    /** struct_size is the size of no release, or a reserved field is not zero. */
    INVALID_DESCRIPTOR(-9),
    /** Another argument is out of its range. */
    INVALID_VALUE(-10),
    /** Not a context, heap, stream or event, or no longer one. */
    INVALID_HANDLE(-11),
    /** This context did not return the address. */
    UNKNOWN_POINTER(-12),
    /** The block was freed before. */
    ALREADY_FREED(-13),
    /** The address lies inside a block where its start is required. */
    INTERIOR_POINTER(-14),
    /** The range overlaps one that is pinned differently. */
    OVERLAP(-15),
    /** No pin starts at this address. */
    NOT_PINNED(-16),
    /** A pop, end or close without a push, begin or import. */
    UNBALANCED(-17),
    /** Another lease of the context offers the tag. */
    OFFERED(-19),
    /** The device has too little memory, even after a trim. */
    OUT_OF_MEMORY(-20),
    /** The host has too little memory for data or bookkeeping. */
    OUT_OF_HOST_MEMORY(-21),
    /** The call would exceed a limit of gmm_limit_set(). */
    LIMIT_EXCEEDED(-22),
    /** The memory is paused: resume its tag first. */
    PAUSED(-23),
    /** Live blocks, importers or pins use what the call would change. */
    BUSY(-24),
    /** The driver forbids it while a stream is captured into a graph. */
    CAPTURING(-25),
    /** This backend, device, kind or older library cannot do it. */
    NOT_SUPPORTED(-26),
    /** The requested backend has no driver or no device here. */
    NO_BACKEND(-27),
    /** The context belongs to the parent process. */
    FORKED(-28),
    /** The program cancelled the operation, which was undone. */
    CANCELLED(-29),
    /** The driver refused a call. */
    DRIVER(-30),
    /** The operating system refused a call. */
    SYSTEM(-31),
    /** A file could not be written or read completely. */
    IO(-32),
    /** The checksum of a backup differs from the one at its save. */
    CORRUPT(-33),
    /** The bytes are no handle of gmm, or one of another version. */
    IPC_INVALID_HANDLE(-40),
    /** The exporting process ended, or freed the memory. */
    IPC_PEER_GONE(-41),
    /** The exporter refused: a user that it did not name, or a wrong token. */
    IPC_REFUSED(-42),
    /** The exporter did not answer in time. */
    IPC_TIMEOUT(-43),
    /** The exporter revoked the memory by a forced pause. */
    IPC_REVOKED(-44),
    /** The operation has not ended, or the wait reached its timeout first. */
    NOT_READY(-50),
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
