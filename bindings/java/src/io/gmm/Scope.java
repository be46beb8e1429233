/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** What a limit or a count is about: one device or all, one tag or all, one kind or all. Each method changes this object and returns it. */
public final class Scope {
    private int flags;
    private int device;
    private int tag;
    private int kind;

    /** Of one device only. */
    public Scope device(int value) {
        device = value;
        flags |= NativeConstants.GMM_SCOPE_DEVICE;
        return this;
    }

    /** Of one tag only. */
    public Scope tag(Tag value) {
        tag = value.number();
        flags |= NativeConstants.GMM_SCOPE_TAG;
        return this;
    }

    /** Of one kind only. */
    public Scope kind(Kind value) {
        kind = value.value();
        flags |= NativeConstants.GMM_SCOPE_KIND;
        return this;
    }

    /** For a null scope too: everything. */
    static gmm_scope toNative(Scope scope) {
        gmm_scope made = new gmm_scope();
        if (scope != null) {
            made.setFlags(scope.flags);
            made.setDevice(scope.device);
            made.setTag(scope.tag);
            made.setKind(scope.kind);
        }
        return made;
    }
}
