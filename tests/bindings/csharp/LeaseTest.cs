/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Threading;
using System.Threading.Tasks;
using Gmm;
using static Tap;

/// <summary>
/// Leases of one process. tests/api/conformance_lease.c and lease_processes.c have their decisions.
/// </summary>
internal sealed class LeaseTest
{
    private const int MiB = 1 << 20;
    private const int CardMiB = 64;
    private const int PartMiB = 40; // two do not fit
    private const long Part = (long)PartMiB * MiB;
    private static readonly TimeSpan Long = TimeSpan.FromMilliseconds(Patience);
    private static readonly int Me = Process.GetCurrentProcess().Id;

    private readonly GmmContext context;
    private readonly Stack<IDisposable> open = new Stack<IDisposable>();

    private LeaseTest(string folder)
    {
        context = new GmmContext(new GmmContextOptions
        {
            Backend = GmmBackend.Host, HostDevices = 1, HostMemory = (long)CardMiB * MiB, NoLeakReport = true
        });
        context.ConfigureIpc(new GmmIpcOptions { Directory = folder });
    }

    internal static int Run()
    {
        Tap tap = new Tap();
        OneProcess(tap);
        return tap.Finish();
    }

    private static void OneProcess(Tap tap)
    {
        Alone(tap, "the turns of one process", test => test.Turns());
        Alone(tap, "a tag is one lease's", test => test.OneLeaseATag());
        Alone(tap, "requests in the background", test => test.Background());
        Alone(tap, "a token ends a request", test => test.TokenEndsRequest());
        Alone(tap, "Dispose in the middle of a request", test => test.DisposeInRequest());
        Alone(tap, "who is asked", test => test.Asked());
        Alone(tap, "a handler that throws", test => test.ThrowingHandler());
        Alone(tap, "forgotten leases and tickets", test => test.Forgotten());
        Alone(tap, "disposed of by one thread while others use it", test => test.DisposeUnderUse());
    }

    /// <summary>A folder of this user alone, as the library wants it.</summary>
    private static string Folder()
    {
        string folder = Path.Combine(Path.GetTempPath(), "gmm-lease-" + Guid.NewGuid());
        Process.Start("mkdir", "-m 700 " + folder).WaitForExit();
        return folder;
    }

    private static void Alone(Tap tap, string name, Action<LeaseTest> step)
    {
        tap.Test(name, () =>
        {
            string folder = Folder();
            LeaseTest test = new LeaseTest(folder);
            try
            {
                step(test);
            }
            finally
            {
                while (test.open.Count != 0)
                {
                    test.open.Pop().Dispose();
                }
                test.context.Dispose();
                Directory.Delete(folder, true);
            }
        });
    }

    // One process: leases over tags of one context.

    private static GmmLeaseOptions Options(string name)
    {
        return new GmmLeaseOptions { Name = name, ResidencyMilliseconds = 1 };
    }

    private static GmmLeaseOptions Options(string name, GmmTag tag)
    {
        GmmLeaseOptions options = Options(name);
        options.Offer[tag] = 1;
        return options;
    }

    private GmmLease Lease(GmmLeaseOptions options)
    {
        GmmLease made = context.Lease(options);
        open.Push(made);
        return made;
    }

    private GmmTag Tag(string name)
    {
        return context.Tag(name, GmmContents.Host, 0);
    }

    private static GmmLeaseRequest Amount(long bytes)
    {
        return new GmmLeaseRequest { Amounts = { [0] = bytes } };
    }

    private static GmmLeaseRequest Within(long milliseconds)
    {
        return new GmmLeaseRequest { TimeoutMilliseconds = milliseconds };
    }

