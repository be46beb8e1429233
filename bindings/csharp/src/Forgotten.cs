/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Threading;

namespace Gmm
{
    /// <summary>
    /// Ends the objects that the program forgot. A free may wait for a pause, for example, and the finalizer's thread
    /// serves the whole program, a callback of that pause included. So the finalizer leaves it to a thread of the pool.
    /// </summary>
    internal static class Forgotten
    {
        private static readonly Queue<GmmSafeHandle> queue = new Queue<GmmSafeHandle>();
        private static bool running;

        /// <summary>Called by a finalizer.</summary>
        internal static void Add(GmmSafeHandle handle)
        {
            if (Environment.HasShutdownStarted)
            {
                return; // the end of the process frees everything
            }
            lock (queue)
            {
                queue.Enqueue(handle);
                if (running)
                {
                    return;
                }
                running = true;
            }
            ThreadPool.UnsafeQueueUserWorkItem(state => EndAll(), null);
        }

        private static void EndAll()
        {
            while (true)
            {
                GmmSafeHandle handle;
                lock (queue)
                {
                    if (queue.Count == 0)
                    {
                        running = false;
                        return;
                    }
                    handle = queue.Dequeue();
                }
                End(handle);
            }
        }

        private static void End(GmmSafeHandle handle)
        {
            Exception failure = handle.End();
            if (failure != null)
            {
                Trace.TraceWarning("a forgotten " + handle.Owner + " could not be given back: "
                    + failure.Message);
            }
        }
    }
}
