/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import static io.gmm.Tap.check;
import static io.gmm.Tap.fails;
import static io.gmm.Tap.same;
import static io.gmm.Tap.waitFor;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;

/**
 * What happens to objects that are closed twice, used after that, forgotten, or alive when the virtual machine ends.
 */
final class LifecycleTest {
    private static final int SIZE = 1 << 20;

    private LifecycleTest() {}

    public static void main(String[] arguments) {
        Tap tap = new Tap();
        tap.test("closing twice", LifecycleTest::closeTwice);
        tap.test("use after close", LifecycleTest::useAfterClose);
        tap.test("a forgotten buffer is freed", LifecycleTest::forgottenBuffer);
        tap.test("a view keeps a forgotten buffer", LifecycleTest::viewKeepsBuffer);
        tap.test("everything forgotten at once", LifecycleTest::forgottenContext);
        tap.test("a pin keeps its memory", LifecycleTest::pinKeepsMemory);
        tap.test("a forgotten ticket goes on to its end", LifecycleTest::forgottenTicket);
        tap.test("objects outlive the context that they came from", LifecycleTest::childrenOutliveContext);
        tap.test("close on one thread while others use the context", LifecycleTest::closeUnderUse);
        tap.test("closing from two threads frees once", LifecycleTest::racingClose);
        tap.test("the message and code of an exception", LifecycleTest::exception);
        tap.test("exceptions of tasks reach the thread's handler", LifecycleTest::taskException);
        tap.test("text crosses as UTF-8", LifecycleTest::text);
        tap.test("what a person prints", LifecycleTest::printed);
        tap.test("negative sizes are refused as such", LifecycleTest::negativeSizes);
        tap.test("gmm and java.nio are imported together", () -> {
            try (Context context = Context.open(Backend.HOST)) {
                same(SIZE, user.Imports.capacity(context, SIZE), "the capacity");
            }
        });
        tap.test("garbage is collected inside every callback", LifecycleTest::garbageInCallbacks);
        tap.test("threads of the backend are attached and detached", LifecycleTest::foreignThreads);
        tap.test("the virtual machine ends inside a callback", () -> Child.run(new byte[0], "exit-inside"));
        tap.test("the virtual machine ends with live objects", () -> Child.run(new byte[0], "exit"));
        tap.finish();
    }

    private static void closeTwice() {
        Context context = Context.open();
        Heap heap = context.heap(new HeapOptions());
        Stream stream = context.stream(0);
        Event event = context.event(0);
        GmmBuffer buffer = context.alloc(SIZE);
        Pin pin = context.pin(ByteBuffer.allocateDirect(8192));
        List<AutoCloseable> all = List.of(pin, buffer, event, stream, heap, context);
        for (int i = 0; i < 2; i++) {
            for (AutoCloseable each : all) {
                Tap.unchecked(each::close);
            }
        }
        Stream.DEFAULT.close();
        Stream.DEFAULT.address();
    }

    private static void useAfterClose() throws Exception {
        Context context = Context.open();
        Heap heap = context.heap(new HeapOptions());
        Stream stream = context.stream(0);
        Event event = context.event(0);
        GmmBuffer buffer = context.alloc(SIZE);
        Tag tag = context.defaultTag();
        buffer.close();
        for (Tap.Step step : List.<Tap.Step>of(buffer::address, buffer::bytes, buffer::query, buffer::exportHandle,
                 () -> buffer.fill(1), () -> buffer.read(0, 1))) {
            same("this buffer is closed", fails(IllegalStateException.class, step).getMessage(), "the message");
        }
        heap.close();
        fails(IllegalStateException.class, () -> heap.alloc(1));
        event.close();
        fails(IllegalStateException.class, event::query);
        stream.close();
        fails(IllegalStateException.class, stream::synchronize);
        fails(IllegalStateException.class, () -> context.alloc(SIZE, new AllocOptions().stream(stream)));
        context.close();
        for (Tap.Step step : List.<Tap.Step>of(context::info,
                 ()
                     -> context.alloc(1),
                 context::statistics, tag::push, tag::info, () -> context.stream(0), context::snapshot, context::tags,
                 context::blocks)) {
            same("this context is closed", fails(IllegalStateException.class, step).getMessage(), "the message");
        }
    }

    private static void forget(Context context, int count) {
        for (int i = 0; i < count; i++) {
            context.alloc(SIZE);
        }
    }

    private static void forgottenBuffer() throws InterruptedException {
        try (Context context = Context.open()) {
            forget(context, 10);
            waitFor("the Cleaner to free 10 buffers", () -> context.statistics().liveBlocks() == 0);
            same(10L, context.statistics().frees(), "frees");
        }
    }

