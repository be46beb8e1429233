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
/// Leases: those of one process, and processes that share a device too small for two of them.
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
        Alone(tap, "the turns of one process", test => test.Turns());
        Alone(tap, "bad arguments", test => test.BadArguments());
        Alone(tap, "a tag is one lease's", test => test.OneLeaseATag());
        Alone(tap, "requests in the background", test => test.Background());
        Alone(tap, "a token ends a request", test => test.TokenEndsRequest());
        Alone(tap, "Dispose in the middle of a request", test => test.DisposeInRequest());
        Alone(tap, "who is asked", test => test.Asked());
        Alone(tap, "a handler cancels a request", test => test.CancellingHandler());
        Alone(tap, "a handler that throws", test => test.ThrowingHandler());
        Alone(tap, "inside a watcher", test => test.InsideWatcher());
        Alone(tap, "forgotten leases and tickets", test => test.Forgotten());
        Alone(tap, "disposed of by one thread while others use it", test => test.DisposeUnderUse());
        return tap.Finish();
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

    private static GmmLeaseOptions Options(string name)
    {
        return new GmmLeaseOptions { Name = name, Arbiter = "one", ResidencyMilliseconds = 1 };
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

    private GmmLeaseStatus Status()
    {
        return context.LeaseStatus("one", Long);
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
        Same("GmmLease { second, closed }", second.ToString(), "a closed lease");
        foreach (Action step in new Action[] { () => second.Request(), () => second.Release(), () => second.Info(),
                                               () => second.Offer(Tag("first")) })
        {
            Fails<ObjectDisposedException>(step);
        }
    }

    /// <summary>A lease reports the end of a turn on its own thread, later.</summary>
    private GmmLeaseStatus WaitUntilIdle()
    {
        WaitFor("idle leases", () =>
        {
            foreach (GmmLeaseMember member in Status().Members)
            {
                if (member.State != GmmLeaseState.Idle)
                {
                    return false;
                }
            }
            return true;
        });
        return Status();
    }

    private void CheckStatus()
    {
        GmmLeaseStatus status = WaitUntilIdle();
        List<string> names = new List<string>();
        foreach (GmmLeaseMember member in status.Members)
        {
            names.Add(member.Name);
            Same(Me, member.Process, "its process");
            Same(1, member.Devices.Count, "its devices");
            GmmLeaseDevice device = member.Devices[0];
            Same(36, device.Uuid.Length, "letters of " + device.Uuid);
            if (member.Name == "second") // who told last
            {
                Check(device.HeldBytes >= Part && device.FreeBytes <= CardMiB * MiB - Part, "" + device);
                Same(Part, device.OfferedBytes, "what " + member + " offers");
            }
            Check(device.FloorBytes + device.WantedBytes + device.GrantedBytes == 0, "" + device);
        }
        names.Sort();
        Same("first second", string.Join(" ", names), "members");
        Same(Me, status.Process, "the arbiter's process");
        Check(status.Arbiter != 0 && status.ToString().Contains("Name = first"), "" + status);
        Stopwatch past = Stopwatch.StartNew();
        Fails(GmmResult.NotReady, "NOT_READY", () => context.LeaseStatus("nobody", TimeSpan.FromMilliseconds(200)));
        Check(past.ElapsedMilliseconds >= 199, "it waits for an arbiter");
        Fails(GmmResult.InvalidValue, "INVALID_VALUE", () => context.LeaseStatus("a b"));
        Fails<ArgumentOutOfRangeException>(() => context.LeaseStatus("one", TimeSpan.FromSeconds(-1)));
    }

    private void BadArguments()
    {
        foreach (string wrong in new[] { "", "a b", ".a", new string('x', 64) })
        {
            Fails(GmmResult.InvalidValue, "INVALID_VALUE", () => context.Lease(Options(wrong)));
            Fails(GmmResult.InvalidValue, "INVALID_VALUE",
                () => context.Lease(new GmmLeaseOptions { Name = "a", Arbiter = wrong }));
        }
        Fails(GmmResult.NullArgument, "NULL_ARGUMENT", () => context.Lease(new GmmLeaseOptions()));
        Fails(GmmResult.InvalidValue, "INVALID_VALUE",
            () => context.Lease(new GmmLeaseOptions { Name = "a", ResidencyMilliseconds = 3600001 }));
        Fails(GmmResult.InvalidTag, "INVALID_TAG", () => context.Lease(Options("a", context.TagByNumber(3999))));
        GmmTag tag = Tag("weights");
        foreach (long cost in new[] { -1L, 0xffffffffL })
        {
            GmmLeaseOptions wrong = Options("a");
            wrong.Offer[tag] = cost;
            Fails<ArgumentOutOfRangeException>(() => context.Lease(wrong));
        }
        Fails<ArgumentOutOfRangeException>(() => context.Lease(new GmmLeaseOptions { Name = "a", Floor = -1 }));
        Fails<ArgumentOutOfRangeException>(
            () => context.Lease(new GmmLeaseOptions { Name = "a", ResidencyMilliseconds = -1 }));
        GmmLeaseOptions options = Options("a", tag);
        options.Floor = 1;
        options.Priority = -7;
        Check(options.ToString().Contains("\"weights\"") && options.ToString().Contains("Priority = -7"), "" + options);
        GmmLease lease = Lease(options);
        Fails<ArgumentOutOfRangeException>(() => lease.Offer(tag, -1));
        Fails<ArgumentOutOfRangeException>(() => lease.Request(Amount(-1)));
        Fails<ArgumentOutOfRangeException>(() => lease.Request(Within(-1)));
        Fails(GmmResult.InvalidDevice, "INVALID_DEVICE",
            () => lease.Request(new GmmLeaseRequest { Amounts = { [9] = 1 } }));
        Fails(GmmResult.InvalidValue, "INVALID_VALUE", () => lease.Request(Within(86400001)));
        GmmException denied = Fails(GmmResult.OutOfMemory, "OUT_OF_MEMORY", () => lease.Request(Amount(long.MaxValue)));
        Check(denied.Message.Contains("\"a\""), "the lease in: " + denied);
        Same(GmmLeaseState.Idle, lease.Info().State, "the state");
        lease.Dispose();
        GmmTag other = Tag("other");
        using (Lease(Options("b", tag)))
        {
            GmmLeaseOptions both = Options("c", other);
            both.Offer[tag] = 1;
            Fails(GmmResult.Busy, "BUSY", () => context.Lease(both));
        }
        Lease(Options("d", other)); // the tags of a lease that was not made are free again
    }

    private void OneLeaseATag()
    {
        GmmLease first = Party("first", PartMiB);
        GmmTag tag = context.FindTag("first");
        GmmLease second = Lease(Options("second"));
        Stopwatch past = Stopwatch.StartNew();
        string message = Fails(GmmResult.Busy, "BUSY", () => second.Offer(tag)).Message;
        Check(message.Contains("another lease"), message);
        Check(past.Elapsed.TotalSeconds < 30, "it does not wait for the end of a pause");
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
            WaitFor("an arbiter that has forgotten them", () => Status().Members.Count == 1);
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

    private void CancellingHandler()
    {
        using (CancellationTokenSource source = new CancellationTokenSource())
        {
            GmmLeaseOptions options = Options("first");
            options.Asked = (lease, ask) => source.Cancel();
            GmmLease first = Party(options, PartMiB);
            GmmLease second = Party("second", PartMiB);
            first.Request();
            Fails<OperationCanceledException>(() => second.Request(null, source.Token));
            Same(null, first.Thrown, "what the handler threw");
            Same(GmmLeaseState.InUse, first.Info().State, "the state");
        }
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

    private void InsideWatcher()
    {
        GmmLease first = Party("first", PartMiB);
        GmmLease second = Party("second", PartMiB);
        GmmTag tag = context.FindTag("second");
        int refused = 0;
        GmmWatchOptions losing = new GmmWatchOptions { Tag = tag, Events = GmmWatchEvents.Losing };
        using (GmmWatcher watcher = context.Watch(losing, info =>
        {
            Fails(GmmResult.Busy, "BUSY", second.Dispose);
            Fails(GmmResult.Busy, "BUSY", () => second.Request());
            Fails(GmmResult.Busy, "BUSY", () => second.Offer(tag));
            refused += 3;
            return true;
        }))
        {
            Same(Part, first.Request(), "bytes that came back");
            Same(null, watcher.Thrown, "what the handler threw");
        }
        Same(3, refused, "calls that are refused inside");
        first.Release();
        second.Request();
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
            WaitFor("10 more members", () => Status().Members.Count == 12);
            Check(waiting.TrueForAll(each => !each.IsDone), "they wait");
        });
        // A conservative look at stacks may keep one or two.
        WaitFor("the finalizer to end nearly all of 10 leases", () => Status().Members.Count <= 4);
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
}
