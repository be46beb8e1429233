/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;
using System.IO;
using System.Reflection;
using System.Runtime.InteropServices;
using System.Text.RegularExpressions;
using System.Threading;
using Gmm;
using static Tap;

/// <summary>The steps of tests/bindings/SMOKE.md, on the backend that GMM_BACKEND names; the host's when it names
/// none.</summary>
internal sealed class SmokeTest
{
    private const int MiB = 1 << 20;

    private GmmContext context;
    private GmmDeviceInfo device;
    private bool host;

    internal static GmmContextOptions Options()
    {
        string backend = Environment.GetEnvironmentVariable("GMM_BACKEND");
        if (string.IsNullOrEmpty(backend) || backend == "host")
        {
            return new GmmContextOptions { Backend = GmmBackend.Host, HostDevices = 2, HostMemory = 1L << 30 };
        }
        return new GmmContextOptions();
    }

    internal int Run()
    {
        Tap tap = new Tap();
        tap.Test("version", Version);
        tap.Test("context", Context);
        if (context != null && device != null)
        {
            foreach (GmmKind kind in Kinds())
            {
                tap.Test("alloc " + kind, () => Alloc(kind));
            }
            tap.Test("zero", Zero);
            tap.Test("query", Query);
            tap.Test("errors", Errors);
            tap.Test("heap", Heap);
            tap.Test("stream", Stream);
            tap.Test("pin", Pin);
            tap.Test("residency", Residency);
            PauseTest steps = new PauseTest(context);
            tap.Test("tag", steps.Tag);
            tap.Test("pause", () => Pausing(steps.Pause));
            tap.Test("progress", () => Pausing(steps.Progress));
            tap.Test("ticket", () => Pausing(steps.Ticket));
            tap.Test("range", () => Pausing(steps.Range));
            tap.Test("backup", () => Pausing(steps.Backup));
            tap.Test("read-only", () => Pausing(steps.ReadOnly));
            tap.Test("retained", () => Pausing(steps.Retained));
            tap.Test("watch", () => Pausing(steps.Watch));
            tap.Test("closed inside a watcher", () => Pausing(steps.ClosedInside));
            tap.Test("comm", () => Pausing(steps.Comm));
            IpcTest sharing = new IpcTest(context, device);
            foreach (GmmKind kind in new[] { GmmKind.Vmm, GmmKind.Device, GmmKind.Host })
            {
                tap.Test("ipc " + kind, () => sharing.Memory(kind));
            }
            tap.Test("ipc garbage", sharing.Garbage);
            tap.Test("ipc event", sharing.Event);
            tap.Test("legacy handle", sharing.Legacy);
            tap.Test("fd", sharing.Fd);
            tap.Test("limit", Limit);
            tap.Test("out of memory", OutOfMemory);
            tap.Test("stats", Stats);
            tap.Test("snapshot", Snapshot);
            tap.Test("trace", Trace);
            tap.Test("trim and defer", TrimAndDefer);
            tap.Test("decommit", steps.Decommit);
            tap.Test("no capture", steps.NoCapture);
            tap.Test("log", Log);
            tap.Test("reset", Reset);
            tap.Test("close", Close);
        }
        return tap.Finish();
    }

    private List<GmmKind> Kinds()
    {
        List<GmmKind> kinds = new List<GmmKind>();
        foreach (GmmKind kind in new[] { GmmKind.Device, GmmKind.Vmm, GmmKind.Host, GmmKind.Managed })
        {
            if (device.Has(kind))
            {
                kinds.Add(kind);
            }
        }
        return kinds;
    }

    internal static void Need(bool capability, string what)
    {
        if (!capability)
        {
            throw new Skip("this device has no " + what);
        }
    }

    internal static IntPtr At(IntPtr address, long offset)
    {
        return (IntPtr)((long)address + offset);
    }

    private void Version()
    {
        Same(GmmContext.InterfaceVersion, GmmContext.Version.Split('-')[0], "the version");
        Check(Regex.IsMatch(GmmContext.Version, "^[0-9]+[.][0-9]+[.][0-9]+(-[a-z0-9]+)?$"),
            "the form of " + GmmContext.Version);
    }

