/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Runtime.InteropServices;
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
        /// <summary>The start of gmm_csharp_request in native.h.</summary>
        [StructLayout(LayoutKind.Sequential)]
        private struct Request
        {
            internal IntPtr User;
            internal IntPtr Info;
            internal ulong Copied;
            internal ulong Total;
            internal uint Level;
            internal int Kind;
        }

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
                ThreadPool.QueueUserWorkItem(Perform, request);
            }
        }

        private static void Perform(object state)
        {
            IntPtr address = (IntPtr)state;
            Request request = (Request)Marshal.PtrToStructure(address, typeof(Request));
            int answer = 0;
            if (request.Kind == Native.GMM_CSHARP_PROGRESS)
            {
                answer = ProgressCall.Call(request.User, request.Copied, request.Total);
            }
            else if (request.Kind == Native.GMM_CSHARP_WATCH)
            {
                answer = WatchCall.Call(request.User, request.Info);
            }
            else if (request.Kind == Native.GMM_CSHARP_ASKED)
            {
                LeaseCall.Call(request.User, request.Info);
            }
            else if (request.Kind == Native.GMM_CSHARP_LOG)
            {
                Callbacks.Log(request.User, request.Level, request.Info);
            }
            else
            {
                GCHandle handle = GCHandle.FromIntPtr(request.User);
                Action task = (Action)handle.Target;
                handle.Free();
                task(); // its exception ends the program: the thread of the library need not go on
            }
            Native.gmm_csharp_finish(address, answer);
        }
    }
}
