/* SPDX-License-Identifier: Apache-2.0 */
    /** The directory of the exporter's socket. */
    public IpcOptions directory(java.nio.file.Path value) {
        return directory(value.toString());
    }
