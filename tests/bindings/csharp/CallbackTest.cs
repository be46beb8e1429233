/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;
using System.Threading;
using System.Threading.Tasks;
using Gmm;
using static Tap;

/// <summary>
/// Callbacks: their values, their threads, and the way of their exceptions. Tickets are awaited.
/// </summary>
internal sealed class CallbackTest
{
    private const int Size = 4 << 20;
    private static readonly TimeSpan Long = TimeSpan.FromMilliseconds(Patience);

    private readonly GmmContext context = new GmmContext(CallsTest.Options());

    internal static int Run()
    {
        CallbackTest callbacks = new CallbackTest();
        Tap tap = new Tap();
        tap.Test("log", callbacks.Log);
        tap.Test("out of memory", callbacks.OutOfMemory);
        tap.Test("a writer of snapshots", callbacks.Writer);
        if (callbacks.context.Device(0).CanPause)
        {
            tap.Test("progress", callbacks.Progress);
            tap.Test("a ticket is awaited", callbacks.Ticket);
            tap.Test("a cancelled ticket", callbacks.Cancelled);
            tap.Test("a held pause", callbacks.Held);
            tap.Test("watchers", callbacks.Watch);
            tap.Test("a watcher refuses", callbacks.Refused);
            tap.Test("closed inside a watcher", callbacks.ClosedInside);
            tap.Test("a forgotten watcher ends", callbacks.Forget);
        }
        return tap.Finish();
    }

    /// <summary>A progress that stands still until it is let go.</summary>
    private sealed class Gate
    {
        internal readonly ManualResetEvent Reached = new ManualResetEvent(false);
        internal readonly ManualResetEvent Open = new ManualResetEvent(false);

        internal bool Report(long done, long total)
        {
            Reached.Set();
            return Open.WaitOne(Long);
        }
    }

    private static bool Refuse(long done, long total)
    {
        throw new FormatException("from the progress");
    }

    private static void Ignore(long value)
    {
    }

    private static bool Add<T>(List<T> list, T item)
    {
        lock (list)
        {
            list.Add(item);
            return true;
        }
    }

