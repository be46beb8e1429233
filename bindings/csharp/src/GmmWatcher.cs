/* SPDX-License-Identifier: Apache-2.0 */
using System;

namespace Gmm
{
    /// <summary>
    /// Receives the events of watched memory on a thread of the pool. The operation waits for it, so it must not block.
    /// It returns true to agree. False refuses Prepare, so that the operation ends with Busy. It may free memory and
    /// query it. It must not allocate, end a watcher, or pause, resume, move and compact: these are Busy. An exception
    /// refuses, and stands in <see cref="GmmWatcher.Thrown"/>.
    /// </summary>
    public delegate bool GmmWatchHandler(GmmWatchInfo info);

    /// <summary>A caller's GmmWatchHandler as C calls it.</summary>
    internal sealed class WatchCall : HandlerCall
    {
        private readonly GmmWatchHandler handler;

        internal WatchCall(GmmWatchHandler handler) => this.handler = handler;

        protected override int Call(Request request)
        {
            GmmWatchInfo info = new GmmWatchInfo(Struct.Lent(request.Info));
            if (!Enum.IsDefined(typeof(GmmWatchEvents), info.Event))
            {
                return 0; // of a newer library
            }
            Native.gmm_csharp_enter_watch((uint)info.Event);
            try
            {
                return handler(info) ? 0 : 1;
            }
            catch (Exception error)
            {
                Keep(error);
                return 1;
            }
            finally
            {
                Native.gmm_csharp_enter_watch(0);
            }
        }
    }

    /// <summary>
    /// A watch of memory or of a budget, until Dispose(). A watcher that nobody refers to any more ends, too, so the
    /// program holds it. A handler that refers to its watcher keeps it from the garbage collector.
    /// </summary>
    public sealed class GmmWatcher : GmmObject
    {
        private readonly WatchCall call;

        private GmmWatcher(GmmSafeHandle handle, WatchCall call) : base(handle) => this.call = call;

        internal static GmmWatcher Make(GmmSafeHandle context, GmmWatchOptions options, GmmWatchHandler handler)
        {
            WatchCall call = new WatchCall(handler
                ?? throw new ArgumentNullException(nameof(handler), "a watcher without a handler hears nothing"));
            return new GmmWatcher(GmmSafeHandle.Child(nameof(GmmWatcher), context, call, (IntPtr native,
                out IntPtr made) => Native.gmm_watch(native, options.Encode(call.User), out made),
                made => Native.gmm_watcher_destroy(made)), call); // waits
        }

        /// <summary>The last exception of the handler, or null.</summary>
        public Exception Thrown => call.Thrown;

        /// <summary>
        /// Ends the watch. It waits for the handler if that runs; afterwards nobody calls it. A handler that calls it
        /// gets Busy. A second call does nothing.
        /// </summary>
        public override void Dispose()
        {
            Native.gmm_csharp_check_outside(0);
            base.Dispose();
        }
    }
}
