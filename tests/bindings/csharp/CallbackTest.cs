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
        callbacks.Paused(tap, "progress", callbacks.Progress);
        callbacks.Paused(tap, "a ticket is awaited", callbacks.Ticket);
        callbacks.Paused(tap, "a cancelled ticket", callbacks.Cancelled);
        callbacks.Paused(tap, "a held pause", callbacks.Held);
        callbacks.Paused(tap, "watchers", callbacks.Watch);
        callbacks.Paused(tap, "a watcher refuses", callbacks.Refused);
        callbacks.Paused(tap, "closed inside a watcher", callbacks.ClosedInside);
        return tap.Finish();
    }

    /// <summary>A test with a tag of its name and a block of that tag.</summary>
    private void Paused(Tap tap, string name, Action<GmmTag, GmmBuffer> step)
    {
        tap.Test(name, () =>
        {
            GmmTag tag = context.Tag(name, GmmContents.Host, 0);
            using (GmmBuffer buffer = Alloc(tag))
            {
                step(tag, buffer);
            }
        });
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

    private static bool Refuse()
    {
        throw new FormatException("from the callback");
    }

    private static void Throws(Action step) =>
        Same("from the callback", Fails<FormatException>(step).Message, "the exception");

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
        context.SetOomHandler(info => Refuse());
        Throws(() => context.Alloc(65L << 20, GmmKind.Vmm));
        context.SetOomHandler(null);
        Fails(GmmResult.LimitExceeded, () => context.Alloc(65L << 20, GmmKind.Vmm));
        context.SetLimit(null, GmmContext.NoLimit);
        CollectedFirst();
    }

    /// <summary>The program hears it once, and only when garbage cannot help.</summary>
    private void CollectedFirst()
    {
        GmmTag tag = context.Tag("short");
        GmmAllocOptions options = new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag };
        List<long> attempts = new List<long>();
        context.SetLimit(new GmmScope { Tag = tag }, 16 << 20);
        context.SetOomHandler(info => Add(attempts, (long)info.Attempt) && false);
        Forget(64, () => context.Alloc(1 << 20, options));
        Same(0, attempts.Count, "calls for memory that the program forgot");
        Fails(GmmResult.LimitExceeded, () => context.Alloc(32 << 20, options));
        Same("1", string.Join(" ", attempts), "the attempts of a request that is too large");
        context.SetOomHandler(null);
    }

    private void Writer()
    {
        Fails(GmmResult.Io, () => context.Snapshot(piece => false));
        Throws(() => context.Snapshot(piece => Refuse()));
    }

    private void Progress(GmmTag tag, GmmBuffer buffer)
    {
        List<long> reported = new List<long>();
        tag.Pause(new GmmPauseOptions { Progress = (done, total) => total == Size && Add(reported, done) });
        Same((long)Size, reported[reported.Count - 1], "the last progress");
        Fails(GmmResult.Cancelled, () => tag.Resume(new GmmPauseOptions { Progress = (done, total) => false }));
        tag.Resume();
        Throws(() => tag.Pause(new GmmPauseOptions { Progress = (done, total) => Refuse() }));
    }

    private void Ticket(GmmTag tag, GmmBuffer buffer)
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
                && info.TotalBytes == Size, "its figures: " + info);
        }
        GmmTicket back = tag.ResumeAsync();
        back.Dispose();
        back.Dispose();
        Same(went, back.Result, "the bytes, asked for after Dispose()");
        Task<long> awaited = AwaitBoth(tag);
        Check(awaited.Wait(Long) && awaited.Result == 2 * went, "the bytes of both that were awaited");
        GmmPauseOptions thrower = new GmmPauseOptions { Progress = (done, total) => Refuse() };
        GmmTicket thrown = tag.PauseAsync(thrower);
        Throws(() => Ignore(thrown.Result));
        thrown.Dispose();
        Throws(() => tag.PauseAsync(thrower).Dispose()); // nobody has asked for its end
    }

    private static async Task<long> AwaitBoth(GmmTag tag)
    {
        long went = await tag.PauseAsync().AsTask().ConfigureAwait(false);
        using (GmmTicket back = tag.ResumeAsync(new GmmPauseOptions { Retain = true }))
        {
            return went + await back;
        }
    }

    private void Cancelled(GmmTag tag, GmmBuffer buffer)
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
    }

    private void Held(GmmTag tag, GmmBuffer buffer)
    {
        using (GmmTicket ticket = tag.PauseAsync(new GmmPauseOptions { Hold = true }))
        {
            ticket.WaitHeld();
            Same(GmmState.Active, buffer.Query().State, "the state before the commit");
            ticket.Commit();
            Check(ticket.Result >= Size && buffer.Query().State == GmmState.Paused, "the commit: " + ticket);
        }
        tag.Resume();
        using (GmmTicket undone = tag.PauseAsync(new GmmPauseOptions { Hold = true }))
        {
            undone.WaitHeld();
            undone.Cancel();
            EachFails(GmmResult.Cancelled, () => Ignore(undone.Result), undone.Commit);
        }
    }

    private void Watch(GmmTag tag, GmmBuffer buffer)
    {
        List<GmmWatchInfo> heard = new List<GmmWatchInfo>();
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
        tag.Pause(); // nobody watches
        tag.Resume();
        Same("Prepare Losing Losing Restored",
            string.Join(" ", heard.ConvertAll(info => info.Event.ToString())), "the events");
        Check(heard[1].Address == buffer.Address && heard[1].Size == Size && heard[1].Tag == tag.Number,
            "the values: " + heard[1]);
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
    private void Refused(GmmTag tag, GmmBuffer buffer)
    {
        using (context.Watch(new GmmWatchOptions { Tag = tag, Name = "says no" }, info => false))
        {
            Check(Fails(GmmResult.Busy, () => tag.Pause()).Message.Contains("says no"), "the name");
        }
        using (GmmWatcher thrower = context.Watch(new GmmWatchOptions { Tag = tag }, info => Refuse()))
        {
            Fails(GmmResult.Busy, () => tag.Pause());
            Same("from the callback", thrower.Thrown.Message, "the exception of the handler");
        }
    }

    /// <summary>Calls that wait for an operation are Busy in its handler, and the objects stay usable.</summary>
    private void ClosedInside(GmmTag tag, GmmBuffer buffer)
    {
        GmmTag elsewhere = context.Tag("ticket inside", GmmContents.Host, 0);
        Gate gate = new Gate();
        using (GmmBuffer paused = Alloc(elsewhere))
        using (GmmHeap heap = context.Heap(new GmmHeapOptions { Kind = GmmKind.Host }))
        using (GmmTicket ticket = elsewhere.PauseAsync(new GmmPauseOptions { Progress = gate.Report }))
        {
            Check(gate.Reached.WaitOne(Long), "the progress is reported");
            GmmWatcher self = null;
            List<bool> looks = new List<bool>();
            self = context.Watch(new GmmWatchOptions { Tag = tag, Events = GmmWatchEvents.Losing }, info =>
            {
                EachFails(GmmResult.Busy, heap.Dispose, ticket.Dispose, () => Ignore(ticket.Result), context.Dispose,
                    self.Dispose, () => context.Alloc(100), () => tag.Pause());
                return Add(looks, ticket.IsDone);
            });
            tag.Pause();
            tag.Resume();
            self.Dispose();
            Check(looks.Count == 1 && !looks[0], "a look, after calls that are refused inside; threw: " + self.Thrown);
            heap.Alloc(Size).Dispose();
            gate.Open.Set();
            Check(ticket.Result >= Size, "the ticket's bytes");
            elsewhere.Resume();
        }
    }
}
