/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.IO;
using System.Runtime.InteropServices;
using System.Text;
using System.Threading;
using Gmm;
using static Tap;

/// <summary>
/// Each call of the binding once: its arguments reach C, and its answer comes back. The promises of the library are
/// tested in tests/api.
/// </summary>
internal sealed class CallsTest
{
    private const int MiB = 1 << 20;

    private readonly GmmContext context = new GmmContext(Options());
    private readonly GmmDeviceInfo device;

    private CallsTest()
    {
        device = context.Device(0);
    }

    /// <summary>The backend that GMM_BACKEND names; the host's with two devices when it names none.</summary>
    internal static GmmContextOptions Options()
    {
        string backend = Environment.GetEnvironmentVariable("GMM_BACKEND");
        if (string.IsNullOrEmpty(backend) || backend == "host")
        {
            return new GmmContextOptions { Backend = GmmBackend.Host, HostDevices = 2, HostMemory = 1L << 30 };
        }
        return new GmmContextOptions();
    }

    internal static int Run()
    {
        CallsTest calls = new CallsTest();
        Tap tap = new Tap();
        tap.Test("version", () => Same(GmmContext.InterfaceVersion, GmmContext.Version.Split('-')[0], "the version"));
        tap.Test("context and device", calls.Context);
        tap.Test("buffers", calls.Buffers);
        tap.Test("options of an allocation", calls.AllocOptions);
        tap.Test("errors", calls.Errors);
        tap.Test("heap", calls.Heap);
        tap.Test("stream and event", calls.Stream);
        tap.Test("pin", calls.Pin);
        tap.Test("residency", calls.Residency);
        tap.Test("tags", calls.Tags);
        tap.Test("pause and resume", calls.Pause);
        tap.Test("backups", calls.Backups);
        tap.Test("ipc", calls.Ipc);
        tap.Test("file descriptors", calls.Fd);
        tap.Test("legacy handle", calls.Legacy);
        tap.Test("limits and statistics", calls.Statistics);
        tap.Test("snapshot and blocks", calls.Snapshot);
        tap.Test("trace", calls.Trace);
        tap.Test("trim, defer, compact and decommit", calls.Trim);
        tap.Test("options of a context", calls.ContextOptions);
        tap.Test("reset", calls.Reset);
        tap.Test("close", calls.Close);
        return tap.Finish();
    }

    private static void Need(bool capability, string what)
    {
        if (!capability)
        {
            throw new Skip("this device has no " + what);
        }
    }

    private static IntPtr At(IntPtr address, long offset)
    {
        return (IntPtr)((long)address + offset);
    }

    private void Context()
    {
        GmmContextInfo info = context.Info();
        bool host = info.Backend == GmmBackend.Host;
        Same(host ? "host" : "cuda", info.BackendName, "the backend's name");
        Check(info.DeviceCount >= 1 && info.DriverVersion.Length > 0, "devices and driver");
        Check(device.Name.Length > 0 && device.Granularity > 0, "name and granularity");
        Check(device.FreeMemory <= device.TotalMemory && device.BudgetBytes > 0, "memory");
        Same(16, device.Uuid.Length, "bytes of the uuid");
        Same(8, device.Luid.Length, "bytes of the luid");
        Check(device.Has(GmmKind.Device) && device.Kinds != 0, "kinds");
        Same(host, device.IsCpu, "whether it is the host");
        Same((device.Capabilities & 1) != 0, device.CanPause, "a capability");
    }

    private void Buffers()
    {
        using (GmmBuffer buffer = context.Alloc(MiB, GmmKind.Host))
        using (GmmBuffer other = context.Alloc(MiB))
        {
            buffer.Fill(0x5A);
            Same((byte)0x5A, buffer.Read(MiB - 1, 1)[0], "a byte of the fill");
            buffer.Write(100, Pattern(1000));
            other.CopyFrom(0, buffer, 100, 1000, GmmStream.Default);
            SameBytes(Pattern(1000), other.Read(0, 1000), "what was written and copied");
            Same((byte)1, Marshal.ReadByte(buffer.Address, 100), "a byte through the address");
            Fails<ArgumentOutOfRangeException>(() => buffer.Read(MiB - 7, 8));
            Fails<ArgumentOutOfRangeException>(() => buffer.Write(-1, new byte[1]));
        }
    }

