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
    public sealed class GmmTicket : IDisposable
    {
        /// <summary>The longest wait of a thread of the runtime in C: Mono does not end during such a wait.</summary>
        private const ulong SliceMilliseconds = 20;

        private readonly GmmTicketHandle handle;
        private readonly ProgressCall progress;
        private readonly GmmLease lease; // whose request it is, which must outlive it; null: a pause or resume
        private volatile Outcome outcome;
        private volatile bool told;
        private volatile bool cancelAsked;

        internal GmmTicket(GmmContextHandle context, bool pause, GmmPauseOptions options, GmmTag[] tags)
        {
            ProgressCall call = new ProgressCall(options.Progress);
            this.progress = call;
            handle = GmmSafeHandle.Child(context, call, native =>
            {
                byte[] desc = options.Encode(tags, call.User);
                IntPtr address;
                if (pause)
                {
                    Native.gmm_pause_async(native, desc, out address);
                }
                else
                {
                    Native.gmm_resume_async(native, desc, out address);
                }
                return new GmmTicketHandle(address, context, call);
            });
        }

        internal GmmTicket(GmmLease lease, GmmLeaseHandle parent, GmmLeaseRequest request)
        {
            this.lease = lease;
            progress = new ProgressCall(null);
            handle = GmmSafeHandle.Child(parent, null, native =>
            {
                using (gmm_lease_request_desc desc = new gmm_lease_request_desc())
                {
                    request.Fill(desc);
                    IntPtr address;
                    Native.gmm_lease_request(native, desc, out address);
                    return new GmmTicketHandle(address, parent, null);
                }
            });
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
                WatchCall.CheckOutside("The wait for a ticket", true); // its operation may wait for this handler
            }
            if (lease != null)
            {
                LeaseCall.CheckOutside("A look at a ticket of a lease");
            }
            Outcome ended = new Outcome();
            try
            {
                using (Use ticket = new Use(handle))
                {
                    ulong bytes;
                    uint done;
                    Native.gmm_ticket_look(ticket.Address, milliseconds, out bytes, out done);
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

        private static bool IsCancelled(Outcome ended)
        {
            GmmException error = ended.Failure == null ? null : ended.Failure.SourceException as GmmException;
            return error != null && error.Result == GmmResult.Cancelled;
        }

        /// <summary>Whether it has ended, with success or failure.</summary>
        public bool IsDone
        {
            get { return Look(0) != null; }
        }

        /// <summary>The progress.</summary>
        public GmmTicketInfo Info()
        {
            using (Use ticket = new Use(handle))
            {
                byte[] info = GmmTicketInfo.BytesForC();
                Native.gmm_ticket_query(ticket.Address, info);
                return new GmmTicketInfo(info);
            }
        }

        /// <summary>
        /// Waits for its end, up to a timeout (Timeout.InfiniteTimeSpan waits for ever). Returns false on timeout.
        /// </summary>
        public bool Wait(TimeSpan timeout)
        {
            Stopwatch past = Stopwatch.StartNew();
            while (true)
            {
                double left = timeout == Timeout.InfiniteTimeSpan ? SliceMilliseconds
                    : (timeout - past.Elapsed).TotalMilliseconds;
                if (Look(left <= 0 ? 0 : Math.Min(SliceMilliseconds, (ulong)left + 1)) != null)
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
                Wait(Timeout.InfiniteTimeSpan);
                told = true;
                if (outcome.Failure != null)
                {
                    outcome.Failure.Throw();
                }
                return outcome.Bytes;
            }
        }

        /// <summary>Waits until an operation with Hold is held. One that has ended throws its failure.</summary>
        public void WaitHeld()
        {
            WatchCall.CheckOutside("The wait for a ticket", true);
            int result;
            do
            {
                using (Use ticket = new Use(handle))
                {
                    result = Native.gmm_ticket_wait_held(ticket.Address, SliceMilliseconds);
                }
            }
            while (result == (int)GmmResult.NotReady);
        }

        /// <summary>
        /// Carries out what is held, and does not wait. An operation that has failed or was undone throws that.
        /// </summary>
        public void Commit()
        {
            using (Use ticket = new Use(handle))
            {
                if (Native.gmm_ticket_commit(ticket.Address) == (int)GmmResult.NotReady)
                {
                    throw new InvalidOperationException("the operation is not held; WaitHeld() waits for that");
                }
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
                using (Use ticket = new Use(handle))
                {
                    cancelAsked = true;
                    Native.gmm_ticket_cancel(ticket.Address);
                }
            }
            catch (ObjectDisposedException)
            {
                // It has ended meanwhile.
            }
        }

        /// <summary>Its result as a task, for which a thread waits.</summary>
        public Task<long> AsTask()
        {
            return AsTask(CancellationToken.None);
        }

        /// <summary>
        /// Does the same as AsTask(); the token cancels the ticket. The task is cancelled once the operation is undone.
        /// </summary>
        public Task<long> AsTask(CancellationToken cancellationToken)
        {
            TaskCompletionSource<long> source =
                new TaskCompletionSource<long>(TaskCreationOptions.RunContinuationsAsynchronously);
            // Before the thread, which may start late: a token that is cancelled from now on cancels the ticket.
            CancellationTokenRegistration registration = cancellationToken.Register(Cancel);
            Thread thread = new Thread(() =>
            {
                try
                {
                    using (registration)
                    {
                        Wait(Timeout.InfiniteTimeSpan);
                    }
                    told = true;
                    if (IsCancelled(outcome))
                    {
                        source.SetCanceled();
                    }
                    else if (outcome.Failure != null)
                    {
                        source.SetException(outcome.Failure.SourceException);
                    }
                    else
                    {
                        source.SetResult(outcome.Bytes);
                    }
                }
                catch (Exception error)
                {
                    source.TrySetException(error);
                }
            });
            thread.IsBackground = true;
            thread.Name = "gmm ticket";
            thread.Start();
            return source.Task;
        }

        /// <summary>For await.</summary>
        public TaskAwaiter<long> GetAwaiter()
        {
            return AsTask().GetAwaiter();
        }

        /// <summary>
        /// Waits for the end and releases the ticket. Its result stays. A failure that nobody has heard of yet is
        /// thrown, unless Cancel() asked for it. Inside the handler of a watcher it is Busy, and the ticket stays open.
        /// A second call does nothing.
        /// </summary>
        public void Dispose()
        {
            if (handle.IsDisposed)
            {
                return;
            }
            WatchCall.CheckOutside("GmmTicket.Dispose()", false);
            Wait(Timeout.InfiniteTimeSpan);
            handle.CloseOrThrow();
            if (!told && !cancelAsked)
            {
                told = true;
                if (outcome.Failure != null)
                {
                    outcome.Failure.Throw();
                }
            }
        }

        /// <summary>
        /// Ends a request without a word: a lease ends, or nobody waits for it. Returns whether it was granted.
        /// </summary>
        internal bool Abandon()
        {
            Cancel();
            Wait(Timeout.InfiniteTimeSpan);
            handle.CloseOrThrow();
            return outcome.Failure == null;
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Or("GmmTicket { closed }", () =>
            {
                GmmTicketInfo info = Info();
                return info.State == GmmTicketState.Done
                    ? "GmmTicket { " + info.Result + ", " + Show.Size(info.Bytes) + " }"
                    : "GmmTicket { running, " + Show.Size(info.CopiedBytes) + " of " + Show.Size(info.TotalBytes)
                        + " copied }";
            });
        }
    }
}
