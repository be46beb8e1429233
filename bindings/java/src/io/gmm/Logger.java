/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** Receives the library's messages, on whichever thread has something to say. */
@FunctionalInterface
public interface Logger {
    void log(LogLevel level, String message);
}
