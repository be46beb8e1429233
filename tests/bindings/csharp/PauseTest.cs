/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;
using System.IO;
using System.Runtime.InteropServices;
using System.Threading;
using System.Threading.Tasks;
using Gmm;
using static Tap;

/// <summary>The steps of tests/bindings/SMOKE.md about tags, pause, resume, tickets and kept contents.</summary>
internal sealed class PauseTest
{
    private const int MiB = 1 << 20;
    private const int Size = 4 * MiB;
    private const int Large = 64 * MiB; // several chunks, so that progress is told between them
    private static readonly TimeSpan Long = TimeSpan.FromMilliseconds(Patience);

    private readonly GmmContext context;

    internal PauseTest(GmmContext context)
    {
        this.context = context;
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

    private GmmBuffer Alloc(GmmTag tag, int size = Size)
    {
        GmmBuffer buffer = context.Alloc(size, new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag, Dedicated = true });
        buffer.Write(0, Pattern(size));
        return buffer;
    }

    private static void CheckContents(GmmBuffer buffer)
    {
        int size = (int)buffer.Size;
        SameBytes(Pattern(size), buffer.Read(0, size), "the contents");
    }

    internal void Tag()
    {
        GmmTag tag = context.Tag("smoke", GmmContents.Host, 3);
        Same(tag.Number, context.FindTag("smoke").Number, "the tag that was found");
        Same(tag.Number, context.Tag("smoke").Number, "the tag of the same name");
        Fails(GmmResult.InvalidTag, "INVALID_TAG", () => context.FindTag("no such tag"));
        Same(context.DefaultTag.Number, context.Tags()[0].Number, "the first of the tags");
        bool listed = false;
        foreach (GmmTag one in context.Tags())
        {
            listed |= one.Number == tag.Number && one.Info().Name == "smoke";
        }
        Check(listed, "the tag among the tags");
        Fails(GmmResult.InvalidValue, "INVALID_VALUE", () => context.Tag(""));
        GmmBuffer buffer;
        using (IDisposable scope = tag.Push())
        {
            buffer = context.Alloc(MiB, GmmKind.Vmm);
            Elsewhere(() => Fails<InvalidOperationException>(scope.Dispose));
        }
        Same(tag.Number, buffer.Query().Tag, "the tag of the block");
        using (GmmBuffer after = context.Alloc(MiB, GmmKind.Vmm))
        {
            Same(context.DefaultTag.Number, after.Query().Tag, "the tag after the pop");
        }
        buffer.Dispose();
        Same("größe \U0001F600", context.Tag("größe \U0001F600").Info().Name, "the name of a tag");
    }

