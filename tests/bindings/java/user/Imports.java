/* SPDX-License-Identifier: Apache-2.0 */
package user;

import io.gmm.*;
import java.nio.*;

/** A program that imports all of gmm and all of java.nio: the names do not clash. */
public final class Imports {
    private Imports() {}

    /** The bytes of a block, through a Buffer of Java. */
    public static int capacity(Context context, int size) {
        try (GmmBuffer block = context.alloc(size, Kind.HOST)) {
            Buffer seen = block.bytes();
            return seen.capacity();
        }
    }
}