    private static void viewKeepsBuffer() throws InterruptedException {
        try (Context context = Context.open()) {
            ByteBuffer part = viewOfForgotten(context);
            for (int i = 0; i < 20; i++) {
                System.gc();
                Thread.sleep(10);
            }
            same(1L, context.statistics().liveBlocks(), "live blocks while a part of a view is reachable");
            same((byte) 42, part.get(0), "its contents");
            Reference.reachabilityFence(part);
            part = null;
            waitFor("the buffer to go after its view", () -> context.statistics().liveBlocks() == 0);
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
        AtomicInteger told = new AtomicInteger();
        Context context = Context.open();
        Tag tag = context.tag("forgotten", Contents.HOST, 0);
        try (GmmBuffer buffer = context.alloc(SIZE, new AllocOptions().kind(Kind.VMM).tag(tag))) {
            buffer.fill(7);
            tag.pauseAsync(new PauseOptions().progress((done, total) -> told.incrementAndGet() > 0));
            waitFor("the end of a pause that nobody waits for", () -> tag.info().state() == State.PAUSED);
            check(told.get() > 0, "its progress was told");
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

    private static void closeUnderUse() throws InterruptedException {
        for (int round = 0; round < 10; round++) {
            Context context = Context.open();
            int count = 4;
            CountDownLatch running = new CountDownLatch(count);
            AtomicReference<Throwable> wrong = new AtomicReference<>();
            List<Thread> threads = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                Thread thread = new Thread(() -> {
                    running.countDown();
                    try {
                        while (true) {
                            try (GmmBuffer buffer = context.alloc(4096)) {
                                buffer.query();
                            }
                        }
                    } catch (IllegalStateException closed) {
                        // the only way out
                    } catch (Throwable error) {
                        wrong.set(error);
                    }
                });
                thread.start();
                threads.add(thread);
            }
            running.await();
            Thread.sleep(2);
            context.close();
            for (Thread thread : threads) {
                thread.join(1000 * Tap.SECONDS);
                check(!thread.isAlive(), "every thread ends");
            }
            same(null, wrong.get(), "what the threads threw");
        }
    }

    private static void racingClose() throws InterruptedException {
        try (Context context = Context.open()) {
            for (int round = 0; round < 200; round++) {
                GmmBuffer buffer = context.alloc(4096);
                AtomicReference<Throwable> wrong = new AtomicReference<>();
                Runnable close = () -> {
                    try {
                        buffer.close();
                    } catch (Throwable error) {
                        wrong.set(error);
                    }
                };
                Thread other = new Thread(close);
                other.start();
                close.run();
                other.join();
                same(null, wrong.get(), "what a close threw");
            }
            Statistics statistics = context.statistics();
            same(0L, statistics.liveBlocks(), "live blocks");
            same(statistics.allocations(), statistics.frees(), "frees");
        }
    }

    private static void exception() throws Exception {
        try (Context context = Context.open()) {
            GmmException error = fails(Result.INVALID_SIZE, () -> context.alloc(0));
            check(error.getMessage().length() > 20, "a sentence: " + error.getMessage());
            same(0, error.nativeCode(), "no driver behind it");
            GmmException io = fails(Result.IO, () -> context.traceBegin("/nowhere/at/all"));
            check(io.getMessage().contains("/nowhere/at/all"), "the path is named: " + io.getMessage());
            same(2, io.nativeCode(), "errno ENOENT");
        }
        fails(Result.NO_BACKEND, () -> Context.open(Backend.SYCL));
    }

    private static void taskException() throws InterruptedException {
        AtomicReference<Throwable> caught = new AtomicReference<>();
        Thread.UncaughtExceptionHandler before = Thread.getDefaultUncaughtExceptionHandler();
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> caught.set(error));
        try (Context context = Context.open(); Stream stream = context.stream(0)) {
            stream.call(() -> {
                throw new IllegalStateException("from the task");
            });
            stream.synchronize();
            waitFor("the exception of a task", () -> caught.get() != null);
            same("from the task", caught.get().getMessage(), "the message");
            Thread[] ran = new Thread[1];
            stream.call(() -> ran[0] = Thread.currentThread());
            stream.synchronize();
            check(ran[0].isDaemon(), "a thread of the backend does not keep the virtual machine");
        } finally {
            Thread.setDefaultUncaughtExceptionHandler(before);
        }
    }

    /** A text is no address of an object, and never throws. */
    private static void printed() throws Exception {
        Context context = Context.open(Backend.HOST);
        Stream stream = context.stream(0);
        Event event = context.event(0);
        Heap heap = context.heap(new HeapOptions().kind(Kind.VMM));
        Tag tag = context.tag("printed", Contents.HOST, 0);
        GmmBuffer buffer = context.alloc(3 * SIZE / 2, new AllocOptions().kind(Kind.VMM).tag(tag).name("here"));
        Ticket ticket = tag.resumeAsync();
        ticket.join();
        Pin pin = context.pin(ByteBuffer.allocateDirect(8192));
        List<Object> all = new ArrayList<>(List.of(context, stream, event, heap, tag, buffer, ticket, pin));
        all.addAll(List.of(Stream.DEFAULT, Stream.PER_THREAD, context.info(), context.device(0), context.statistics(),
            buffer.query(), tag.info(), context.blocks().get(0), context.backupInfo(), ticket.info(), Kind.VMM,
            Result.BUSY));
        all.addAll(List.of(new AllocOptions(), new ContextOptions(), new HeapOptions(), new PauseOptions(),
            new TagOptions(), new BackupOptions(), new IpcOptions(), new Scope(), new LeaseOptions("lease").offer(tag),
            new LeaseRequest().amount(0, 1)));
        try (ExportedFd fd = buffer.exportFd(FdType.DEFAULT)) {
            all.add(fd);
            for (Object each : all) {
                check(!each.toString().contains("@") && each.toString().length() > 2, "printed: " + each);
            }
        }
        check(buffer.toString().matches("GmmBuffer\\[1.5 MiB at 0x[0-9a-f]+, VMM of device 0, ACTIVE]"), "" + buffer);
        check(context.toString().contains("1 blocks of 1.5 MiB live"), "" + context);
        check(tag.toString().contains("\"printed\""), "" + tag);
        check(context.statistics().toString().startsWith("Statistics[liveTags="), "" + context.statistics());
        check(context.blocks().get(0).toString().contains("name=here"), "" + context.blocks().get(0));
        for (AutoCloseable each : List.of(pin, ticket, buffer, heap, event, stream, context)) {
            each.close();
            check(!each.toString().contains("@"), "printed when closed: " + each);
        }
        same("GmmBuffer[closed]", buffer.toString(), "a closed buffer");
        same("Context[closed]", context.toString(), "a closed context");
    }

    private static void negativeSizes() throws Exception {
        try (Context context = Context.open(); Heap heap = context.heap(new HeapOptions());
             GmmBuffer buffer = context.alloc(SIZE)) {
            for (Tap.Step step : List.<Tap.Step>of(() -> context.alloc(-1), () -> heap.alloc(-1),
                     () -> context.allocate(-1, new AllocOptions()), () -> heap.allocate(-1, Stream.DEFAULT),
                     () -> context.fill(buffer.address(), 0, -1, Stream.DEFAULT),
                     () -> context.copy(buffer.address(), buffer.address(), -1, Stream.DEFAULT),
                     () -> context.setLimit(null, -2), () -> new HeapOptions().limit(-1),
                     () -> new ContextOptions().hostMemory(-1), () -> context.importFd(0, FdType.DEFAULT, -1, 0))) {
                String message = fails(IllegalArgumentException.class, step).getMessage();
                check(message.endsWith("is negative"), message);
            }
            context.setLimit(null, Context.NO_LIMIT);
        }
    }

    /** The Cleaner frees on a thread of its own, so a callback never waits for what the collector has found. */
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
            check(logged > 0, "the context said what it opened");
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
                AtomicInteger told = new AtomicInteger();
                tag.pause(new PauseOptions().progress((done, total) -> {
                    System.gc();
                    return told.incrementAndGet() > 0;
                }));
                check(told.get() > 0, "the progress was told");
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

    private static void foreignThreads() throws InterruptedException {
        try (Context context = Context.open()) {
            int before = Thread.getAllStackTraces().size();
            for (int i = 0; i < 40; i++) {
                try (Stream stream = context.stream(0)) {
                    stream.call(() -> {});
                    stream.synchronize();
                }
            }
            waitFor("threads of ended streams to be detached", () -> Thread.getAllStackTraces().size() <= before + 2);
        }
    }

    private static void text() throws Exception {
        try (Context context = Context.open()) {
            String name = "größe \uD83D\uDE00";
            same(name, context.tag(name).info().name(), "a name beyond the basic plane");
            fails(IllegalArgumentException.class, () -> context.tag("a\0b"));
            fails(Result.NULL_ARGUMENT, () -> context.tag(null));
        }
    }
}
