/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/**
 * A tag groups allocations to be paused, limited and counted together. It lives until {@link #destroy} or the end of
 * its context.
 */
public final class Tag extends TagCalls {
    Tag(Context context, int number) {
        super(context, number);
    }

    /** The tag's number in the C interface. */
    public int number() {
        return number;
    }

    /**
     * Makes this the current tag of the calling thread until the scope closes: {@code try (Tag.Scope scope =
     * tag.push()) { ... }}.
     */
    public Scope push() {
        context.handle.run(self -> Native.gmm_tag_push(self, number));
        return new Scope(context, Thread.currentThread());
    }

    /** Pauses the tag until the returned object is closed: {@code try (Tag.Paused paused = tag.paused()) { ... }}. */
    public Paused paused() {
        return new Paused(this, pause());
    }

    /** One push of a tag on one thread, which close() undoes on that thread. */
    public static final class Scope extends Once {
        private Scope(Context context, Thread thread) {
            super(() -> {
                if (Thread.currentThread() != thread) {
                    throw new IllegalStateException("a tag is pushed for one thread: close its scope on "
                        + thread.getName());
                }
                context.handle.run(Native::gmm_tag_pop);
            });
        }
    }

    /** One pause of a tag, which close() resumes. */
    public static final class Paused extends Once {
        private final long bytes;

        private Paused(Tag tag, long bytes) {
            super(tag::resume);
            this.bytes = bytes;
        }

        /** Bytes that went back to the driver. */
        public long bytes() {
            return bytes;
        }
    }

    /** The number, the name and the memory. */
    @Override
    public String toString() {
        try {
            PauseInfo info = info();
            return "Tag[" + number + " \"" + info.name() + "\", " + Text.size(info.activeBytes()) + " active, "
                + Text.size(info.pausedBytes()) + " paused]";
        } catch (RuntimeException closed) {
            return "Tag[" + number + "]";
        }
    }
}
