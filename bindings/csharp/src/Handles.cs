/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Runtime.InteropServices;
using System.Threading;
using Microsoft.Win32.SafeHandles;

namespace Gmm
{
    /// <summary>An object of the library that the program disposes of.</summary>
    public abstract class GmmObject : IDisposable
    {
        /// <summary>Null for streams that gmm did not make.</summary>
        internal readonly GmmSafeHandle handle;

        internal GmmObject(GmmSafeHandle handle)
        {
            this.handle = handle;
        }

        /// <summary>Whether Dispose() was called.</summary>
        public bool IsDisposed => handle != null && handle.IsDisposed;

        /// <summary>Ends the object once nothing needs it any more. A second call does nothing.</summary>
        public virtual void Dispose() => handle?.CloseOrThrow();

        /// <summary>The text of an open object.</summary>
        internal abstract string Describe();

        /// <inheritdoc/>
        public override string ToString()
        {
            string shown = "closed";
            try
            {
                shown = IsDisposed ? shown : Describe();
            }
            catch (Exception error) when (error is ObjectDisposedException || error is GmmException)
            {
                // by another thread, or with its context
            }
            return GetType().Name + " { " + shown + " }";
        }
    }

    /// <summary>
    /// A native object. It holds a reference to the one it was made from, so finalizers may run in any order. Neither
    /// Dispose() on another thread nor the finalizer ends it during a call.
    /// </summary>
    public sealed class GmmSafeHandle : SafeHandleZeroOrMinusOneIsInvalid
    {
        private readonly string owner;
        private readonly Action<IntPtr> end;
        private readonly GmmSafeHandle parent;
        private readonly IDisposable call;
        private readonly bool isOfLease;
        private Exception failure;
        private volatile bool disposed;
        private bool forgotten;
        private int generation;

        /// <summary>
        /// The caller has added a reference to the parent already. `call` is what C called until the end; null:
        /// nothing.
        /// </summary>
        internal GmmSafeHandle(string owner, IntPtr value, Action<IntPtr> end, GmmSafeHandle parent = null,
            IDisposable call = null, bool isOfLease = false) : base(true)
        {
            this.owner = owner;
            this.end = end;
            this.parent = parent;
            this.call = call;
            this.isOfLease = isOfLease;
            SetHandle(value);
        }

        /// <summary>A call that makes an object from its parent's.</summary>
        internal delegate void Maker(IntPtr parent, out IntPtr made);

        /// <summary>
        /// Makes a handle of an object that is made from the parent's. The handle keeps the parent, and `call`, which C
        /// calls.
        /// </summary>
        internal static GmmSafeHandle Child(string owner, GmmSafeHandle parent, IDisposable call, Maker make,
            Action<IntPtr> end, bool isOfLease = false)
        {
            bool kept = false;
            GmmSafeHandle made = null;
            try
            {
                Keep(parent);
                kept = true;
                make(parent.DangerousGetHandle(), out IntPtr value);
                made = new GmmSafeHandle(owner, value, end, parent, call, isOfLease);
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
            call?.Dispose();
            parent?.DangerousRelease();
        }

        /// <summary>The number of resets of a context.</summary>
        internal int Generation => Volatile.Read(ref generation);

        internal void NextGeneration() => Interlocked.Increment(ref generation);

        /// <inheritdoc/>
        protected override bool ReleaseHandle()
        {
            // The end of a lease waits for the handler, which may have used it last.
            if (forgotten || (isOfLease && LeaseCall.IsInside))
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
                end(handle);
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
        internal bool IsDisposed => disposed;

        internal string Owner => owner;

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
                throw new ObjectDisposedException(handle.owner);
            }
        }
    }

    /// <summary>An object that C calls. C holds it from Hold() until Dispose().</summary>
    internal abstract class HeldByC : IDisposable
    {
        private GCHandle self;

        /// <summary>The pointer that C gets; null before Hold().</summary>
        internal IntPtr User => self.IsAllocated ? GCHandle.ToIntPtr(self) : IntPtr.Zero;

        /// <summary>The object that C passes.</summary>
        internal static T Of<T>(IntPtr user) where T : HeldByC => (T)GCHandle.FromIntPtr(user).Target;

        internal void Hold() => self = GCHandle.Alloc(this);

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

        /// <summary>Of a stream; null: the default one.</summary>
        internal Use(GmmStream stream)
        {
            handle = stream?.handle;
            if (handle != null)
            {
                GmmSafeHandle.Keep(handle);
            }
            Address = stream == null ? IntPtr.Zero : stream.RawAddress;
        }

        public void Dispose() => handle?.DangerousRelease();
    }
}