    private void Context()
    {
        context = new GmmContext(Options());
        GmmContextInfo info = context.Info();
        host = info.Backend == GmmBackend.Host;
        Same(host ? "host" : "cuda", info.BackendName, "the backend's name");
        Check(host ? info.DeviceCount == 2 : info.DeviceCount >= 1, "devices: " + info.DeviceCount);
        Check(info.DriverVersion.Length > 0, "a driver version");
        GmmDeviceInfo found = context.Device(0);
        Check(found.Name.Length > 0, "a name");
        Check(found.Kinds != 0 && found.Granularity > 0, "kinds and granularity");
        Check(found.FreeMemory <= found.TotalMemory && found.TotalMemory > 0,
            "free " + found.FreeMemory + " of " + found.TotalMemory);
        Same(16, found.Uuid.Length, "bytes of the uuid");
        Same(host, found.IsCpu, "whether it is the host");
        device = found;
    }

    private void Alloc(GmmKind kind)
    {
        using (GmmBuffer buffer = context.Alloc(MiB, kind))
        {
            Same(0L, (long)buffer.Address % 256, "the alignment");
            buffer.Fill(0x5A);
            SameBytes(Repeat(0x5A, MiB), buffer.Read(0, MiB), "the fill");
            buffer.Write(100, Pattern(1000));
            SameBytes(Pattern(1000), buffer.Read(100, 1000), "what was written");
            if (buffer.Query().HostAccessible)
            {
                Same((byte)1, Marshal.ReadByte(buffer.Address, 100), "a byte through the address");
            }
            Fails<ArgumentOutOfRangeException>(() => buffer.Read(MiB - 7, 8));
            Fails<ArgumentOutOfRangeException>(() => buffer.Write(-1, new byte[1]));
        }
    }

    private void Zero()
    {
        foreach (GmmKind kind in Kinds())
        {
            using (GmmBuffer dirty = context.Alloc(MiB, kind))
            {
                dirty.Fill(0xFF);
            }
            using (GmmBuffer buffer = context.Alloc(MiB, new GmmAllocOptions { Kind = kind, Zero = true }))
            {
                SameBytes(new byte[MiB], buffer.Read(0, MiB), "zeros of " + kind);
            }
        }
    }

    private void Query()
    {
        using (GmmBuffer first = context.Alloc(MiB, GmmKind.Vmm))
        using (GmmBuffer second = context.Alloc(MiB, GmmKind.Vmm))
        {
            foreach (GmmBuffer buffer in new[] { first, second })
            {
                foreach (long offset in new long[] { 0, 1, MiB / 2, MiB - 1 })
                {
                    GmmPointerInfo info = context.Query(At(buffer.Address, offset));
                    Same(GmmKind.Vmm, info.Kind, "the kind");
                    Same(buffer.Address, info.Base, "the base");
                    Same((long)MiB, info.Size, "the size");
                    Check(info.ReservedSize >= MiB, "the reserved size");
                    Same(0, info.Device, "the device");
                    Same(context.DefaultTag.Number, info.Tag, "the tag");
                    Same(GmmState.Active, info.State, "the state");
                }
            }
            IntPtr past = At((long)first.Address > (long)second.Address ? first.Address : second.Address, MiB);
            GmmPointerInfo outside = context.Query(past);
            Check(
                outside.State != GmmState.Active || outside.Base == past, "one past the last block: " + outside.State);
        }
        IntPtr foreign = Marshal.AllocHGlobal(64);
        Same(GmmState.Unknown, context.Query(foreign).State, "foreign memory");
        Marshal.FreeHGlobal(foreign);
        Same(GmmState.Unknown, context.Query(IntPtr.Zero).State, "null");
    }

    private void Errors()
    {
        Fails(GmmResult.InvalidSize, "INVALID_SIZE", () => context.Alloc(0));
        using (GmmBuffer buffer = context.Alloc(MiB))
        {
            GmmException error = Fails(GmmResult.InteriorPointer, "INTERIOR_POINTER",
                () => context.Free(At(buffer.Address, 16), GmmStream.Default));
            Check(error.ToString().Contains("GMM_ERROR_INTERIOR_POINTER (-14"), "the text: " + error);
        }
        IntPtr foreign = Marshal.AllocHGlobal(64);
        Fails(GmmResult.UnknownPointer, "UNKNOWN_POINTER", () => context.Free(foreign, GmmStream.Default));
        Marshal.FreeHGlobal(foreign);
        Fails(GmmResult.InvalidKind, "INVALID_KIND", () => context.Alloc(MiB, (GmmKind)77));
        Fails(GmmResult.InvalidDevice, "INVALID_DEVICE", () => context.Alloc(MiB, new GmmAllocOptions { Device = 99 }));
        Fails(GmmResult.InvalidTag, "INVALID_TAG",
            () => context.Alloc(MiB, new GmmAllocOptions { Tag = context.TagByNumber(3999) }));
        IntPtr address = context.Allocate(MiB, new GmmAllocOptions());
        context.Free(address, GmmStream.Default);
        Fails(GmmResult.AlreadyFreed, "ALREADY_FREED", () => context.Free(address, GmmStream.Default));
        context.Free(IntPtr.Zero, GmmStream.Default);
    }

