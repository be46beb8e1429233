// SPDX-License-Identifier: Apache-2.0

import io.gmm.*;
import java.io.IOException;
import java.util.Arrays;

/** The tour in Java: blocks in try-with-resources, a pause, a second process, an error. */
public final class Tour {
    private static final int BLOCK = 64 << 20;

    private Tour() {
    }

    private static byte[] pattern(int first) {
        byte[] bytes = new byte[BLOCK];
        for (int i = 0; i < BLOCK; i++) {
            bytes[i] = (byte) (first + i * 31 + i / 4096);
        }
        return bytes;
    }

    private static void must(boolean holds, String what) {
        if (!holds) {
            throw new IllegalStateException("not true: " + what);
        }
    }

    /** The second process: imports the block whose handle is on stdin, checks it, and writes other bytes. */
    private static void peer(Context context) throws IOException {
        try (GmmBuffer shared = context.importMemory(System.in.readNBytes(Context.IPC_HANDLE_SIZE))) {
            must(Arrays.equals(shared.read(0, BLOCK), pattern(0)), "the bytes arrived");
            shared.write(0, pattern(1));
        }
    }

    private static void share(GmmBuffer block) throws IOException, InterruptedException {
        Process second = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-cp",
            System.getProperty("java.class.path"), "Tour", "--peer").redirectError(ProcessBuilder.Redirect.INHERIT)
            .start();
        second.getOutputStream().write(block.exportHandle());
        second.getOutputStream().close();
        must(second.waitFor() == 0, "the second process succeeded");
        must(Arrays.equals(block.read(0, BLOCK), pattern(1)), "its bytes are here");
    }

    private static void tour(Context context) throws IOException, InterruptedException {
        DeviceInfo device = context.device(0);
        byte[] bytes = pattern(0);

        // Managed memory: one address on the host and the device.
        if (device.has(Kind.MANAGED)) {
            try (Stream stream = context.stream(0);
                GmmBuffer block = context.alloc(BLOCK, new AllocOptions().kind(Kind.MANAGED).stream(stream))) {
                block.write(0, bytes);
                block.advise(Advice.SET_PREFERRED_LOCATION, 0);
                block.prefetch(0, stream);
                must(Arrays.equals(block.read(0, BLOCK), bytes), "managed bytes are as written");
            }
        }

        // A tag's blocks are limited, counted and paused together. A paused block keeps its address and here its bytes.
        Tag tag = context.tag("tour", Contents.HOST, 0);
        if (device.canPause()) {
            try (GmmBuffer block = context.alloc(BLOCK, new AllocOptions().kind(Kind.VMM).tag(tag))) {
                block.write(0, bytes);
                must(tag.pause() >= BLOCK && block.query().state() == State.PAUSED, "the block is paused");
                tag.resume();
                must(Arrays.equals(block.read(0, BLOCK), bytes), "a resume brings the bytes back");
            }
        }

        // Another process imports a block by a handle of 256 bytes.
        try (GmmBuffer block = context.alloc(BLOCK, new AllocOptions().tag(tag))) {
            block.write(0, bytes);
            share(block);
        }

        // A failure has a result, and a message that says what was asked, what stood in the way and what to do.
        context.setLimit(new Scope().tag(tag), BLOCK);
        try (GmmBuffer tooLarge = context.alloc(2L * BLOCK, new AllocOptions().tag(tag))) {
            throw new IllegalStateException("a limit was passed by " + tooLarge);
        } catch (GmmException error) {
            must(error.result() == Result.LIMIT_EXCEEDED && error.getMessage().contains("a limit of"), "it says why");
        }
        System.out.printf("tour in Java %s: ok, backend %s, device 0: %s%n", Runtime.version().feature(),
            context.info().backendName(), device.name());
    }

    public static void main(String[] words) throws Exception {
        try (Context context = Context.open()) {
            if (words.length == 1 && words[0].equals("--peer")) {
                peer(context);
            } else {
                tour(context);
            }
        }
    }
}
