/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** The device, the host or a limit has no memory left: OUT_OF_MEMORY, OUT_OF_HOST_MEMORY or LIMIT_EXCEEDED. */
public final class GmmOutOfMemoryException extends GmmException {
    private static final long serialVersionUID = 1L;

    GmmOutOfMemoryException(int code, int nativeCode, String name, String message) {
        super(code, nativeCode, name, message);
    }
}
