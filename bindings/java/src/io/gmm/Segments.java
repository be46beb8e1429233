/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/**
 * The view of one buffer as a java.lang.foreign.MemorySegment, which Java has since version 22. That Java takes the
 * class of the same name in META-INF/versions/22 of the jar; this one explains that there is no view.
 */
final class Segments {
    Segments(GmmBuffer buffer, long address, long size) {
        int version = Runtime.version().feature();
        throw new UnsupportedOperationException(version < 22
            ? "a MemorySegment needs Java 22 or newer, and this is Java " + version + ": use bytes() or slice()"
            : "this gmm.jar was built without a JDK of version 22 or newer, or jdk.util.jar.enableMultiRelease is not "
                + "true: use bytes() or slice()");
    }

    <T> T as(Class<T> type, long offset, long length) {
        throw new IllegalStateException("no object of this class is made");
    }

    void close() {}
}
