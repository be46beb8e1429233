/* SPDX-License-Identifier: Apache-2.0 */

import io.gmm.*;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.zip.CRC32;

/** A consumer of the ring: see ring.py for the lines on stdin and stdout. */
public final class RingConsumer {
    private RingConsumer() {
    }

    private static byte[] handle(String word) {
        return Base64.getDecoder().decode(word);
    }

    /** Copies each frame out of the ring, in the order of the slots' events. Returns the number of bad ones. */
    private static int consume(Context context, GmmBuffer ring, List<Event> ready, int size, BufferedReader in)
        throws Exception {
        int checked = 0;
        int bad = 0;
        try (Stream stream = context.stream(0);
             GmmBuffer staging = context.alloc(size, Kind.HOST);
             Event copied = context.ipcEvent(0)) {
            System.out.println("hello " + Base64.getEncoder().encodeToString(copied.exportHandle()));
            for (String line = in.readLine(); line != null && !line.equals("end"); line = in.readLine()) {
                String[] words = line.split(" ");
                int slot = Integer.parseInt(words[2]);
                stream.waitFor(ready.get(slot));
                staging.copyFrom(0, ring, (long) slot * size, size, stream);
                copied.record(stream);
                System.out.println("taken " + words[1]);
                stream.synchronize();
                CRC32 checksum = new CRC32();
                checksum.update(staging.bytes());
                checked++;
                bad += checksum.getValue() == Long.parseLong(words[3]) ? 0 : 1;
            }
        }
        System.out.println("done " + checked + " " + bad);
        return bad;
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        String[] words = in.readLine().split(" ");
        int bad;
        try (Context context = Context.open(Backend.valueOf(words[1].toUpperCase()));
             GmmBuffer ring = context.importMemory(handle(words[3]))) {
            List<Event> ready = new ArrayList<>();
            for (String line = in.readLine(); line.startsWith("ready "); line = in.readLine()) {
                ready.add(context.importEvent(handle(line.substring(6)), 0, 0));
            }
            bad = consume(context, ring, ready, Integer.parseInt(words[2]), in);
            ready.forEach(Event::close);
        }
        System.exit(bad == 0 ? 0 : 1);
    }
}
