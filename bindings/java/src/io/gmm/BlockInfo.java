/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** A live block at the time of {@link Context#blocks}. */
public final class BlockInfo {
    private final long address;
    private final long size;
    private final long reservedSize;
    private final Kind kind;
    private final int device;
    private final int tag;
    private final State state;
    private final String name;

    BlockInfo(gmm_block_info from) {
        this.address = from.getAddress();
        this.size = from.getSize();
        this.reservedSize = from.getReserved_size();
        this.kind = Kind.of(from.getKind());
        this.device = from.getDevice();
        this.tag = from.getTag();
        this.state = State.of(from.getState());
        this.name = from.getName();
    }

    /** The start of the block. */
    public long address() {
        return address;
    }

    /** The requested bytes. */
    public long size() {
        return size;
    }

    /** The bytes that the block takes, rounding included. */
    public long reservedSize() {
        return reservedSize;
    }

    /** The kind of memory. */
    public Kind kind() {
        return kind;
    }

    /** The device. */
    public int device() {
        return device;
    }

    /** The tag's number. */
    public int tag() {
        return tag;
    }

    /** ACTIVE or PAUSED. */
    public State state() {
        return state;
    }

    /** The name that gmm_name() of the C interface gave the block; empty without one. */
    public String name() {
        return name;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
