/* SPDX-License-Identifier: Apache-2.0 */
using System;

namespace Gmm
{
    /// <summary>
    /// A stream of the backend: work queued on one stream runs in order. A stream that gmm made waits for its work and
    /// ends once it and every buffer that was allocated on it are disposed of.
    /// </summary>
    public sealed class GmmStream : GmmObject
    {
        /// <summary>The default stream, the same as Legacy.</summary>
        public static readonly GmmStream Default = new GmmStream((IntPtr)0);
        /// <summary>The one legacy default stream of the device.</summary>
        public static readonly GmmStream Legacy = new GmmStream((IntPtr)1);
        /// <summary>The calling thread's own default stream.</summary>
        public static readonly GmmStream PerThread = new GmmStream((IntPtr)2);

        private readonly GmmSafeHandle context;
        private readonly IntPtr external;

        private GmmStream(IntPtr external) : base(null) => this.external = external;

        internal GmmStream(GmmSafeHandle context, int device) : base(GmmSafeHandle.Child(
            nameof(GmmStream), context, null, (IntPtr native, out IntPtr made) =>
                Native.gmm_stream_create(native, new GmmStreamOptions { Device = device }.Encode(), out made),
            made => Native.gmm_stream_destroy(context.DangerousGetHandle(), made)))
        {
            this.context = context;
        }

        /// <summary>
        /// A CUstream or cudaStream_t of the program, by its address. Disposing of this object does nothing to it.
        /// </summary>
        public static GmmStream Of(IntPtr address)
        {
            GmmStream[] known = { Default, Legacy, PerThread };
            return (ulong)(long)address < 3 ? known[(int)address] : new GmmStream(address);
        }

        /// <summary>The address, for a caller that holds a reference.</summary>
        internal IntPtr RawAddress => handle == null ? external : handle.DangerousGetHandle();

        /// <summary>The stream's address in the C interface.</summary>
        public IntPtr Address => handle == null ? external : Get(self => self);

        /// <summary>Runs a call with the address, which is good during the call.</summary>
        internal void RunOn(Action<IntPtr> call)
        {
            using (Use on = new Use(this))
            {
                call(on.Address);
            }
        }

        /// <summary>
        /// Blocks until everything queued on this stream so far is done. Only for streams that a context made.
        /// </summary>
        public void Synchronize() => RunOwned(Native.gmm_stream_synchronize);

        /// <summary>Makes this stream's further work wait for the event. The caller does not wait.</summary>
        public void WaitFor(GmmEvent target) => RunOwned((native, self) =>
            target.Get(point => Native.gmm_stream_wait_event(native, self, point, 0)));

        /// <summary>
        /// Queues a call of the task. The task runs on a thread of the thread pool, in the stream's order, and must not
        /// call gmm. An exception that it throws ends the program, as on any thread.
        /// </summary>
        public void Call(Action task)
        {
            if (task == null)
            {
                throw new ArgumentNullException(nameof(task));
            }
            TaskCall call = new TaskCall(task);
            try
            {
                RunOwned((native, self) => Native.gmm_stream_call(native, self, call.User));
            }
            catch
            {
                call.Dispose(); // it will never run
                throw;
            }
        }

        private void RunOwned(Func<IntPtr, IntPtr, int> call)
        {
            if (handle == null)
            {
                throw new NotSupportedException(
                    "this stream was not made by a context: use the context's method that takes a stream");
            }
            Run(self => call(context.DangerousGetHandle(), self));
        }

        internal override string Describe() => Show.Hex(Address);
    }
}
