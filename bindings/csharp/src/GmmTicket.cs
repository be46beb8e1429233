/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Diagnostics;
using System.Runtime.CompilerServices;
using System.Runtime.ExceptionServices;
using System.Threading;
using System.Threading.Tasks;

namespace Gmm
{
    /// <summary>
    /// A pause or resume, or a request of a lease, that a thread of the library carries out. Its result is the number
    /// of bytes that changed state. It can be awaited. Dispose() waits for the end. A pause or resume whose ticket
    /// nobody disposes of runs to its end. The handler of a watcher cannot wait for one, which would wait for the
    /// handler: that is Busy, but for Budget. The handler of a lease cannot ask for the state of a lease's ticket:
    /// Busy, too.
    /// </summary>
    public sealed partial class GmmTicket : GmmObject
    {
        /// <summary>The longest wait of a thread of the runtime in C: Mono does not end during such a wait.</summary>
        private const ulong SliceMilliseconds = 20;

        private readonly ProgressCall progress;
        private readonly GmmLease lease; // whose request it is, which must outlive it; null: a pause or resume
        private volatile Outcome outcome;
        private volatile bool reported;
        private volatile bool cancelAsked;

        /// <summary>The start of a pause or resume in the background.</summary>
        internal delegate int Starter(IntPtr context, byte[] desc, out IntPtr ticket);

        internal GmmTicket(GmmSafeHandle context, Starter start, GmmPauseOptions options, params GmmTag[] tags)
            : this(context, start, options, tags, new ProgressCall(options.Progress))
        {
        }

        private GmmTicket(GmmSafeHandle context, Starter start, GmmPauseOptions options, GmmTag[] tags,
            ProgressCall call) : base(GmmSafeHandle.Child(nameof(GmmTicket), context, call,
                (IntPtr native, out IntPtr made) => start(native, options.Encode(tags, call.User), out made),
                made => Native.gmm_ticket_destroy(made))) // waits
        {
            progress = call;
        }

        internal GmmTicket(GmmLease lease, GmmLeaseRequest request)
            : base(GmmSafeHandle.Child(nameof(GmmTicket), lease.handle, null, (IntPtr native, out IntPtr made) =>
                Native.gmm_lease_request(native, request.Encode(), out made), made =>
            {
                Native.gmm_ticket_cancel(made); // nobody has it any more
                Native.gmm_ticket_destroy(made);
            }, true))
        {
            this.lease = lease;
            progress = new ProgressCall(null);
        }

        private sealed class Outcome
        {
            internal long Bytes;
            internal ExceptionDispatchInfo Failure;
        }

        /// <summary>The outcome, or null on timeout.</summary>
        private Outcome Look(ulong milliseconds)
        {
            if (outcome != null)
            {
                return outcome;
            }
            if (milliseconds != 0)
            {
                Native.gmm_csharp_check_outside(1); // its operation may wait for this handler
            }
            if (lease != null)
            {
                LeaseCall.CheckOutside("A look at a ticket of a lease");
            }
            Outcome ended = new Outcome();
            try
            {
                using (Use self = new Use(handle))
                {
                    Native.gmm_ticket_look(self.Address, milliseconds, out ulong bytes, out uint done);
                    if (done == 0)
                    {
                        return null;
                    }
                    ended.Bytes = (long)bytes;
                }
                ended.Failure = progress.Thrown;
            }
            catch (ObjectDisposedException)
            {
                if (outcome == null)
                {
                    throw;
                }
                return outcome; // Dispose() on another thread has waited for it
            }
            catch (GmmException error)
            {
                ended.Failure = progress.Thrown ?? ExceptionDispatchInfo.Capture(error);
            }
            outcome = ended;
            return ended;
        }

        /// <summary>Whether it has ended, with success or failure.</summary>
        public bool IsDone => Look(0) != null;

        /// <summary>
        /// Waits for its end, up to a timeout (Timeout.InfiniteTimeSpan waits for ever). Returns false on timeout.
        /// </summary>
        public bool Wait(TimeSpan timeout) => WaitInSlices(timeout, milliseconds => Look(milliseconds) != null);

        private void Wait() => Wait(Timeout.InfiniteTimeSpan);

