/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.Map;
import java.util.StringJoiner;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;

/** A process with a lease that does what it is told, and its handle in the test. */
final class LeaseMember implements AutoCloseable {
    static final int CARD_MIB = 64;
    private static final int MIB = 1 << 20;

    private final String name;
    private final Process process;
    private final PrintStream to;
    private final BufferedReader from;

    LeaseMember(Path folder, String name) throws Exception {
        this.name = name;
        ProcessBuilder builder = new ProcessBuilder(Child.command("lease", name));
        Map<String, String> environment = builder.environment();
        environment.put("GMM_IPC_DIR", folder.toString());
        environment.put("GMM_HOST_CARD", folder.resolve("card").toString());
        environment.put("FAKE_CUDA_LEDGER", folder.resolve("ledger").toString());
        environment.put("FAKE_CUDA_MEMORY", String.valueOf((long) CARD_MIB * MIB));
        process = builder.redirectError(ProcessBuilder.Redirect.INHERIT).start();
        to = new PrintStream(process.getOutputStream(), true);
        from = new BufferedReader(new InputStreamReader(process.getInputStream()));
    }

    void tell(String command) {
        to.println(command);
    }

    String hear() throws Exception {
        String line = from.readLine();
        if (line == null) {
            throw new AssertionError(name + " has ended with " + process.waitFor());
        }
        return line;
    }

    String ask(String command) throws Exception {
        tell(command);
        return hear();
    }

    interface Question {
        String answer() throws Exception;
    }

    static String quiet(Question question) {
        try {
            return question.answer();
        } catch (Exception error) {
            throw new AssertionError(error);
        }
    }

    /** SIGKILL. */
    void kill() {
        process.destroyForcibly();
    }

    @Override
    public void close() throws Exception {
        to.close();
        if (!process.waitFor(Tap.SECONDS, TimeUnit.SECONDS)) {
            kill();
            throw new AssertionError(name + " does not end");
        }
        int code = process.exitValue();
        Tap.check(code == 0 || code == 128 + 9, name + " has ended with " + code);
    }

    // The process.

    private static volatile String asker = "nobody";

    static void main(String name) throws Exception {
        boolean host = "host".equals(System.getenv("GMM_BACKEND"));
        ContextOptions options = new ContextOptions();
        if (host) {
            options.hostDevices(1).hostMemory((long) CARD_MIB * MIB);
        }
        try (Context context = Context.open(options)) {
            if (context.device(0).totalMemory() > 16L << 30) {
                System.out.println("too large");
                return;
            }
            Tag tag = context.tag("weights", Contents.HOST, 0);
            LeaseOptions wanted = new LeaseOptions(name).arbiter("tests").residencyMillis(1).offer(tag).asked(
                (lease, ask) -> asker = ask.name());
            try (Lease lease = context.lease(wanted)) {
                System.out.println("ready");
                obey(context, lease, tag, name.charAt(0));
            }
        }
    }

    private static void obey(Context context, Lease lease, Tag tag, int seed) throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        GmmBuffer block = null;
        byte[] pattern = {};
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "request":
                    System.out.println(request(lease, Long.parseLong(words[1]), Long.parseLong(words[2])));
                    break;
                case "alloc":
                    pattern = new byte[Integer.parseInt(words[1]) * MIB];
                    for (int i = 0; i < pattern.length; i++) {
                        pattern[i] = (byte) (i * 7 + seed);
                    }
                    block = context.alloc(pattern.length, new AllocOptions().kind(Kind.VMM).tag(tag));
                    block.write(0, pattern);
                    System.out.println(true);
                    break;
                case "check":
                    System.out.println(java.util.Arrays.equals(pattern, block.read(0, pattern.length)));
                    break;
                case "release":
                    System.out.println(lease.release());
                    break;
                case "info":
                    LeaseInfo info = lease.info();
                    System.out.println(info.state() + " grants " + info.grants() + " evictions " + info.evictions()
                        + " asked " + info.asked() + " by " + asker);
                    break;
                case "status":
                    Map<String, LeaseState> states = new TreeMap<>();
                    for (LeaseStatus.Member each : context.leaseStatus("tests", 60000).members()) {
                        states.put(each.name(), each.state());
                    }
                    StringJoiner told = new StringJoiner(" ");
                    states.forEach((member, state) -> told.add(member + " " + state));
                    System.out.println(told);
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
        }
        if (block != null) {
            block.close();
        }
    }

    private static String request(Lease lease, long mib, long millis) {
        try {
            return "" + lease.request(new LeaseRequest().amount(0, mib * MIB).timeoutMillis(millis));
        } catch (GmmException error) {
            return error.result() + " " + error.getMessage().replace('\n', ' ');
        }
    }
}