    private void Alloc(GmmTag tag, int mib)
    {
        open.Push(context.Alloc((long)mib * MiB, new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag }));
    }

    /// <summary>A lease over a tag of its name, with a block of so much, idle.</summary>
    private GmmLease Party(string name, int mib)
    {
        return Party(Options(name), mib);
    }

    private GmmLease Party(GmmLeaseOptions options, int mib)
    {
        GmmTag tag = Tag(options.Name);
        options.Offer[tag] = 1;
        GmmLease made = Lease(options);
        using (GmmLeaseTurn turn = made.Turn(Amount((long)mib * MiB)))
        {
            Same(0L, turn.Bytes, "bytes that came back");
            Alloc(tag, mib);
        }
        return made;
    }

    private void Turns()
    {
        GmmLease first = Party("first", PartMiB);
        GmmLease second = Party("second", PartMiB);
        Same("GmmLease { second, Idle, 40 MiB active, 0 bytes paused }", second.ToString(), "a lease");
        GmmLeaseTurn turn = first.Turn();
        Same(Part, turn.Bytes, "bytes that came back");
        Same(Part, second.Info().PausedBytes, "bytes that were taken");
        Same(GmmLeaseState.InUse, first.Info().State, "the state");
        Same(2L, first.Info().Grants, "grants");
        Same(1L, second.Info().Evictions, "pauses for others");
        Check(second.Info().EvictedBytes == Part && second.Info().ToString().Contains("State = Idle"), "the info");
        Fails(GmmResult.Busy, "BUSY", () => first.Request());
        turn.Dispose();
        Same(GmmLeaseState.Idle, first.Info().State, "the state");
        Check(!first.Release(), "a release of what is not in use");
        Same(0L, first.Request(), "bytes that came back");
        turn.Dispose(); // not that of the request
        Same(GmmLeaseState.InUse, first.Info().State, "the state");
        Check(first.Release(), "a release");
        Fails<FormatException>(() =>
        {
            using (second.Turn())
            {
                throw new FormatException("in the turn");
            }
        });
        Same(GmmLeaseState.Idle, second.Info().State, "the state");
        CheckStatus();
        using (second.Turn())
        {
            second.Dispose();
            second.Dispose();
        } // no end of a turn
        Same("GmmLease { closed }", second.ToString(), "a closed lease");
        foreach (Action step in new Action[] { () => second.Request(), () => second.Release(), () => second.Info(),
                                               () => second.Offer(Tag("first")) })
        {
            Fails<ObjectDisposedException>(step);
        }
    }

    /// <summary>A lease reports the end of a turn on its own thread, later.</summary>
    private void CheckStatus()
    {
        TimeSpan patience = TimeSpan.FromMilliseconds(Patience);
        WaitFor("idle leases", () =>
        {
            foreach (GmmLeaseEntryInfo each in context.Leases(patience))
            {
                if (each.State != GmmLeaseState.Idle)
                {
                    return false;
                }
            }
            return true;
        });
        List<string> names = new List<string>();
        foreach (GmmLeaseEntryInfo entry in context.Leases(patience))
        {
            names.Add(entry.Name);
            Same(Me, entry.Process, "its process");
            Same(16, entry.Uuid.Length, "bytes of its UUID");
            Check(entry.Server != 0 && entry.ServerProcess > 0, "" + entry);
            if (entry.Name == "second") // the last one to report
            {
                Check(entry.HeldBytes >= Part && entry.FreeBytes <= CardMiB * MiB - Part, "" + entry);
                Same(Part, entry.OfferedBytes, "what " + entry + " offers");
            }
            Check(entry.FloorBytes + entry.WantedBytes + entry.GrantedBytes == 0, "" + entry);
        }
        names.Sort();
        Same("first second", string.Join(" ", names), "leases");
    }

    private void OneLeaseATag()
    {
        GmmLease first = Party("first", PartMiB);
        GmmTag tag = context.FindTag("first");
        GmmLease second = Lease(Options("second"));
        Fails(GmmResult.Offered, "OFFERED", () => second.Offer(tag));
        first.Withdraw(tag);
        Same(0L, first.Info().ActiveBytes, "bytes of what is not offered");
        second.Offer(tag);
        Same(Part, second.Info().ActiveBytes, "bytes of what is offered");
    }

    private void Background()
    {
        GmmLease first = Party("first", PartMiB);
        GmmLease second = Party("second", PartMiB);
        using (GmmTicket granted = first.RequestAsync())
        {
            Same(Part, granted.Result, "bytes that came back");
            Check(granted.IsDone && granted.Info().Result == GmmResult.Ok, "" + granted);
        }
        using (GmmTicket late = second.RequestAsync(Within(1000)))
        {
            Check(!late.Wait(TimeSpan.FromMilliseconds(1)), "the time of the question is over first");
            WaitFor("its thread", () => second.Info().State == GmmLeaseState.Waiting);
            Fails(GmmResult.Busy, "BUSY", () => Ignore(second.RequestAsync().Result));
            GmmException error = Fails(GmmResult.NotReady, "NOT_READY", () => Ignore(late.Result)); // of the request
            Check(error.Message.Contains("first"), "the holder in: " + error);
            Check(late.Wait(TimeSpan.Zero), "it has ended");
        }
        Check(Fails(GmmResult.NotReady, "NOT_READY", () => second.Request(Within(50))).Message.Contains("first"),
            "the holder");
        using (GmmTicket cancelled = second.RequestAsync())
        {
            cancelled.Cancel();
            Fails(GmmResult.Cancelled, "CANCELLED", () => Ignore(cancelled.Result));
        }
        Same(GmmLeaseState.Idle, second.Info().State, "the state");
        Task<long> task = second.RequestAsync().AsTask();
        Check(first.Release(), "a release");
        Check(task.Wait(Long), "the task ends");
        Same(Part, task.Result, "bytes that came back");
    }

    private static void Ignore(long bytes)
    {
    }

    private void TokenEndsRequest()
    {
        GmmLease first = Party("first", PartMiB);
        GmmLease second = Party("second", PartMiB);
        using (first.Turn())
        using (CancellationTokenSource source = new CancellationTokenSource())
        {
            Task cancelling = Task.Run(() =>
            {
                WaitFor("the request", () => second.Info().State == GmmLeaseState.Waiting);
                source.Cancel();
            });
            OperationCanceledException error =
                Fails<OperationCanceledException>(() => second.Request(null, source.Token));
            Same(GmmResult.Cancelled, ((GmmException)error.InnerException).Result, "what ended it");
            Same(GmmLeaseState.Idle, second.Info().State, "the state");
            Check(cancelling.Wait(Long), "the other thread ends");
            Fails<OperationCanceledException>(() => second.Turn(null, source.Token));
            Same(GmmLeaseState.Idle, second.Info().State, "the state");
        }
    }

    private void DisposeInRequest()
    {
        GmmLease first = Party("first", PartMiB);
        GmmLease second = Party("second", PartMiB);
        GmmLease third = Party("third", 1);
        using (first.Turn())
        {
            Task<GmmException> blocked =
                Task.Run(() => Fails(GmmResult.Cancelled, "CANCELLED", () => second.Request()));
            WaitFor("the request", () => second.Info().State == GmmLeaseState.Waiting);
            GmmTicket ticket = third.RequestAsync(Amount(Part));
            third.Dispose();
            Check(ticket.IsDone, "a ticket outlives its lease");
            Fails(GmmResult.Cancelled, "CANCELLED", () => Ignore(ticket.Result));
            ticket.Dispose();
            second.Dispose();
            Check(blocked.Wait(Long), "the request ends");
            WaitFor("a server that has forgotten them", () => context.Leases(Long).Count == 1);
        }
    }

    private void Asked()
    {
        List<GmmLeaseAsk> heard = new List<GmmLeaseAsk>();
        int refused = 0;
        TaskCompletionSource<GmmTicket> waiting = new TaskCompletionSource<GmmTicket>();
        GmmLeaseOptions options = Options("first");
        options.Asked = (lease, ask) =>
        {
            GmmTicket ticket = waiting.Task.Result;
            foreach (Action step in new Action[] { () => lease.Request(), () => lease.RequestAsync(), lease.Dispose,
                                                   () => Ignore(ticket.Result), () => ticket.Wait(TimeSpan.Zero),
                                                   ticket.Dispose })
            {
                Fails(GmmResult.Busy, "BUSY", step);
                refused++;
            }
            Same(GmmLeaseState.InUse, lease.Info().State, "the state");
            heard.Add(ask);
            Check(lease.Release(), "a release");
        };
        GmmLease first = Party(options, PartMiB);
        GmmLeaseOptions above = Options("second");
        above.Priority = 5;
        GmmLease second = Party(above, PartMiB);
        Same(Part, first.Request(), "bytes that came back");
        using (GmmTicket ticket = second.RequestAsync(Within(5000)))
        {
            waiting.SetResult(ticket);
            Same(Part, ticket.Result, "bytes that came back, after: " + first.Thrown);
        }
        Same(1, heard.Count, "calls");
        Same(6, refused, "calls that are refused inside");
        Same("second", heard[0].Name, "who waits");
        Same(5, heard[0].Priority, "its priority");
        Same(Part, heard[0].Bytes, "what it wants");
        Same(Me, heard[0].Process, "its process");
        Check(heard[0].WaitingMilliseconds >= 0 && heard[0].ToString().Contains("Name = second"), "" + heard[0]);
        Same(GmmLeaseState.Idle, first.Info().State, "the state");
        Same(1L, first.Info().Asked, "calls, as the lease counts them");
        Same(null, first.Thrown, "what the handler threw");
    }

    private void ThrowingHandler()
    {
        int calls = 0;
        GmmLeaseOptions options = Options("first");
        options.Asked = (lease, ask) =>
        {
            if (++calls == 1)
            {
                throw new FormatException("from the handler");
            }
            lease.Release();
        };
        GmmLease first = Party(options, PartMiB);
        GmmLease second = Party("second", PartMiB);
        first.Request();
        Same(Part, second.Request(), "bytes that came back"); // it is asked again after a second
        Same(2, calls, "calls");
        Same("from the handler", first.Thrown.Message, "what the handler threw");
    }

    private void Forgotten()
    {
        GmmLease first = Party("first", PartMiB);
        GmmLease second = Party("second", 1);
        first.Request();
        Elsewhere(() =>
        {
            List<GmmTicket> waiting = new List<GmmTicket>();
            for (int i = 0; i < 10; i++)
            {
                GmmLeaseOptions options = Options("forgotten");
                options.Asked = (lease, ask) => { };
                waiting.Add(context.Lease(options).RequestAsync(Amount(Part)));
            }
            WaitFor("10 more members", () => context.Leases(Long).Count == 12);
            Check(waiting.TrueForAll(each => !each.IsDone), "they wait");
        });
        // A conservative look at stacks may keep one or two.
        WaitFor("the finalizer to end nearly all of 10 leases", () => context.Leases(Long).Count <= 4);
        Elsewhere(() =>
        {
            GmmTicket ticket = second.RequestAsync(Amount(Part));
            WaitFor("its thread", () => second.Info().State == GmmLeaseState.Waiting);
            Check(!ticket.IsDone, "it waits");
        });
        WaitFor("the finalizer to end a request", () => second.Info().State == GmmLeaseState.Idle);
    }

    /// <summary>Also by its handler.</summary>
    private void DisposeUnderUse()
    {
        for (int round = 0; round < 8; round++)
        {
            using (ManualResetEvent inside = new ManualResetEvent(false))
            {
                GmmLeaseOptions options = Options("holder");
                options.Asked = (lease, ask) =>
                {
                    inside.Set();
                    while (true)
                    {
                        lease.Info();
                    }
                };
                GmmLease holder = Lease(options);
                holder.Request(Amount(Part));
                GmmLease waiter = Lease(Options("waiter"));
                GmmTicket waiting = waiter.RequestAsync(Amount(Part));
                Check(inside.WaitOne(Long), "the handler is called");
                Task<ObjectDisposedException> user = Task.Run(() => Fails<ObjectDisposedException>(() =>
                {
                    while (true)
                    {
                        holder.Info();
                    }
                }));
                holder.Dispose();
                Same(0L, waiting.Result, "what the waiter gets from the closed one");
                waiter.Dispose();
                Check(user.Wait(Long), "use after Dispose");
                Same(null, holder.Thrown, "what the handler threw");
            }
        }
    }

    // Processes.
}
