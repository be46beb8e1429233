/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Threading;

namespace Gmm
{
    /// <summary>
    /// Runs the requests of the library's threads on threads of the runtime, while the former wait. A thread that C
    /// made never enters C#, since Mono does not end while one is attached to it. Mono does not end either while one of
    /// its own waits in C; ProcessExit comes first and wakes that one.
    /// </summary>
    internal static class Dispatcher
    {
        private static readonly object mutex = new object();
        private static bool started;

        /// <summary>Called before the library gets anything that its threads may call.</summary>
        internal static void Start()
        {
            lock (mutex)
            {
                if (!started)
                {
                    AppDomain.CurrentDomain.ProcessExit += (sender, arguments) => Native.gmm_csharp_stop();
                    Thread thread = new Thread(Loop) { IsBackground = true, Name = "gmm callbacks" };
                    thread.Start();
                    started = true;
                }
            }
        }

        private static void Loop()
        {
            for (IntPtr request = Native.gmm_csharp_next(); request != IntPtr.Zero; request = Native.gmm_csharp_next())
            {
                ThreadPool.QueueUserWorkItem(
                    address => Native.gmm_csharp_finish((IntPtr)address, HeldByC.Perform((IntPtr)address)), request);
            }
        }
    }
}