    private void Heap()
    {
        GmmHeap heap = context.Heap(new GmmHeapOptions { Kind = GmmKind.Vmm });
        IntPtr first = heap.Allocate(MiB, GmmStream.Default);
        IntPtr second = heap.Allocate(3 * MiB, GmmStream.Default);
        Same(GmmKind.Vmm, context.Query(second).Kind, "the kind");
        context.Free(first, GmmStream.Default);
        context.Free(second, GmmStream.Default);
        heap.Reserve(16 * MiB);
        Same(true, context.Statistics().ReservedBytes >= 16 * MiB, "the reserve is held");
        context.Trim();
        Same(true, context.Statistics().ReservedBytes >= 16 * MiB, "a trim leaves the reserve");
        GmmCompactInfo compacted = context.Compact(null, 0, 0);
        Same(true, compacted.LargestFree >= 16 * MiB, "the reserve is free in one piece");
        Same(0L, compacted.MovedBytes, "what lies together is not moved");
        Same(0L, context.Compact(null, 0, 0, true).ReleasedBytes, "a compaction with live blocks leaves the reserve");
        heap.Reserve(0);
        // Buffers keep their heap: its end waits for them.
        GmmBuffer buffer = heap.Alloc(MiB);
        heap.Dispose();
        buffer.Fill(7);
        SameBytes(Repeat(7, MiB), buffer.Read(0, MiB), "the block of a closed heap");
        buffer.Dispose();
        heap.Dispose();
        Fails<ObjectDisposedException>(() => heap.Alloc(MiB));
        // Plain addresses do not: the library refuses.
        GmmHeap busy = context.Heap(new GmmHeapOptions { Kind = GmmKind.Vmm });
        IntPtr block = busy.Allocate(MiB, GmmStream.Default);
        Fails(GmmResult.Busy, "BUSY", busy.Dispose);
        context.Free(block, GmmStream.Default);
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
            Check(flag == 1 && seen == 1, "the second stream ran after the first");
            Check(point.Query(), "the event has passed");
            point.Synchronize();
            GmmBuffer buffer = context.Alloc(MiB, new GmmAllocOptions { Stream = first });
            buffer.Fill(0, MiB, 3, first);
            buffer.RecordUse(second);
            buffer.Dispose(second);
            first.Synchronize();
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
        GmmPin second = context.Pin(memory);
        second.Dispose();
        Same(GmmState.Pinned, context.Query(address).State, "the state after one of two unpins");
        // The same pins by address: the third unpin of one block is one too many.
        GmmPin whole = context.Pin(address, memory.Length, 0, false);
        first.Dispose();
        first.Dispose();
        Same(GmmState.Pinned, context.Query(address).State, "the state while one is left");
        whole.Dispose();
        Same(GmmState.Unknown, context.Query(address).State, "the state after all");
        // The classes leave no way to one unpin too many: the low layer has one.
        Fails(GmmResult.NotPinned, "NOT_PINNED", () => LowUnpin(address));
        Fails(GmmResult.InvalidSize, "INVALID_SIZE", () => context.Pin(address, 0, 0, false));
    }

    private void LowUnpin(IntPtr address)
    {
        SafeHandle handle = (SafeHandle) typeof(GmmContext)
                                .GetField("handle", BindingFlags.Instance | BindingFlags.NonPublic)
                                .GetValue(context);
        MethodInfo unpin = typeof(GmmContext).Assembly.GetType("Gmm.Native").GetMethod("gmm_unpin");
        try
        {
            unpin.Invoke(null, new object[] { handle.DangerousGetHandle(), address });
        }
        catch (TargetInvocationException wrapped)
        {
            throw wrapped.InnerException;
        }
    }

