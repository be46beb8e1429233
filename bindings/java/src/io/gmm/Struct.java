/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** The bytes of a C struct, in the machine's order, as bindings/swig/struct.h describes them. */
final class Struct {
    private final ByteBuffer fields;
    /** Where pointers stand in the descriptor, and the data that they point to. */
    private final Map<Integer, byte[]> pointers = new LinkedHashMap<>();

    /** A descriptor of all defaults. */
    Struct(int size) {
        fields = ByteBuffer.wrap(forAnswer(size)).order(ByteOrder.nativeOrder());
    }

    void put(int at, int value) {
        fields.putInt(at, value);
    }

    void put(int at, long value) {
        fields.putLong(at, value);
    }

    void put(int at, Tag tag) {
        put(at, tag == null ? 0 : tag.number());
    }

    void put(int at, Stream stream) {
        put(at, stream.rawAddress());
    }

    /** A pointer to text; null stays NULL. */
    void put(int at, String text) {
        if (text == null) {
            return;
        }
        if (text.indexOf(0) >= 0) {
            throw new IllegalArgumentException("text holds a NUL character");
        }
        pointers.put(at, (text + '\0').getBytes(StandardCharsets.UTF_8));
    }

    /** A pointer to numbers, and their count. */
    void put(int at, int countAt, Collection<Integer> numbers) {
        ByteBuffer list = list(4 * numbers.size());
        numbers.forEach(list::putInt);
        put(at, countAt, numbers.size(), list);
    }

    void put(int at, int countAt, Tag[] tags) {
        put(at, countAt, Arrays.stream(tags).map(Tag::number).collect(Collectors.toList()));
    }

    /** A pointer to pairs of a number and bytes, and their count. */
    void put(int at, int countAt, Map<Integer, Long> pairs) {
        ByteBuffer list = list(16 * pairs.size());
        pairs.forEach((number, bytes) -> list.putInt(number).putInt(0).putLong(bytes));
        put(at, countAt, pairs.size(), list);
    }

    /** A pointer to pairs of an address and bytes, and their count. */
    void put(int at, int countAt, List<long[]> ranges) {
        ByteBuffer list = list(16 * ranges.size());
        ranges.forEach(range -> list.putLong(range[0]).putLong(range[1]));
        put(at, countAt, ranges.size(), list);
    }

    private void put(int at, int countAt, int count, ByteBuffer list) {
        if (count != 0) {
            pointers.put(at, list.array());
            put(countAt, count);
        }
    }

    private static ByteBuffer list(int size) {
        return ByteBuffer.allocate(size).order(ByteOrder.nativeOrder());
    }

    /** A function with the pointer that it gets, which Native.newCallbacks() made; 0: none. */
    void put(int at, String type, long user) {
        if (user != 0) {
            put(at, Native.callback(type));
            put(at + 8, user);
        }
    }

    /** The descriptor with its data behind it. */
    byte[] bytes() {
        int data = align(fields.capacity() + 4 + 4 * pointers.size());
        ByteBuffer made = list(data + pointers.values().stream().mapToInt(each -> align(each.length)).sum());
        made.put(fields.array()).putInt(pointers.size());
        for (Map.Entry<Integer, byte[]> pointer : pointers.entrySet()) {
            made.putInt(pointer.getKey()).putLong(pointer.getKey(), data);
            System.arraycopy(pointer.getValue(), 0, made.array(), data, pointer.getValue().length);
            data += align(pointer.getValue().length);
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

    /** The fields of an answer. An older library's is shorter: fields that it lacks are 0. */
    static ByteBuffer answer(byte[] from, int size) {
        return ByteBuffer.wrap(Arrays.copyOf(from, size)).order(ByteOrder.nativeOrder());
    }

    /** The text in a field of `size` bytes, with or without a NUL. */
    static String text(ByteBuffer in, int at, int size) {
        return new String(in.array(), at, size, StandardCharsets.UTF_8).split("\0", 2)[0];
    }

    static byte[] bytes(ByteBuffer in, int at, int size) {
        return Arrays.copyOfRange(in.array(), at, at + size);
    }

    /** The text of a value: its class, and the name and value of each property. */
    static String show(String name, Object... pairs) {
        StringBuilder text = new StringBuilder(name);
        for (int i = 0; i < pairs.length; i += 2) {
            text.append(i == 0 ? "[" : ", ").append(pairs[i]).append('=').append(pairs[i + 1]);
        }
        return text.append(']').toString();
    }

    static String hex(long address) {
        return "0x" + Long.toHexString(address);
    }

    static String hex(byte[] bytes) {
        return String.format("%0" + 2 * bytes.length + "x", new BigInteger(1, bytes));
    }
}
