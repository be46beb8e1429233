/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** A tag groups allocations to be paused, limited and counted together. It lives as long as its context. */
public final class Tag {
    private final Context context;
    private final int number;

    Tag(Context context, int number) {
        this.context = context;
        this.number = number;
    }

    /** The tag's number in the C interface. */
    public int number() {
        return number;
    }

    /** Makes this the current tag of the calling thread until the scope closes: {@code try (Tag.Scope scope = tag.push()) { ... }}. */
    public Scope push() {
        context.pushTag(number);
        return new Scope(context);
    }

    /** Gives the tag's VMM memory back to the driver; see {@link Context#pause}. Returns the bytes that went back. */
    public long pause() {
        return context.pause(this);
    }

    /** Gives the tag's paused memory its pages back; see {@link Context#resume}. Returns the bytes taken from the driver. */
    public long resume() {
        return context.resume(this);
    }

    /** How the tag stands. */
    public PauseInfo info() {
        return context.pauseInfo(number);
    }

    /** One push of a tag on one thread. */
    public static final class Scope implements AutoCloseable {
        private final Context context;
        private final Thread thread = Thread.currentThread();
        private boolean closed;

        private Scope(Context context) {
            this.context = context;
        }

        /** Takes the push back, on the thread that made it. Closing twice does nothing. */
        @Override
        public void close() {
            if (Thread.currentThread() != thread) {
                throw new IllegalStateException("a tag is pushed for one thread: close its scope on " + thread.getName());
            }
            if (!closed) {
                closed = true;
                context.popTag();
            }
        }
    }
}
