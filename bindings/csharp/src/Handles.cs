/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Runtime.InteropServices;
using System.Threading;
using Microsoft.Win32.SafeHandles;

namespace Gmm
{
    /// <summary>
    /// A native object. It holds a reference to the one it was made from, so finalizers may run in any order. Neither
    /// Dispose() on another thread nor the finalizer ends it during a call.
    /// </summary>
    public abstract class GmmSafeHandle : SafeHandleZeroOrMinusOneIsInvalid
    {
        private readonly SafeHandle parent;
        private readonly IDisposable call;
        private Exception failure;
        private volatile bool disposed;
        private bool forgotten;

        /// <summary>
        /// The caller has added a reference to the parent already. `call` is what C called until the end; null:
        /// nothing.
        /// </summary>
        internal GmmSafeHandle(IntPtr value, SafeHandle parent = null, IDisposable call = null) : base(true)
        {
            this.parent = parent;
            this.call = call;
            SetHandle(value);
        }

        /// <summary>
        /// Makes a handle of an object that is made from the parent's. The handle keeps the parent, and `call`, which C
        /// calls.
        /// </summary>
        internal static T Child<T>(GmmSafeHandle parent, IDisposable call, Func<IntPtr, T> make)
            where T : GmmSafeHandle
        {
            bool kept = false;
            T made = null;
            try
            {
                Keep(parent);
                kept = true;
                made = make(parent.DangerousGetHandle());
                return made;
            }
            finally
            {
                if (made == null)
                {
                    LetGo(kept ? parent : null, call);
                }
            }
        }

        private static void LetGo(SafeHandle parent, IDisposable call)
        {
            if (call != null)
            {
                call.Dispose();
            }
            if (parent != null)
            {
                parent.DangerousRelease();
            }
        }

        internal abstract void Free(IntPtr value);

        /// <summary>Whether this thread must not end it, so that one of the pool does.</summary>
        internal virtual bool EndsElsewhere
        {
            get { return false; }
        }

        /// <inheritdoc/>
        protected override bool ReleaseHandle()
        {
            if (forgotten || EndsElsewhere)
            {
                Forgotten.Add(this);
                return true;
            }
            failure = End(); // CloseOrThrow() looks at it
            return failure == null;
        }

        /// <summary>Ends the native object and lets its parent go. Returns what the library answered.</summary>
        internal Exception End()
        {
            try
            {
                Free(handle);
                return null;
            }
            catch (Exception error)
            {
                return error;
            }
            finally
            {
                LetGo(parent, call);
            }
        }

        /// <inheritdoc/>
        protected override void Dispose(bool disposing)
        {
            forgotten = !disposing; // the finalizer's thread is here
            base.Dispose(disposing);
        }

        /// <summary>Dispose() that throws what the library answered.</summary>
        internal void CloseOrThrow()
        {
            disposed = true;
            Dispose();
            Exception error = Interlocked.Exchange(ref failure, null);
            if (error != null)
            {
                throw error;
            }
        }

        /// <summary>Whether Dispose() was called; the native object may live on for others.</summary>
        internal bool IsDisposed
        {
            get { return disposed; }
        }

        /// <summary>
        /// Adds a reference; ObjectDisposedException after Dispose(). A SafeHandle alone refuses only once the last
        /// reference is gone.
        /// </summary>
        internal static void Keep(GmmSafeHandle handle)
        {
            bool added = false;
            handle.DangerousAddRef(ref added);
            if (handle.disposed)
            {
                handle.DangerousRelease();
                throw new ObjectDisposedException(handle.GetType().Name);
            }
        }
    }

    /// <summary>An object that C calls. C holds it from Hold() until Dispose().</summary>
    internal abstract class HeldByC : IDisposable
    {
        private GCHandle self;

        /// <summary>What C gets; null before Hold().</summary>
        internal IntPtr User
        {
            get { return self.IsAllocated ? GCHandle.ToIntPtr(self) : IntPtr.Zero; }
        }

        /// <summary>The object that C passes.</summary>
        internal static T Of<T>(IntPtr user) where T : HeldByC
        {
            return (T)GCHandle.FromIntPtr(user).Target;
        }

        internal void Hold()
        {
            self = GCHandle.Alloc(this);
        }

        /// <summary>C does not call it any more.</summary>
        public void Dispose()
        {
            if (self.IsAllocated)
            {
                self.Free();
            }
        }
    }

    /// <summary>A reference for the time of a call; ObjectDisposedException after Dispose().</summary>
    internal struct Use : IDisposable
    {
        private readonly GmmSafeHandle handle;
        internal readonly IntPtr Address;

        internal Use(GmmSafeHandle handle)
        {
            GmmSafeHandle.Keep(handle);
            this.handle = handle;
            Address = handle.DangerousGetHandle();
        }

        internal Use(GmmStream stream)
        {
            handle = stream.Handle;
            if (handle != null)
            {
                GmmSafeHandle.Keep(handle);
            }
            Address = stream.RawAddress;
        }

