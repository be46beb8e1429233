/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.lang.ref.Reference;
import java.lang.reflect.InvocationTargetException;
import java.util.function.Consumer;

/**
 * The view of one buffer as a java.lang.foreign.MemorySegment, which Java has since version 22: so all of it is asked
 * for by name. Its arena ends with the buffer. Every segment of it refers to the arena, and the arena to the buffer, so
 * a forgotten buffer is not freed while a segment of it is reachable.
 */
final class Segments {
    private static final String ARENA = "java.lang.foreign.Arena";
    private static final String SEGMENT = "java.lang.foreign.MemorySegment";

    private final Object arena;
    private final Object all;

    Segments(GmmBuffer buffer, long address, long size) {
        if (Runtime.version().feature() < 22) {
            throw new UnsupportedOperationException("a MemorySegment needs Java 22 or newer, and this is Java "
                + Runtime.version().feature() + ": use bytes() or slice()");
        }
        Consumer<Object> ended = segment -> Reference.reachabilityFence(buffer);
        arena = call(ARENA, null, "ofShared", new Class<?>[0]);
        Object empty = call(SEGMENT, null, "ofAddress", new Class<?>[] {long.class}, address);
        Class<?>[] types = {long.class, named(ARENA), Consumer.class};
        all = call(SEGMENT, empty, "reinterpret", types, size, arena, ended);
    }

    private static Class<?> named(String name) {
        try {
            return Class.forName(name);
        } catch (ClassNotFoundException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Calls a method of an interface, whose exception comes out as it is. */
    private static Object call(String owner, Object self, String method, Class<?>[] types, Object... arguments) {
        try {
            return named(owner).getMethod(method, types).invoke(self, arguments);
        } catch (InvocationTargetException error) {
            throw (RuntimeException) error.getCause();
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    <T> T as(Class<T> type, long offset, long length) {
        return type.cast(call(SEGMENT, all, "asSlice", new Class<?>[] {long.class, long.class}, offset, length));
    }

    /** Ends all segments. It throws IllegalStateException while a native function has one of them. */
    void close() {
        call(ARENA, arena, "close", new Class<?>[0]);
    }
}
