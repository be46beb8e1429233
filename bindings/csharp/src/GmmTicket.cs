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
    /// A pause or resume that a thread of the library carries out; its result is the bytes that changed state. It can be awaited. Dispose() waits for the end.
    /// One that nobody disposes of goes on to its end.
    /// </summary>
    public sealed class GmmTicket : IDisposable
    {
        /// <summary>No thread of the runtime stays longer in C: Mono would not end meanwhile.</summary>
        private const ulong SliceMilliseconds = 20;

        private readonly GmmTicketHandle handle;
        private readonly ProgressCall progress;
        private volatile Outcome outcome;
        private volatile bool told;
        private volatile bool cancelAsked;

        internal GmmTicket(GmmContextHandle context, bool pause, uint flags, GmmProgress progress, GmmTag[] tags)
        {
            this.progress = new ProgressCall(progress);
            bool kept = false;
            try
            {
                GmmSafeHandle.Keep(context);
                kept = true;
                using (gmm_pause_desc desc = GmmContext.Describe(flags, this.progress, tags))
                {
                    IntPtr address;
                    if (pause)
                    {
                        Native.gmm_pause_async(context.DangerousGetHandle(), desc, out address);
                    }
                    else
                    {
                        Native.gmm_resume_async(context.DangerousGetHandle(), desc, out address);
                    }
                    handle = new GmmTicketHandle(address, context, this.progress);
                }
            }
            finally
            {
                if (handle == null)
                {
                    this.progress.Dispose();
                    if (kept)
                    {
                        context.DangerousRelease();
                    }
                }
            }
        }

        private sealed class Outcome
        {
            internal long Bytes;
            internal ExceptionDispatchInfo Failure;
        }

        /// <summary>The outcome, or null when the time was over first.</summary>
        private Outcome Look(ulong milliseconds)
        {
            if (outcome != null)
            {
                return outcome;
            }
            Outcome ended = new Outcome();
            try
            {
                using (Use ticket = new Use(handle))
                {
                    ulong bytes;
                    if (Native.gmm_ticket_wait(ticket.Address, milliseconds, out bytes) == (int)GmmResult.NotReady)
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

        /// <summary>Whether it has ended, however.</summary>
        public bool IsDone
        {
            get { return Look(0) != null; }
        }

        /// <summary>How far it is.</summary>
        public GmmTicketInfo Info()
        {
            using (Use ticket = new Use(handle))
            using (gmm_ticket_info info = new gmm_ticket_info())
            {
                Native.gmm_ticket_query(ticket.Address, info);
                return new GmmTicketInfo(info);
            }
        }

        /// <summary>Waits for its end so long at most (Timeout.InfiniteTimeSpan: for ever). False when the time was over first.</summary>
        public bool Wait(TimeSpan timeout)
        {
            Stopwatch past = Stopwatch.StartNew();
            while (true)
            {
                double left = timeout == Timeout.InfiniteTimeSpan ? SliceMilliseconds : (timeout - past.Elapsed).TotalMilliseconds;
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

        /// <summary>Waits for its end: the bytes that changed state, or what made it fail. Also after Dispose().</summary>
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

        /// <summary>Asks it to stop, without waiting: it is undone and ends with Cancelled, or ends as it would have when it is too late.</summary>
        public void Cancel()
        {
            if (Look(0) != null)
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

        /// <summary>As AsTask(); the token cancels the ticket. The task is cancelled once the operation is undone.</summary>
        public Task<long> AsTask(CancellationToken cancellationToken)
        {
            TaskCompletionSource<long> source = new TaskCompletionSource<long>(TaskCreationOptions.RunContinuationsAsynchronously);
            Thread thread = new Thread(() =>
            {
                try
                {
                    using (cancellationToken.Register(Cancel))
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
        /// Waits for its end and gives the ticket back; its result stays. A failure that nobody was told of yet is thrown, unless Cancel() asked for
        /// it. A second call does nothing.
        /// </summary>
        public void Dispose()
        {
            if (handle.IsDisposed)
            {
                return;
            }
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
    }
}
