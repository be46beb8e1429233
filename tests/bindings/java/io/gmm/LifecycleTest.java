/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import static io.gmm.Tap.check;
import static io.gmm.Tap.fails;
import static io.gmm.Tap.same;
import static io.gmm.Tap.waitFor;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** Objects that are closed twice, used after that, forgotten, or alive when the virtual machine ends. */
final class LifecycleTest {
    private static final int SIZE = 1 << 20;

    private LifecycleTest() {}

    public static void main(String[] arguments) {
        Tap tap = new Tap();
        tap.test("close twice and use after close", LifecycleTest::closed);
        tap.test("a forgotten buffer is freed, after its views", LifecycleTest::forgottenBuffer);
        tap.test("everything forgotten at once", LifecycleTest::forgottenContext);
        tap.test("a pin keeps its memory", LifecycleTest::pinKeepsMemory);
        tap.test("a forgotten ticket goes on to its end, and outlives its context", LifecycleTest::forgottenTicket);
        tap.test("objects outlive the context that they came from", LifecycleTest::childrenOutliveContext);
        tap.test("close on one thread while others use the context", LifecycleTest::closeUnderUse);
        tap.test("closing from two threads frees once", LifecycleTest::racingClose);
        tap.test("garbage is collected inside every callback", LifecycleTest::garbageInCallbacks);
        tap.test("threads of the backend are daemons, and detached", LifecycleTest::threads);
        tap.test("the virtual machine ends inside a callback", () -> Child.run("exit-inside"));
        tap.test("the virtual machine ends with live objects", () -> Child.run("exit"));
        tap.finish();
    }

    private static void closed() throws Exception {
        Context context = Context.open();
        Heap heap = context.heap(new HeapOptions());
        Stream stream = context.stream(0);
        Event event = context.event(0);
        GmmBuffer buffer = context.alloc(SIZE);
        Pin pin = context.pin(ByteBuffer.allocateDirect(8192));
        Tag tag = context.defaultTag();
        for (AutoCloseable each : List.of(pin, buffer, event, stream, heap, context)) {
            each.close();
            each.close();
        }
        for (Tap.Step step : List.<Tap.Step>of(buffer::address, buffer::bytes, buffer::query, () -> buffer.fill(1),
                 () -> buffer.read(0, 1), () -> heap.alloc(1), event::query, stream::synchronize, pin::address,
                 context::info, () -> context.alloc(1), tag::push, tag::info, () -> context.stream(0),
                 context::snapshot, context::tags)) {
            String message = fails(IllegalStateException.class, step).getMessage();
            check(message.matches("this (buffer|heap|event|stream|pin|context) is closed"), message);
        }
        Stream.DEFAULT.close();
        Stream.DEFAULT.address();
    }

    private static void forget(Context context, int count) {
        for (int i = 0; i < count; i++) {
            context.alloc(SIZE);
        }
    }

    private static void forgottenBuffer() throws InterruptedException {
        try (Context context = Context.open()) {
            ByteBuffer part = viewOfForgotten(context);
            forget(context, 10);
            waitFor("the Cleaner to free 10 buffers", () -> context.statistics().liveBlocks() == 1);
            same((byte) 42, part.get(0), "the contents while a part of a view is reachable");
            Reference.reachabilityFence(part);
            part = null;
            waitFor("the buffer to go after its view", () -> context.statistics().liveBlocks() == 0);
            same(11L, context.statistics().frees(), "frees");
        }
    }

    private static ByteBuffer viewOfForgotten(Context context) {
        GmmBuffer buffer = context.alloc(SIZE, Kind.HOST);
        buffer.fill(42);
        buffer.read(0, 1);
        return buffer.bytes().position(100).slice().duplicate();
    }

    private static void forgottenContext() throws InterruptedException {
        AtomicInteger closed = new AtomicInteger();
        forgetAll(closed);
        waitFor("the Cleaner to close a context with its heap, stream and buffers", () -> closed.get() == 1);
    }

