/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** The bytes of a C struct, in the machine's order, as bindings/swig/struct.h describes them. */
final class Struct {
    /** A pointer in the descriptor, and the data that it points to. */
    private static final class Pointer {
        final int at;
        final byte[] data;

        Pointer(int at, byte[] data) {
            this.at = at;
            this.data = data;
        }
    }

    private final ByteBuffer fields;
    private final List<Pointer> pointers = new ArrayList<>();

    /** A descriptor of all defaults. */
    Struct(int size) {
        fields = ByteBuffer.wrap(forAnswer(size)).order(ByteOrder.nativeOrder());
    }

    void putInt(int at, int value) {
        fields.putInt(at, value);
    }

    void putLong(int at, long value) {
        fields.putLong(at, value);
    }

    /** A pointer to text; null stays NULL. */
    void putText(int at, String text) {
        if (text == null) {
            return;
        }
        if (text.indexOf(0) >= 0) {
            throw new IllegalArgumentException("text holds a NUL character");
        }
        pointers.add(new Pointer(at, (text + '\0').getBytes(StandardCharsets.UTF_8)));
    }

    /** A pointer to the elements of a list(). */
    void putList(int at, ByteBuffer elements) {
        pointers.add(new Pointer(at, elements.array()));
    }

    static ByteBuffer list(int size) {
        return ByteBuffer.allocate(size).order(ByteOrder.nativeOrder());
    }

    /** A function with the pointer that it gets, which Native.newCallbacks() made; 0: none. */
    void callback(int at, String type, long user) {
        if (user != 0) {
            putLong(at, Native.callback(type));
            putLong(at + 8, user);
        }
    }

    /** The descriptor with its data behind it. */
    byte[] bytes() {
        int begin = align(fields.capacity() + 4 + 4 * pointers.size());
        int size = begin;
        for (Pointer pointer : pointers) {
            size += align(pointer.data.length);
        }
        ByteBuffer made = list(size);
        made.put(fields.array()).putInt(pointers.size());
        int data = begin;
        for (Pointer pointer : pointers) {
            made.putInt(pointer.at);
            made.putLong(pointer.at, data);
            System.arraycopy(pointer.data, 0, made.array(), data, pointer.data.length);
            data += align(pointer.data.length);
        }
        return made.array();
    }

    private static int align(int size) {
        return (size + 7) / 8 * 8;
    }

    /** Bytes for C to fill. */
    static byte[] forAnswer(int size) {
        return list(size).putInt(0, size).array();
    }

    /** The fields of an answer. An older library's is shorter: what it lacks is 0. */
    static ByteBuffer answer(byte[] from, int size) {
        return ByteBuffer.wrap(Arrays.copyOf(from, size)).order(ByteOrder.nativeOrder());
    }

    /** The text in a field of `size` bytes, with or without a NUL. */
    static String text(ByteBuffer in, int at, int size) {
        int length = 0;
        while (length < size && in.get(at + length) != 0) {
            length++;
        }
        return new String(in.array(), at, length, StandardCharsets.UTF_8);
    }

    static byte[] bytes(ByteBuffer in, int at, int size) {
        return Arrays.copyOfRange(in.array(), at, at + size);
    }

    static String hex(long address) {
        return "0x" + Long.toHexString(address);
    }

    static String hex(byte[] bytes) {
        StringBuilder digits = new StringBuilder();
        for (byte each : bytes) {
            digits.append(String.format("%02x", each));
        }
        return digits.toString();
    }
}
