/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Threading;
using System.Threading.Tasks;
using Gmm;
using static Tap;

/// <summary>Leases as C# has them: turns, tickets, tokens, handlers and finalizers. tests/api has their decisions.
/// </summary>
internal sealed class LeaseTest
{
    private const long Card = 64L << 20;
    private const long Part = 40L << 20; // two do not fit
    private static readonly TimeSpan Long = TimeSpan.FromMilliseconds(Patience);
    private static readonly int Me = Process.GetCurrentProcess().Id;

    private readonly List<IDisposable> open = new List<IDisposable>();
    private readonly GmmContext context = new GmmContext(new GmmContextOptions
    {
        Backend = GmmBackend.Host, HostDevices = 1, HostMemory = Card, NoLeakReport = true
    });

    internal static int Run()
    {
        Tap tap = new Tap();
        Alone(tap, "turns and offers", test => test.Turns());
        Alone(tap, "a token ends a request", test => test.TokenEndsRequest());
        Alone(tap, "a handler that throws, then refuses calls and releases", test => test.Asked());
        Alone(tap, "forgotten leases and tickets", test => test.Forgotten());
        Alone(tap, "disposed of under a request, a user and a handler", test => test.DisposeUnderUse());
        return tap.Finish();
    }

    private static void Alone(Tap tap, string name, Action<LeaseTest> step)
    {
        tap.Test(name, () =>
        {
            // of this user alone, as the library wants it
            string folder = Path.Combine(Path.GetTempPath(), "gmm-lease-" + Guid.NewGuid());
            Process.Start("mkdir", "-m 700 " + folder).WaitForExit();
            LeaseTest test = new LeaseTest();
            try
            {
                test.context.ConfigureIpc(new GmmIpcOptions { Directory = folder });
                step(test);
            }
            finally
            {
                test.open.Reverse();
                test.open.ForEach(each => each.Dispose());
                test.context.Dispose();
                Directory.Delete(folder, true);
            }
        });
    }

    private GmmLease Lease(string name, GmmLeaseHandler asked = null, GmmTag tag = null, int priority = 0)
    {
        GmmLeaseOptions options = new GmmLeaseOptions
        {
            Name = name, ResidencyMilliseconds = 1, Asked = asked, Priority = priority
        };
        if (tag != null)
        {
            options.Offer[tag] = 1;
        }
        GmmLease made = context.Lease(options);
        open.Add(made);
        return made;
    }

    private static GmmLeaseRequest Amount(long bytes) => new GmmLeaseRequest { Amounts = { [0] = bytes } };

