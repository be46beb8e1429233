/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;
using System.Threading;

namespace Gmm
{
    /// <summary>
    /// Hears that others want what a lease has in use, at once and then every second while they wait. It runs on a
    /// thread of the pool, while the lease's thread waits, and returns soon. It may call
    /// <see cref="GmmLease.Release"/>, or make the program come to the end of its turn. Requests, the end of a lease,
    /// and waits for tickets of leases are Busy there. Its exceptions stand in <see cref="GmmLease.Thrown"/>.
    /// </summary>
    public delegate void GmmLeaseHandler(GmmLease lease, GmmLeaseAsk ask);

    /// <summary>
    /// A caller's GmmLeaseHandler as C calls it. It does not keep the lease, which ends when the program forgets it.
    /// </summary>
    internal sealed class LeaseCall : HandlerCall
    {
        [ThreadStatic]
        private static bool inside;

        private readonly GmmLeaseHandler handler;
        internal volatile WeakReference<GmmLease> Lease; // null until it is made

        internal LeaseCall(GmmLeaseHandler handler) => this.handler = handler;

        /// <summary>Whether this thread runs the handler of a lease.</summary>
        internal static bool IsInside => inside;

        /// <summary>Throws Busy inside a lease's handler, before the caller changes anything.</summary>
        internal static void CheckOutside(string what)
        {
            if (inside)
            {
                throw new GmmException(GmmResult.Busy,
                    what + ": the caller is the handler of a lease; call it after the handler returned.");
            }
        }

        protected override int Call(Request request)
        {
            if (Lease == null || !Lease.TryGetTarget(out GmmLease asked))
            {
                return 0;
            }
            inside = true;
            try
            {
                handler(asked, new GmmLeaseAsk(Struct.Lent(request.Info)));
            }
            catch (ObjectDisposedException) when (asked.IsDisposed)
            {
                // disposed of under the handler
            }
            catch (Exception error)
            {
                Keep(error);
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
    public sealed partial class GmmLease : GmmObject
    {
        private const long MostCost = 0xfffffffe;
        private readonly LeaseCall call;
        private readonly ManualResetEventSlim ended;
        private readonly List<WeakReference<GmmTicket>> tickets = new List<WeakReference<GmmTicket>>();

        internal GmmLease(GmmSafeHandle context, GmmLeaseOptions options)
            : this(context, options, options.Asked == null ? null : new LeaseCall(options.Asked),
                new ManualResetEventSlim())
        {
        }

        private GmmLease(GmmSafeHandle context, GmmLeaseOptions options, LeaseCall call, ManualResetEventSlim ended)
            : base(GmmSafeHandle.Child(nameof(GmmLease), context, call, (IntPtr native, out IntPtr made) =>
                Native.gmm_lease_create(native, options.Encode(call?.User ?? IntPtr.Zero), out made), made =>
            {
                try
                {
                    Native.gmm_lease_destroy(made); // waits for a pause for others, too
                }
                finally
                {
                    ended.Set();
                }
            }, true))
        {
            Name = options.Name;
            this.call = call;
            this.ended = ended;
            if (call != null)
            {
                call.Lease = new WeakReference<GmmLease>(this);
            }
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

        /// <summary>The last exception of the handler, or null.</summary>
        public Exception Thrown => call?.Thrown;

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

        /// <summary>Ends an offer. The tag stays as it is, active or paused. It waits as Offer() does.</summary>
        public void Withdraw(GmmTag tag) => Change(tag, Native.GMM_LEASE_WITHDRAW);

        private void Change(GmmTag tag, uint cost)
        {
            Native.gmm_csharp_check_outside(1); // the lease's pause may wait for this handler
            Run(self => Native.gmm_lease_offer_wait(self, (uint)tag.Number, cost));
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
            Native.gmm_csharp_check_outside(0);
            LeaseCall.CheckOutside("GmmLease.Request()");
            GmmTicket ticket = new GmmTicket(this, request ?? new GmmLeaseRequest());
            lock (tickets)
            {
                tickets.RemoveAll(each => !each.TryGetTarget(out GmmTicket gone));
                tickets.Add(new WeakReference<GmmTicket>(ticket));
            }
            if (IsDisposed)
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
        public bool Release() => Get(self => Native.gmm_lease_return(self)) == (int)GmmResult.Ok;

        /// <summary>A turn until it is disposed of: Request() and Release().</summary>
        public GmmLeaseTurn Turn(GmmLeaseRequest request = null,
            CancellationToken cancellationToken = default(CancellationToken)) =>
            new GmmLeaseTurn(this, Request(request, cancellationToken));

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

        /// <summary>
        /// Ends the lease. A request that waits is cancelled. Its memory stays as it is, active or paused, and is the
        /// context's alone. The call waits for a pause for others and for the handler; afterwards nobody calls that.
        /// Inside the handler of a lease or of a watcher it is Busy, and the lease stays. A second call does nothing.
        /// </summary>
        public override void Dispose()
        {
            Native.gmm_csharp_check_outside(0);
            LeaseCall.CheckOutside("GmmLease.Dispose()");
            if (IsDisposed)
            {
                return;
            }
            base.Dispose(); // from here on no request begins; the last one who needs the lease ends it
            List<WeakReference<GmmTicket>> left;
            lock (tickets)
            {
                left = new List<WeakReference<GmmTicket>>(tickets);
            }
            foreach (WeakReference<GmmTicket> each in left)
            {
                if (each.TryGetTarget(out GmmTicket ticket))
                {
                    ticket.Abandon();
                }
            }
            while (!ended.Wait(50) && !Environment.HasShutdownStarted)
            {
                // another thread asks for its state
            }
        }

        internal override string Describe()
        {
            GmmLeaseInfo info = Info();
            return Name + ", " + info.State + ", " + Show.Size(info.ActiveBytes) + " active, "
                + Show.Size(info.PausedBytes) + " paused";
        }
    }

    /// <summary>A turn of a lease, until Dispose().</summary>
    public sealed class GmmLeaseTurn : IDisposable
    {
        private readonly GmmLease lease;
        private readonly Once end;

        internal GmmLeaseTurn(GmmLease lease, long bytes)
        {
            this.lease = lease;
            end = new Once(lease.EndTurn);
            Bytes = bytes;
        }

        /// <summary>Bytes of the offered tags that came back.</summary>
        public long Bytes { get; }

        /// <summary>Releases the lease, unless it is disposed of. A second call does nothing.</summary>
        public void Dispose() => end.Dispose();

        /// <inheritdoc/>
        public override string ToString() => "GmmLeaseTurn { " + lease + " }";
    }
}