    private void AllocOptions()
    {
        GmmTag tag = context.Tag("options");
        GmmAllocOptions options = new GmmAllocOptions
        {
            Kind = GmmKind.Vmm, Device = 0, Tag = tag, Alignment = MiB, Zero = true, Dedicated = true, Name = "named"
        };
        using (GmmBuffer buffer = context.Alloc(3 * MiB, options))
        {
            GmmPointerInfo info = context.Query(At(buffer.Address, 5));
            Same(GmmKind.Vmm, info.Kind, "the kind");
            Same(buffer.Address, info.Base, "the base");
            Same(3L * MiB, info.Size, "the size");
            Check(info.ReservedSize >= info.Size && info.AllocationBase == info.Base, "a dedicated allocation");
            Same(tag.Number, info.Tag, "the tag");
            Same(GmmState.Active, info.State, "the state");
            Same(0L, (long)buffer.Address % MiB, "the alignment");
            SameBytes(new byte[3 * MiB], buffer.Read(0, 3 * MiB), "zeros");
        }
        using (GmmBuffer buffer = context.Alloc(MiB, new GmmAllocOptions { Comm = true }))
        {
            Check(buffer.Kind == GmmKind.Vmm && buffer.Query().Comm, "memory for networks");
        }
        Same(GmmState.Unknown, context.Query(IntPtr.Zero).State, "null");
    }

    private void Errors()
    {
        Fails(GmmResult.InvalidSize, "INVALID_SIZE", () => context.Alloc(0));
        Fails(GmmResult.InvalidKind, "INVALID_KIND", () => context.Alloc(MiB, (GmmKind)77));
        Fails(GmmResult.InvalidDevice, "INVALID_DEVICE", () => context.Alloc(MiB, new GmmAllocOptions { Device = 99 }));
        Fails(GmmResult.InvalidTag, "INVALID_TAG",
            () => context.Alloc(MiB, new GmmAllocOptions { Tag = context.TagByNumber(3999) }));
        IntPtr address = context.Allocate(MiB, new GmmAllocOptions());
        GmmException error = Fails(GmmResult.InteriorPointer, "INTERIOR_POINTER",
            () => context.Free(At(address, 16), GmmStream.Default));
        Check(error.ToString().Contains("GMM_ERROR_INTERIOR_POINTER (-14"), "the text: " + error);
        context.Free(address, GmmStream.Default);
        Fails(GmmResult.AlreadyFreed, "ALREADY_FREED", () => context.Free(address, GmmStream.Default));
        context.Free(IntPtr.Zero, GmmStream.Default);
    }

    private void Heap()
    {
        GmmHeap heap = context.Heap(
            new GmmHeapOptions { Kind = GmmKind.Vmm, MinimumExtent = 4 * MiB, Limit = 64 * MiB });
        IntPtr block = heap.Allocate(MiB, GmmStream.Default);
        Same(GmmKind.Vmm, context.Query(block).Kind, "the kind");
        Fails(GmmResult.LimitExceeded, "LIMIT_EXCEEDED", () => heap.Alloc(65 * MiB));
        context.Free(block, GmmStream.Default);
        heap.Reserve(16 * MiB);
        Check(context.Statistics().ReservedBytes >= 16 * MiB, "the reserve is held");
        GmmBuffer buffer = heap.Alloc(MiB, GmmStream.Default, "in a heap"); // it keeps the heap
        heap.Dispose();
        buffer.Fill(7);
        Same((byte)7, buffer.Read(MiB - 1, 1)[0], "a byte in a closed heap");
        buffer.Dispose();
        Fails<ObjectDisposedException>(() => heap.Alloc(MiB));
        GmmHeap busy = context.Heap(new GmmHeapOptions { Kind = GmmKind.Vmm });
        IntPtr left = busy.Allocate(MiB, GmmStream.Default);
        Fails(GmmResult.Busy, "BUSY", busy.Dispose);
        context.Free(left, GmmStream.Default);
    }

