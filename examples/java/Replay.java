// SPDX-License-Identifier: Apache-2.0

import io.gmm.Context;
import io.gmm.ContextOptions;
import io.gmm.Heap;
import io.gmm.HeapOptions;
import io.gmm.Kind;
import io.gmm.Scope;
import io.gmm.Stream;
import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.zip.GZIPInputStream;

/** Replays an allocation trace: lines of "a ID BYTES STREAM" and "f ID STREAM". */
final class Replay {
    private final String name;
    // One entry a line; a free has size 0.
    private int[] ids = new int[4096];
    private long[] sizes = new long[4096];
    private int[] on = new int[4096];
    private int count;
    private int highest;
    private long peak;
    private final Map<String, Integer> streamNumbers = new HashMap<>();

    private Replay(String path) throws IOException {
        String file = Path.of(path).getFileName().toString();
        name = file.substring(0, file.indexOf('.') < 0 ? file.length() : file.indexOf('.'));
        streamNumbers.put("0", 0);
        try (BufferedReader reader = new BufferedReader(
                 new InputStreamReader(new GZIPInputStream(new FileInputStream(path)), StandardCharsets.US_ASCII))) {
            for (String line = reader.readLine(); line != null; line = reader.readLine()) {
                add(line.split(" "), line);
            }
        }
        long[] live = new long[highest + 1];
        long requested = 0;
        for (int i = 0; i < count; i++) {
            requested += sizes[i] > 0 ? sizes[i] : -live[ids[i]];
            live[ids[i]] = sizes[i];
            peak = Math.max(peak, requested);
        }
    }

    private void add(String[] words, String line) throws IOException {
        boolean allocates = words[0].equals("a") && words.length == 4;
        if (!allocates && !(words[0].equals("f") && words.length == 3)) {
            throw new IOException("line " + (count + 1) + " is not of a trace: " + line);
        }
        if (count == ids.length) {
            ids = Arrays.copyOf(ids, 2 * count);
            sizes = Arrays.copyOf(sizes, 2 * count);
            on = Arrays.copyOf(on, 2 * count);
        }
        ids[count] = Integer.parseInt(words[1]);
        sizes[count] = allocates ? Long.parseLong(words[2]) : 0;
        on[count] = streamNumbers.computeIfAbsent(words[words.length - 1], number -> streamNumbers.size());
        highest = Math.max(highest, ids[count]);
        count++;
    }

    /** Runs the trace twice in a context of its own and prints its line. */
    static void run(String path) throws IOException {
        Replay replay = new Replay(path);
        // The virtual machine compiles what runs often; a context that is not measured pays for that.
        replay.both();
        long[] figures = replay.both();
        System.out.printf(Locale.ROOT, "%-17s %-13d %-13s %-13s %-7.3f %-13d %d%n", replay.name, replay.count,
            Tour.mib(replay.peak), Tour.mib(figures[0]),
            (double) figures[0] / replay.peak, figures[1], figures[2]);
    }

    /** Peak reserved bytes and nanoseconds an operation of two passes in a fresh context. */
    private long[] both() {
        List<Stream> streams = new ArrayList<>(List.of(Stream.DEFAULT));
        try (Context context = Context.open(new ContextOptions().hostMemory(16L << 30));
             Heap heap = context.heap(new HeapOptions().kind(Kind.VMM))) {
            while (streams.size() < streamNumbers.size()) {
                streams.add(context.stream(0));
            }
            long first = pass(context, heap, streams);
            long reserved = context.statistics(new Scope().kind(Kind.VMM)).peakReservedBytes();
            long again = pass(context, heap, streams);
            streams.forEach(Stream::close);
            return new long[] {reserved, first, again};
        }
    }

    /** Returns nanoseconds an operation. It frees what is live at the end. */
    private long pass(Context context, Heap heap, List<Stream> list) {
        Stream[] streams = list.toArray(new Stream[0]);
        long[] live = new long[highest + 1];
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            if (sizes[i] > 0) {
                live[ids[i]] = heap.allocate(sizes[i], streams[on[i]]);
            } else {
                context.free(live[ids[i]], streams[on[i]]);
                live[ids[i]] = 0;
            }
        }
        for (long address : live) {
            context.free(address, Stream.DEFAULT);
        }
        return (System.nanoTime() - start) / count;
    }
}