    internal void Pause()
    {
        GmmTag tag = context.Tag("smoke", GmmContents.Host, 3);
        using (GmmBuffer buffer = context.Alloc(8 * MiB, new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag }))
        {
            IntPtr address = buffer.Address;
            buffer.Write(0, Pattern(8 * MiB));
            long before = tag.Info().Pauses;
            long paused = tag.Pause();
            Check(paused >= 8 * MiB, "bytes that went back: " + paused);
            Same(GmmState.Paused, buffer.Query().State, "the state");
            Fails(GmmResult.Paused, "PAUSED", () => buffer.Read(0, 16));
            Same(0L, tag.Pause(), "the bytes of a second pause");
            GmmPauseInfo info = tag.Info();
            Same(before + 1, info.Pauses, "pauses");
            Same(paused, info.PausedBytes, "paused bytes");
            Check(info.BackupHostBytes > 0, "contents kept in host memory");
            Same(GmmContents.Host, info.Contents, "contents");
            Same(3, info.Priority, "priority");
            Same(paused, tag.Resume(), "bytes that came back");
            Same(GmmState.Active, buffer.Query().State, "the state");
            Same(address, buffer.Query().Base, "the address");
            SameBytes(Pattern(8 * MiB), buffer.Read(0, 8 * MiB), "the contents");
            Same(0L, context.Resume(), "the bytes of a second resume");
        }
    }

    internal void Progress()
    {
        GmmTag tag = context.Tag("progress", GmmContents.Host, 0);
        using (GmmBuffer buffer = Alloc(tag, Large))
        {
            List<long> told = new List<long>();
            long went = tag.Pause(new GmmPauseOptions
            {
                Progress = (done, total) =>
                {
                    Same((long)Large, total, "all bytes");
                    told.Add(done);
                    return true;
                }
            });
            Same((long)Large, told[told.Count - 1], "the last that is told");
            for (int i = 1; i < told.Count; i++)
            {
                Check(told[i] >= told[i - 1], "growing bytes");
            }
            told.Clear();
            Same(went, tag.Resume((done, total) =>
            {
                told.Add(done);
                return true;
            }), "bytes that came back");
            Same((long)Large, told[told.Count - 1], "the last that is told by the resume");
            foreach (long stop in new long[] { 0, Large / 2 })
            {
                Fails(GmmResult.Cancelled, "CANCELLED",
                    () => tag.Pause(new GmmPauseOptions { Progress = (done, total) => done < stop }));
                Same(GmmState.Active, buffer.Query().State, "the state");
                CheckContents(buffer);
            }
            Same("from the progress",
                Fails<FormatException>(() => tag.Pause(new GmmPauseOptions { Progress = Refuse })).Message,
                "the exception of a progress");
            Same(GmmState.Active, buffer.Query().State, "the state");
            using (tag.Paused())
            {
                Fails(GmmResult.Cancelled, "CANCELLED", () => tag.Resume((done, total) => false));
                Same(GmmState.Paused, buffer.Query().State, "the state");
            }
            CheckContents(buffer);
        }
    }

    internal void Ticket()
    {
        GmmTag tag = context.Tag("ticket", GmmContents.Host, 0);
        using (GmmBuffer buffer = Alloc(tag))
        {
            int elsewhere = 0;
            int here = Thread.CurrentThread.ManagedThreadId;
            long went;
            GmmProgress progress = (done, total) =>
            {
                Interlocked.Add(ref elsewhere, Thread.CurrentThread.ManagedThreadId == here ? -1000000 : 1);
                return true;
            };
            using (GmmTicket ticket = tag.PauseAsync(new GmmPauseOptions { Progress = progress }))
            {
                Check(ticket.Wait(Long), "it ends");
                went = ticket.Result;
                Check(went >= Size && ticket.IsDone, "bytes that went back: " + went);
                Check(elsewhere > 0, "the progress runs on another thread");
                GmmTicketInfo info = ticket.Info();
                Check(info.Done && info.Result == GmmResult.Ok && info.Bytes == went && info.TotalBytes == Size,
                    "its figures");
            }
            Same(GmmState.Paused, buffer.Query().State, "the state");
            GmmTicket back = tag.ResumeAsync();
            back.Dispose();
            back.Dispose();
            Same(went, back.Result, "the bytes, asked for after Dispose()");
            CheckContents(buffer);
            Task<long> awaited = AwaitBoth(tag);
            Check(awaited.Wait(Long), "the awaiting ends");
            Same(2 * went, awaited.Result, "the bytes of both that were awaited");
            Cancelled(tag, buffer);
            GmmTicket thrower = tag.PauseAsync(new GmmPauseOptions { Progress = Refuse });
            Same("from the progress", Fails<FormatException>(() => Ignore(thrower.Result)).Message,
                "what the progress threw");
            thrower.Dispose();
            Fails<FormatException>(() => Ignore(thrower.Result));
            Fails<FormatException>(() => tag.PauseAsync(new GmmPauseOptions { Progress = Refuse }).Dispose());
            Same(GmmState.Active, buffer.Query().State, "the state");
            Fails(GmmResult.InvalidTag, "INVALID_TAG", () => context.PauseAsync(context.TagByNumber(3999)));
        }
    }

    private static async Task<long> AwaitBoth(GmmTag tag)
    {
        long went = await tag.PauseAsync().AsTask().ConfigureAwait(false);
        using (GmmTicket back = tag.ResumeAsync())
        {
            return went + await back;
        }
    }

    private static void Ignore(long value)
    {
    }

    private static void Cancelled(GmmTag tag, GmmBuffer buffer)
    {
        Gate gate = new Gate();
        GmmTicket ticket = tag.PauseAsync(new GmmPauseOptions { Progress = gate.Report });
        using (ticket)
        {
            Check(gate.Reached.WaitOne(Long), "the progress is told");
            Check(!ticket.IsDone && !ticket.Wait(TimeSpan.FromMilliseconds(10)), "it runs");
            Same(GmmResult.NotReady, ticket.Info().Result, "its result meanwhile");
            ticket.Cancel();
            gate.Open.Set();
        }
        Fails(GmmResult.Cancelled, "CANCELLED", () => Ignore(ticket.Result));
        ticket.Cancel();
        Same(GmmState.Active, buffer.Query().State, "the state");
        CheckContents(buffer);
        // By a token.
        Gate other = new Gate();
        using (CancellationTokenSource source = new CancellationTokenSource())
        using (GmmTicket second = tag.PauseAsync(new GmmPauseOptions { Progress = other.Report }))
        {
            Task<long> task = second.AsTask(source.Token);
            Check(other.Reached.WaitOne(Long), "the progress is told");
            source.Cancel();
            other.Open.Set();
            Fails<AggregateException>(() => task.Wait(Long));
            Check(task.IsCanceled, "the task is cancelled: " + task.Status);
        }
        Same(GmmState.Active, buffer.Query().State, "the state");
    }

    internal void Range()
    {
        GmmTag tag = context.Tag("range", GmmContents.Host, 0);
        using (GmmBuffer first = Alloc(tag))
        using (GmmBuffer second = Alloc(tag))
        {
            long went = tag.Pause();
            long back = first.Resume();
            Check(back > 0 && back < went, "bytes of a part: " + back + " of " + went);
            Same(GmmState.Active, first.Query().State, "the first block");
            Same(GmmState.Paused, second.Query().State, "the second block");
            Same(GmmState.PartlyPaused, tag.Info().State, "the tag");
            CheckContents(first);
            Same(0L, first.Resume(), "the bytes of a second resume");
            Check(first.WaitReady(TimeSpan.Zero), "the first is ready");
            Check(!second.WaitReady(TimeSpan.FromMilliseconds(20)), "the second is not");
            Gate gate = new Gate();
            using (GmmTicket rest = tag.ResumeAsync(gate.Report))
            {
                Check(gate.Reached.WaitOne(Long), "the progress is told");
                Check(!second.WaitReady(TimeSpan.Zero), "the second is not ready yet");
                gate.Open.Set();
                Check(second.WaitReady(Long), "the second is ready");
                Same(went - back, rest.Result, "the rest");
            }
            CheckContents(second);
            Same(GmmState.Active, tag.Info().State, "the tag");
            Fails(GmmResult.UnknownPointer, "UNKNOWN_POINTER", () => context.ResumeRange((IntPtr)16, 4096));
            Fails<ArgumentOutOfRangeException>(() => first.Resume(Size, 1));
        }
    }

    internal void Backup()
    {
        GmmTag tag = context.Tag("backup", GmmContents.Host, 0);
        using (GmmBuffer buffer = Alloc(tag))
        {
            Fails(GmmResult.InvalidValue, "INVALID_VALUE", () => buffer.Backup(0, 16));
            tag.Pause();
            byte[] all = Pattern(Size);
            byte[] end = new byte[1000];
            Array.Copy(all, Size - 1000, end, 0, 1000);
            SameBytes(end, buffer.Backup(Size - 1000, 1000), "the kept contents");
            IntPtr view = buffer.BackupAddress(0, Size);
            Check(Marshal.ReadByte(view, Size - 1) == all[Size - 1] && Marshal.ReadByte(view, 12345) == all[12345],
                "a view of them");
            Same(GmmState.Paused, buffer.Query().State, "the state");
            Same((long)Size, tag.Info().BackupHostBytes, "bytes that are kept");
            Same((long)Size, tag.DiscardBackup(), "bytes that were kept");
            Same(0L, tag.DiscardBackup(), "bytes that are left");
            Same(0L, context.DiscardBackup(), "bytes that are left of all tags");
            Fails(GmmResult.InvalidValue, "INVALID_VALUE", () => buffer.Backup(0, 16));
            Check(tag.Resume() >= Size, "the resume");
            Same(GmmState.Active, buffer.Query().State, "the state");
            tag.Pause(new GmmPauseOptions { Contents = GmmContents.Drop });
            Same(0L, tag.Info().BackupHostBytes + tag.Info().BackupZeroBytes, "kept against the tag");
            tag.Resume();
            context.PrepareBackup(0, 4 << 20);
            Check(context.BackupInfo().ArenaBytes >= 4 << 20, "the arena that was prepared");
            context.Trim(); // what is unused of the arena goes
            context.SetBackup(new GmmBackupOptions { NoArena = true, Threads = 1 });
            buffer.Write(0, all);
            using (tag.Paused())
            {
                Same(0L, context.BackupInfo().ArenaUsed, "the arena that is switched off");
                Same((long)Size, context.BackupInfo().PageableBytes, "contents in other memory");
            }
            CheckContents(buffer);
            context.SetBackup(
                new GmmBackupOptions { NoArena = true, NoPageable = true, Directory = Path.GetTempPath() });
            using (tag.Paused())
            {
                Same((long)Size, tag.Info().BackupFileBytes, "contents in a file");
            }
            CheckContents(buffer);
            Fails(GmmResult.Io, "IO", () => context.SetBackup(new GmmBackupOptions { Directory = "/nowhere/at/all" }));
            context.SetBackup(null);
            Fails(GmmResult.InvalidDevice, "INVALID_DEVICE", () => context.PrepareBackup(99, 1 << 20));
        }
    }

    internal void ReadOnly()
    {
        GmmTag tag =
            context.Tag("read-only", new GmmTagOptions { Contents = GmmContents.Host, Priority = 5, ReadOnly = true });
        Check(tag.Info().ReadOnly && !tag.Info().Checksum && tag.Info().Priority == 5, "what the tag says");
        Fails(GmmResult.InvalidValue, "INVALID_VALUE", () => context.Tag("read-only", GmmContents.Host, 5));
        using (GmmBuffer buffer = Alloc(tag))
        {
            tag.Paused().Dispose();
            Same((long)Size, tag.Info().BackupActiveBytes, "what stays kept");
            tag.Paused().Dispose();
            CheckContents(buffer);
            tag.Update(new GmmTagOptions { Contents = GmmContents.Host, Priority = 5 });
            Check(!tag.Info().ReadOnly && tag.Info().Priority == 5, "the update");
            tag.Paused().Dispose();
            Same(0L, tag.Info().BackupActiveBytes, "what stays kept");
            Same(3L, tag.Info().Pauses, "pauses");
            CheckContents(buffer);
            Checksum(tag);
            CheckContents(buffer);
        }
    }

    /// <summary>Where the library has checksums.</summary>
    private static void Checksum(GmmTag tag)
    {
        try
        {
            tag.Update(new GmmTagOptions { Contents = GmmContents.Host, Checksum = true });
        }
        catch (GmmException error)
        {
            Same(GmmResult.NotSupported, error.Result, "built without xxhash: " + error);
            return;
        }
        Check(tag.Info().Checksum && tag.Info().Priority == 0, "the update");
        tag.Paused().Dispose();
    }

    internal void Retained()
    {
        GmmTag tag = context.Tag("retained", new GmmTagOptions { Contents = GmmContents.Host, Pageable = true });
        Check(tag.Info().Pageable && !tag.Info().ReadOnly, "what the tag says");
        byte[] first = Pattern(Size);
        byte[] second = new byte[Size];
        for (int i = 0; i < Size; ++i)
        {
            second[i] = 0x11;
        }
        string folder = Path.Combine(Path.GetTempPath(), "gmm-retained-" + Guid.NewGuid().ToString("N"));
        Directory.CreateDirectory(folder);
        try
        {
            using (GmmBuffer buffer = Alloc(tag))
            {
                tag.Pause();
                Check(tag.Info().BackupHostBytes >= Size && tag.Info().BackupPinnedBytes == 0, "nothing page-locked");
                tag.Resume(new GmmPauseOptions { Retain = true });
                buffer.Write(0, second);
                SameBytes(first, buffer.Backup(0, Size), "the contents of the last pause");
                tag.Pause();
                using (GmmTicket ticket = tag.ResumeAsync(new GmmPauseOptions { Retain = true }))
                {
                    Check(ticket.Wait(Long) && ticket.Result >= Size, "the bytes that came back");
                }
                SameBytes(second, buffer.Backup(0, Size), "the contents of the next pause");
                tag.Pause();
                tag.Resume(new GmmPauseOptions());
                Fails(GmmResult.InvalidValue, "INVALID_VALUE", () => buffer.Backup(0, 16));
                context.SetBackup(new GmmBackupOptions { Directory = folder, NamedFiles = true });
                tag.Update(new GmmTagOptions { Contents = GmmContents.File });
                Check(!tag.Info().Pageable, "the update");
                tag.Pause();
                string[] files = Directory.GetFiles(folder);
                Check(files.Length == 1 && new FileInfo(files[0]).Length == Size, "one file of the block's size");
                tag.Resume();
                SameBytes(second, buffer.Read(0, Size), "the contents");
                context.Trim();
                Same(0, Directory.GetFiles(folder).Length, "files after a trim");
            }
        }
        finally
        {
            context.SetBackup(null);
            Directory.Delete(folder, true);
        }
    }

    internal void Decommit()
    {
        Same(GmmContext.DecommitNever, context.DecommitAfterMilliseconds, "what is set");
        context.Alloc(Size, GmmKind.Vmm).Dispose();
        Check(context.Statistics().CachedBytes >= Size, "cached bytes");
        context.DecommitAfterMilliseconds = 10;
        Same(10L, context.DecommitAfterMilliseconds, "what is set");
        WaitFor("free memory to go back by itself", () => context.Statistics().CachedBytes < Size);
        context.DecommitAfterMilliseconds = GmmContext.DecommitNever;
        Same(GmmContext.DecommitNever, context.DecommitAfterMilliseconds, "what is set");
    }

    internal void NoCapture()
    {
        GmmContextOptions options = SmokeTest.Options();
        options.NoCapture = true;
        using (GmmContext other = new GmmContext(options))
        using (GmmStream stream = other.Stream(0))
        using (GmmBuffer buffer = other.Alloc(Size, new GmmAllocOptions { Stream = stream }))
        {
            buffer.Fill(5);
            stream.Synchronize();
            Same((byte)5, buffer.Read(Size - 1, 1)[0], "a byte");
        }
        options.StrictHost = true;
        using (GmmContext strict = new GmmContext(options))
        using (GmmBuffer buffer = strict.Alloc(Size, GmmKind.Device))
        {
            buffer.Fill(6);
            Same((byte)6, buffer.Read(Size - 1, 1)[0], "a byte of a strict context");
            Same(false, buffer.Query().HostAccessible, "whether the host may use its memory");
        }
    }

    internal void Comm()
    {
        using (GmmBuffer buffer = context.Alloc(Size, new GmmAllocOptions { Comm = true }))
        {
            Same(GmmKind.Vmm, buffer.Kind, "the kind");
            Check(buffer.Query().Comm, "memory for networks");
        }
        Fails(GmmResult.InvalidKind, "INVALID_KIND",
            () => context.Alloc(Size, new GmmAllocOptions { Kind = GmmKind.Host, Comm = true }));
    }

    internal void Watch()
    {
        GmmTag tag = context.Tag("watched", GmmContents.Host, 0);
        List<GmmWatchInfo> heard = new List<GmmWatchInfo>();
        using (GmmBuffer buffer = Alloc(tag))
        {
            int refused = 0;
            GmmWatcher first = context.Watch(new GmmWatchOptions { Tag = tag, Name = "cache" },
                info => Add(heard, info));
            GmmWatchOptions range = new GmmWatchOptions
            {
                Address = buffer.Address, Size = Size, Events = GmmWatchEvents.Losing, Order = -1
            };
            using (first)
            using (GmmWatcher second = context.Watch(range, info =>
            {
                Add(heard, info);
                Fails(GmmResult.Busy, "BUSY", () => context.Alloc(100));
                Fails(GmmResult.Busy, "BUSY", () => tag.Pause());
                Fails(GmmResult.Busy, "BUSY", first.Dispose);
                refused = 3;
                return false; // has no effect but for Prepare
            }))
            {
                tag.Pause();
                tag.Resume();
                Same(null, second.Thrown, "what the handler threw");
            }
            CheckContents(buffer);
            Same("Prepare Losing Losing Restored", string.Join(" ", heard.ConvertAll(info => info.Event)),
                "the events");
            Same(buffer.Address, heard[1].Address, "the address");
            Same(IntPtr.Zero, heard[2].Address, "the address of a tag");
            Same((long)Size, heard[1].Size, "the size");
            Same(tag.Number, heard[1].Tag, "the tag");
            Check(heard[1].Generation != buffer.Query().Generation, "another generation");
            Check(heard[1].RemainingMilliseconds > 0 && heard[1].RemainingMilliseconds <= 10000, "the time");
            Same(3, refused, "calls that are refused inside");
            tag.Pause();
            tag.Resume();
            Same(4, heard.Count, "what closed watchers hear");
            RefusePause(tag, buffer);
            ForgetWatchers(tag);
        }
        List<GmmWatchInfo> fell = new List<GmmWatchInfo>();
        GmmScope device = new GmmScope { Device = 0 };
        using (context.Watch(new GmmWatchOptions { BudgetBytes = 8 * MiB }, info => Add(fell, info)))
        {
            context.SetLimit(device, 4 * MiB);
            WaitFor("a budget that falls", () =>
            {
                lock (fell)
                {
                    return fell.Count != 0;
                }
            });
            context.SetLimit(device, GmmContext.NoLimit);
        }
        Same(GmmWatchEvents.Budget, fell[0].Event, "the event");
        Check(fell[0].BudgetBytes <= 4 * MiB, "the budget");
        Fails(GmmResult.InvalidFlags, "INVALID_FLAGS", () => context.Watch(new GmmWatchOptions(), info => true));
        Fails<ArgumentNullException>(() => context.Watch(new GmmWatchOptions { Tag = tag }, null));
    }

    /// <summary>
    /// What waits for an operation is Busy in the handler for which it waits, and stays usable.
    /// </summary>
    internal void ClosedInside()
    {
        GmmTag tag = context.Tag("closed inside", GmmContents.Host, 0);
        GmmTag elsewhere = context.Tag("ticket inside", GmmContents.Host, 0);
        Gate gate = new Gate();
        int refused = 0;
        using (GmmBuffer buffer = Alloc(tag))
        using (GmmHeap heap = context.Heap(new GmmHeapOptions { Kind = GmmKind.Host }))
        using (GmmContext other = new GmmContext())
        using (GmmBuffer large = Alloc(elsewhere, Large))
        using (GmmTicket ticket = elsewhere.PauseAsync(new GmmPauseOptions { Progress = gate.Report }))
        {
            Check(gate.Reached.WaitOne(Long), "the progress is told");
            GmmWatchOptions losing = new GmmWatchOptions { Tag = tag, Events = GmmWatchEvents.Losing };
            using (GmmWatcher watcher = context.Watch(losing, info =>
            {
                Fails(GmmResult.Busy, "BUSY", heap.Dispose);
                Fails(GmmResult.Busy, "BUSY", ticket.Dispose);
                Fails(GmmResult.Busy, "BUSY", () => ticket.Wait(Long));
                Fails(GmmResult.Busy, "BUSY", () => Ignore(ticket.Result));
                Fails(GmmResult.Busy, "BUSY", other.Dispose);
                Check(!ticket.IsDone, "a look at the ticket");
                refused = 5;
                return true;
            }))
            {
                tag.Pause();
                tag.Resume();
                Same(null, watcher.Thrown, "what the handler threw");
            }
            Same(5, refused, "calls that are refused inside");
            heap.Alloc(Size).Dispose();
            other.Alloc(Size).Dispose();
            gate.Open.Set();
            Check(ticket.Result >= Large, "the ticket's bytes");
            elsewhere.Resume();
            CheckContents(buffer);
        }
    }

    private static bool Add(List<GmmWatchInfo> list, GmmWatchInfo info)
    {
        lock (list)
        {
            list.Add(info);
        }
        return true;
    }

    private static bool ThrowFromWatcher(GmmWatchInfo info)
    {
        throw new FormatException("from the watcher");
    }

    /// <summary>False and exceptions refuse Prepare.</summary>
    private void RefusePause(GmmTag tag, GmmBuffer buffer)
    {
        List<GmmWatchInfo> failed = new List<GmmWatchInfo>();
        GmmWatchOptions outer = new GmmWatchOptions
        {
            Tag = tag, Events = GmmWatchEvents.Prepare | GmmWatchEvents.Failed, Order = -1
        };
        using (context.Watch(outer, info => info.Event == GmmWatchEvents.Prepare || Add(failed, info)))
        {
            using (context.Watch(new GmmWatchOptions { Tag = tag, Name = "says no" }, info => false))
            {
                string message = Fails(GmmResult.Busy, "BUSY", () => tag.Pause()).Message;
                Check(message.Contains("says no"), "the watcher's name");
            }
            using (GmmWatcher throws = context.Watch(new GmmWatchOptions { Tag = tag }, ThrowFromWatcher))
            {
                Fails(GmmResult.Busy, "BUSY", () => tag.Pause());
                Same("from the watcher", throws.Thrown.Message, "what the handler threw");
            }
        }
        Same(2, failed.Count, "failures");
        Same(GmmResult.Busy, failed[0].Cause, "the cause");
        Same(GmmState.Active, buffer.Query().State, "the state");
    }

    /// <summary>The finalizer ends a watcher that nobody holds, while pauses call it.</summary>
    private void ForgetWatchers(GmmTag tag)
    {
        long calls = 0;
        Elsewhere(() =>
        {
            for (int i = 0; i < 10; i++)
            {
                context.Watch(new GmmWatchOptions { Tag = tag, Events = GmmWatchEvents.Prepare },
                    info => Interlocked.Increment(ref calls) > 0);
            }
        });
        WaitFor("the end of 10 forgotten watchers", () =>
        {
            long told = Interlocked.Read(ref calls);
            tag.Pause();
            tag.Resume();
            return Interlocked.Read(ref calls) == told;
        });
    }
}