    /** The native context lets its callbacks go last: a logger that is collected says that the context is gone. */
    private static void forgetAll(AtomicInteger closed) {
        Object token = new Object();
        Context context = Context.open(new ContextOptions().logger(new Logger() {
            private final Object kept = token;

            @Override
            public void log(LogLevel level, String message) {
                Reference.reachabilityFence(kept);
            }
        }));
        java.lang.ref.Cleaner.create().register(token, closed::incrementAndGet);
        Stream stream = context.stream(0);
        Heap heap = context.heap(new HeapOptions().kind(Kind.VMM));
        heap.alloc(SIZE, stream);
        context.alloc(SIZE, new AllocOptions().stream(stream));
        context.event(0).record(stream);
    }

    private static void pinKeepsMemory() throws Exception {
        try (Context context = Context.open()) {
            if (!context.device(0).canPin()) {
                throw new Tap.Skip("this device has no pinning");
            }
            Pin pin = context.pin(ByteBuffer.allocateDirect(SIZE));
            for (int i = 0; i < 10; i++) {
                System.gc();
                Thread.sleep(5);
            }
            same(State.PINNED, context.query(pin.address()).state(), "the state of memory that only the pin holds");
            long pinned = context.statistics().pinnedBytes();
            check(pinned >= SIZE, "pinned bytes: " + pinned);
            Reference.reachabilityFence(pin);
            pin = null;
            waitFor("a forgotten pin to be taken back", () -> context.statistics().pinnedBytes() == 0);
        }
    }

    private static void forgottenTicket() throws InterruptedException {
        AtomicInteger reported = new AtomicInteger();
        Context context = Context.open();
        Tag tag = context.tag("forgotten", Contents.HOST, 0);
        try (GmmBuffer buffer = context.alloc(SIZE, new AllocOptions().kind(Kind.VMM).tag(tag))) {
            buffer.fill(7);
            tag.pauseAsync(new PauseOptions().progress((done, total) -> reported.incrementAndGet() > 0));
            waitFor("the end of a pause that nobody waits for", () -> tag.info().state() == State.PAUSED);
            check(reported.get() > 0, "its progress was reported");
            Ticket resume = tag.resumeAsync();
            context.close();
            check(resume.join() >= SIZE, "a ticket outlives its context");
            resume.close();
            same((byte) 7, buffer.read(SIZE - 1, 1)[0], "a byte");
        }
    }

    private static void childrenOutliveContext() {
        Context context = Context.open();
        Stream stream = context.stream(0);
        Heap heap = context.heap(new HeapOptions().kind(Kind.VMM));
        GmmBuffer buffer = heap.alloc(SIZE, stream);
        context.close();
        heap.close();
        stream.close();
        buffer.fill(5);
        same((byte) 5, buffer.read(SIZE - 1, 1)[0], "a byte");
        buffer.close();
    }