    private void Residency()
    {
        Need(device.Has(GmmKind.Managed), "managed memory");
        using (GmmBuffer buffer = context.Alloc(4 * MiB, GmmKind.Managed))
        using (GmmStream stream = context.Stream(0))
        {
            IntPtr address = buffer.Address;
            buffer.Write(0, Pattern(4 * MiB));
            buffer.Advise(GmmAdvice.SetPreferredLocation, 0);
            buffer.Prefetch(0, stream);
            buffer.Prefetch(GmmContext.HostLocation, stream);
            stream.Synchronize();
            buffer.Move(GmmContext.HostLocation);
            buffer.Move(0, stream, true);
            stream.Synchronize();
            Same(address, buffer.Query().Base, "the address");
            SameBytes(Pattern(4 * MiB), buffer.Read(0, 4 * MiB), "the contents");
            buffer.Advise(GmmAdvice.UnsetPreferredLocation, 0);
        }
        using (GmmBuffer buffer = context.Alloc(MiB, GmmKind.Host))
        {
            Fails(GmmResult.InvalidKind, "INVALID_KIND", () => buffer.Advise(GmmAdvice.SetReadMostly, 0));
        }
    }

    private void Pausing(Action step)
    {
        Need(device.CanPause, "pausing");
        step();
    }

    private void Limit()
    {
        Need(context.Info().DeviceCount > 1, "second device");
        GmmScope scope = new GmmScope { Device = 1 };
        GmmAllocOptions there = new GmmAllocOptions { Device = 1 };
        context.SetLimit(scope, 64L * MiB);
        Fails(GmmResult.LimitExceeded, "LIMIT_EXCEEDED", () => context.Alloc(128L * MiB, there));
        context.SetLimit(scope, GmmContext.NoLimit);
        context.Alloc(128L * MiB, there).Dispose();
        Fails(GmmResult.InvalidFlags, "INVALID_FLAGS", () => context.SetLimit(new GmmScope { Kind = GmmKind.Vmm }, 1));
    }

    private void OutOfMemory()
    {
        Need(host, "small memory: the step would fill a GPU");
        GmmAllocOptions vmm = new GmmAllocOptions { Kind = GmmKind.Vmm, Device = 1 };
        const long size = 700L * MiB;
        long requested = 0;
        int attempt = 0;
        GmmBuffer ballast = context.Alloc(size, vmm);
        context.SetOomHandler(info =>
        {
            requested = info.RequestedBytes;
            attempt = attempt == 0 ? info.Attempt : attempt;
            Same(GmmKind.Vmm, info.Kind, "the kind");
            Same(1, info.Device, "the device");
            return false;
        });
        Fails(GmmResult.OutOfMemory, "OUT_OF_MEMORY", () => context.Alloc(size, vmm));
        Check(requested >= size, "bytes requested: " + requested);
        Same(1, attempt, "the first attempt");
        context.SetOomHandler(info => { throw new FormatException("from the handler"); });
        Same("from the handler", Fails<FormatException>(() => context.Alloc(size, vmm)).Message,
            "the exception of a handler");
        context.SetOomHandler(info =>
        {
            bool first = ballast != null;
            if (first)
            {
                ballast.Dispose();
                ballast = null;
            }
            return first;
        });
        context.Alloc(size, vmm).Dispose();
        Check(ballast == null, "the handler was asked");
        context.SetOomHandler(null);
        context.Trim();
    }

