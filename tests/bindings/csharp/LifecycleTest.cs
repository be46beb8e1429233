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
    private static int released;

    internal static int Run()
    {
        Tap tap = new Tap();
        tap.Test("Dispose twice and use after Dispose", Disposed);
        tap.Test("use in another context", InAnotherContext);
        tap.Test("forgotten owners end", Forgotten);
        tap.Test("a pin holds its array in place", PinHoldsArray);
        tap.Test("a forgotten ticket goes on to its end, and all objects outlive their context", OutliveContext);
        tap.Test("Dispose on one thread while others use the context", DisposeUnderUse);
        tap.Test("garbage is collected inside callbacks", GarbageInCallbacks);
        tap.Test("an exception of a task ends the program", TaskException);
        tap.Test("the program ends inside a callback", () => Child.Run("exit-inside"));
        tap.Test("the program ends with live objects", () => Child.Run("exit"));
        return tap.Finish();
    }

    private static void InAnotherContext()
    {
        using (GmmContext context = new GmmContext(), other = new GmmContext())
        using (GmmStream others = other.Stream(0))
        using (GmmEvent point = context.Event(0))
        {
            GmmTag tag = context.Tag("weights", GmmContents.Host, 0);
            GmmAllocOptions options = new GmmAllocOptions { Tag = tag };
            foreach (Action step in new Action[] { () => other.Alloc(1, options), () => other.Pause(tag),
                         () => other.SetLimit(new GmmScope { Tag = tag }, 1),
                         () => other.Heap(new GmmHeapOptions { Tag = tag }) })
            {
                string message = Fails(GmmResult.InvalidTag, step).Message;
                Check(message.Contains("\"weights\" belongs to another context"), message);
            }
            Fails(GmmResult.InvalidHandle, () => others.WaitFor(point));
        }
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

    /// <summary>The native owner of a callback releases it last, so a collected token says that the owner has ended.
    /// </summary>
    private sealed class Token
    {
        ~Token() { Interlocked.Increment(ref released); }

        [MethodImpl(MethodImplOptions.NoInlining)]
        internal bool Hear() => true;
    }

    private static void Forgotten()
    {
        using (GmmContext live = new GmmContext())
        {
            Forget(10, () =>
            {
                Token first = new Token();
                Token second = new Token();
                GmmContext context =
                    new GmmContext(new GmmContextOptions { Logger = (level, message) => first.Hear() });
                GmmStream stream = context.Stream(0);
                context.Heap(new GmmHeapOptions { Kind = GmmKind.Vmm }).Alloc(Size, stream);
                context.Alloc(Size, new GmmAllocOptions { Stream = stream });
                context.Event(0).Record(stream);
                live.Watch(new GmmWatchOptions { Tag = live.DefaultTag }, info => second.Hear());
                live.Alloc(4096);
            });
            // A conservative look at stacks may keep one or two.
            WaitFor("most of 10 contexts with all of their objects, and of 10 watchers", () => released >= 16);
            WaitFor("nearly all of 10 buffers", () => live.Statistics().LiveBlocks <= 2);
        }
    }

    private static void PinHoldsArray()
    {
        using (GmmContext context = new GmmContext())
        {
            GmmPin pin = context.Pin(new byte[Size]);
            for (int i = 0; i < 5; i++)
            {
                Collect();
            }
            Same(GmmState.Pinned, context.Query(pin.Address).State, "the state of memory that only the pin holds");
            pin.Dispose();
            Same(0L, context.Statistics().PinnedBytes, "pinned bytes afterwards");
        }
    }

    private static void OutliveContext()
    {
        int reported = 0;
        GmmContext context = new GmmContext();
        GmmTag tag = context.Tag("forgotten", GmmContents.Host, 0);
        GmmStream stream = context.Stream(0);
        GmmHeap heap = context.Heap(new GmmHeapOptions { Kind = GmmKind.Vmm });
        GmmBuffer other = heap.Alloc(Size, stream);
        using (GmmBuffer buffer = context.Alloc(Size, new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag }))
        {
            Elsewhere(() => tag.PauseAsync(
                          new GmmPauseOptions { Progress = (done, total) => Interlocked.Increment(ref reported) > 0 }));
            WaitFor("the end of a pause that nobody waits for", () => tag.Info().State == GmmState.Paused);
            Check(reported > 0, "its progress was reported");
            GmmTicket resume = tag.ResumeAsync();
            context.Dispose();
            Check(resume.Result >= Size && context.IsDisposed, "a ticket outlives its context");
            resume.Dispose();
        }
        heap.Dispose();
        stream.Dispose();
        other.Fill(5);
        Same((byte)5, other.Read(Size - 1, 1)[0], "a byte");
        other.Dispose();
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

    /// <summary>A finalizer never waits for the library, so a callback may wait for finalizers.</summary>
    private static void GarbageInCallbacks()
    {
        int collections = 0, asked = 0;
        using (GmmContext other = new GmmContext())
        {
            Action collect = () =>
            {
                Forget(20, () => other.Alloc(4096));
                WaitFor("finalizers inside a callback", () => other.Statistics().LiveBlocks <= 2);
                collections++;
            };
            GmmContextOptions options = new GmmContextOptions { Logger = (level, message) => collect() };
            using (GmmContext context = new GmmContext(options))
            {
                int logged = collections;
                Check(logged > 0, "log lines of the open");
                context.SetLimit(null, Size);
                context.SetOomHandler(info =>
                {
                    collect();
                    return ++asked == 0;
                });
                Fails(GmmResult.LimitExceeded, () => context.Alloc(2 * Size));
                Same(1, asked, "calls of the handler");
                logged = collections; // the failure has log lines, too
                context.SetLimit(null, GmmContext.NoLimit);
                GmmTag tag = context.Tag("garbage", GmmContents.Host, 0);
                GmmAllocOptions kept = new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag };
                Forget(20, () => context.Alloc(Size, kept));
                tag.Pause(new GmmPauseOptions
                {
                    Progress = (done, total) =>
                    {
                        Collect(); // waits for the finalizers of the tag's forgotten blocks
                        return ++collections > 0;
                    }
                });
                Check(collections > logged, "the progress was reported");
                WaitFor("nearly all forgotten blocks of the paused tag", () => context.Statistics().LiveBlocks <= 3);
            }
        }
    }

    private static void TaskException()
    {
        Check(Child.Run("task-throws", out string output) != 0, "the program fails");
        Check(output.Contains("from the task"), "the program names the exception: " + output);
    }
}
