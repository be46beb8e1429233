/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Runtime.InteropServices;

namespace Gmm
{
    /// <summary>A stream of the backend: work queued on one stream runs in order.</summary>
    public sealed class GmmStream : IDisposable
    {
        /// <summary>The default stream, the same as Legacy.</summary>
        public static readonly GmmStream Default = new GmmStream((IntPtr)0);
        /// <summary>The one legacy default stream of the device.</summary>
        public static readonly GmmStream Legacy = new GmmStream((IntPtr)1);
        /// <summary>The calling thread's own default stream.</summary>
        public static readonly GmmStream PerThread = new GmmStream((IntPtr)2);

        private readonly GmmContextHandle context;
        private readonly IntPtr foreign;

        private GmmStream(IntPtr foreign)
        {
            this.foreign = foreign;
        }

        internal GmmStream(GmmContextHandle context, int device)
        {
            Handle = GmmSafeHandle.Child(context, null, native =>
            {
                IntPtr address;
                Native.gmm_stream_create(native, new GmmStreamOptions { Device = device }.Encode(), out address);
                return new GmmObjectHandle(address, context,
                    made => Native.gmm_stream_destroy(context.DangerousGetHandle(), made));
            });
            this.context = context;
        }

        /// <summary>
        /// A CUstream or cudaStream_t of the program, by its address. Disposing of this object does nothing to it.
        /// </summary>
        public static GmmStream Of(IntPtr address)
        {
            switch ((long)address)
            {
                case 0: return Default;
                case 1: return Legacy;
                case 2: return PerThread;
                default: return new GmmStream(address);
            }
        }

        /// <summary>Null for streams that gmm did not make.</summary>
        internal GmmObjectHandle Handle { get; }

        /// <summary>The address, for a caller that holds a reference.</summary>
        internal IntPtr RawAddress
        {
            get { return Handle == null ? foreign : Handle.DangerousGetHandle(); }
        }

        /// <summary>The stream's address in the C interface.</summary>
        public IntPtr Address
        {
            get
            {
                using (Use stream = new Use(this))
                {
                    return stream.Address;
                }
            }
        }

        /// <summary>
        /// Blocks until everything queued on this stream so far is done. Only for streams that a context made.
        /// </summary>
        public void Synchronize()
        {
            using (Use stream = Owned())
            {
                Native.gmm_stream_synchronize(context.DangerousGetHandle(), stream.Address);
            }
        }

        /// <summary>Makes this stream's further work wait for the event. The caller does not wait.</summary>
        public void WaitFor(GmmEvent target)
        {
            using (Use stream = Owned())
            using (Use point = new Use(target.Handle))
            {
                Native.gmm_stream_wait_event(context.DangerousGetHandle(), stream.Address, point.Address, 0);
            }
        }

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
            using (Use stream = Owned())
            {
                Dispatcher.Start();
                GCHandle user = GCHandle.Alloc(task);
                try
                {
                    Native.gmm_stream_call(context.DangerousGetHandle(), stream.Address, GCHandle.ToIntPtr(user));
                }
                catch (GmmException)
                {
                    user.Free(); // it will never run
                    throw;
                }
            }
        }

        /// <summary>
        /// Waits for the stream's work and ends it once every buffer that was allocated on it is disposed of. A second
        /// call does nothing.
        /// </summary>
        public void Dispose()
        {
            if (Handle != null)
            {
                Handle.CloseOrThrow();
            }
        }

        private Use Owned()
        {
            if (Handle == null)
            {
                throw new NotSupportedException(
                    "this stream was not made by a context: use the context's method that takes a stream");
            }
            return new Use(Handle);
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Or("GmmStream { closed }", () => "GmmStream { " + Show.Hex(Address) + " }");
        }
    }
}
