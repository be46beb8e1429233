/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Reads JSON strictly enough for a test: Java's own library has no reader. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    static Object parse(String text) {
        Json json = new Json(text);
        Object value = json.value();
        json.space();
        if (json.at != text.length()) {
            throw json.error("text after the value");
        }
        return value;
    }

    private IllegalArgumentException error(String what) {
        return new IllegalArgumentException(what + " at " + at + " of: " + text);
    }

    private void space() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private char next() {
        space();
        if (at == text.length()) {
            throw error("end of text");
        }
        return text.charAt(at);
    }

    private void expect(String word) {
        space();
        if (!text.startsWith(word, at)) {
            throw error("expected " + word);
        }
        at += word.length();
    }

    private Object value() {
        switch (next()) {
            case '{':
                return object();
            case '[':
                return array();
            case '"':
                return string();
            case 't':
                expect("true");
                return true;
            case 'f':
                expect("false");
                return false;
            case 'n':
                expect("null");
                return null;
            default:
                return number();
        }
    }

    private Map<String, Object> object() {
        Map<String, Object> map = new LinkedHashMap<>();
        expect("{");
        if (next() != '}') {
            do {
                String key = string();
                expect(":");
                map.put(key, value());
            } while (comma());
        }
        expect("}");
        return map;
    }

    private List<Object> array() {
        List<Object> list = new ArrayList<>();
        expect("[");
        if (next() != ']') {
            do {
                list.add(value());
            } while (comma());
        }
        expect("]");
        return list;
    }

    private boolean comma() {
        if (next() != ',') {
            return false;
        }
        at++;
        return true;
    }

    private String string() {
        expect("\"");
        int start = at;
        while (at < text.length() && text.charAt(at) != '"') {
            at += text.charAt(at) == '\\' ? 2 : 1;
        }
        String found = text.substring(start, at);
        expect("\"");
        return found;
    }

    private Double number() {
        int start = at;
        while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        if (start == at) {
            throw error("not a value");
        }
        return Double.valueOf(text.substring(start, at));
    }
}
