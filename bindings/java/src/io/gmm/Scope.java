/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/**
 * The scope of a limit or a count: one device or all, one tag or all, one kind or all. Each method changes this object
 * and returns it.
 */
public final class Scope {
    private int flags;
    private int device;
    private int tag;
    private int kind;

    /** Limits the scope to one device. */
    public Scope device(int value) {
        device = value;
        flags |= NativeConstants.GMM_SCOPE_DEVICE;
        return this;
    }

    /** Limits the scope to one tag. */
    public Scope tag(Tag value) {
        tag = value.number();
        flags |= NativeConstants.GMM_SCOPE_TAG;
        return this;
    }

    /** Limits the scope to one kind. */
    public Scope kind(Kind value) {
        kind = value.value();
        flags |= NativeConstants.GMM_SCOPE_KIND;
        return this;
    }

    /** The scope for C; a null scope means everything. */
    static gmm_scope_desc toNative(Scope scope) {
        gmm_scope_desc made = new gmm_scope_desc();
        if (scope != null) {
            made.setFlags(scope.flags);
            made.setDevice(scope.device);
            made.setTag(scope.tag);
            made.setKind(scope.kind);
        }
        return made;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