    /** Runs the step on other threads until it throws; returns what they threw. */
    private static List<FutureTask<Throwable>> repeat(int threads, Tap.Step step) {
        List<FutureTask<Throwable>> tasks = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            FutureTask<Throwable> task = new FutureTask<>(() -> {
                try {
                    while (true) {
                        step.run();
                    }
                } catch (Throwable error) {
                    return error;
                }
            });
            new Thread(task).start();
            tasks.add(task);
        }
        return tasks;
    }

    private static void closeUnderUse() throws Exception {
        for (int round = 0; round < 10; round++) {
            Context context = Context.open();
            CountDownLatch running = new CountDownLatch(4);
            List<FutureTask<Throwable>> users = repeat(4, () -> {
                running.countDown();
                try (GmmBuffer buffer = context.alloc(4096)) {
                    buffer.query();
                }
            });
            running.await();
            Thread.sleep(2);
            context.close();
            for (FutureTask<Throwable> user : users) {
                Throwable error = user.get(Tap.SECONDS, TimeUnit.SECONDS);
                check(error instanceof IllegalStateException, "the only way out: " + error);
            }
        }
    }

    private static void racingClose() throws Exception {
        try (Context context = Context.open()) {
            for (int round = 0; round < 200; round++) {
                GmmBuffer buffer = context.alloc(4096);
                FutureTask<Throwable> other = repeat(1, () -> {
                    buffer.close();
                    throw new ArithmeticException("the end of the thread");
                }).get(0);
                buffer.close();
                Throwable error = other.get(Tap.SECONDS, TimeUnit.SECONDS);
                check(error instanceof ArithmeticException, "the end of the thread: " + error);
            }
            Statistics statistics = context.statistics();
            same(0L, statistics.liveBlocks(), "live blocks");
            same(statistics.allocations(), statistics.frees(), "frees");
        }
    }

    /** The Cleaner frees on a thread of its own, so a callback never waits for the garbage of the collector. */
    private static void garbageInCallbacks() throws Exception {
        AtomicInteger collections = new AtomicInteger();
        Runnable collect = () -> {
            try (Context other = Context.open()) {
                forget(other, 3);
                waitFor("the Cleaner inside a callback", () -> other.statistics().liveBlocks() == 0);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
            collections.incrementAndGet();
        };
        ContextOptions options = new ContextOptions().logger((level, message) -> collect.run());
        try (Context context = Context.open(options); Stream stream = context.stream(0)) {
            int logged = collections.get();
            check(logged > 0, "log lines of the open");
            context.setLimit(null, 64 * SIZE);
            context.setOomHandler(info -> {
                collect.run();
                return false;
            });
            fails(Result.LIMIT_EXCEEDED, () -> context.alloc(65 * SIZE));
            same(logged + 1, collections.get(), "collections after the handler");
            Tag tag = context.tag("garbage", Contents.HOST, 0);
            AllocOptions kept = new AllocOptions().kind(Kind.VMM).tag(tag);
            try (GmmBuffer buffer = context.alloc(SIZE, kept)) {
                buffer.fill(7);
                context.alloc(SIZE, kept); // the Cleaner waits for the pause with it
                AtomicInteger reported = new AtomicInteger();
                tag.pause(new PauseOptions().progress((done, total) -> {
                    System.gc();
                    return reported.incrementAndGet() > 0;
                }));
                check(reported.get() > 0, "the progress was reported");
                waitFor("the forgotten block of the paused tag", () -> context.statistics().liveBlocks() == 1);
                tag.resume();
                same((byte) 7, buffer.read(SIZE - 1, 1)[0], "a byte");
            }
            int before = collections.get();
            stream.call(() -> {
                System.gc();
                collections.incrementAndGet();
            });
            stream.synchronize();
            waitFor("the task of a stream", () -> collections.get() == before + 1);
        }
    }

    private static void threads() throws InterruptedException {
        List<String> caught = Collections.synchronizedList(new ArrayList<>());
        Thread[] ran = new Thread[1];
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> caught.add(error.getMessage()));
        try (Context context = Context.open()) {
            int before = Thread.getAllStackTraces().size();
            for (int i = 0; i < 40; i++) {
                try (Stream stream = context.stream(0)) {
                    stream.call(() -> ran[0] = Thread.currentThread());
                    stream.synchronize();
                }
            }
            check(ran[0].isDaemon(), "a thread of the backend does not keep the virtual machine");
            waitFor("threads of ended streams to be detached", () -> Thread.getAllStackTraces().size() <= before + 2);
            try (Stream stream = context.stream(0)) {
                stream.call(() -> {
                    throw new IllegalStateException("from the task");
                });
                stream.synchronize();
                waitFor("the exception of a task", () -> caught.equals(List.of("from the task")));
            }
        } finally {
            Thread.setDefaultUncaughtExceptionHandler(null);
        }
    }
}
