/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Diagnostics;
using System.Runtime.InteropServices;
using System.Threading;

namespace Gmm
{
    /// <summary>Receives the library's messages, on the thread that reports them. It must not throw.</summary>
    public delegate void GmmLogger(GmmLogLevel level, string message);

    /// <summary>
    /// A handler for exhausted memory. The allocating thread calls it when a trim did not help. It returns true to try
    /// again, false to let the allocation fail. It may free, pause and trim, but must not allocate from the same
    /// context. An exception that it throws comes out of the allocation.
    /// </summary>
    public delegate bool GmmOomHandler(GmmOomInfo info);

    /// <summary>
    /// Receives a piece of UTF-8 text, which may end inside a character. It returns true to go on, false to stop, and
    /// must not call the same context. An exception that it throws comes out of Snapshot().
    /// </summary>
    public delegate bool GmmSnapshotWriter(byte[] utf8);

    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    internal delegate void FailCallback(int code, int nativeCode, IntPtr name, IntPtr message);

    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    internal delegate int PerformCallback(IntPtr request);

    /// <summary>The start of gmm_csharp_request in native.h, which has what each callback gets.</summary>
    [StructLayout(LayoutKind.Sequential)]
    internal struct Request
    {
        internal IntPtr User;
        internal IntPtr Info;
        internal ulong First;
        internal ulong Second;
    }

    /// <summary>An object that C calls. C holds it from Hold() until Dispose().</summary>
    internal abstract class HeldByC : IDisposable
    {
        [ThreadStatic]
        private static Exception pending;

        /// <summary>What failed last on this thread.</summary>
        [ThreadStatic]
        internal static Exception Last;

        private GCHandle self;

        /// <summary>The pointer that C gets; null before Hold().</summary>
        internal IntPtr User => self.IsAllocated ? GCHandle.ToIntPtr(self) : IntPtr.Zero;

        internal void Hold() => self = GCHandle.Alloc(this);

        /// <summary>C does not call it any more.</summary>
        public void Dispose()
        {
            if (self.IsAllocated)
            {
                self.Free();
            }
        }

        /// <summary>Returns the answer for C. No exception may leave it, but on a thread of the dispatcher.</summary>
        protected abstract int Call(Request request);

        /// <summary>Called from C on a thread of the runtime, and by the dispatcher.</summary>
        internal static int Perform(IntPtr address)
        {
            Request request = (Request)Marshal.PtrToStructure(address, typeof(Request));
            return ((HeldByC)GCHandle.FromIntPtr(request.User).Target).Call(request);
        }

        /// <summary>Calls the program, whose exception comes out of the call of the library, which it ends.</summary>
        protected static int Caught(Func<bool> call, int yes)
        {
            try
            {
                return pending == null && call() ? yes : 1 - yes;
            }
            catch (Exception error)
            {
                pending = error;
                return 1 - yes;
            }
        }

        /// <summary>Called from C when a call has failed.</summary>
        internal static void Fail(int code, int nativeCode, IntPtr name, IntPtr message)
        {
            Last = pending ?? GmmException.Of(code, nativeCode, Struct.Text(name), Struct.Text(message));
            pending = null;
            NativePINVOKE.SWIGPendingException.Set(Last);
        }

        internal static byte[] CheckIpcHandle(byte[] handle)
        {
            if (handle == null || handle.Length != GmmContext.IpcHandleSize)
            {
                throw new ArgumentException("an IPC handle is exactly " + GmmContext.IpcHandleSize + " bytes");
            }
            return handle;
        }
    }

    /// <summary>The logger of a context, and its handler for exhausted memory, which may be replaced.</summary>
    internal sealed class ContextCall : HeldByC
    {
        private readonly GmmLogger logger;
        internal volatile GmmOomHandler OomHandler;

        internal ContextCall(GmmLogger logger)
        {
            this.logger = logger;
            Hold();
        }

        protected override int Call(Request request)
        {
            if (request.First == ulong.MaxValue) // no level: memory is exhausted
            {
                if (request.Info == IntPtr.Zero)
                {
                    return Forgotten.Collect() ? 1 : 0;
                }
                GmmOomHandler handler = OomHandler;
                return Caught(() => handler != null && handler(new GmmOomInfo(Struct.Lent(request.Info))), 1);
            }
            if (Environment.HasShutdownStarted)
            {
                return 0;
            }
            try
            {
                logger((GmmLogLevel)request.First, Struct.Text(request.Info));
            }
            catch (Exception error)
            {
                // It has no caller, so it ends the program, as that of any thread does.
                ThreadPool.QueueUserWorkItem(
                    state => throw new InvalidOperationException("a callback of gmm threw", error));
            }
            return 0;
        }
    }

    /// <summary>The writer of a snapshot.</summary>
    internal sealed class WriterCall : HeldByC
    {
        private readonly GmmSnapshotWriter writer;

        internal WriterCall(GmmSnapshotWriter writer)
        {
            this.writer = writer ?? throw new ArgumentNullException(nameof(writer));
            Hold();
        }

        protected override int Call(Request request)
        {
            byte[] piece = new byte[request.First];
            Marshal.Copy(request.Info, piece, 0, piece.Length);
            return Caught(() => writer(piece), 0);
        }
    }

    /// <summary>A task of a stream, which runs once.</summary>
    internal sealed class TaskCall : HeldByC
    {
        private readonly Action task;

        internal TaskCall(Action task)
        {
            Dispatcher.Start();
            this.task = task;
            Hold();
        }

        protected override int Call(Request request)
        {
            Dispose();
            task(); // its exception ends the program: the thread of the library need not go on
            return 0;
        }
    }

    /// <summary>A handler of the program that threads of the library ask, through the dispatcher.</summary>
    internal abstract class HandlerCall : HeldByC
    {
        private volatile Exception thrown;

        internal HandlerCall()
        {
            Dispatcher.Start();
            Hold();
        }

        /// <summary>The last exception of the handler, or null.</summary>
        internal Exception Thrown => thrown;

        /// <summary>Keeps an exception of the handler, which has no caller.</summary>
        internal void Keep(Exception error)
        {
            thrown = error;
            Trace.TraceWarning("a handler of gmm threw: " + error);
        }
    }
}
