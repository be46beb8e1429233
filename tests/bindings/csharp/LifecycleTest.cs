/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Tasks;
using Gmm;
using static Tap;

/// <summary>Objects that are disposed of twice, used after that, forgotten, or alive when the program ends.</summary>
internal static class LifecycleTest
{
    private const int Size = 1 << 20;

    internal static int Run()
    {
        Tap tap = new Tap();
        tap.Test("Dispose twice and use after Dispose", Disposed);
        tap.Test("a forgotten buffer is freed", ForgottenBuffer);
        tap.Test("everything forgotten at once", ForgottenContext);
        tap.Test("a pin holds its array in place", PinHoldsArray);
        tap.Test("a forgotten ticket goes on to its end, and outlives its context", ForgottenTicket);
        tap.Test("objects outlive the context that they came from", ChildrenOutliveContext);
        tap.Test("Dispose on one thread while others use the context", DisposeUnderUse);
        tap.Test("disposing from two threads frees once", RacingDispose);
        tap.Test("garbage is collected inside every callback", GarbageInCallbacks);
        tap.Test("an exception of a task ends the program", TaskException);
        tap.Test("the program ends inside a callback", () => Child.Run("exit-inside"));
        tap.Test("the program ends with live objects", () => Child.Run("exit"));
        return tap.Finish();
    }

    private static void Disposed()
    {
        GmmContext context = new GmmContext();
        GmmHeap heap = context.Heap(new GmmHeapOptions());
        GmmStream stream = context.Stream(0);
        GmmEvent point = context.Event(0);
        GmmBuffer buffer = context.Alloc(Size);
        GmmPin pin = context.Pin(new byte[8192]);
        GmmTag tag = context.DefaultTag;
        IntPtr address;
        foreach (IDisposable each in new IDisposable[] { pin, buffer, point, stream, heap, context })
        {
            each.Dispose();
            each.Dispose();
        }
        foreach (Action step in new Action[] { () => address = buffer.Address, () => buffer.Query(),
                     () => buffer.Fill(1), () => buffer.Read(0, 1), () => heap.Alloc(1), () => point.Query(),
                     stream.Synchronize, () => address = pin.Address, () => context.Info(), () => context.Alloc(1),
                     () => tag.Push(), () => tag.Info(), () => context.Stream(0), () => context.Snapshot(),
                     () => context.Tags(), () => context.Pin(new byte[16]) })
        {
            Check(Fails<ObjectDisposedException>(step).ObjectName.StartsWith("Gmm"), "the name of the object");
        }
        GmmStream.Default.Dispose();
        Same(IntPtr.Zero, GmmStream.Default.Address, "the default stream");
    }

    private static void ForgottenBuffer()
    {
        using (GmmContext context = new GmmContext())
        {
            Elsewhere(() =>
            {
                for (int i = 0; i < 50; i++)
                {
                    context.Alloc(4096);
                }
            });
            // A conservative look at stacks may keep one or two.
            WaitFor("the finalizer to free nearly all of 50 buffers", () => context.Statistics().LiveBlocks <= 2);
            Check(context.Statistics().Frees >= 48, "frees");
        }
    }

    private static int released;

    private sealed class Token
    {
        ~Token()
        {
            Interlocked.Increment(ref released);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        internal void Hear()
        {
        }
    }

    /// <summary>The native context lets its callbacks go last: a logger that is collected says that the context is
    /// gone.</summary>
    private static void ForgottenContext()
    {
        released = 0;
        for (int i = 0; i < 10; i++)
        {
            Elsewhere(() =>
            {
                Token token = new Token();
                GmmContext context =
                    new GmmContext(new GmmContextOptions { Logger = (level, message) => token.Hear() });
                GmmStream stream = context.Stream(0);
                GmmHeap heap = context.Heap(new GmmHeapOptions { Kind = GmmKind.Vmm });
                heap.Alloc(Size, stream);
                context.Alloc(Size, new GmmAllocOptions { Stream = stream });
                context.Event(0).Record(stream);
            });
        }
        WaitFor("the finalizer to end most of 10 contexts with their heaps, streams and buffers", () => released >= 8);
    }

    private static void PinHoldsArray()
    {
        using (GmmContext context = new GmmContext())
        {
            if (!context.Device(0).CanPin)
            {
                throw new Skip("this device has no pinning");
            }
            GmmPin pin = context.Pin(new byte[Size]);
            for (int i = 0; i < 5; i++)
            {
                Collect();
            }
            Same(GmmState.Pinned, context.Query(pin.Address).State, "the state of memory that only the pin holds");
            Check(context.Statistics().PinnedBytes >= Size, "pinned bytes");
            pin.Dispose();
            Same(0L, context.Statistics().PinnedBytes, "pinned bytes afterwards");
        }
    }

