/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.nio.charset.StandardCharsets;

/** The C interface speaks UTF-8; JNI's own strings are modified UTF-8, so text crosses as bytes. */
final class Text {
    private Text() {}

    static byte[] encode(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    static String decode(byte[] text) {
        return text == null ? null : new String(text, StandardCharsets.UTF_8);
    }
}
