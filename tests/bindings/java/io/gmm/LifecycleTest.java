/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import static io.gmm.Tap.check;
import static io.gmm.Tap.fails;
import static io.gmm.Tap.same;
import static io.gmm.Tap.waitFor;

import java.lang.ref.Cleaner;
import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicInteger;

/** Objects that are closed twice, used after that, forgotten, or alive when the virtual machine ends. */
final class LifecycleTest {
    private static final int SIZE = 1 << 20;
    private static final AtomicInteger COLLECTED = new AtomicInteger();

    private LifecycleTest() {}

    public static void main(String[] arguments) {
        Tap tap = new Tap();
        tap.test("close twice and use after close", LifecycleTest::closed);
        tap.test("use in another context", LifecycleTest::elsewhere);
        tap.test("a forgotten buffer is freed, after its views", LifecycleTest::forgottenBuffer);
        tap.test("forgotten owners end", LifecycleTest::forgotten);
        tap.test("a forgotten ticket goes on to its end, and all objects outlive their context",
            LifecycleTest::outliveContext);
        tap.test("two threads close what others use", LifecycleTest::closeUnderUse);
        tap.test("garbage is collected inside callbacks", LifecycleTest::garbageInCallbacks);
        tap.test("threads of the backend are daemons, and detached", LifecycleTest::threads);
        tap.test("the virtual machine ends inside a callback", () -> Child.run("exit-inside"));
        tap.test("the virtual machine ends with live objects", () -> Child.run("exit"));
        tap.finish();
    }

    private static void elsewhere() throws Exception {
        try (Context context = Context.open(); Context other = Context.open();
             Event event = context.event(0); Stream others = other.stream(0)) {
            Tag tag = context.tag("weights", Contents.HOST, 0);
            AllocOptions options = new AllocOptions().tag(tag);
            for (Tap.Step step : List.<Tap.Step>of(() -> other.alloc(1, options), () -> other.pause(tag),
                     () -> other.setLimit(new Scope().tag(tag), 1), () -> other.heap(new HeapOptions().tag(tag)),
                     () -> other.lease(new LeaseOptions("lease").offer(tag)))) {
                String message = fails(Result.INVALID_TAG, step).getMessage();
                check(message.contains("\"weights\" belongs to another context"), message);
            }
            fails(Result.INVALID_HANDLE, () -> others.waitFor(event));
        }
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
        for (Tap.Step step : List.<Tap.Step>of(buffer::address, buffer::bytes, buffer::query,
                 ()
                     -> buffer.fill(1),
                 ()
                     -> buffer.read(0, 1),
                 ()
                     -> heap.alloc(1),
                 event::query, stream::synchronize, pin::address, context::info,
                 ()
                     -> context.alloc(1),
                 tag::push, tag::info, () -> context.stream(0), context::snapshot, context::tags)) {
            String message = fails(IllegalStateException.class, step).getMessage();
            check(message.matches("this (buffer|heap|event|stream|pin|context) is closed"), message);
        }
        Stream.DEFAULT.close();
        Stream.DEFAULT.address();
    }

    private static ByteBuffer viewOfForgotten(Context context) {
        GmmBuffer buffer = context.alloc(SIZE, Kind.HOST);
        buffer.fill(42);
        buffer.read(0, 1);
        return buffer.bytes().position(100).slice().duplicate();
    }

    private static void forgottenBuffer() throws InterruptedException {
        try (Context context = Context.open()) {
            ByteBuffer part = viewOfForgotten(context);
            context.alloc(SIZE);
            waitFor("the Cleaner to free a buffer", () -> context.statistics().liveBlocks() == 1);
            same((byte) 42, part.get(0), "the contents while a part of a view is reachable");
            Reference.reachabilityFence(part);
            part = null;
            waitFor("the buffer to go after its view", () -> context.statistics().liveBlocks() == 0);
        }
    }

    /** The native owner of a callback releases it last, so COLLECTED counts the owners that have ended. */
    private static Object token() {
        Object token = new Object();
        Cleaner.create().register(token, COLLECTED::incrementAndGet);
        return token;
    }

    private static void forgetAll(Context live) {
        Object first = token();
        Context context =
            Context.open(new ContextOptions().logger((level, message) -> Reference.reachabilityFence(first)));
        Stream stream = context.stream(0);
        context.heap(new HeapOptions().kind(Kind.VMM)).alloc(SIZE, stream);
        context.alloc(SIZE, new AllocOptions().stream(stream));
        context.event(0).record(stream);
        Object second = token();
        live.watch(new WatchOptions().tag(live.defaultTag()), info -> second != null);
    }

