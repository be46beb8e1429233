/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/**
 * A call of the library failed and changed nothing. The message says what was asked, what stood in the way and what to
 * do. It is a {@link GmmOutOfMemoryException} where memory is short.
 */
public class GmmException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    private final int code;
    private final int nativeCode;
    private final String name;

    GmmException(int code, int nativeCode, String name, String message) {
        super(message);
        this.code = code;
        this.nativeCode = nativeCode;
        this.name = name;
    }

    /** For failures that this layer finds before it calls the library. */
    GmmException(Result result, String message) {
        this(result.value(), 0, "GMM_ERROR_" + result.name(), message);
    }

    /** Called from native.c. */
    static GmmException fromNative(int code, int nativeCode, byte[] name, byte[] message) {
        boolean isShort = code == Result.OUT_OF_MEMORY.value() || code == Result.OUT_OF_HOST_MEMORY.value()
                || code == Result.LIMIT_EXCEEDED.value();
        String words = Text.inJava(Text.decode(message));
        return isShort
                ? new GmmOutOfMemoryException(code, nativeCode, Text.decode(name), words)
                : new GmmException(code, nativeCode, Text.decode(name), words);
    }

    /** The result code of the C interface, below zero. */
    public int code() {
        return code;
    }

    /** The result, {@link Result#UNKNOWN} when the library is newer than this class. */
    public Result result() {
        return Result.of(code);
    }

    /** The name of the result, for example "GMM_ERROR_OUT_OF_MEMORY". */
    public String name() {
        return name;
    }

    /** The driver's (CUresult) or the system's (errno) own number; 0 when gmm found the failure itself. */
    public int nativeCode() {
        return nativeCode;
    }

    @Override
    public String toString() {
        String numbers = code + (nativeCode != 0 ? ", native " + nativeCode : "");
        return getClass().getName() + ": " + name + " (" + numbers + "): " + getMessage();
    }
}
