/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Runtime.ExceptionServices;

namespace Gmm
{
    /// <summary>
    /// Receives the progress of a pause's or resume's copies, in bytes. It runs on the thread that copies, with locks
    /// of the library held, so it must not call the library. It returns true to go on, false to end the operation with
    /// Cancelled. Its exception ends and undoes the operation, and comes out of the call that asked for it.
    /// </summary>
    public delegate bool GmmProgress(long done, long total);

    /// <summary>A caller's GmmProgress as C calls it, and its exception.</summary>
    internal sealed class ProgressCall : HeldByC
    {
        private readonly GmmProgress progress;
        private ExceptionDispatchInfo thrown;

        internal ProgressCall(GmmProgress progress)
        {
            this.progress = progress;
            if (progress != null)
            {
                Dispatcher.Start(); // a thread of the library may report it
                Hold();
            }
        }

        /// <summary>The exception of the program, or null.</summary>
        internal ExceptionDispatchInfo Thrown => thrown;

        /// <summary>A pause or resume.</summary>
        internal delegate int Operation(IntPtr context, byte[] desc, out ulong bytes);

        /// <summary>Pauses or resumes on this thread, and returns the bytes.</summary>
        internal static long Run(GmmSafeHandle context, Operation operation, GmmPauseOptions options, GmmTag[] tags)
        {
            using (Use self = new Use(context))
            using (ProgressCall call = new ProgressCall(options.Progress))
            {
                ulong bytes = 0;
                try
                {
                    operation(self.Address, options.Encode(tags, call.User), out bytes);
                }
                catch (GmmException) when (call.Thrown != null)
                {
                    call.Thrown.Throw();
                }
                return (long)bytes;
            }
        }

        protected override int Call(Request request)
        {
            try
            {
                return progress((long)request.First, (long)request.Second) ? 0 : 1;
            }
            catch (Exception error)
            {
                thrown = ExceptionDispatchInfo.Capture(error);
                return 1;
            }
        }
    }
}
