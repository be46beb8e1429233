/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.ref.Reference;

/**
 * The view of one buffer as a MemorySegment. Its arena ends with the buffer. Every segment of it refers to the arena,
 * and the arena to the buffer, so a forgotten buffer is not freed while a segment of it is reachable.
 */
final class Segments {
    private final Arena arena = Arena.ofShared();
    private final MemorySegment all;

    @SuppressWarnings("restricted") // reinterpret() in JDK 24 and newer
    Segments(GmmBuffer buffer, long address, long size) {
        all = MemorySegment.ofAddress(address).reinterpret(
            size, arena, ended -> Reference.reachabilityFence(buffer));
    }

    <T> T as(Class<T> type, long offset, long length) {
        return type.cast(all.asSlice(offset, length));
    }

    /** Ends all segments. It throws IllegalStateException while a native function has one of them. */
    void close() {
        arena.close();
    }
}
