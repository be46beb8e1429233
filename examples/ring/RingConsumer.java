/* SPDX-License-Identifier: Apache-2.0 */

import io.gmm.*;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.CRC32;

/** A consumer of the ring: see ring.py for what is said on stdin and stdout. */
public final class RingConsumer {
    private final Context context;
    private final GmmBuffer ring;
    private final List<Event> ready;
    private final int size;
    private final BufferedReader in;
    private final PrintStream out = System.out;
    private int checked;
    private int bad;

    private RingConsumer(Context context, GmmBuffer ring, List<Event> ready, int size, BufferedReader in) {
        this.context = context;
        this.ring = ring;
        this.ready = ready;
        this.size = size;
        this.in = in;
    }

    private static byte[] bytes(String hexadecimal) {
        byte[] made = new byte[hexadecimal.length() / 2];
        for (int i = 0; i < made.length; i++) {
            made[i] = (byte) Integer.parseInt(hexadecimal.substring(2 * i, 2 * i + 2), 16);
        }
        return made;
    }

    private static String text(byte[] bytes) {
        StringBuilder made = new StringBuilder();
        for (byte each : bytes) {
            made.append(String.format("%02x", each));
        }
        return made.toString();
    }

    private void say(String line) {
        out.println(line);
        out.flush();
    }

    private void run() throws Exception {
        try (Stream stream = context.stream(0);
             GmmBuffer staging = context.alloc(size, Kind.HOST);
             Event copied = ready.isEmpty() ? null : context.ipcEvent(0)) {
            say("hello " + (copied == null ? "-" : text(copied.exportHandle())));
            consume(stream, staging, copied);
            say("done " + checked + " " + bad);
        }
    }

    private void consume(Stream stream, GmmBuffer staging, Event copied) throws Exception {
        for (String line = in.readLine(); line != null && !line.equals("end"); line = in.readLine()) {
            String[] words = line.split(" ");
            int number = Integer.parseInt(words[1]);
            int slot = Integer.parseInt(words[2]);
            if (copied != null) {
                stream.waitFor(ready.get(slot));
            }
            staging.copyFrom(0, ring, (long) slot * size, size, stream);
            if (copied != null) {
                copied.record(stream);
                say("taken " + number);
                stream.synchronize();
            } else {
                stream.synchronize();
                say("taken " + number);
            }
            CRC32 checksum = new CRC32();
            checksum.update(staging.bytes());
            boolean right = checksum.getValue() == Long.parseLong(words[3]) && staging.bytes().getLong(0) == number;
            checked++;
            bad += right ? 0 : 1;
            say("checked " + number + (right ? " ok" : " bad"));
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        String[] words = in.readLine().split(" ");
        Backend backend = Backend.valueOf(words[1].toUpperCase());
        int bad;
        try (Context context = Context.open(new ContextOptions().backend(backend));
             GmmBuffer ring = context.importMemory(bytes(words[3]))) {
            List<Event> ready = new ArrayList<>();
            for (String line = in.readLine(); line.startsWith("ready "); line = in.readLine()) {
                ready.add(context.importEvent(bytes(line.substring(6)), 0, 0));
            }
            RingConsumer consumer = new RingConsumer(context, ring, ready, Integer.parseInt(words[2]), in);
            consumer.run();
            bad = consumer.bad;
            for (Event event : ready) {
                event.close();
            }
        }
        System.exit(bad == 0 ? 0 : 1);
    }
}
