/* SPDX-License-Identifier: Apache-2.0 */
    String name;

    /** The block's name of 1 to 63 bytes in UTF-8, for snapshots and the report of leaks; null means none. */
    public AllocOptions name(String value) {
        name = value;
        return this;
    }
