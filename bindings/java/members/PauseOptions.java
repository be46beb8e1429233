/* SPDX-License-Identifier: Apache-2.0 */
    /** The contents setting of this pause, which overrides the tags' own. */
    public PauseOptions contents(Contents value) {
        return value == Contents.DROP ? drop() : value == Contents.HOST ? keepHost() : keepFile();
    }
