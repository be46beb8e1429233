/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** A tag is a number in its context. */
abstract class TagNumber {
    final Context context;
    final int number;

    TagNumber(Context context, int number) {
        this.context = context;
        this.number = number;
    }
}
