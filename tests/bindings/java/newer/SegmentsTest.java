/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import static io.gmm.Tap.check;
import static io.gmm.Tap.fails;
import static io.gmm.Tap.same;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.nio.ByteBuffer;

/** Views as MemorySegment, for Java 22 and newer. */
final class SegmentsTest {
    private static final int SIZE = 1 << 20;
    private static final long HUGE = 3L << 30;

    private static GmmBuffer inUse;
    private static Throwable refused;

    private SegmentsTest() {}

    public static void main(String[] arguments) {
        Tap tap = new Tap();
        tap.test("reads and writes", SegmentsTest::readsAndWrites);
        tap.test("close() ends segments", SegmentsTest::ends);
        tap.test("a native function's segment holds close() back", SegmentsTest::held);
        tap.test("a forgotten buffer lives as long as its segment", SegmentsTest::forgotten);
        tap.finish();
    }

    private static Context open() {
        return Context.open(new ContextOptions().backend(Backend.HOST).hostDevices(1).hostMemory(2 * HUGE));
    }

    private static void readsAndWrites() throws Exception {
        try (Context context = open(); GmmBuffer buffer = context.alloc(HUGE, Kind.VMM)) {
            MemorySegment all = buffer.as(MemorySegment.class);
            check(all.byteSize() == HUGE && all.address() == buffer.address(), "size and address");
            all.set(ValueLayout.JAVA_LONG, HUGE - 8, 42);
            same((byte) 42, buffer.read(HUGE - 8, 1)[0], "a byte beyond 2 GiB");
            MemorySegment part = buffer.as(MemorySegment.class, HUGE - 8, 4);
            same(42, part.get(ValueLayout.JAVA_INT, 0), "an int through the other segment");
            fails(IndexOutOfBoundsException.class, () -> part.get(ValueLayout.JAVA_INT, 1));
            fails(IndexOutOfBoundsException.class, () -> buffer.as(MemorySegment.class, HUGE - 3, 4));
            fails(IllegalArgumentException.class, buffer::bytes);
            fails(IllegalArgumentException.class, () -> buffer.as(ByteBuffer.class));
        }
    }

    private static void ends() throws Exception {
        try (Context context = open(); Stream stream = context.stream(0)) {
            GmmBuffer buffer = context.alloc(SIZE, Kind.HOST);
            MemorySegment part = buffer.as(MemorySegment.class, 16, 16);
            buffer.close(stream);
            check(!part.scope().isAlive(), "the segment has ended");
            fails(IllegalStateException.class, () -> part.get(ValueLayout.JAVA_BYTE, 0));
            fails(IllegalStateException.class, () -> buffer.as(MemorySegment.class));
        }
    }

    /** Called by qsort(), which has a segment of the buffer. */
    private static int compare(MemorySegment left, MemorySegment right) {
        if (refused == null) {
            try {
                inUse.close();
            } catch (Throwable error) {
                refused = error;
            }
        }
        return 0;
    }

    private static void held() throws Exception {
        Linker linker = Linker.nativeLinker();
        ValueLayout.OfLong size = ValueLayout.JAVA_LONG;
        MethodHandle sort = linker.downcallHandle(linker.defaultLookup().find("qsort").get(),
            FunctionDescriptor.ofVoid(ValueLayout.ADDRESS, size, size, ValueLayout.ADDRESS));
        MethodHandle comparison = MethodHandles.lookup().findStatic(SegmentsTest.class, "compare",
            MethodType.methodType(int.class, MemorySegment.class, MemorySegment.class));
        try (Context context = open(); Arena arena = Arena.ofConfined()) {
            MemorySegment callback = linker.upcallStub(comparison,
                FunctionDescriptor.of(ValueLayout.JAVA_INT, ValueLayout.ADDRESS, ValueLayout.ADDRESS), arena);
            inUse = context.alloc(SIZE, Kind.HOST);
            try {
                sort.invokeExact(inUse.as(MemorySegment.class), 2L, 8L, callback);
            } catch (Throwable error) {
                throw new AssertionError(error);
            }
            check(refused instanceof IllegalStateException, "close() inside: " + refused);
            check(!inUse.isClosed() && inUse.as(MemorySegment.class).scope().isAlive(), "the buffer is open as before");
            inUse.close();
        }
    }

    private static MemorySegment forget(Context context) {
        return context.alloc(SIZE, Kind.HOST).as(MemorySegment.class, 8, 8);
    }

    private static void forgotten() throws Exception {
        try (Context context = open()) {
            MemorySegment part = forget(context);
            part.set(ValueLayout.JAVA_LONG, 0, 42);
            context.alloc(SIZE, Kind.HOST); // forgotten without a segment: it is freed before
            Tap.waitFor("the buffer without a segment", () -> context.statistics().liveBlocks() == 1);
            same(42L, part.get(ValueLayout.JAVA_LONG, 0), "the segment of a forgotten buffer");
            part = null;
            Tap.waitFor("the forgotten buffer", () -> context.statistics().liveBlocks() == 0);
        }
    }
}
