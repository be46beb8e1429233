/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.regex.Pattern;

/**
 * Text for people, and for C: the C interface speaks UTF-8; JNI's own strings are modified UTF-8, so text crosses as
 * bytes.
 */
final class Text {
    private static final Pattern FUNCTION = Pattern.compile("\\bgmm_\\w+");

    private Text() {}

    static byte[] encode(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    static String decode(byte[] text) {
        return text == null ? null : new String(text, StandardCharsets.UTF_8);
    }

    /** A message of the library, with the method in the place of each function of C. */
    static String inJava(String message) {
        return FUNCTION.matcher(message).replaceAll(found -> Methods.OF.getOrDefault(found.group(), found.group()));
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