    private static void ForgottenTicket()
    {
        int reported = 0;
        GmmContext context = new GmmContext();
        GmmTag tag = context.Tag("forgotten", GmmContents.Host, 0);
        using (GmmBuffer buffer = context.Alloc(Size, new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag }))
        {
            buffer.Fill(7);
            Elsewhere(() => tag.PauseAsync(
                          new GmmPauseOptions { Progress = (done, total) => Interlocked.Increment(ref reported) > 0 }));
            WaitFor("the end of a pause that nobody waits for", () => tag.Info().State == GmmState.Paused);
            Check(reported > 0, "its progress was reported");
            GmmTicket resume = tag.ResumeAsync();
            context.Dispose();
            Check(resume.Result >= Size, "a ticket outlives its context");
            resume.Dispose();
            Same((byte)7, buffer.Read(Size - 1, 1)[0], "a byte");
        }
    }

    private static void ChildrenOutliveContext()
    {
        GmmContext context = new GmmContext();
        GmmStream stream = context.Stream(0);
        GmmHeap heap = context.Heap(new GmmHeapOptions { Kind = GmmKind.Vmm });
        GmmBuffer buffer = heap.Alloc(Size, stream);
        context.Dispose();
        heap.Dispose();
        stream.Dispose();
        buffer.Fill(5);
        Same((byte)5, buffer.Read(Size - 1, 1)[0], "a byte");
        buffer.Dispose();
    }

    private static void DisposeUnderUse()
    {
        for (int round = 0; round < 10; round++)
        {
            GmmContext context = new GmmContext();
            CountdownEvent running = new CountdownEvent(4);
            Task[] users = new Task[4];
            for (int i = 0; i < users.Length; i++)
            {
                users[i] = Task.Factory.StartNew(() =>
                {
                    running.Signal();
                    Fails<ObjectDisposedException>(() => // the only way out
                    {
                        while (true)
                        {
                            using (GmmBuffer buffer = context.Alloc(4096))
                            {
                                buffer.Query();
                            }
                        }
                    });
                }, TaskCreationOptions.LongRunning);
            }
            running.Wait();
            Thread.Sleep(2);
            context.Dispose();
            Check(Task.WaitAll(users, Patience), "every thread ends");
        }
    }

    private static void RacingDispose()
    {
        using (GmmContext context = new GmmContext())
        {
            for (int round = 0; round < 200; round++)
            {
                GmmBuffer buffer = context.Alloc(4096);
                Task other = Task.Factory.StartNew(buffer.Dispose, TaskCreationOptions.LongRunning);
                buffer.Dispose();
                other.Wait();
            }
            GmmStatistics statistics = context.Statistics();
            Same(0L, statistics.LiveBlocks, "live blocks");
            Same(statistics.Allocations, statistics.Frees, "frees");
        }
    }

    /// <summary>A finalizer never waits for the library, so a callback may wait for finalizers.</summary>
    private static void GarbageInCallbacks()
    {
        int collections = 0;
        Action collect = () =>
        {
            using (GmmContext other = new GmmContext())
            {
                Elsewhere(() =>
                {
                    for (int i = 0; i < 20; i++)
                    {
                        other.Alloc(4096);
                    }
                });
                WaitFor("finalizers inside a callback", () => other.Statistics().LiveBlocks <= 2);
            }
            collections++;
        };
        GmmContextOptions options = new GmmContextOptions { Logger = (level, message) => collect() };
        using (GmmContext context = new GmmContext(options))
        using (GmmStream stream = context.Stream(0))
        {
            int logged = collections;
            Check(logged > 0, "log lines of the open");
            context.SetLimit(null, 64 * Size);
            context.SetOomHandler(info =>
            {
                collect();
                return false;
            });
            Fails(GmmResult.LimitExceeded, () => context.Alloc(65 * Size));
            Same(logged + 1, collections, "collections after the handler");
            GmmTag tag = context.Tag("garbage", GmmContents.Host, 0);
            GmmAllocOptions kept = new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag };
            using (GmmBuffer buffer = context.Alloc(Size, kept))
            {
                buffer.Fill(7);
                Elsewhere(() =>
                {
                    for (int i = 0; i < 20; i++)
                    {
                        context.Alloc(Size, kept);
                    }
                });
                int reported = 0;
                tag.Pause(new GmmPauseOptions
                {
                    Progress = (done, total) =>
                    {
                        Collect(); // waits for the finalizers of the tag's forgotten blocks
                        reported++;
                        return true;
                    }
                });
                Check(reported > 0, "the progress was reported");
                WaitFor("nearly all forgotten blocks of the paused tag", () => context.Statistics().LiveBlocks <= 3);
                tag.Resume();
                Same((byte)7, buffer.Read(Size - 1, 1)[0], "a byte");
            }
            bool ran = false;
            stream.Call(() =>
            {
                Collect();
                ran = true;
            });
            stream.Synchronize();
            WaitFor("the task of a stream", () => ran);
        }
    }

    private static void TaskException()
    {
        Check(Child.Run("task-throws", out string output) != 0, "the program fails");
        Check(output.Contains("from the task"), "the program names the exception: " + output);
    }
}
