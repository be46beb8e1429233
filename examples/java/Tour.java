// SPDX-License-Identifier: Apache-2.0

import io.gmm.Advice;
import io.gmm.AllocOptions;
import io.gmm.Contents;
import io.gmm.Context;
import io.gmm.ContextInfo;
import io.gmm.DeviceInfo;
import io.gmm.GmmBuffer;
import io.gmm.GmmException;
import io.gmm.Kind;
import io.gmm.Pin;
import io.gmm.PointerInfo;
import io.gmm.Result;
import io.gmm.Scope;
import io.gmm.State;
import io.gmm.Stream;
import io.gmm.Tag;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * The tour in Java: every step of the interface on every kind of memory, as one table, then a replay of real traces.
 * ../README.md says what each step must hold; the same program stands in four more languages beside it.
 */
public final class Tour {
    private static final int MIB = 1 << 20;
    private static final int BLOCK = 64 * MIB;
    private static final String ONLY_MANAGED = "a hint about pages is for MANAGED memory";
    private static final String ONLY_VMM = "only VMM memory can give its pages back and keep its address";

    /** This kind lacks the step. */
    private static final class NotThere extends RuntimeException {
        private static final long serialVersionUID = 1L;

        NotThere(String why) {
            super(why);
        }
    }

    private interface Step {
        /** Returns what the cell says. */
        String run() throws Exception;
    }

    private final Context context;
    private final DeviceInfo device;
    private final Stream stream;
    private final Tag tag;
    private final ByteBuffer host = ByteBuffer.allocateDirect(BLOCK);
    private final long hostAddress = Context.addressOf(host);
    private final ByteBuffer plain = pattern(0);
    private final ByteBuffer complemented = pattern(255);
    private final ByteBuffer zeros = ByteBuffer.allocate(BLOCK);

    private final Map<String, Step> steps = new LinkedHashMap<>();
    private final List<String> footnotes = new ArrayList<>();
    private final List<String> failures = new ArrayList<>();
    private Kind kind;
    private GmmBuffer block;

    private Tour(Context context, Stream stream) {
        this.context = context;
        this.stream = stream;
        device = context.device(0);
        // On the host backend the contents go to a file: a copy in host memory would be as large as what goes back.
        tag = context.tag("tour", device.isCpu() ? Contents.FILE : Contents.HOST, 0);
        steps.put("alloc", this::alloc);
        steps.put("write and read", this::writeAndRead);
        steps.put("query", () -> lookAt(block.address()));
        steps.put("query interior", () -> lookAt(block.address() + BLOCK / 2));
        steps.put("query foreign", this::queryForeign);
        steps.put("pin", this::pin);
        steps.put("advise", this::advise);
        steps.put("prefetch", this::prefetch);
        steps.put("move", this::move);
        steps.put("share", this::share);
        steps.put("pause", this::pause);
        steps.put("resume", this::resume);
        steps.put("free", this::free);
    }

    // Bytes in and out.

    /** Byte i is (i * 31 + i / 4096) & 255; `complement` is 255 for the other one. */
    private static ByteBuffer pattern(int complement) {
        byte[] bytes = new byte[BLOCK];
        for (int i = 0; i < BLOCK; i++) {
            bytes[i] = (byte) ((i * 31L + i / 4096) ^ complement);
        }
        return ByteBuffer.wrap(bytes);
    }

    private ByteBuffer expected(int size, int complement) {
        return (complement == 0 ? plain : complemented).duplicate().limit(size);
    }

    private void fillHost(int size, int complement) {
        host.duplicate().put(expected(size, complement));
    }

    private void clearHost(int size) {
        host.duplicate().put(zeros.duplicate().limit(size));
    }

    private void checkHost(int size, int complement) {
        ByteBuffer wanted = expected(size, complement);
        int at = host.duplicate().limit(size).mismatch(wanted);
        check(at < 0, at < 0 ? "" : "byte " + at + " is " + (host.get(at) & 255) + ", expected "
            + (wanted.get(at) & 255));
    }

    private void write(long memory, int complement) {
        fillHost(BLOCK, complement);
        context.copy(memory, hostAddress, BLOCK, stream);
        stream.synchronize();
    }

    private void checkBytes(long memory, int complement) {
        clearHost(BLOCK);
        context.copy(hostAddress, memory, BLOCK, stream);
        stream.synchronize();
        checkHost(BLOCK, complement);
    }

