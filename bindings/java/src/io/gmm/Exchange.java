/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/**
 * Registers of text that all ranks of a {@link Job} reach. They are set once: a register that has a value keeps it.
 * Keys and values are ASCII text of at most 127 and 511 characters.
 *
 * <p>The methods run on the thread that is in the job's operation. They return in the given time, or soon after it.
 * They may be called again with the same arguments. What they throw counts as a message that was lost: the library asks
 * again until its time is over, and the exception is then the cause of the GmmException. An InterruptedException and an
 * Error end the operation at once.
 */
public interface Exchange {
    /**
     * Sets a register that has no value, in one step for all ranks. Returns the value that it has then, or null when
     * nobody answered.
     */
    String set(String key, String value, long timeoutMillis) throws Exception;

    /** The value of a register, or null when it has none in this time. */
    String get(String key, long timeoutMillis) throws Exception;

    /** Removes a register that nobody reads any more. */
    default void erase(String key) throws Exception {}
}