    private GmmBuffer Alloc(GmmTag tag)
    {
        GmmBuffer buffer = context.Alloc(Size, new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag, Dedicated = true });
        buffer.Fill(7);
        return buffer;
    }

    private void Log()
    {
        List<string> heard = new List<string>();
        GmmContextOptions options = CallsTest.Options();
        options.Logger = (level, message) => Add(heard, level + " " + message);
        using (GmmContext leaking = new GmmContext(options))
        {
            leaking.Allocate(12345, new GmmAllocOptions { Name = "left over" });
        }
        Check(heard.Exists(line => line.StartsWith("Info ")), "a line of level Info");
        Check(heard.Exists(line => line.StartsWith("Warning ") && line.Contains("\"left over\"")),
            "a report of the leak among " + string.Join("; ", heard));
    }

    private void OutOfMemory()
    {
        context.SetLimit(null, 64L << 20);
        List<GmmOomInfo> asked = new List<GmmOomInfo>();
        context.SetOomHandler(info =>
        {
            asked.Add(info);
            context.SetLimit(null, GmmContext.NoLimit);
            return true;
        });
        context.Alloc(65L << 20, GmmKind.Vmm).Dispose();
        Same(1, asked.Count, "calls");
        Check(asked[0].Kind == GmmKind.Vmm && asked[0].Attempt == 1 && asked[0].RequestedBytes >= 65L << 20
            && asked[0].Cause == GmmResult.LimitExceeded, "the info: " + asked[0]);
        context.Trim();
        context.SetLimit(null, 64L << 20);
        context.SetOomHandler(info => { throw new FormatException("from the handler"); });
        Same("from the handler", Fails<FormatException>(() => context.Alloc(65L << 20, GmmKind.Vmm)).Message,
            "the exception");
        context.SetOomHandler(null);
        Fails(GmmResult.LimitExceeded, () => context.Alloc(65L << 20, GmmKind.Vmm));
        context.SetLimit(null, GmmContext.NoLimit);
    }

    private void Writer()
    {
        Fails(GmmResult.Io, () => context.Snapshot(piece => false));
        Same("from the writer", Fails<FormatException>(() => context.Snapshot(
            piece => { throw new FormatException("from the writer"); })).Message, "the exception");
    }

    private void Progress()
    {
        GmmTag tag = context.Tag("progress", GmmContents.Host, 0);
        using (GmmBuffer buffer = Alloc(tag))
        {
            List<long> reported = new List<long>();
            tag.Pause(new GmmPauseOptions { Progress = (done, total) => total == Size && Add(reported, done) });
            Same((long)Size, reported[reported.Count - 1], "the last progress");
            Fails(GmmResult.Cancelled, () => tag.Resume(new GmmPauseOptions { Progress = (done, total) => false }));
            tag.Resume();
            Same("from the progress",
                Fails<FormatException>(() => tag.Pause(new GmmPauseOptions { Progress = Refuse })).Message,
                "the exception");
            Same(GmmState.Active, buffer.Query().State, "the state");
        }
    }

    private void Ticket()
    {
        GmmTag tag = context.Tag("ticket", GmmContents.Host, 0);
        using (GmmBuffer buffer = Alloc(tag))
        {
            int here = Thread.CurrentThread.ManagedThreadId;
            List<int> threads = new List<int>();
            GmmProgress progress = (done, total) => Add(threads, Thread.CurrentThread.ManagedThreadId);
            long went;
            using (GmmTicket ticket = tag.PauseAsync(new GmmPauseOptions { Progress = progress }))
            {
                Check(ticket.Wait(Long) && ticket.IsDone, "it ends");
                went = ticket.Result;
                Check(threads.Count > 0 && !threads.Contains(here), "the progress runs on another thread");
                GmmTicketInfo info = ticket.Info();
                Check(info.State == GmmTicketState.Done && info.Result == GmmResult.Ok && info.Bytes == went
                    && info.TotalBytes == Size,
                    "its figures: " + info);
            }
            GmmTicket back = tag.ResumeAsync();
            back.Dispose();
            back.Dispose();
            Same(went, back.Result, "the bytes, asked for after Dispose()");
            Task<long> awaited = AwaitBoth(tag);
            Check(awaited.Wait(Long) && awaited.Result == 2 * went, "the bytes of both that were awaited");
            GmmTicket thrower = tag.PauseAsync(new GmmPauseOptions { Progress = Refuse });
            Fails<FormatException>(() => Ignore(thrower.Result));
            thrower.Dispose();
            Fails<FormatException>(() => tag.PauseAsync(new GmmPauseOptions { Progress = Refuse }).Dispose());
            Fails(GmmResult.InvalidTag, () => context.PauseAsync(context.TagByNumber(3999)));
        }
    }

    private static async Task<long> AwaitBoth(GmmTag tag)
    {
        long went = await tag.PauseAsync().AsTask().ConfigureAwait(false);
        using (GmmTicket back = tag.ResumeAsync(new GmmPauseOptions { Retain = true }))
        {
            return went + await back;
        }
    }

    private void Cancelled()
    {
        GmmTag tag = context.Tag("cancelled", GmmContents.Host, 0);
        using (GmmBuffer buffer = Alloc(tag))
        {
            Gate gate = new Gate();
            GmmTicket ticket = tag.PauseAsync(new GmmPauseOptions { Progress = gate.Report });
            using (ticket)
            {
                Check(gate.Reached.WaitOne(Long), "the progress is reported");
                Check(!ticket.IsDone && !ticket.Wait(TimeSpan.FromMilliseconds(10)), "it runs");
                Same(GmmResult.NotReady, ticket.Info().Result, "the result of a running pause");
                ticket.Cancel();
                gate.Open.Set();
            }
            Fails(GmmResult.Cancelled, () => Ignore(ticket.Result));
            Gate other = new Gate();
            using (CancellationTokenSource source = new CancellationTokenSource())
            using (GmmTicket second = tag.PauseAsync(new GmmPauseOptions { Progress = other.Report }))
            {
                Task<long> task = second.AsTask(source.Token);
                Check(other.Reached.WaitOne(Long), "the progress is reported");
                source.Cancel();
                other.Open.Set();
                Fails<AggregateException>(() => task.Wait(Long));
                Check(task.IsCanceled, "the task is cancelled: " + task.Status);
            }
            Same(GmmState.Active, buffer.Query().State, "the state");
        }
    }

    private void Held()
    {
        GmmTag tag = context.Tag("held", GmmContents.Host, 0);
        using (GmmBuffer buffer = Alloc(tag))
        using (GmmTicket ticket = tag.PauseAsync(new GmmPauseOptions { Hold = true }))
        {
            ticket.WaitHeld();
            Same(GmmState.Active, buffer.Query().State, "the state before the commit");
            ticket.Commit();
            Check(ticket.Result >= Size && buffer.Query().State == GmmState.Paused, "the commit: " + ticket);
            tag.Resume();
            using (GmmTicket undone = tag.PauseAsync(new GmmPauseOptions { Hold = true }))
            {
                undone.WaitHeld();
                undone.Cancel();
                Fails(GmmResult.Cancelled, () => Ignore(undone.Result));
                Fails(GmmResult.Cancelled, undone.Commit);
            }
        }
    }

    private void Watch()
    {
        GmmTag tag = context.Tag("watched", GmmContents.Host, 0);
        List<GmmWatchInfo> heard = new List<GmmWatchInfo>();
        using (GmmBuffer buffer = Alloc(tag))
        {
            GmmWatchOptions range = new GmmWatchOptions
            {
                Address = buffer.Address, Size = Size, Events = GmmWatchEvents.Losing, Order = -1
            };
            using (context.Watch(new GmmWatchOptions { Tag = tag, Name = "cache" }, info => Add(heard, info)))
            using (context.Watch(range, info => Add(heard, info)))
            {
                tag.Pause();
                tag.Resume();
            }
            tag.Pause();
            tag.Resume();
            Same("Prepare Losing Losing Restored",
                string.Join(" ", heard.ConvertAll(info => info.Event.ToString())), "the events");
            Check(heard[1].Address == buffer.Address && heard[1].Size == Size && heard[1].Tag == tag.Number,
                "the values: " + heard[1]);
        }
        Fails<ArgumentNullException>(() => context.Watch(new GmmWatchOptions { Tag = tag }, null));
        GmmScope first = new GmmScope { Device = 0 };
        using (context.Watch(new GmmWatchOptions { BudgetBytes = 8 << 20 }, info => Add(heard, info)))
        {
            context.SetLimit(first, 4 << 20);
            WaitFor("a budget that falls", () => heard[heard.Count - 1].Event == GmmWatchEvents.Budget);
            context.SetLimit(first, GmmContext.NoLimit);
        }
    }

    /// <summary>False and exceptions refuse Prepare.</summary>
    private void Refused()
    {
        GmmTag tag = context.Tag("refused", GmmContents.Host, 0);
        using (GmmBuffer buffer = Alloc(tag))
        {
            using (context.Watch(new GmmWatchOptions { Tag = tag, Name = "says no" }, info => false))
            {
                Check(Fails(GmmResult.Busy, () => tag.Pause()).Message.Contains("says no"), "the name");
            }
            using (GmmWatcher throws = context.Watch(new GmmWatchOptions { Tag = tag },
                       info => throw new FormatException("from the watcher")))
            {
                Fails(GmmResult.Busy, () => tag.Pause());
                Same("from the watcher", throws.Thrown.Message, "the exception of the handler");
            }
        }
    }

    /// <summary>Calls that wait for an operation are Busy in its handler, and the objects stay usable.</summary>
    private void ClosedInside()
    {
        GmmTag tag = context.Tag("closed inside", GmmContents.Host, 0);
        GmmTag elsewhere = context.Tag("ticket inside", GmmContents.Host, 0);
        Gate gate = new Gate();
        int refused = 0;
        using (GmmBuffer buffer = Alloc(tag))
        using (GmmBuffer paused = Alloc(elsewhere))
        using (GmmHeap heap = context.Heap(new GmmHeapOptions { Kind = GmmKind.Host }))
        using (GmmTicket ticket = elsewhere.PauseAsync(new GmmPauseOptions { Progress = gate.Report }))
        {
            Check(gate.Reached.WaitOne(Long), "the progress is reported");
            GmmWatcher self = null;
            self = context.Watch(new GmmWatchOptions { Tag = tag, Events = GmmWatchEvents.Losing }, info =>
            {
                foreach (Action step in new Action[] { heap.Dispose, ticket.Dispose, () => Ignore(ticket.Result),
                             context.Dispose, self.Dispose, () => context.Alloc(100), () => tag.Pause() })
                {
                    Fails(GmmResult.Busy, step);
                    refused++;
                }
                return !ticket.IsDone; // a look is allowed
            });
            tag.Pause();
            tag.Resume();
            self.Dispose();
            Same(7, refused, "calls that are refused inside; threw: " + self.Thrown);
            heap.Alloc(Size).Dispose();
            gate.Open.Set();
            Check(ticket.Result >= Size, "the ticket's bytes");
            elsewhere.Resume();
        }
    }

    /// <summary>The finalizer ends a watcher that nobody holds, while pauses call it.</summary>
    private void Forget()
    {
        GmmTag tag = context.Tag("forgotten watchers", GmmContents.Drop, 0);
        long calls = 0;
        using (GmmBuffer buffer = Alloc(tag))
        {
            Elsewhere(() =>
            {
                for (int i = 0; i < 10; i++)
                {
                    context.Watch(new GmmWatchOptions { Tag = tag, Events = GmmWatchEvents.Prepare },
                        info => Interlocked.Increment(ref calls) > 0);
                }
            });
            WaitFor("the finalizer to end 10 watchers", () =>
            {
                long reported = Interlocked.Read(ref calls);
                tag.Pause();
                tag.Resume();
                return Interlocked.Read(ref calls) == reported;
            });
        }
    }
}
