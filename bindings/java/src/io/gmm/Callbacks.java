/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/**
 * The trampolines in native.c call this object. A context has one, and the native side holds it until the context is
 * gone, so a handler may be replaced while another thread is inside it.
 */
final class Callbacks {
    private final Logger logger;
    private volatile OomHandler oomHandler;

    Callbacks(Logger logger) {
        this.logger = logger;
    }

    void setOomHandler(OomHandler handler) {
        oomHandler = handler;
    }

    /**
     * Called from C. There is no caller to throw to, so an exception goes to the thread's handler of uncaught
     * exceptions.
     */
    void log(int level, byte[] message) {
        try {
            logger.log(LogLevel.of(level), Text.decode(message));
        } catch (Throwable error) {
            uncaught(error);
        }
    }

    /** Called from C; an exception stays pending and comes out of the allocation. */
    boolean outOfMemory(byte[] info) {
        OomHandler handler = oomHandler;
        return handler != null && handler.outOfMemory(new OomInfo(info));
    }

    /** Called from C, on a thread of the backend. */
    static void run(Runnable task) {
        try {
            task.run();
        } catch (Throwable error) {
            uncaught(error);
        }
    }

    static void uncaught(Throwable error) {
        Thread thread = Thread.currentThread();
        thread.getUncaughtExceptionHandler().uncaughtException(thread, error);
    }
}