    private static void forgotten() throws Exception {
        try (Context context = Context.open()) {
            forgetAll(context);
            Pin pin = context.pin(ByteBuffer.allocateDirect(SIZE));
            waitFor("the end of a context with all of its objects, and of a watcher", () -> COLLECTED.get() == 2);
            same(State.PINNED, context.query(pin.address()).state(), "the state of memory that only the pin holds");
            Reference.reachabilityFence(pin);
            pin = null;
            waitFor("the end of a pin", () -> context.statistics().pinnedBytes() == 0);
        }
    }

    private static void outliveContext() throws InterruptedException {
        AtomicInteger reported = new AtomicInteger();
        Context context = Context.open();
        Tag tag = context.tag("forgotten", Contents.HOST, 0);
        Stream stream = context.stream(0);
        Heap heap = context.heap(new HeapOptions().kind(Kind.VMM));
        GmmBuffer other = heap.alloc(SIZE, stream);
        try (GmmBuffer buffer = context.alloc(SIZE, new AllocOptions().kind(Kind.VMM).tag(tag))) {
            tag.pauseAsync(new PauseOptions().progress((done, total) -> reported.incrementAndGet() > 0));
            waitFor("the end of a pause that nobody waits for", () -> tag.info().state() == State.PAUSED);
            check(reported.get() > 0, "its progress was reported");
            Ticket resume = tag.resumeAsync();
            context.close();
            check(resume.join() >= SIZE && context.isClosed(), "a ticket outlives its context");
            resume.close();
        }
        heap.close();
        stream.close();
        other.fill(5);
        same((byte) 5, other.read(SIZE - 1, 1)[0], "a byte");
        other.close();
    }

    private static void closeUnderUse() throws Exception {
        for (int round = 0; round < 10; round++) {
            Context context = Context.open();
            CountDownLatch running = new CountDownLatch(4);
            List<FutureTask<Void>> users = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                users.add(Tap.elsewhere(() -> fails(IllegalStateException.class, () -> { // the only way out
                    while (true) {
                        running.countDown();
                        try (GmmBuffer buffer = context.alloc(4096)) {
                            buffer.query();
                        }
                    }
                })));
            }
            GmmBuffer shared = context.alloc(4096);
            running.await();
            Thread.sleep(2);
            users.add(Tap.elsewhere(shared::close));
            users.add(Tap.elsewhere(context::close));
            shared.close();
            context.close();
            for (FutureTask<Void> user : users) {
                Tap.join(user);
            }
        }
    }

    /** The Cleaner frees on a thread of its own, so a callback never waits for the garbage of the collector. */
    private static void garbageInCallbacks() throws Exception {
        AtomicInteger collections = new AtomicInteger(), asked = new AtomicInteger();
        try (Context other = Context.open()) {
            Runnable collect = () -> {
                other.alloc(SIZE);
                Tap.unchecked(
                    () -> waitFor("the Cleaner inside a callback", () -> other.statistics().liveBlocks() == 0));
                collections.incrementAndGet();
            };
            try (Context context = Context.open(new ContextOptions().logger((level, message) -> collect.run()))) {
                check(collections.get() > 0, "log lines of the open");
                context.setLimit(null, SIZE);
                context.setOomHandler(info -> {
                    collect.run();
                    return asked.incrementAndGet() == 0;
                });
                fails(Result.LIMIT_EXCEEDED, () -> context.alloc(2 * SIZE));
                same(1, asked.get(), "calls of the handler");
                int logged = collections.get(); // the failure has log lines, too
                context.setLimit(null, Context.NO_LIMIT);
                Tag tag = context.tag("garbage", Contents.HOST, 0);
                context.alloc(SIZE, new AllocOptions().kind(Kind.VMM).tag(tag)); // the Cleaner waits for the pause
                tag.pause(new PauseOptions().progress((done, total) -> {
                    System.gc();
                    return collections.incrementAndGet() > 0;
                }));
                check(collections.get() > logged, "the progress was reported");
                waitFor("the forgotten block of the paused tag", () -> context.statistics().liveBlocks() == 0);
            }
        }
    }

    private static void threads() throws Exception {
        Thread[] ran = new Thread[1];
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
        }
    }
}
