/* SPDX-License-Identifier: Apache-2.0 */
using System;
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
    internal delegate void LogCallback(IntPtr user, uint level, IntPtr message);

    /// <summary>Gets a struct that the library lends.</summary>
    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    internal delegate int InfoCallback(IntPtr user, IntPtr info);

    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    internal delegate int WriteCallback(IntPtr user, IntPtr text, ulong size);

    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    internal delegate int ProgressCallback(IntPtr user, ulong done, ulong total);

    /// <summary>
    /// The functions that C calls. The user pointer is a GCHandle of one of these objects, which lives as long as its
    /// native context, or of a snapshot's writer. No exception may leave through C: one that belongs to a caller waits
    /// in `pending`.
    /// </summary>
    internal sealed class Callbacks : HeldByC
    {
        [ThreadStatic]
        private static Exception pending;

        private readonly GmmLogger logger;
        internal volatile GmmOomHandler OomHandler;

        internal Callbacks(GmmLogger logger) => this.logger = logger;

        internal static void Fail(int code, int nativeCode, IntPtr name, IntPtr message)
        {
            Exception error = pending;
            pending = null;
            NativePINVOKE.SWIGPendingException.Set(error ?? new GmmException(code, nativeCode, Struct.Text(name),
                Struct.Text(message)));
        }

        internal static void Log(IntPtr user, uint level, IntPtr message)
        {
            if (Environment.HasShutdownStarted)
            {
                return;
            }
            try
            {
                Of<Callbacks>(user).logger((GmmLogLevel)level, Struct.Text(message));
            }
            catch (Exception error)
            {
                // It has no caller, so it ends the program, as that of any thread does.
                ThreadPool.QueueUserWorkItem(
                    state => throw new InvalidOperationException("a callback of gmm threw", error));
            }
        }

        internal static int Oom(IntPtr user, IntPtr info)
        {
            try
            {
                GmmOomHandler handler = Of<Callbacks>(user).OomHandler;
                return handler != null && pending == null && handler(new GmmOomInfo(Struct.Lent(info))) ? 1 : 0;
            }
            catch (Exception error)
            {
                pending = error;
                return 0;
            }
        }

        internal static int Write(IntPtr user, IntPtr text, ulong size)
        {
            try
            {
                byte[] piece = new byte[size];
                Marshal.Copy(text, piece, 0, piece.Length);
                return ((GmmSnapshotWriter)GCHandle.FromIntPtr(user).Target)(piece) ? 0 : 1;
            }
            catch (Exception error)
            {
                pending = error;
                return 1;
            }
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
}
