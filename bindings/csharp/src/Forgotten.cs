/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Diagnostics;
using System.Threading;
using System.Threading.Tasks;

namespace Gmm
{
    /// <summary>
    /// Ends the objects that the program forgot. A free may wait for a pause, for example, and the finalizer's thread
    /// serves the whole program, a callback of that pause included. So the finalizer leaves it to a thread of the pool.
    /// One object waits for another there, so that they never take all threads of the pool.
    /// </summary>
    internal static class Forgotten
    {
        private static readonly object mutex = new object();
        private static Task last = Task.CompletedTask;
        private static int ended;

        /// <summary>Called by a finalizer.</summary>
        internal static void Add(GmmSafeHandle handle)
        {
            if (!Environment.HasShutdownStarted) // else the end of the process frees everything
            {
                lock (mutex)
                {
                    last = last.ContinueWith(before => End(handle), TaskScheduler.Default);
                }
            }
        }

        /// <summary>Collects garbage. True: a forgotten object has ended.</summary>
        internal static bool Collect()
        {
            int before = Volatile.Read(ref ended);
            GC.Collect();
            // A finalizer of the program may wait for this thread, and a free for a pause.
            Task.Run(() => GC.WaitForPendingFinalizers()).Wait(500);
            Task all;
            lock (mutex)
            {
                all = last;
            }
            all.Wait(500);
            return Volatile.Read(ref ended) != before;
        }

        private static void End(GmmSafeHandle handle)
        {
            Exception failure = handle.End();
            Interlocked.Increment(ref ended);
            if (failure != null)
            {
                Trace.TraceWarning("a forgotten " + handle.Owner + " could not be given back: " + failure.Message);
            }
        }
    }
}