        public void Dispose()
        {
            if (handle != null)
            {
                handle.DangerousRelease();
            }
        }
    }

    /// <summary>A context.</summary>
    public sealed class GmmContextHandle : GmmSafeHandle
    {
        private GCHandle callbacks;
        private int generation;

        internal GmmContextHandle(IntPtr value, GCHandle callbacks) : base(value)
        {
            this.callbacks = callbacks;
        }

        /// <summary>The number of resets of the context.</summary>
        internal int Generation
        {
            get { return Volatile.Read(ref generation); }
        }

        internal IntPtr Callbacks
        {
            get { return GCHandle.ToIntPtr(callbacks); }
        }

        internal void NextGeneration()
        {
            Interlocked.Increment(ref generation);
        }

        internal override void Free(IntPtr value)
        {
            try
            {
                Native.gmm_context_release(value);
            }
            finally
            {
                callbacks.Free();
            }
        }
    }

    /// <summary>A heap, stream, event, watcher, pin or import, which one call of the library ends.</summary>
    public sealed class GmmObjectHandle : GmmSafeHandle
    {
        private readonly Action<IntPtr> end;

        internal GmmObjectHandle(IntPtr value, GmmContextHandle context, Action<IntPtr> end, IDisposable call = null)
            : base(value, context, call)
        {
            this.end = end;
        }

        internal override void Free(IntPtr value)
        {
            end(value);
        }
    }

    /// <summary>A pause or resume, or a request of a lease, in the background.</summary>
    public sealed class GmmTicketHandle : GmmSafeHandle
    {
        private readonly bool isOfLease;

        internal GmmTicketHandle(IntPtr value, GmmSafeHandle parent, ProgressCall progress)
            : base(value, parent, progress)
        {
            isOfLease = parent is GmmLeaseHandle;
        }

        internal override bool EndsElsewhere
        {
            get { return isOfLease && LeaseCall.IsInside; }
        }

        internal override void Free(IntPtr value)
        {
            if (isOfLease)
            {
                Native.gmm_ticket_cancel(value); // nobody has it any more
            }
            Native.gmm_ticket_destroy(value); // waits
        }
    }

    /// <summary>A lease.</summary>
    public sealed class GmmLeaseHandle : GmmSafeHandle
    {
        internal GmmLeaseHandle(IntPtr value, GmmContextHandle context, LeaseCall call) : base(value, context, call)
        {
        }

        /// <summary>Is set when the native lease has ended.</summary>
        internal ManualResetEventSlim Ended { get; } = new ManualResetEventSlim();

        /// <summary>The end waits for the handler, which may have used the lease last.</summary>
        internal override bool EndsElsewhere
        {
            get { return LeaseCall.IsInside; }
        }

        internal override void Free(IntPtr value)
        {
            try
            {
                Native.gmm_lease_destroy(value); // waits for a pause for others, too
            }
            finally
            {
                Ended.Set();
            }
        }
    }

    /// <summary>An allocated block.</summary>
    public sealed class GmmBlockHandle : GmmSafeHandle
    {
        private readonly GmmContextHandle context;
        private readonly int generation;
        private readonly Thread thread = Thread.CurrentThread;
        private GmmStream stream;
        private readonly object gate = new object();
        private bool released;

        /// <summary>A reference to the stream's handle was added too.</summary>
        internal GmmBlockHandle(IntPtr value, GmmContextHandle context, SafeHandle parent, GmmStream stream)
            : base(value, parent)
        {
            this.context = context;
            this.stream = stream;
            generation = context.Generation;
        }

        /// <summary>Whether a reset of the context has freed the block already.</summary>
        internal bool IsReset
        {
            get { return generation != context.Generation; }
        }

        /// <summary>
        /// On another thread the per-thread stream is another one; the legacy stream is ordered behind them all.
        /// </summary>
        internal IntPtr StreamAddress
        {
            get
            {
                lock (gate)
                {
                    return stream == GmmStream.PerThread && Thread.CurrentThread != thread
                        ? GmmStream.Legacy.RawAddress : stream.RawAddress;
                }
            }
        }

        internal void FreeOn(GmmStream other)
        {
            lock (gate)
            {
                if (released)
                {
                    return;
                }
                if (other.Handle != null)
                {
                    Keep(other.Handle);
                }
                DropStream();
                stream = other;
            }
        }

        internal override void Free(IntPtr value)
        {
            try
            {
                // After a reset the address may be another block's.
                if (!IsReset)
                {
                    Native.gmm_free(context.DangerousGetHandle(), value, StreamAddress);
                }
            }
            finally
            {
                lock (gate)
                {
                    released = true;
                    DropStream();
                }
            }
        }

        private void DropStream()
        {
            if (stream.Handle != null)
            {
                stream.Handle.DangerousRelease();
            }
        }
    }
}
