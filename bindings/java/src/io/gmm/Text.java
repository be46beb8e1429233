/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.StringJoiner;

/**
 * Text for people, and for C: the C interface speaks UTF-8; JNI's own strings are modified UTF-8, so text crosses as
 * bytes.
 */
final class Text {
    private Text() {}

    static byte[] encode(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    static String decode(byte[] text) {
        return text == null ? null : new String(text, StandardCharsets.UTF_8);
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

    /** The fields of an object of this package as a record shows them: Name[field=value, ...]. */
    static String describe(Object object) {
        Class<?> type = object.getClass();
        StringJoiner fields = new StringJoiner(", ", type.getSimpleName() + "[", "]");
        for (Field field : type.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) || field.isSynthetic()) {
                continue;
            }
            field.setAccessible(true);
            try {
                fields.add(field.getName() + "=" + value(field.getName(), field.get(object)));
            } catch (IllegalAccessException error) {
                throw new IllegalStateException(error); // it was made accessible
            }
        }
        return fields.toString();
    }

    private static String value(String name, Object value) {
        if (value instanceof byte[]) {
            StringBuilder digits = new StringBuilder();
            for (byte each : (byte[]) value) {
                digits.append(String.format("%02x", each));
            }
            return digits.toString();
        }
        boolean isAddress = name.equals("address") || name.equals("base") || name.endsWith("Base")
            || name.equals("devicePointer");
        return isAddress ? "0x" + Long.toHexString((Long) value) : String.valueOf(value);
    }

    /** A size that is none: C would read it as one of nearly 2^64 bytes. */
    static long checkSize(String what, long size) {
        if (size < 0) {
            throw new IllegalArgumentException(what + " " + size + " is negative");
        }
        return size;
    }
}
