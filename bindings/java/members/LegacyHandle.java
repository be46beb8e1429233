/* SPDX-License-Identifier: Apache-2.0 */
    /** Bytes of the driver's handle. */
    public static final int SIZE = 64;