    private static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new IllegalStateException(otherwise);
        }
    }

    private static void need(boolean there, String otherwise) {
        if (!there) {
            throw new NotThere(otherwise);
        }
    }

    static String mib(long bytes) {
        return String.format(Locale.ROOT, "%.1f MiB", (double) bytes / MIB);
    }

    // The steps.

    private String alloc() {
        AllocOptions options = new AllocOptions().kind(kind).tag(tag).stream(stream);
        if (kind == Kind.VMM) {
            options.dedicated();
        }
        block = context.alloc(BLOCK, options);
        check(block.address() % 256 == 0, "0x" + Long.toHexString(block.address()) + " is not a multiple of 256");
        return "ok";
    }

    private String writeAndRead() {
        write(block.address(), 0);
        checkBytes(block.address(), 0);
        return "ok";
    }

    private String lookAt(long address) {
        PointerInfo info = context.query(address);
        check(info.kind() == kind && info.base() == block.address() && info.size() == BLOCK && info.device() == 0
            && info.tag() == tag.number()
                && info.state() == State.ACTIVE,
            info.kind() + ", base 0x" + Long.toHexString(info.base()) + ", size " + info.size() + ", device "
                + info.device() + ", tag " + info.tag() + ", " + info.state());
        return "ok";
    }

    private String queryForeign() {
        State state = context.query(hostAddress).state();
        check(state == State.UNKNOWN, "memory of the program has state " + state);
        return "ok";
    }

    private String pin() {
        need(device.canPin(), "the device cannot pin");
        host.limit(MIB);
        try (Pin pin = context.pin(host)) {
            fillHost(MIB, 255);
            context.copy(block.address(), pin.address(), MIB, stream);
            stream.synchronize();
            clearHost(MIB);
            context.copy(pin.address(), block.address(), MIB, stream);
            stream.synchronize();
            checkHost(MIB, 255);
        } finally {
            host.clear();
        }
        write(block.address(), 0);
        return "ok";
    }

    private String advise() {
        need(kind == Kind.MANAGED, ONLY_MANAGED);
        block.advise(Advice.SET_PREFERRED_LOCATION, 0);
        block.advise(Advice.UNSET_PREFERRED_LOCATION, 0);
        checkBytes(block.address(), 0);
        return "ok";
    }

    private String prefetch() {
        need(kind == Kind.MANAGED, ONLY_MANAGED);
        block.prefetch(Context.HOST_LOCATION, stream);
        block.prefetch(0, stream);
        stream.synchronize();
        checkBytes(block.address(), 0);
        return "ok";
    }

    private String move() {
        need(kind == Kind.VMM || kind == Kind.MANAGED,
            "the driver cannot move DEVICE and HOST memory: use VMM or MANAGED");
        long address = block.address();
        block.move(Context.HOST_LOCATION, stream, false);
        checkBytes(address, 0);
        block.move(0, stream, false);
        checkBytes(address, 0);
        return lookAt(address);
    }

    private String share() throws IOException, InterruptedException {
        need(kind != Kind.MANAGED, "the driver has no way to share MANAGED memory: use DEVICE, VMM or HOST");
        byte[] handle = block.exportHandle();
        Process second = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-cp",
            System.getProperty("java.class.path"), "Tour", "--peer",
            Integer.toString(BLOCK)).redirectOutput(ProcessBuilder.Redirect.INHERIT)
            .redirectError(ProcessBuilder.Redirect.INHERIT).start();
        second.getOutputStream().write(handle);
        second.getOutputStream().close();
        int code = second.waitFor();
        check(code == 0, "the second process ended with " + code + "; its message stands above");
        checkBytes(block.address(), 255);
        write(block.address(), 0);
        return "ok";
    }

    /** The resident bytes of this process, or the bytes that a GPU has in use, as the system reports them. */
    private long inUse() throws IOException {
        if (!device.isCpu()) {
            DeviceInfo now = context.device(0);
            return now.totalMemory() - now.freeMemory();
        }
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmRSS:")) {
                return Long.parseLong(line.replaceAll("\\D", "")) * 1024;
            }
        }
        throw new IOException("/proc/self/status has no VmRSS");
    }

    private String pause() throws IOException {
        need(kind == Kind.VMM, ONLY_VMM);
        need(device.canPause(), "the device cannot pause");
        context.trim();
        long before = inUse();
        tag.pause();
        context.trim(); // what the copies went through stays for the next pause otherwise
        long gone = before - inUse();
        State state = block.query().state();
        check(state == State.PAUSED, "after the pause the state is " + state);
        check(gone >= BLOCK / 4 * 3, "only " + mib(gone) + " came back to the system");
        return mib(gone);
    }

    private String resume() {
        need(kind == Kind.VMM, ONLY_VMM);
        need(device.canPause(), "the device cannot pause");
        long bytes = tag.resume();
        lookAt(block.address());
        checkBytes(block.address(), 0);
        return mib(bytes);
    }

    private String free() {
        long address = block.address();
        block.close();
        State state = context.query(address).state();
        check(state == State.FREE || state == State.UNKNOWN, "after the free the state is " + state);
        long live = context.statistics(new Scope().tag(tag)).liveBlocks();
        check(live == 0, live + " blocks are live still");
        stream.synchronize();
        context.trim();
        return "ok";
    }

    // The whole.

    /** What a step needs: bytes for those that compare them, a pause for a resume, a block for all. */
    private static String needs(String step) {
        switch (step) {
            case "alloc":
                return "";
            case "resume":
                return "pause";
            case "move":
            case "share":
            case "pause":
            case "advise":
            case "prefetch":
            case "pin":
                return "write and read";
            default:
                return "alloc";
        }
    }

    private String cell(String name, Step step, Map<String, String> column) {
        try {
            check(!"FAILED".equals(column.get(needs(name))), "not reached");
            return step.run();
        } catch (NotThere why) {
            return footnote(why.getMessage());
        } catch (GmmException error) {
            return error.result() == Result.NOT_SUPPORTED ? footnote(error.getMessage())
                : failed(name, error.name() + ": " + error.getMessage());
        } catch (Exception error) {
            return failed(name, error.getMessage());
        }
    }

    private String footnote(String text) {
        if (!footnotes.contains(text)) {
            footnotes.add(text);
        }
        return "- [" + (footnotes.indexOf(text) + 1) + "]";
    }

    private String failed(String name, String message) {
        failures.add("FAILED " + kind + " " + name + ": " + message);
        return "FAILED";
    }

    private void table() {
        Map<Kind, Map<String, String>> columns = new LinkedHashMap<>();
        for (Kind each : new Kind[] {Kind.DEVICE, Kind.VMM, Kind.HOST, Kind.MANAGED}) {
            if (device.has(each)) {
                kind = each;
                Map<String, String> column = new LinkedHashMap<>();
                steps.forEach((name, step) -> column.put(name, cell(name, step, column)));
                columns.put(each, column);
            }
        }
        System.out.printf("%n%-17s ", "step");
        columns.keySet().forEach(each -> System.out.printf("%-13s ", each));
        System.out.println();
        for (String name : steps.keySet()) {
            System.out.printf("%-17s ", name);
            columns.values().forEach(column -> System.out.printf("%-13s ", column.get(name)));
            System.out.println();
        }
        System.out.println();
        for (int i = 0; i < footnotes.size(); i++) {
            System.out.println("[" + (i + 1) + "] " + footnotes.get(i));
        }
        failures.forEach(System.out::println);
    }

    /** Runs as the second process: imports the handle on stdin, checks the bytes and changes each. */
    private void peer() throws IOException {
        byte[] handle = System.in.readNBytes(Context.IPC_HANDLE_SIZE);
        try (GmmBuffer shared = context.importMemory(handle)) {
            checkBytes(shared.address(), 0);
            write(shared.address(), 255);
        }
    }

    public static void main(String[] words) throws Exception {
        boolean second = words.length == 2 && words[0].equals("--peer") && words[1].equals(Integer.toString(BLOCK));
        if (!second && words.length > 0 && words[0].startsWith("-")) {
            System.err.println("use: Tour [TRACE.gz ...]");
            System.exit(2);
        }
        List<String> failures;
        try (Context context = Context.open(); Stream stream = context.stream(0)) {
            Tour tour = new Tour(context, stream);
            if (second) {
                tour.peer();
                return;
            }
            ContextInfo info = context.info();
            System.out.printf("gmm %s, java %s, backend %s (%s), device 0: %s%n", Context.version(),
                Runtime.version().feature(), info.backendName(),
                info.driverVersion(), tour.device.name());
            if (tour.device.isCpu()) {
                System.out.println("This is the host backend: it needs no GPU, and its figures say nothing about one.");
            }
            tour.table();
            failures = tour.failures;
        }
        if (words.length > 0) {
            System.out.printf("%nReplay of real PyTorch traces, kind VMM%n%-17s %-13s %-13s %-13s %-7s %-13s %s%n",
                "trace", "operations", "requested", "reserved",
                "ratio", "ns/op first", "ns/op again");
        }
        for (String trace : words) {
            try {
                Replay.run(trace);
            } catch (IOException | GmmException error) {
                failures.add(trace);
                System.out.println("FAILED replay: " + trace + ": " + error.getMessage());
            }
        }
        System.out.println(failures.isEmpty() ? "\ntour: ok" : "\ntour: " + failures.size() + " steps failed");
        System.exit(failures.isEmpty() ? 0 : 1);
    }
}