    /// <summary>A lease over a tag of its name, with a block of 40 MiB, idle.</summary>
    private GmmLease Party(string name, GmmLeaseHandler asked = null, int priority = 0)
    {
        GmmTag tag = context.Tag(name, GmmContents.Host, 0);
        GmmLease made = Lease(name, asked, tag, priority);
        using (GmmLeaseTurn turn = made.Turn(Amount(Part)))
        {
            Same(0L, turn.Bytes, "bytes that came back");
            open.Add(context.Alloc(Part, new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag }));
        }
        return made;
    }

    private void Turns()
    {
        GmmLease first = Party("first");
        GmmLease second = Party("second");
        Same("GmmLease { second, Idle, 40 MiB active, 0 bytes paused }", second.ToString(), "a lease");
        using (GmmLeaseTurn turn = first.Turn())
        {
            Same(Part, turn.Bytes, "bytes that came back");
            Check(first.Info().State == GmmLeaseState.InUse && second.Info().Evictions == 1, "" + second.Info());
            Fails(GmmResult.Busy, () => first.Request());
            turn.Dispose();
            first.Request();
        } // not the end of the second turn
        Check(first.Release() && !first.Release(), "a release, and another one");
        GmmTag tag = context.FindTag("first");
        Fails(GmmResult.Offered, () => second.Offer(tag));
        first.Withdraw(tag);
        Same(0L, first.Info().ActiveBytes, "bytes of no offer");
        first.Offer(tag);
        GmmLeaseEntryInfo entry = context.Leases(Long)[0];
        Check(entry.Process == Me && entry.Uuid.Length == 16, "" + entry);
        using (GmmBuffer block = context.Alloc(1 << 20, GmmKind.Vmm))
        {
            block.Fill(7);
            block.Publish("of C#");
            using (GmmBuffer attached = context.Attach("of C#", timeoutMilliseconds: 60000))
            {
                Check(attached.Read(0, 1)[0] == 7 && context.Published(Long)[0].Readers == 1, "a reader");
            }
            context.Unpublish("of C#");
        }
        using (second.Turn())
        {
            second.Dispose();
        } // no end of a turn
        Fails<ObjectDisposedException>(() => second.Request());
    }

    private void TokenEndsRequest()
    {
        GmmLease first = Party("first");
        GmmLease second = Party("second");
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
            Check(cancelling.Wait(Long), "the other thread ends");
            Fails<OperationCanceledException>(() => second.Turn(null, source.Token));
            Same(GmmLeaseState.Idle, second.Info().State, "the state");
        }
    }

    private void Asked()
    {
        List<GmmLeaseAsk> heard = new List<GmmLeaseAsk>();
        TaskCompletionSource<GmmTicket> waiting = new TaskCompletionSource<GmmTicket>();
        GmmLease first = Party("first", (lease, ask) =>
        {
            heard.Add(ask);
            if (heard.Count == 1) // it is asked again after a second
            {
                throw new FormatException("from the handler");
            }
            GmmTicket ticket = waiting.Task.Result;
            EachFails(GmmResult.Busy, () => lease.Request(), () => lease.RequestAsync(), lease.Dispose,
                () => Ignore(ticket.Result), () => ticket.Wait(TimeSpan.Zero), ticket.Dispose);
            lease.Release();
        });
        GmmLease second = Party("second", null, 5);
        first.Request();
        using (GmmTicket ticket = second.RequestAsync())
        {
            waiting.SetResult(ticket);
            Same(Part, ticket.Result, "bytes that came back");
        }
        Same("from the handler", first.Thrown.Message, "the exception of the handler");
        Check(heard[1].Name == "second" && heard[1].Priority == 5 && heard[1].Bytes == Part && heard[1].Process == Me
            && heard[1].WaitingMilliseconds > 0, "" + heard[1]);
    }

    private void Forgotten()
    {
        GmmLease first = Party("first");
        GmmLease second = Lease("second");
        first.Request();
        Elsewhere(() =>
        {
            List<GmmTicket> waiting = new List<GmmTicket>();
            for (int i = 0; i < 10; i++)
            {
                GmmLeaseOptions options = new GmmLeaseOptions { Name = "forgotten", Asked = (lease, ask) => { } };
                waiting.Add(context.Lease(options).RequestAsync(Amount(Part)));
            }
            waiting.Add(second.RequestAsync(Amount(Card)));
            WaitFor("10 more members", () => context.Leases(Long).Count == 12);
            Check(waiting.TrueForAll(each => !each.IsDone), "they wait");
        });
        // A conservative look at stacks may keep one or two.
        WaitFor("the finalizer to end nearly all of 10 leases", () => context.Leases(Long).Count <= 4);
        WaitFor("the finalizer to end a request", () => second.Info().State == GmmLeaseState.Idle);
    }

    private void DisposeUnderUse()
    {
        using (ManualResetEvent inside = new ManualResetEvent(false))
        {
            GmmLease holder = Lease("holder", (lease, ask) =>
            {
                inside.Set();
                while (true)
                {
                    lease.Info();
                }
            });
            holder.Request(Amount(Part));
            GmmLease third = Lease("third");
            Task blocked = Task.Run(() => Fails(GmmResult.Cancelled, () => third.Request(Amount(Part))));
            Check(inside.WaitOne(Long), "the handler is called");
            GmmTicket ticket = Lease("fourth").RequestAsync(Amount(Part));
            third.Dispose();
            Check(blocked.Wait(Long), "the request ends");
            holder.Dispose();
            Same(0L, ticket.Result, "the bytes that came back to the next one");
            Same(null, holder.Thrown, "the exception of the handler");
        }
    }
}
