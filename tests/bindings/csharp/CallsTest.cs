/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;
using System.Linq;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Threading;
using Gmm;
using static Tap;

/// <summary>Each way in which values cross into C and back, and each call that is written by hand.</summary>
internal sealed class CallsTest
{
    private const int MiB = 1 << 20;
    private const string Name = "Größe 😀"; // beyond the basic plane

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
        return string.IsNullOrEmpty(backend) || backend == "host"
            ? new GmmContextOptions { Backend = GmmBackend.Host, HostDevices = 2, HostMemory = 1L << 30 }
            : new GmmContextOptions();
    }

    internal static int Run()
    {
        CallsTest calls = new CallsTest();
        Tap tap = new Tap();
        tap.Test("every method finds its types", Methods);
        tap.Test("messages name methods that exist", Messages);
        tap.Test("answers", calls.Answers);
        tap.Test("options", calls.AllOptions);
        tap.Test("errors", calls.Errors);
        tap.Test("sizes and text that C cannot take", calls.Refused);
        tap.Test("buffers", calls.Buffers);
        tap.Test("heap", calls.Heap);
        tap.Test("stream and event", calls.Stream);
        tap.Test("pin", calls.Pin);
        tap.Test("tags", calls.Tags);
        tap.Test("pause, resume and backups", calls.Pause);
        tap.Test("handles for another process", calls.Ipc);
        tap.Test("file descriptors", calls.Fd);
        tap.Test("statistics, names and trims", calls.Statistics);
        tap.Test("the text of each object", calls.Printed);
        tap.Test("reset", calls.Reset);
        return tap.Finish();
    }

    private static IntPtr At(IntPtr address, long offset) => (IntPtr)((long)address + offset);

    /// <summary>.NET's mscorlib lacks some types of Mono's, which compiled the assembly.</summary>
    private static void Methods()
    {
        const BindingFlags Own = BindingFlags.Instance | BindingFlags.Static | BindingFlags.Public
            | BindingFlags.NonPublic | BindingFlags.DeclaredOnly;
        foreach (MethodBase method in typeof(GmmContext).Assembly.GetTypes()
            .Where(type => !type.ContainsGenericParameters && !typeof(Delegate).IsAssignableFrom(type))
            .SelectMany(type => type.GetMembers(Own)).OfType<MethodBase>())
        {
            if (!method.IsAbstract && !method.ContainsGenericParameters
                && (method.Attributes & MethodAttributes.PinvokeImpl) == 0)
            {
                RuntimeHelpers.PrepareMethod(method.MethodHandle);
            }
        }
    }

    private static void Messages()
    {
        Assembly assembly = typeof(GmmContext).Assembly;
        object names = assembly.GetType("Gmm.Methods").GetField("Of", BindingFlags.Static | BindingFlags.NonPublic)
            .GetValue(null);
        foreach (string method in ((Dictionary<string, string>)names).Values)
        {
            string[] words = method.Split(new[] { '.' }, 2);
            Check(assembly.GetType("Gmm." + words[0]).GetMember(words[1]).Length != 0, method);
        }
    }

    private void Answers()
    {
        Same(GmmContext.InterfaceVersion, GmmContext.Version.Split('r')[0], "the version");
        GmmContextInfo info = context.Info();
        bool host = info.Backend == GmmBackend.Host;
        Same(host ? "host" : "cuda", info.BackendName, "text");
        Check(info.DeviceCount >= 1 && device.FreeMemory <= device.TotalMemory, "numbers");
        Check(device.Uuid.Length == 16 && device.Luid.Length == 8, "bytes");
        Check(device.Has(GmmKind.Device) && device.Kinds != 0, "a mask");
        Same(host, device.IsCpu, "a flag");
        Same(GmmState.Unknown, context.Query(IntPtr.Zero).State, "an enumerator");
    }

    private void AllOptions()
    {
        GmmTag tag = context.Tag(Name, new GmmTagOptions
        {
            Contents = GmmContents.Host, Priority = -3, ReadOnly = true, Pageable = true
        });
        GmmPauseInfo info = tag.Info();
        Check(info.Name == Name && info.Contents == GmmContents.Host && info.Priority == -3 && info.ReadOnly
            && info.Pageable && !info.Checksum, "the options of a tag: " + info);
        tag.Update(new GmmTagOptions());
        Check(!tag.Info().ReadOnly && tag.Info().Contents == GmmContents.Drop, "the update");
        GmmAllocOptions options = new GmmAllocOptions
        {
            Kind = GmmKind.Vmm, Device = 0, Tag = tag, Alignment = MiB, Zero = true, Dedicated = true
        };
        using (GmmBuffer buffer = context.Alloc(3 * MiB, options))
        {
            GmmPointerInfo block = context.Query(At(buffer.Address, 5));
            Check(block.Kind == GmmKind.Vmm && block.Base == buffer.Address && block.Size == 3L * MiB
                && block.Tag == tag.Number && block.AllocationBase == block.Base, "the block: " + block);
            Same(0L, (long)buffer.Address % MiB, "the alignment");
            SameBytes(new byte[3 * MiB], buffer.Read(0, 3 * MiB), "zeros");
        }
        GmmContextOptions all = Options();
        all.NoCapture = all.NoLeakReport = all.StrictHost = true;
        all.DecommitAfterMilliseconds = 5000;
        using (GmmContext other = new GmmContext(all))
        {
            GmmContextInfo made = other.Info();
            Check(made.DecommitAfterMilliseconds == 5000 && made.NoCapture && made.NoLeakReport && made.StrictHost,
                "the options of a context: " + made);
            Fails(GmmResult.InvalidValue, // a list without a directory
                () => other.ConfigureIpc(new GmmIpcOptions { Users = { 1 } }));
        }
        Fails(GmmResult.NoBackend, () => new GmmContext(GmmBackend.Sycl));
    }

    private void Errors()
    {
        IntPtr address = context.Allocate(MiB, new GmmAllocOptions());
        GmmException error = Fails(GmmResult.InteriorPointer,
            () => context.Free(At(address, 16), GmmStream.Default));
        Check(error.ToString().Contains("GMM_ERROR_INTERIOR_POINTER (-14") && error.NativeCode == 0, "" + error);
        context.Free(address, GmmStream.Default);
        context.Free(IntPtr.Zero, GmmStream.Default);
        GmmException io = Fails(GmmResult.Io, () => context.TraceBegin("/nowhere/at/all"));
        Check(io.Message.Contains("/nowhere/at/all") && io.NativeCode == 2, "a path and ENOENT: " + io);
        Fails(GmmResult.NullArgument, () => context.Tag(null));
    }

    private void Refused()
    {
        using (GmmHeap heap = context.Heap(new GmmHeapOptions()))
        using (GmmBuffer buffer = context.Alloc(MiB))
        {
            foreach (Action step in new Action[] { () => context.Alloc(-1), () => heap.Alloc(-1),
                         () => context.Allocate(-1, new GmmAllocOptions()),
                         () => heap.Allocate(-1, GmmStream.Default),
                         () => context.Fill(buffer.Address, 0, -1, GmmStream.Default),
                         () => context.SetLimit(null, -2), () => new GmmHeapOptions { Limit = -1 },
                         () => context.ImportFd(0, GmmFdType.Default, -1) })
            {
                string message = Fails<ArgumentOutOfRangeException>(step).Message;
                Check(message.Contains("-1") || message.Contains("-2"), message);
            }
        }
        context.SetLimit(null, GmmContext.NoLimit);
        Fails<ArgumentException>(() => context.SetBackup(new GmmBackupOptions { Directory = "a\0b" }));
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
            SameBytes(Pattern(1000), other.Read(0, 1000), "the bytes of a write and a copy");
            other.Fill(500, 1, 7, GmmStream.Default);
            Same((byte)7, other.Read(500, 1)[0], "a byte of a part");
            Same((byte)1, Marshal.ReadByte(buffer.Address, 100), "a byte through the address");
            Fails<ArgumentOutOfRangeException>(() => buffer.Read(MiB - 7, 8));
        }
    }

    private void Heap()
    {
        GmmHeapOptions options = new GmmHeapOptions { Kind = GmmKind.Vmm, MinimumExtent = 4 * MiB, Limit = 64 * MiB };
        using (GmmHeap heap = context.Heap(options))
        {
            IntPtr block = heap.Allocate(MiB, GmmStream.Default);
            Same(GmmKind.Vmm, context.Query(block).Kind, "the kind");
            heap.Alloc(MiB, GmmStream.Default, "in a heap").Dispose();
            // The failure of an end comes out of Dispose(), with the failure that a using statement would lose by that.
            Fails<GmmOutOfMemoryException>(() => heap.Alloc(65 * MiB, GmmStream.Default));
            GmmException end = Fails<GmmException>(heap.Dispose);
            Same(GmmResult.Busy, end.Result, "the result of the end");
            Same(GmmResult.LimitExceeded, ((GmmException)end.InnerException).Result, "the failure before");
            Check(end.ToString().Contains("Gmm.GmmOutOfMemoryException: GMM_ERROR_LIMIT_EXCEEDED"), "both are shown");
            Check(end.InnerException.Message.StartsWith("GmmContext.Alloc of "), end.InnerException.Message);
            context.Free(block, GmmStream.Default);
        }
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
            point.Synchronize();
            Check(seen == 1 && point.Query(), "the second stream ran after the first");
            GmmBuffer buffer = context.Alloc(MiB, new GmmAllocOptions { Stream = first });
            buffer.RecordUse(second);
            buffer.Dispose(second);
            context.Forget(GmmStream.Of(first.Address));
            context.Synchronize(GmmStream.Default);
        }
    }

    private void Pin()
    {
        byte[] memory = new byte[4 * MiB];
        using (GmmPin first = context.Pin(memory))
        using (GmmPin second = context.Pin(first.Address, memory.Length, 0, false))
        {
            Check(first.DevicePointer != IntPtr.Zero, "a device pointer");
            first.Dispose();
            Same(GmmState.Pinned, context.Query(second.Address).State, "the state after one of two unpins");
        }
        Fails(GmmResult.InvalidSize, () => context.Pin(new byte[0]));
    }

    private void Tags()
    {
        GmmTag tag = context.Tag("pushed");
        Same(tag.Number, context.FindTag("pushed").Number, "the tag that was found");
        for (int i = 0; i < 20; i++) // more than the first list holds
        {
            context.Tag("tag " + i);
        }
        Same(1, context.Tags()[0].Number, "the first of the tags");
        Check(context.Tags().Any(each => each.Info().Name == "tag 19"), "the last of the tags");
        using (IDisposable scope = tag.Push())
        {
            Same(tag.Number, TagOfNewBlock(), "the tag that was pushed");
            Elsewhere(() => Fails<InvalidOperationException>(scope.Dispose));
        }
        context.SetProcessDefaultTag(tag);
        Same(tag.Number, TagOfNewBlock(), "the default tag");
        context.SetProcessDefaultTag(context.DefaultTag);
        context.Tag("destroyed").Destroy();
        Fails(GmmResult.InvalidTag, () => context.FindTag("destroyed"));
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
        GmmTag tag = context.Tag("paused", GmmContents.Host, 0);
        GmmAllocOptions options = new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag, Dedicated = true };
        using (GmmBuffer first = context.Alloc(4 * MiB, options))
        using (GmmBuffer second = context.Alloc(4 * MiB, options))
        {
            first.Write(0, Pattern(4 * MiB));
            long paused = context.Pause(tag);
            Same(paused, tag.Info().PausedBytes, "paused bytes");
            SameBytes(Pattern(1000), first.Backup(0, 1000), "the kept contents");
            Same((byte)1, Marshal.ReadByte(first.BackupAddress(0, 4 * MiB)), "their address");
            long back = first.Resume();
            Check(first.WaitReady(TimeSpan.FromSeconds(1)), "the first is ready");
            Check(!second.WaitReady(TimeSpan.FromMilliseconds(20)), "the second is not");
            Same(paused - back, tag.Resume(new GmmPauseOptions { Retain = true }), "the rest");
            SameBytes(Pattern(4 * MiB), first.Read(0, 4 * MiB), "the contents");
            using (tag.Paused())
            {
                Same(GmmState.Paused, first.Query().State, "the state");
            }
            tag.Pause(new GmmPauseOptions { Contents = GmmContents.File });
            Same(4L * MiB, tag.Info().BackupFileBytes, "contents in a file"); // those of the second block are zero
            Same(8L * MiB, tag.DiscardBackup(), "bytes that were kept");
            tag.Resume();
        }
    }

    private void Ipc()
    {
        using (GmmBuffer buffer = context.Alloc(MiB, GmmKind.Vmm))
        {
            buffer.Write(4096, Pattern(1000));
            byte[] handle = context.Export(At(buffer.Address, 4096));
            using (GmmContext other = new GmmContext(Options()))
            using (GmmBuffer imported = other.Import(handle))
            {
                SameBytes(Pattern(1000), imported.Read(0, 1000), "the bytes of an import");
                Same(MiB - 4096L, imported.Size, "the size of an import");
            }
        }
        Fails(GmmResult.IpcInvalidHandle, () => context.Import(new byte[GmmContext.IpcHandleSize]));
        Fails<ArgumentException>(() => context.Import(new byte[10]));
        using (GmmStream stream = context.Stream(0))
        using (GmmEvent point = context.IpcEvent(0))
        {
            point.Record(stream);
            using (GmmEvent imported = context.ImportEvent(point.Export()))
            {
                stream.WaitFor(imported);
                imported.Synchronize();
                Check(imported.Query(), "the event has passed");
            }
        }
        using (GmmBuffer buffer = context.Alloc(MiB, GmmKind.Device))
        {
            if (buffer.Query().LegacyIpc)
            {
                Same(GmmLegacyHandle.HandleSize, buffer.ExportLegacy().Bytes.Length, "bytes of a legacy handle");
            }
        }
    }

    private void Fd()
    {
        using (GmmBuffer buffer = context.Alloc(MiB, new GmmAllocOptions { Kind = GmmKind.Vmm, Dedicated = true }))
        {
            GmmExportedFd exported = buffer.ExportFd();
            GmmFdType type = device.IsCpu ? GmmFdType.File : GmmFdType.Opaque;
            using (GmmBuffer again = context.ImportFd(exported.Fd, type, exported.Size, 0))
            {
                buffer.Write(0, Pattern(MiB));
                SameBytes(Pattern(MiB), again.Read(exported.Offset, MiB), "the contents, through the import");
                Fails<NotSupportedException>(() => again.Dispose(GmmStream.Default));
            }
            exported.Dispose();
            exported.Dispose();
            Fails<ObjectDisposedException>(() => exported.Detach());
        }
    }

    private void Statistics()
    {
        GmmTag tag = context.Tag("counted");
        GmmAllocOptions options = new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag, Name = "a " + Name };
        GmmScope scope = new GmmScope { Device = 0, Tag = tag, Kind = GmmKind.Vmm };
        using (GmmBuffer buffer = context.Alloc(MiB, options))
        using (GmmBuffer other = context.Alloc(MiB))
        {
            Same(1L, context.Statistics(scope).LiveBlocks, "blocks of the scope");
            Check(context.Snapshot().Contains("\"a " + Name + "\""), "a snapshot");
            GmmBlockInfo found = context.Blocks(scope)[0];
            Check(found.Address == buffer.Address && found.Size == MiB && found.Name == "a " + Name, "" + found);
            buffer.SetName(null);
            context.Name(At(other.Address, 1), "inside");
            string text = context.Snapshot();
            Check(!text.Contains("a " + Name) && text.Contains("\"inside\""), "other names");
        }
        GmmScope vmm = new GmmScope { Kind = GmmKind.Vmm };
        context.Alloc(64 * MiB, GmmKind.Vmm).Dispose();
        using (context.Defer())
        {
            Same(0L, context.Trim(), "a trim inside a deferral");
        }
        Check(context.Statistics().CachedBytes < 64 * MiB, "the deferred trim");
        Same(0L, context.Compact(vmm, new GmmCompactOptions { MaxBytes = MiB, Live = true }).ReleasedBytes, "nothing");
        context.SetDecommitAfterMilliseconds(GmmContext.DecommitNever);
        Same(GmmContext.DecommitNever, context.Info().DecommitAfterMilliseconds, "never");
    }

    /// <summary>A text is no name of a class, and never throws.</summary>
    private void Printed()
    {
        GmmContext other = new GmmContext(GmmBackend.Host);
        GmmTag tag = other.Tag("printed", GmmContents.Host, 0);
        GmmBuffer buffer =
            other.Alloc(3 * MiB / 2, new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag, Name = "here" });
        GmmTicket ticket = tag.ResumeAsync();
        Same(0L, ticket.Result, "bytes that came back");
        IDisposable[] closed = { other.Stream(0), other.Event(0), other.Heap(new GmmHeapOptions()), buffer, ticket,
            other.Pin(new byte[8192]), buffer.ExportFd(), other };
        object[] all = { GmmStream.Default, tag, other.Device(0), buffer.Query(), tag.Info(), ticket.Info(),
            new GmmAllocOptions(), new GmmIpcOptions(), new GmmScope(), new GmmLeaseOptions(),
            new GmmLeaseRequest { Amounts = { [1] = 5 } } };
        foreach (object each in all.Concat(closed))
        {
            Check(each.ToString().StartsWith(each.GetType().Name + " {"), "printed: " + each);
        }
        Check(buffer.ToString().StartsWith("GmmBuffer { 1.5 MiB at 0x")
            && buffer.ToString().EndsWith(", Vmm of device 0, Active }"), buffer.ToString());
        Check(other.ToString().Contains("1 blocks of 1.5 MiB live") && tag.ToString().Contains("\"printed\""), "names");
        Check(other.Blocks()[0].ToString().Contains("Name = here"), other.Blocks()[0].ToString());
        foreach (IDisposable each in closed)
        {
            each.Dispose();
            Check(each.ToString().StartsWith(each.GetType().Name + " {"), "printed when closed: " + each);
        }
        Same("GmmBuffer { closed }", buffer.ToString(), "a closed buffer");
    }

    private void Reset()
    {
        GmmBuffer buffer = context.Alloc(MiB, GmmKind.Vmm);
        context.Reset();
        Fails<ObjectDisposedException>(() => buffer.Query());
        using (GmmBuffer next = context.Alloc(MiB, GmmKind.Vmm))
        {
            buffer.Dispose(); // does not free the block that has the old address now
            Same(GmmState.Active, next.Query().State, "the next block");
        }
    }
}
