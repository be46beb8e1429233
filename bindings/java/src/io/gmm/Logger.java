/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** Receives the library's messages, on the thread that reports them. */
@FunctionalInterface
public interface Logger {
    void log(LogLevel level, String message);
}
