/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** The second process of the tests. Its exit code says what came of it. */
final class Child {
    private Child() {}

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("exit-inside")) {
            exitInsideCallbacks();
        }
        exitWithLiveBuffers();
    }

    private static void exitWithLiveBuffers() throws InterruptedException {
        Context context = Context.open(new ContextOptions().logger((level, message) -> {}));
        List<Object> live = new ArrayList<>();
        GmmBuffer buffer = context.alloc(1 << 20, Kind.HOST);
        live.add(List.of(buffer, buffer.bytes()));
        Stream stream = context.stream(0);
        live.add(stream);
        live.add(context.alloc(1 << 20, new AllocOptions().stream(stream)));
        live.add(context.pin(ByteBuffer.allocateDirect(1 << 16)));
        // Work that is under way when the virtual machine ends, on a thread that is attached to it.
        stream.call(() -> {});
        stream.call(() -> Tap.unchecked(() -> Thread.sleep(200)));
        Tag tag = context.tag("left", Contents.HOST, 0);
        live.add(context.alloc(64 << 20, new AllocOptions().kind(Kind.VMM).tag(tag)));
        live.add(tag.pauseAsync(new PauseOptions().progress((done, total) -> {
            Tap.unchecked(() -> Thread.sleep(200));
            return true;
        })));
        live.add(tag.resumeAsync().toCompletableFuture());
        Lease lease = context.lease(new LeaseOptions("left"));
        live.add(lease);
        lease.request();
        Thread.sleep(50);
        System.out.println("leaving with " + live.size() + " live objects");
        System.exit(0);
    }

    /** Two threads of the backend are inside callbacks; one of them ends the program. */
    private static void exitInsideCallbacks() throws InterruptedException {
        Context context = Context.open();
        Tag tag = context.tag("left", Contents.HOST, 0);
        GmmBuffer buffer = context.alloc(4 << 20, new AllocOptions().kind(Kind.VMM).tag(tag));
        buffer.fill(1);
        Stream stream = context.stream(0);
        CountDownLatch paused = new CountDownLatch(1);
        tag.pauseAsync(new PauseOptions().progress((done, total) -> {
            paused.countDown();
            Tap.unchecked(() -> Thread.sleep(1000 * Tap.SECONDS));
            return true;
        }));
        paused.await();
        stream.call(() -> System.exit(0));
        Thread.sleep(1000 * Tap.SECONDS);
    }

    /** Runs main() with this argument in another virtual machine. */
    static void run(String argument) throws IOException, InterruptedException {
        Process process = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-Xcheck:jni", "-cp",
            System.getProperty("java.class.path"), "io.gmm.Child", argument).redirectErrorStream(true).start();
        String output = new String(process.getInputStream().readAllBytes());
        Tap.check(process.waitFor(Tap.SECONDS, TimeUnit.SECONDS), "the second process ends");
        Tap.same(0, process.exitValue(), "exit code of the second process with the output: " + output);
        Tap.check(!output.contains("WARNING in native method"), "the second process has no JNI warning: " + output);
    }
}