    private void Stats()
    {
        GmmTag tag = context.Tag("counted");
        GmmStatistics before = context.Statistics();
        Same(0L, context.Statistics(new GmmScope { Tag = tag }).LiveBlocks, "blocks of the tag before");
        using (context.Alloc(MiB, new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag }))
        using (context.Alloc(2 * MiB, GmmKind.Host))
        {
            GmmStatistics now = context.Statistics();
            Same(before.LiveBlocks + 2, now.LiveBlocks, "live blocks");
            Same(before.LiveBytes + 3 * MiB, now.LiveBytes, "live bytes");
            Check(now.ReservedBytes >= now.LiveBytes && now.Allocations == before.Allocations + 2,
                "reserved bytes and allocations");
            GmmStatistics scope = context.Statistics(new GmmScope { Tag = tag });
            Same(1L, scope.LiveBlocks, "blocks of the tag");
            Same((long)MiB, scope.LiveBytes, "bytes of the tag");
            Check(context.Statistics(new GmmScope { Kind = GmmKind.Host }).LiveBytes >= 2 * MiB, "bytes of HOST");
        }
        Same(before.LiveBlocks, context.Statistics().LiveBlocks, "live blocks after the frees");
        Same(before.LiveBytes, context.Statistics().LiveBytes, "live bytes after the frees");
    }

    private void Snapshot()
    {
        using (GmmBuffer buffer = context.Alloc(1234567, GmmKind.Vmm))
        {
            string text = context.Snapshot();
            Check(text.StartsWith("{") && text.Trim().EndsWith("}") && text.Contains("\"gmm-snapshot\""),
                "a gmm-snapshot");
            Check(Regex.IsMatch(text, "\"version\" *: *1[^0-9.]"), "version 1");
            string block = "\"address\":\"0x" + buffer.Address.ToInt64().ToString("x") + "\",\"size\":1234567,";
            Check(text.Contains(block), "the block's address and size");
            GmmBlockInfo found = null;
            foreach (GmmBlockInfo listed in context.Blocks(new GmmScope { Kind = GmmKind.Vmm }))
            {
                found = listed.Address == buffer.Address ? listed : found;
            }
            Check(found != null && found.Size == 1234567 && found.ReservedSize >= 1234567, "the block's sizes");
            Check(found != null && found.Kind == GmmKind.Vmm && found.State == GmmState.Active && found.Tag == 1 &&
                      found.Device == 0 && found.Name == "",
                "the block's kind, state, tag and device");
            Check(context.Blocks().Count > 0, "the blocks of the context");
            Same(0, context.Blocks(new GmmScope { Tag = context.Tag("no block") }).Count, "no blocks");
            Fails(GmmResult.Io, "IO", () => context.Snapshot(piece => false));
            Same("from the writer",
                Fails<FormatException>(() => context.Snapshot(piece =>
                                                              { throw new FormatException("from the writer"); }))
                    .Message,
                "the exception of a writer");
        }
        Names();
    }

    private void Names()
    {
        long before = context.Statistics().LiveBlocks;
        using (GmmHeap heap = context.Heap(new GmmHeapOptions()))
        using (heap.Alloc(5000, GmmStream.Default, "Gr\u00f6\u00dfe"))
        using (GmmBuffer buffer = context.Alloc(MiB, new GmmAllocOptions { Name = "weights" }))
        {
            string text = context.Snapshot();
            Check(text.Contains("\"name\":\"Gr\u00f6\u00dfe\"") && text.Contains("\"name\":\"weights\""),
                "the names of two blocks");
            buffer.SetName("heads");
            context.Name((IntPtr)(buffer.Address.ToInt64() + 1), "bodies");
            text = context.Snapshot();
            Check(text.Contains("\"name\":\"bodies\"") && !text.Contains("weights") && !text.Contains("heads"),
                "a name that replaced others");
            buffer.SetName(null);
            Check(!context.Snapshot().Contains("bodies"), "no name");
            string tooLong = new string('n', 64);
            Fails(GmmResult.InvalidValue, "INVALID_VALUE",
                () => context.Alloc(MiB, new GmmAllocOptions { Name = tooLong }));
            Fails(GmmResult.InvalidValue, "INVALID_VALUE", () => heap.Alloc(5000, GmmStream.Default, tooLong));
            Same(before + 2, context.Statistics().LiveBlocks, "live blocks");
        }
        Check(!context.Snapshot().Contains("\"name\""), "names of blocks that are free");
    }

    private void Trace()
    {
        string file = Path.GetTempFileName();
        try
        {
            context.TraceBegin(file);
            Fails(GmmResult.Busy, "BUSY", () => context.TraceBegin(file));
            context.Alloc(123456, GmmKind.Vmm).Dispose();
            context.TraceEnd();
            Fails(GmmResult.Unbalanced, "UNBALANCED", context.TraceEnd);
            byte[] bytes = File.ReadAllBytes(file);
            Same("gmmtrace\u0001", System.Text.Encoding.ASCII.GetString(bytes, 0, 9),
                "the first bytes and the version of the trace");
            List<string> events = new List<string>();
            for (int at = BitConverter.ToInt32(bytes, 12), end = at; at < bytes.Length; at += (bytes[at] & 7) * 8)
            {
                if (at == end) end = (at += 32) + BitConverter.ToInt32(bytes, at - 28); // a chunk's header
                ulong address = (BitConverter.ToUInt64(bytes, at) >> 16) << 8;
                if (bytes[at] >> 3 == 4)
                    events.Add("alloc " + address + " " + (BitConverter.ToUInt64(bytes, at + 8) & 0xffffffffffff));
                if (bytes[at] >> 3 == 5) events.Add("free " + address);
                if (bytes[at] >> 3 == 14) events.Add("end " + BitConverter.ToUInt64(bytes, at + 8));
            }
            Same(3, events.Count, "events of the trace");
            Check(Regex.IsMatch(events[0], "^alloc [0-9]+ 123456$"), "the alloc: " + events[0]);
            Same("free " + events[0].Split(' ')[1] + ", end 0", events[1] + ", " + events[2], "the free and the end");
        }
        finally
        {
            File.Delete(file);
        }
        Fails(GmmResult.Io, "IO", () => context.TraceBegin("/nowhere/at/all.trace"));
    }

    private void TrimAndDefer()
    {
        context.Trim();
        context.Alloc(64 * MiB, GmmKind.Vmm).Dispose();
        Check(context.Statistics().CachedBytes >= 64 * MiB, "cached bytes");
        IDisposable deferral = context.Defer();
        Same(0L, context.Trim(), "a trim inside a deferral");
        deferral.Dispose();
        deferral.Dispose();
        Check(context.Statistics().CachedBytes < 64 * MiB, "the deferred trim");
        context.Alloc(64 * MiB, GmmKind.Vmm).Dispose();
        long cached = context.Statistics().CachedBytes;
        long bytes = context.Trim();
        Check(bytes >= 64 * MiB, "bytes that went back: " + bytes);
        Check(context.Statistics().CachedBytes < cached, "cached bytes fall");
    }

    private void Log()
    {
        List<string> heard = new List<string>();
        GmmContextOptions options = Options();
        options.Logger = (level, message) =>
        {
            lock (heard)
            {
                heard.Add(level + " " + message);
            }
        };
        using (new GmmContext(options))
        {
            lock (heard)
            {
                Check(heard.Exists(line => line.StartsWith("Info ")),
                    "a line of level Info among " + string.Join("; ", heard));
            }
        }
        foreach (bool report in new bool[] { true, false })
        {
            heard.Clear();
            options.NoLeakReport = !report;
            using (GmmContext leaking = new GmmContext(options))
            {
                leaking.Allocate(12345, new GmmAllocOptions { Name = "left over" });
            }
            lock (heard)
            {
                Same(report,
                    heard.Exists(line => line.StartsWith("Warning ") && line.Contains("1 x 12345 bytes of DEVICE")
                        && line.Contains("\"left over\"")),
                    "a report of the leak among " + string.Join("; ", heard));
            }
        }
    }

    private void Reset()
    {
        GmmBuffer buffer = context.Alloc(MiB, GmmKind.Vmm);
        IntPtr address = buffer.Address;
        context.Reset();
        Same(0L, context.Statistics().LiveBlocks, "live blocks");
        GmmState state = context.Query(address).State;
        Check(state == GmmState.Unknown || state == GmmState.Free, "the state of the old address: " + state);
        Fails<ObjectDisposedException>(() => buffer.Query());
        // The block that takes the old address now is not freed by the old object.
        using (GmmBuffer next = context.Alloc(MiB, GmmKind.Vmm))
        {
            buffer.Dispose();
            Same(GmmState.Active, next.Query().State, "the next block");
        }
    }

    private void Close()
    {
        GmmBuffer buffer = context.Alloc(MiB);
        context.Dispose();
        context.Dispose();
        Check(context.IsDisposed, "disposed of");
        Fails<ObjectDisposedException>(() => context.Alloc(1));
        Fails<ObjectDisposedException>(() => context.Info());
        buffer.Fill(9);
        SameBytes(Repeat(9, 16), buffer.Read(0, 16), "a buffer keeps its context");
        buffer.Dispose();
        Fails<ObjectDisposedException>(() => buffer.Query());
    }
}
