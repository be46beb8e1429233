/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Runtime.InteropServices;
using System.Text;
using System.Threading;

namespace Gmm
{
    /// <summary>
    /// Hears that others want what a lease has in use, at once and then every second while they wait. It runs on a
    /// thread of the pool, while the lease's thread waits, and returns soon. It may call
    /// <see cref="GmmLease.Release"/>, or make the program come to the end of its turn. Requests, the end of a lease,
    /// and waits for tickets of leases are Busy there. What it throws stands in <see cref="GmmLease.Thrown"/>.
    /// </summary>
    public delegate void GmmLeaseHandler(GmmLease lease, GmmLeaseAsk ask);

    /// <summary>
    /// A caller's GmmLeaseHandler as C calls it. It does not keep the lease, which ends when the program forgets it.
    /// </summary>
    internal sealed class LeaseCall : HeldByC
    {
        /// <summary>gmm_lease_ask.</summary>
        [StructLayout(LayoutKind.Sequential)]
        internal struct Fields
        {
            internal uint StructSize;
            internal int Priority;
            internal ulong Bytes;
            internal ulong WaitingMilliseconds;
            internal int Process;
            internal uint Reserved;
            [MarshalAs(UnmanagedType.ByValArray, SizeConst = 64)]
            internal byte[] Name;

            internal string Text
            {
                get
                {
                    int end = Array.IndexOf(Name, (byte)0);
                    return Encoding.UTF8.GetString(Name, 0, end < 0 ? Name.Length : end);
                }
            }
        }

        [ThreadStatic]
        private static bool inside;

        private readonly GmmLeaseHandler handler;
        private readonly WeakReference<GmmLease> lease;
        private volatile Exception thrown;

        internal LeaseCall(GmmLeaseHandler handler, GmmLease lease)
        {
            this.handler = handler;
            this.lease = new WeakReference<GmmLease>(lease);
            Dispatcher.Start();
            Hold();
        }

        internal Exception Thrown
        {
            get { return thrown; }
        }

        /// <summary>Whether this thread runs the handler of a lease.</summary>
        internal static bool IsInside
        {
            get { return inside; }
        }

        /// <summary>Throws Busy inside a lease's handler, before the caller changes anything.</summary>
        internal static void CheckOutside(string what)
        {
            if (inside)
            {
                throw new GmmException((int)GmmResult.Busy, 0, "GMM_ERROR_BUSY",
                    what + ": the caller is the handler of a lease; call it after the handler returned.");
            }
        }

        /// <summary>Called by the dispatcher.</summary>
        internal static int Call(IntPtr user, IntPtr info)
        {
            Fields ask = (Fields)Marshal.PtrToStructure(info, typeof(Fields));
            LeaseCall call = Of<LeaseCall>(user);
            GmmLease asked;
            if (!call.lease.TryGetTarget(out asked))
            {
                return 0;
            }
            inside = true;
            try
            {
                call.handler(asked, new GmmLeaseAsk(ask));
            }
            catch (ObjectDisposedException) when (asked.IsDisposed)
            {
                // disposed of under the handler
            }
            catch (Exception error)
            {
                call.thrown = error;
                Trace.TraceWarning("the handler of a lease threw: " + error);
            }
            finally
            {
                inside = false;
            }
            return 0;
        }
    }

    /// <summary>
    /// A process's share in the memory of its devices, until Dispose(): processes that share a GPU use it by turns, and
    /// none of them knows the others.
    /// </summary>
    /// <remarks>
    /// Between two turns gmm pauses the offered tags when another process wants their memory, and the next turn resumes
    /// them. If nobody wants it, it stays where it is. The server of the machine, the command `gmm serve`, decides
    /// whose turn it is. The first lease starts it. A lease that nobody refers to any more ends, so the program holds
    /// it. A handler that refers to it keeps it; the lease that the handler gets does not.
    /// </remarks>
    public sealed class GmmLease : IDisposable
    {
        private const long MostCost = 0xfffffffe;
        private const int SliceMilliseconds = 50;