        /// <summary>
        /// Asks `ended`, which waits for so many milliseconds, until it is true or the time is over: then false. No
        /// thread of the runtime stays long in C, since Mono does not end during such a wait.
        /// </summary>
        internal static bool WaitInSlices(TimeSpan timeout, Func<ulong, bool> ended)
        {
            Stopwatch past = Stopwatch.StartNew();
            while (true)
            {
                double left = timeout == Timeout.InfiniteTimeSpan ? SliceMilliseconds
                    : (timeout - past.Elapsed).TotalMilliseconds;
                if (ended(left <= 0 ? 0 : Math.Min(SliceMilliseconds, (ulong)left + 1)))
                {
                    return true;
                }
                if (left <= 0)
                {
                    return false;
                }
            }
        }

        /// <summary>
        /// Waits for the end and returns the bytes that changed state, or throws what made it fail. It may be asked
        /// after Dispose() too.
        /// </summary>
        public long Result
        {
            get
            {
                Wait();
                reported = true;
                outcome.Failure?.Throw();
                return outcome.Bytes;
            }
        }

        /// <summary>Waits until an operation with Hold is held. One that has ended throws its failure.</summary>
        public void WaitHeld()
        {
            Native.gmm_csharp_check_outside(1);
            WaitInSlices(Timeout.InfiniteTimeSpan, milliseconds =>
                Get(self => Native.gmm_ticket_wait_held(self, milliseconds)) != (int)GmmResult.NotReady);
        }

        /// <summary>
        /// Carries out the held operation, and does not wait. If it has failed or was undone, its failure is thrown.
        /// </summary>
        public void Commit()
        {
            if (Get(self => Native.gmm_ticket_commit(self)) == (int)GmmResult.NotReady)
            {
                throw new InvalidOperationException("the operation is not held; WaitHeld() waits for that");
            }
        }

        /// <summary>
        /// Requests cancellation and does not wait. An operation that has committed completes normally; any other is
        /// undone and ends with Cancelled.
        /// </summary>
        public void Cancel()
        {
            bool canLook = lease == null || !LeaseCall.IsInside;
            if ((canLook ? Look(0) : outcome) != null)
            {
                return;
            }
            try
            {
                Run(self =>
                {
                    cancelAsked = true;
                    Native.gmm_ticket_cancel(self);
                });
            }
            catch (ObjectDisposedException)
            {
                // It has ended on another thread.
            }
        }

        /// <summary>
        /// Its result as a task, for which a thread waits. The token cancels the ticket. The task is cancelled once the
        /// operation is undone.
        /// </summary>
        public Task<long> AsTask(CancellationToken cancellationToken = default(CancellationToken))
        {
            // Before the thread, which may start late: a token that is cancelled from now on cancels the ticket.
            CancellationTokenRegistration registration = cancellationToken.Register(Cancel);
            CancellationTokenSource undone = new CancellationTokenSource();
            return Task.Factory.StartNew(() =>
            {
                using (registration)
                {
                    Wait();
                }
                reported = true;
                if (outcome.Failure?.SourceException is GmmException error && error.Result == GmmResult.Cancelled)
                {
                    undone.Cancel();
                    undone.Token.ThrowIfCancellationRequested();
                }
                return Result;
            }, undone.Token, TaskCreationOptions.LongRunning, TaskScheduler.Default);
        }

        /// <summary>For await.</summary>
        public TaskAwaiter<long> GetAwaiter() => AsTask().GetAwaiter();

        /// <summary>
        /// Waits for the end and releases the ticket. Its result stays. A failure that nobody has heard of yet is
        /// thrown, unless Cancel() asked for it. Inside the handler of a watcher it is Busy, and the ticket stays open.
        /// A second call does nothing.
        /// </summary>
        public override void Dispose()
        {
            if (IsDisposed)
            {
                return;
            }
            Native.gmm_csharp_check_outside(0);
            Wait();
            base.Dispose();
            if (!reported && !cancelAsked)
            {
                _ = Result; // throws
            }
        }

        /// <summary>
        /// Ends a request without a word: a lease ends, or nobody waits for it. Returns whether it was granted.
        /// </summary>
        internal bool Abandon()
        {
            Cancel();
            Wait();
            base.Dispose();
            return outcome.Failure == null;
        }

        internal override string Describe()
        {
            GmmTicketInfo info = Info();
            return info.State == GmmTicketState.Done ? info.Result + ", " + Show.Size(info.Bytes)
                : "running, " + Show.Size(info.CopiedBytes) + " of " + Show.Size(info.TotalBytes) + " copied";
        }
    }
}
