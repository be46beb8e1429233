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
        context.run(self -> Native.gmm_tag_push(self, number));
        return new Scope(context);
    }

    /** Gives the tag's VMM memory back to the driver; see {@link Context#pause}. Returns the bytes that went back. */
    public long pause() {
        return context.pause(this);
    }

    /** Gives the tag's paused memory its pages back; see {@link Context#resume}. Returns the bytes that came. */
    public long resume() {
        return context.resume(this);
    }

    /** Pauses the tag, with options. */
    public long pause(PauseOptions options) {
        return context.pause(options, this);
    }

    /** Resumes the tag and reports the progress. */
    public long resume(Progress progress) {
        return context.resume(progress, this);
    }

    /** Resumes the tag, with options. */
    public long resume(PauseOptions options) {
        return context.resume(options, this);
    }

    /** Pauses the tag until the returned object is closed: {@code try (Tag.Paused paused = tag.paused()) { ... }}. */
    public Paused paused() {
        return new Paused(this, pause());
    }

    /** Pauses the tag in the background. */
    public Ticket pauseAsync() {
        return context.pauseAsync(this);
    }

    /** Pauses the tag in the background, with options. */
    public Ticket pauseAsync(PauseOptions options) {
        return context.pauseAsync(options, this);
    }

    /** Resumes the tag in the background. */
    public Ticket resumeAsync() {
        return context.resumeAsync(this);
    }

    /** Resumes the tag in the background, and reports the progress on a thread of the library. */
    public Ticket resumeAsync(Progress progress) {
        return context.resumeAsync(progress, this);
    }

    /** Resumes the tag in the background, with options. */
    public Ticket resumeAsync(PauseOptions options) {
        return context.resumeAsync(options, this);
    }

    /**
     * Discards the kept contents of the tag's paused memory: after a resume the bytes are undefined. Returns the number
     * of bytes discarded.
     */
    public long discardBackup() {
        return context.discardBackup(this);
    }

    /** One push of a tag on one thread. */
    public static final class Scope implements AutoCloseable {
        private final Context context;
        private final Thread thread = Thread.currentThread();
        private boolean closed;

        private Scope(Context context) {
            this.context = context;
        }

        /** Undoes the push, on the thread that made it. Closing twice does nothing. */
        @Override
        public void close() {
            if (Thread.currentThread() != thread) {
                throw new IllegalStateException("a tag is pushed for one thread: close its scope on "
                    + thread.getName());
            }
            if (!closed) {
                closed = true;
                context.run(Native::gmm_tag_pop);
            }
        }
    }

    /** One pause of a tag. */
    public static final class Paused implements AutoCloseable {
        private final Tag tag;
        private final long bytes;
        private boolean closed;

        private Paused(Tag tag, long bytes) {
            this.tag = tag;
            this.bytes = bytes;
        }

        /** Bytes that went back to the driver. */
        public long bytes() {
            return bytes;
        }

        /** Resumes the tag. A resume that fails may be tried again. After a resume, closing does nothing. */
        @Override
        public synchronized void close() {
            if (!closed) {
                tag.resume();
                closed = true;
            }
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