        private readonly GmmLeaseHandle handle;
        private readonly LeaseCall call;
        private readonly List<WeakReference<GmmTicket>> tickets = new List<WeakReference<GmmTicket>>();

        internal GmmLease(GmmContextHandle context, GmmLeaseOptions options)
        {
            Name = options.Name;
            LeaseCall heard = options.Asked == null ? null : new LeaseCall(options.Asked, this);
            call = heard;
            handle = GmmSafeHandle.Child(context, heard, native =>
            {
                using (gmm_lease_desc desc = new gmm_lease_desc())
                {
                    options.Fill(desc, heard == null ? IntPtr.Zero : heard.User);
                    IntPtr address;
                    Native.gmm_lease_create(native, desc, out address);
                    return new GmmLeaseHandle(address, context, heard);
                }
            });
            try
            {
                foreach (KeyValuePair<GmmTag, long> offer in options.Offer)
                {
                    Offer(offer.Key, offer.Value);
                }
            }
            catch
            {
                Dispose();
                throw;
            }
        }

        /// <summary>The name.</summary>
        public string Name { get; }

        /// <summary>What the handler threw last, or null.</summary>
        public Exception Thrown
        {
            get { return call == null ? null : call.Thrown; }
        }

        /// <summary>
        /// Offers a tag, or changes its cost: what it costs to bring a byte of it back, beside other tags. The lowest
        /// goes first. It waits while gmm pauses or resumes for this lease. Offered: another lease of the context
        /// offers the tag.
        /// </summary>
        public void Offer(GmmTag tag, long cost = 1)
        {
            if (cost < 0 || cost > MostCost)
            {
                throw new ArgumentOutOfRangeException(nameof(cost), cost, "a cost is 0 to " + MostCost);
            }
            Change(tag, (uint)cost);
        }

        /// <summary>
        /// Ends an offer. The tag stays as it is, active or paused. It waits as Offer() does.
        /// </summary>
        public void Withdraw(GmmTag tag)
        {
            Change(tag, Native.GMM_LEASE_WITHDRAW);
        }

        private void Change(GmmTag tag, uint cost)
        {
            WatchCall.CheckOutside("The offer of a lease", true); // the lease's pause may wait for this handler
            using (Use lease = new Use(handle))
            {
                Native.gmm_lease_offer_wait(lease.Address, (uint)tag.Number, cost);
            }
        }

        /// <summary>
        /// Waits for the turn and resumes the offered tags. Returns the bytes that came back. The lease is in use until
        /// <see cref="Release"/>. All or nothing: the memory on all devices, or none.
        /// </summary>
        /// <remarks>
        /// OutOfMemory: free memory and what others offer can never meet it. NotReady: the time is over. Both messages
        /// name who holds what. Busy: the lease is in use or waits already. Cancelled: Dispose() on another thread
        /// ended it. The token ends it with an OperationCanceledException. After an exception the lease is idle.
        /// </remarks>
        public long Request(GmmLeaseRequest request = null,
            CancellationToken cancellationToken = default(CancellationToken))
        {
            cancellationToken.ThrowIfCancellationRequested();
            GmmTicket ticket = RequestAsync(request);
            bool heard = false;
            try
            {
                using (cancellationToken.Register(ticket.Cancel))
                {
                    ticket.Wait(Timeout.InfiniteTimeSpan);
                }
                heard = true;
                return ticket.Result;
            }
            catch (GmmException error) when (error.Result == GmmResult.Cancelled
                && cancellationToken.IsCancellationRequested)
            {
                throw new OperationCanceledException(error.Message, error, cancellationToken);
            }
            finally
            {
                if (ticket.Abandon() && !heard)
                {
                    EndTurn(); // an exception of the runtime: the program does not know of its turn
                }
            }
        }

