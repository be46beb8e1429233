/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Text for people, and for C: the C interface speaks UTF-8; JNI's own strings are modified UTF-8, so text crosses as
 * bytes.
 */
final class Text {
    private static final Pattern FUNCTION = Pattern.compile("\\bgmm_(\\w+)");
    private static final List<Class<?>> CLASSES =
        List.of(Heap.class, Lease.class, Stream.class, Tag.class, Ticket.class, Watcher.class, Context.class);

    private Text() {}

    static byte[] encode(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    static String decode(byte[] text) {
        return text == null ? null : new String(text, StandardCharsets.UTF_8);
    }

    /** A message of the library, with the method in the place of each function of C that has one of its name. */
    static String inJava(String message) {
        return FUNCTION.matcher(message).replaceAll(
            found -> Matcher.quoteReplacement(methodOf(found.group(1), found.group())));
    }

    private static String methodOf(String function, String otherwise) {
        for (Class<?> each : CLASSES) {
            String noun = each.getSimpleName().toLowerCase(Locale.ROOT) + "_";
            String verb = function.startsWith(noun) ? function.substring(noun.length()) : function;
            String name = Pattern.compile("_(\\w)").matcher(verb.equals("query") ? "info" : verb)
                .replaceAll(letter -> letter.group(1).toUpperCase(Locale.ROOT));
            if ((verb != function || each == Context.class)
                    && Arrays.stream(each.getMethods()).anyMatch(method -> method.getName().equals(name))) {
                return each.getSimpleName() + "." + name;
            }
        }
        return otherwise;
    }

    /** Bytes in words: 1536 is "1.5 KiB". */
    static String size(long bytes) {
        String[] units = {"bytes", "KiB", "MiB", "GiB", "TiB"};
        double value = bytes;
        int unit = 0;
        while (Math.abs(value) >= 1024 && unit + 1 < units.length) {
            value /= 1024;
            unit++;
        }
        return (value == Math.rint(value) ? String.valueOf((long) value) : String.format(Locale.ROOT, "%.1f", value))
            + " " + units[unit];
    }

    /** A size that is none: C would read it as one of nearly 2^64 bytes. */
    static long checkSize(String what, long size) {
        if (size < 0) {
            throw new IllegalArgumentException(what + " " + size + " is negative");
        }
        return size;
    }

    /** A size, or -1 for a value that stands for all or none. */
    static void checkSizeOrAll(String what, long size) {
        if (size != -1) {
            checkSize(what, size);
        }
    }
}