    private void Stream()
    {
        using (GmmStream first = context.Stream(0))
        using (GmmStream second = context.Stream(0))
        using (GmmEvent point = context.Event(0))
        {
            Check(point.Query(), "an event that was never recorded has passed");
            int flag = 0;
            int seen = 0;
            first.Call(() =>
            {
                Thread.Sleep(50);
                Interlocked.Exchange(ref flag, 1);
            });
            point.Record(first);
            second.WaitFor(point);
            second.Call(() => Interlocked.Exchange(ref seen, flag));
            second.Synchronize();
            Check(seen == 1 && point.Query(), "the second stream ran after the first");
            point.Synchronize();
            GmmBuffer buffer = context.Alloc(MiB, new GmmAllocOptions { Stream = first });
            buffer.Fill(0, MiB, 3, first);
            buffer.RecordUse(second);
            buffer.Dispose(second);
            context.Forget(GmmStream.Of(first.Address));
            context.Synchronize(GmmStream.Default);
        }
    }

    private void Pin()
    {
        Need(device.CanPin, "pinning");
        byte[] memory = new byte[4 * MiB];
        GmmPin first = context.Pin(memory);
        IntPtr address = first.Address;
        Check(first.DevicePointer != IntPtr.Zero, "a device pointer");
        Same(GmmState.Pinned, context.Query(address).State, "the state");
        using (GmmPin whole = context.Pin(address, memory.Length, 0, false))
        {
            first.Dispose();
            Same(GmmState.Pinned, context.Query(address).State, "the state after one of two unpins");
        }
        Same(GmmState.Unknown, context.Query(address).State, "the state after both");
        Fails(GmmResult.InvalidSize, "INVALID_SIZE", () => context.Pin(address, 0, 0, false));
    }

    private void Residency()
    {
        Need(device.Has(GmmKind.Managed), "managed memory");
        using (GmmBuffer buffer = context.Alloc(4 * MiB, GmmKind.Managed))
        using (GmmStream stream = context.Stream(0))
        {
            buffer.Write(0, Pattern(4 * MiB));
            buffer.Advise(GmmAdvice.SetPreferredLocation, 0);
            buffer.Prefetch(GmmContext.HostLocation, stream);
            buffer.Move(GmmContext.HostLocation);
            buffer.Move(0, new GmmMoveOptions { Stream = stream, NonBlocking = true });
            stream.Synchronize();
            SameBytes(Pattern(4 * MiB), buffer.Read(0, 4 * MiB), "the contents");
        }
        using (GmmBuffer buffer = context.Alloc(MiB, GmmKind.Host))
        {
            Fails(GmmResult.InvalidKind, "INVALID_KIND", () => buffer.Advise(GmmAdvice.SetReadMostly, 0));
        }
    }

    private void Tags()
    {
        GmmTagOptions options = new GmmTagOptions
        {
            Contents = GmmContents.Host, Priority = -3, ReadOnly = true, Pageable = true
        };
        GmmTag tag = context.Tag("größe 😀", options);
        GmmPauseInfo info = tag.Info();
        Check(info.Contents == GmmContents.Host && info.Priority == -3 && info.ReadOnly && info.Pageable
            && !info.Checksum, "the options: " + info);
        Same(tag.Number, context.FindTag("größe 😀").Number, "the tag that was found");
        Fails(GmmResult.InvalidTag, "INVALID_TAG", () => context.FindTag("no such tag"));
        tag.Update(new GmmTagOptions());
        Check(!tag.Info().ReadOnly && tag.Info().Contents == GmmContents.Drop, "the update");
        for (int i = 0; i < 20; i++) // more than the first list has room for
        {
            context.Tag("tag " + i);
        }
        Same(1, context.Tags()[0].Number, "the first of the tags");
        Check(context.Tags().Count >= 22, "the number of the tags");
        using (IDisposable scope = tag.Push())
        {
            Same(tag.Number, TagOfNewBlock(), "the tag that was pushed");
            Elsewhere(() => Fails<InvalidOperationException>(scope.Dispose));
        }
        context.SetProcessDefaultTag(tag);
        Same(tag.Number, TagOfNewBlock(), "the default tag");
        context.SetProcessDefaultTag(context.DefaultTag);
        Same(1, TagOfNewBlock(), "the tag at last");
        context.Tag("destroyed").Destroy();
        Fails(GmmResult.InvalidTag, "INVALID_TAG", () => context.FindTag("destroyed"));
    }

    private int TagOfNewBlock()
    {
        using (GmmBuffer buffer = context.Alloc(MiB, GmmKind.Vmm))
        {
            return buffer.Query().Tag;
        }
    }