        /// <summary>
        /// Request() in the background. The ticket's success is the grant, and its Cancel() ends the request. A ticket
        /// that nobody refers to any more ends its request, too.
        /// </summary>
        public GmmTicket RequestAsync(GmmLeaseRequest request = null)
        {
            WatchCall.CheckOutside("GmmLease.Request()", false);
            LeaseCall.CheckOutside("GmmLease.Request()");
            GmmTicket ticket = new GmmTicket(this, handle, request ?? new GmmLeaseRequest());
            lock (tickets)
            {
                GmmTicket gone;
                tickets.RemoveAll(each => !each.TryGetTarget(out gone));
                tickets.Add(new WeakReference<GmmTicket>(ticket));
            }
            if (handle.IsDisposed)
            {
                ticket.Cancel(); // Dispose() may not have seen it
            }
            return ticket;
        }

        /// <summary>
        /// Ends the turn: others may have the memory of the offered tags. It stays where it is until others want it.
        /// Work that is queued on streams still ends, because a pause waits for the devices. False: the lease was not
        /// in use.
        /// </summary>
        public bool Release()
        {
            using (Use lease = new Use(handle))
            {
                return Native.gmm_lease_return(lease.Address) == (int)GmmResult.Ok;
            }
        }

        /// <summary>A turn until it is disposed of: Request() and Release().</summary>
        public GmmLeaseTurn Turn(GmmLeaseRequest request = null,
            CancellationToken cancellationToken = default(CancellationToken))
        {
            return new GmmLeaseTurn(this, Request(request, cancellationToken));
        }

        internal bool IsDisposed
        {
            get { return handle.IsDisposed; }
        }

        internal void EndTurn()
        {
            try
            {
                Release();
            }
            catch (ObjectDisposedException)
            {
                // The lease has ended, and its turn with it.
            }
        }

        /// <summary>How the lease stands.</summary>
        public GmmLeaseInfo Info()
        {
            using (Use lease = new Use(handle))
            {
                byte[] info = GmmLeaseInfo.BytesForC();
                Native.gmm_lease_query(lease.Address, info);
                return new GmmLeaseInfo(info);
            }
        }

        /// <summary>
        /// Ends the lease. A request that waits is cancelled. Its memory stays as it is, active or paused, and is the
        /// context's alone. The call waits for a pause for others and for the handler; afterwards nobody calls that.
        /// Inside the handler of a lease or of a watcher it is Busy, and the lease stays. A second call does nothing.
        /// </summary>
        public void Dispose()
        {
            WatchCall.CheckOutside("GmmLease.Dispose()", false);
            LeaseCall.CheckOutside("GmmLease.Dispose()");
            if (handle.IsDisposed)
            {
                return;
            }
            handle.CloseOrThrow(); // from here on no request begins; the last one who needs the lease ends it
            List<WeakReference<GmmTicket>> left;
            lock (tickets)
            {
                left = new List<WeakReference<GmmTicket>>(tickets);
            }
            foreach (WeakReference<GmmTicket> each in left)
            {
                GmmTicket ticket;
                if (each.TryGetTarget(out ticket))
                {
                    ticket.Abandon();
                }
            }
            while (!handle.Ended.Wait(SliceMilliseconds) && !Environment.HasShutdownStarted)
            {
                // Another thread asks for its state.
            }
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Or("GmmLease { " + Name + ", closed }", () =>
            {
                GmmLeaseInfo info = Info();
                return "GmmLease { " + Name + ", " + info.State + ", " + Show.Size(info.ActiveBytes) + " active, "
                    + Show.Size(info.PausedBytes) + " paused }";
            });
        }
    }

    /// <summary>A turn of a lease, until Dispose().</summary>
    public sealed class GmmLeaseTurn : IDisposable
    {
        private readonly GmmLease lease;
        private int ended;

        internal GmmLeaseTurn(GmmLease lease, long bytes)
        {
            this.lease = lease;
            Bytes = bytes;
        }

        /// <summary>Bytes of the offered tags that came back.</summary>
        public long Bytes { get; }

        /// <summary>Releases the lease, unless it is disposed of. A second call does nothing.</summary>
        public void Dispose()
        {
            if (Interlocked.Exchange(ref ended, 1) == 0)
            {
                lease.EndTurn();
            }
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return "GmmLeaseTurn { " + lease + " }";
        }
    }
}
