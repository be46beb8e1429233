/* SPDX-License-Identifier: Apache-2.0 */
    /** What this pause does with the contents, whatever the tags say. */
    public PauseOptions contents(Contents value) {
        return value == Contents.DROP ? drop() : value == Contents.HOST ? keepHost() : keepFile();
    }