    private void Pause()
    {
        Need(device.CanPause, "pausing");
        GmmTag tag = context.Tag("paused", GmmContents.Host, 0);
        GmmAllocOptions options = new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag, Dedicated = true };
        using (GmmBuffer first = context.Alloc(4 * MiB, options))
        using (GmmBuffer second = context.Alloc(4 * MiB, options))
        {
            first.Write(0, Pattern(4 * MiB));
            long paused = context.Pause(tag);
            Check(paused >= 8 * MiB, "bytes that went back: " + paused);
            Same(0L, tag.Pause(), "the bytes of a second pause");
            Same(paused, tag.Info().PausedBytes, "paused bytes");
            long back = first.Resume();
            Check(back > 0 && back < paused, "bytes of a part: " + back);
            Same(GmmState.PartlyPaused, tag.Info().State, "the state");
            Check(first.WaitReady(TimeSpan.FromSeconds(1)), "the first is ready");
            Check(!second.WaitReady(TimeSpan.FromMilliseconds(20)), "the second is not");
            Same(paused - back, tag.Resume(), "the rest");
            SameBytes(Pattern(4 * MiB), first.Read(0, 4 * MiB), "the contents");
            using (tag.Paused())
            {
                Same(GmmState.Paused, first.Query().State, "the state");
            }
            context.PauseForced(tag);
            tag.Resume(new GmmPauseOptions());
            Fails(GmmResult.UnknownPointer, "UNKNOWN_POINTER", () => context.ResumeRange((IntPtr)16, 4096));
            Fails(GmmResult.InvalidFlags, "INVALID_FLAGS", () => tag.Resume(new GmmPauseOptions { Force = true }));
        }
    }

    private void Backups()
    {
        Need(device.CanPause, "pausing");
        GmmTag tag = context.Tag("kept", GmmContents.Host, 0);
        string folder = Path.Combine(Path.GetTempPath(), "gmm-kept-" + Guid.NewGuid());
        Directory.CreateDirectory(folder);
        try
        {
            using (GmmBuffer buffer = context.Alloc(4 * MiB, new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag }))
            {
                buffer.Write(0, Pattern(4 * MiB));
                Fails(GmmResult.InvalidValue, "INVALID_VALUE", () => buffer.Backup(0, 16));
                context.PrepareBackup(0, 4 * MiB);
                Check(context.BackupInfo().ArenaBytes >= 4 * MiB, "the arena that was prepared");
                tag.Pause();
                SameBytes(Pattern(1000), buffer.Backup(0, 1000), "the kept contents");
                Same((byte)1, Marshal.ReadByte(buffer.BackupAddress(0, 4 * MiB)), "their address");
                tag.Resume(new GmmPauseOptions { Retain = true });
                SameBytes(Pattern(1000), buffer.Backup(0, 1000), "the retained contents");
                context.SetBackup(
                    new GmmBackupOptions { Directory = folder, NamedFiles = true, NoArena = true, Threads = 1 });
                tag.Pause(new GmmPauseOptions { Contents = GmmContents.File });
                Same(4L * MiB, tag.Info().BackupFileBytes, "contents in a file");
                Same(1, Directory.GetFiles(folder).Length, "files with names");
                Same(4L * MiB, tag.DiscardBackup(), "bytes that were kept");
                tag.Resume();
                Fails(GmmResult.Io, "IO", () => context.SetBackup(new GmmBackupOptions { Directory = "/no/where" }));
                Fails<ArgumentException>(() => context.SetBackup(new GmmBackupOptions { Directory = "a\0b" }));
            }
        }
        finally
        {
            context.SetBackup(null);
            context.Trim();
            Directory.Delete(folder);
        }
    }

    private void Ipc()
    {
        using (GmmBuffer buffer = context.Alloc(MiB, GmmKind.Vmm))
        {
            Need(buffer.Query().FdIpc || buffer.Query().LegacyIpc, "IPC");
            byte[] before = Pattern(MiB - 4096);
            buffer.Write(4096, before);
            Child.Run(context.Export(At(buffer.Address, 4096)), "import", (MiB - 4096).ToString());
            for (int i = 0; i < before.Length; i++)
            {
                before[i] = (byte)~before[i];
            }
            SameBytes(before, buffer.Read(4096, before.Length), "what the second process wrote");
            Same(GmmContext.IpcHandleSize, buffer.Export().Length, "bytes of a handle");
        }
        Fails(GmmResult.IpcInvalidHandle, "IPC_INVALID_HANDLE",
            () => context.Import(new byte[GmmContext.IpcHandleSize]));
        Fails<ArgumentException>(() => context.Import(new byte[10]));
        using (GmmStream stream = context.Stream(0))
        using (GmmEvent point = context.IpcEvent(0))
        using (GmmEvent plain = context.Event(0))
        {
            point.Record(stream);
            using (GmmEvent imported = context.ImportEvent(point.Export()))
            {
                stream.WaitFor(imported);
                imported.Synchronize();
                Check(imported.Query(), "the event has passed");
            }
            Fails(GmmResult.InvalidHandle, "INVALID_HANDLE", () => plain.Export());
        }
        Fails(GmmResult.Busy, "BUSY", () => context.ConfigureIpc(new GmmIpcOptions { Directory = "/tmp" }));
        using (GmmContext other = new GmmContext(GmmBackend.Host))
        {
            Fails(GmmResult.InvalidValue, "INVALID_VALUE",
                () => other.ConfigureIpc(new GmmIpcOptions { Users = { 1 } })); // the list reaches C
            other.ConfigureIpc(new GmmIpcOptions());
        }
    }

    private void Fd()
    {
        Need(device.CanExportFd, "file descriptors of memory");
        using (GmmBuffer buffer = context.Alloc(MiB, new GmmAllocOptions { Kind = GmmKind.Vmm, Dedicated = true }))
        {
            GmmExportedFd exported = buffer.ExportFd();
            Check(exported.Size >= exported.Offset + MiB, "the allocation holds the block");
            GmmFdType type = device.IsCpu ? GmmFdType.File : GmmFdType.Opaque;
            using (GmmBuffer again = context.ImportFd(exported.Fd, type, exported.Size, 0))
            {
                Same(exported.Size, again.Size, "the size of the import");
                buffer.Write(0, Pattern(MiB));
                SameBytes(Pattern(MiB), again.Read(exported.Offset, MiB), "the contents, through the import");
                Fails<NotSupportedException>(() => again.Dispose(GmmStream.Default));
            }
            exported.Dispose();
            exported.Dispose();
            Fails<ObjectDisposedException>(() => exported.Detach());
        }
    }

    private void Legacy()
    {
        using (GmmBuffer buffer = context.Alloc(MiB, GmmKind.Device))
        {
            if (buffer.Query().LegacyIpc)
            {
                GmmLegacyHandle made = buffer.ExportLegacy();
                Same(GmmLegacyHandle.HandleSize, made.ToArray().Length, "bytes of the handle");
                Check(made.Size >= made.Offset + MiB, "the allocation holds the block");
            }
            else
            {
                Fails(GmmResult.NotSupported, "NOT_SUPPORTED", () => buffer.ExportLegacy());
            }
        }
    }

    private void Statistics()
    {
        GmmTag tag = context.Tag("counted");
        GmmAllocOptions options = new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag };
        GmmScope ofTag = new GmmScope { Tag = tag };
        using (context.Alloc(MiB, options))
        using (context.Alloc(MiB, GmmKind.Host))
        {
            GmmScope all = new GmmScope { Device = 0, Tag = tag, Kind = GmmKind.Vmm };
            Same(1L, context.Statistics(all).LiveBlocks, "blocks");
            Same(1L, context.Statistics(ofTag).LiveBlocks, "blocks of the tag");
            Check(context.Statistics().LiveBytes >= 2 * MiB, "bytes of the context");
        }
        context.SetLimit(ofTag, 2 * MiB);
        Same(2L * MiB, context.Statistics(ofTag).LimitBytes, "the limit");
        Fails(GmmResult.LimitExceeded, "LIMIT_EXCEEDED", () => context.Alloc(64 * MiB, options));
        context.SetLimit(ofTag, GmmContext.NoLimit);
        Same(GmmContext.NoLimit, context.Statistics(ofTag).LimitBytes, "no limit");
    }

    private void Snapshot()
    {
        using (GmmBuffer buffer = context.Alloc(1234567, new GmmAllocOptions { Kind = GmmKind.Vmm, Name = "Größe" }))
        {
            string text = context.Snapshot();
            Check(text.Contains("\"gmm-snapshot\"") && text.Contains("\"Größe\""), "a snapshot");
            GmmBlockInfo found = null;
            foreach (GmmBlockInfo each in context.Blocks(new GmmScope { Kind = GmmKind.Vmm }))
            {
                found = each.Address == buffer.Address ? each : found;
            }
            Check(found != null && found.Size == 1234567 && found.Kind == GmmKind.Vmm && found.Name == "Größe",
                "the block: " + found);
            buffer.SetName(null);
            Check(!context.Snapshot().Contains("Größe"), "no name");
            context.Name(At(buffer.Address, 1), "inside");
            Check(context.Snapshot().Contains("\"inside\""), "a name by an address");
            long before = context.Statistics().LiveBlocks;
            Fails(GmmResult.InvalidValue, "INVALID_VALUE",
                () => context.Alloc(MiB, new GmmAllocOptions { Name = new string('n', 64) }));
            Same(before, context.Statistics().LiveBlocks, "a block whose name is refused is freed");
        }
    }

    private void Trace()
    {
        string file = Path.GetTempFileName();
        context.TraceBegin(file);
        context.Alloc(123456, GmmKind.Vmm).Dispose();
        context.TraceEnd();
        Check(Encoding.ASCII.GetString(File.ReadAllBytes(file), 0, 8) == "gmmtrace", "the first bytes of the trace");
        File.Delete(file);
        Fails(GmmResult.Unbalanced, "UNBALANCED", context.TraceEnd);
    }

    private void Trim()
    {
        context.Alloc(64 * MiB, GmmKind.Vmm).Dispose();
        using (context.Defer())
        {
            Same(0L, context.Trim(), "a trim inside a deferral");
            Check(context.Statistics().CachedBytes >= 64 * MiB, "cached bytes");
        }
        Check(context.Statistics().CachedBytes < 64 * MiB, "the deferred trim");
        context.Alloc(64 * MiB, GmmKind.Vmm).Dispose();
        Check(context.Trim(new GmmScope { Kind = GmmKind.Vmm }) >= 64 * MiB, "bytes that went back");
        GmmScope vmm = new GmmScope { Kind = GmmKind.Vmm };
        Same(0L, context.Compact(vmm,
            new GmmCompactOptions { MaxBytes = MiB, MaxMicroseconds = 1000, Live = true }).ReleasedBytes, "no more to release");
        context.DecommitAfterMilliseconds = 10000;
        Same(10000L, context.DecommitAfterMilliseconds, "the time");
        context.DecommitAfterMilliseconds = GmmContext.DecommitNever;
        Same(GmmContext.DecommitNever, context.DecommitAfterMilliseconds, "never");
    }

    private void ContextOptions()
    {
        GmmContextOptions all = Options();
        all.NoCapture = all.NoLeakReport = all.StrictHost = true;
        all.DecommitAfterMilliseconds = 5000;
        using (GmmContext other = new GmmContext(all))
        using (GmmBuffer buffer = other.Alloc(MiB, GmmKind.Device))
        {
            GmmContextInfo info = other.Info();
            Same(5000L, info.DecommitAfterMilliseconds, "the time");
            Check(info.NoCapture && info.NoLeakReport && info.StrictHost, "the flags: " + info);
            Same(false, buffer.Query().HostAccessible, "whether the host may use its memory");
        }
    }

    private void Reset()
    {
        GmmBuffer buffer = context.Alloc(MiB, GmmKind.Vmm);
        context.Reset();
        Same(0L, context.Statistics().LiveBlocks, "live blocks");
        Fails<ObjectDisposedException>(() => buffer.Query());
        using (GmmBuffer next = context.Alloc(MiB, GmmKind.Vmm))
        {
            buffer.Dispose(); // does not free the block that has the old address now
            Same(GmmState.Active, next.Query().State, "the next block");
        }
    }

    private void Close()
    {
        GmmBuffer buffer = context.Alloc(MiB);
        context.Dispose();
        context.Dispose();
        Check(context.IsDisposed, "disposed");
        Fails<ObjectDisposedException>(() => context.Info());
        buffer.Fill(9);
        Same((byte)9, buffer.Read(0, 1)[0], "a buffer keeps its context");
        buffer.Dispose();
        Fails<ObjectDisposedException>(() => Same(IntPtr.Zero, buffer.Address, "an address"));
    }
}
