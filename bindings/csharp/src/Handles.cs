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

        internal GmmObject(GmmSafeHandle handle) => this.handle = handle;

        /// <summary>Whether Dispose() was called.</summary>
        public bool IsDisposed => handle != null && handle.IsDisposed;

        /// <summary>Ends the object once nothing needs it any more. A second call does nothing.</summary>
        public virtual void Dispose() => handle?.CloseOrThrow();

        /// <summary>Runs a call with the address.</summary>
        internal void Run(Action<IntPtr> call) => Get(self =>
        {
            call(self);
            return true;
        });

        /// <summary>The answer of a call with the address.</summary>
        internal T Get<T>(Func<IntPtr, T> call)
        {
            using (Use self = new Use(handle))
            {
                return call(self.Address);
            }
        }

        /// <summary>The text of an open object.</summary>
        internal virtual string Describe() => "open";

        /// <inheritdoc/>
        public override string ToString() =>
            Show.Open(GetType().Name, () => IsDisposed ? "closed" : Describe(), "closed");
    }

    /// <summary>
    /// A native object. It holds a reference to the one it was made from, so finalizers may run in any order. Neither
    /// Dispose() on another thread nor the finalizer ends it during a call.
    /// </summary>
    public sealed class GmmSafeHandle : SafeHandleZeroOrMinusOneIsInvalid
    {
        internal readonly string Owner;
        private readonly Action<IntPtr> end;
        private readonly GmmSafeHandle parent;
        private readonly IDisposable call;
        private readonly bool isOfLease;
        private Exception failure;
        private volatile bool disposed;
        private bool forgotten;
        private int generation;

        /// <summary>
        /// The caller has added a reference to the parent already. C called `call` until the end; null:
        /// nothing.
        /// </summary>
        private GmmSafeHandle(string owner, IntPtr value, Action<IntPtr> end, GmmSafeHandle parent, IDisposable call,
            bool isOfLease) : base(true)
        {
            Owner = owner;
            this.end = end;
            this.parent = parent;
            this.call = call;
            this.isOfLease = isOfLease;
            SetHandle(value);
        }

        /// <summary>A call that makes an object from its parent's.</summary>
        internal delegate void Maker(IntPtr parent, out IntPtr made);

        /// <summary>
        /// Makes a handle of an object that is made from the parent's; null: of a context. The handle keeps the parent,
        /// and `call`, which C calls.
        /// </summary>
        internal static GmmSafeHandle Child(string owner, GmmSafeHandle parent, IDisposable call, Maker make,
            Action<IntPtr> end, bool isOfLease = false)
        {
            bool kept = false;
            try
            {
                if (parent != null)
                {
                    Keep(parent);
                    kept = true;
                }
                make(parent == null ? IntPtr.Zero : parent.DangerousGetHandle(), out IntPtr value);
                return new GmmSafeHandle(owner, value, end, parent, call, isOfLease);
            }
            catch
            {
                LetGo(kept ? parent : null, call);
                throw;
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

        /// <summary>Ends the native object and releases its parent. Returns the library's failure, or null.</summary>
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

        /// <summary>Dispose() that throws the failure of the library, with the failure before it.</summary>
        internal void CloseOrThrow()
        {
            Exception before = HeldByC.Last;
            disposed = true;
            Dispose();
            Exception error = Interlocked.Exchange(ref failure, null);
            if (error is GmmException ended)
            {
                throw new GmmException(ended.Code, ended.NativeCode, ended.Name, ended.Message, before);
            }
            if (error != null)
            {
                throw error;
            }
        }

        /// <summary>Whether Dispose() was called; the native object may live on for others.</summary>
        internal bool IsDisposed => disposed;

        /// <summary>
        /// Adds a reference; ObjectDisposedException after Dispose(). A SafeHandle alone refuses only once the last
        /// reference is gone.
        /// </summary>
        internal static void Keep(GmmSafeHandle handle)
        {
            bool added = false;
            if (!handle.disposed)
            {
                handle.DangerousAddRef(ref added);
            }
            if (handle.disposed)
            {
                if (added)
                {
                    handle.DangerousRelease();
                }
                throw new ObjectDisposedException(handle.Owner);
            }
        }
    }

    /// <summary>
    /// The end of something that was begun, which Dispose() brings once. An end that throws may be tried again.
    /// </summary>
    internal sealed class Once : IDisposable
    {
        private readonly Action end;
        private bool disposed;

        internal Once(Action end) => this.end = end;

        public void Dispose()
        {
            lock (end)
            {
                if (!disposed)
                {
                    end();
                    disposed = true;
                }
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
