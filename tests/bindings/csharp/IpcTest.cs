/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.IO;
using System.Threading;
using Gmm;
using static Tap;

/// <summary>The steps of tests/bindings/SMOKE.md about sharing with other processes.</summary>
internal sealed class IpcTest
{
    private const int MiB = 1 << 20;

    private readonly GmmContext context;
    private readonly GmmDeviceInfo device;

    internal IpcTest(GmmContext context, GmmDeviceInfo device)
    {
        this.context = context;
        this.device = device;
    }

    internal void Memory(GmmKind kind)
    {
        using (GmmBuffer buffer = context.Alloc(MiB, kind))
        {
            GmmPointerInfo info = buffer.Query();
            SmokeTest.Need(info.LegacyIpc || info.FdIpc, "IPC for " + kind);
            foreach (int offset in new[] { 0, 4096 })
            {
                byte[] before = Pattern(MiB - offset);
                buffer.Write(offset, before);
                byte[] handle = offset == 0 ? buffer.Export() : context.Export(SmokeTest.At(buffer.Address, offset));
                Child.Run(handle, "import", (MiB - offset).ToString());
                for (int i = 0; i < before.Length; i++)
                {
                    before[i] = (byte)~before[i];
                }
                SameBytes(before, buffer.Read(offset, MiB - offset), "what the second process wrote");
            }
        }
    }

    internal void Garbage()
    {
        Fails(
            GmmResult.IpcInvalidHandle, "IPC_INVALID_HANDLE", () => context.Import(Pattern(GmmContext.IpcHandleSize)));
        Fails(
            GmmResult.IpcInvalidHandle, "IPC_INVALID_HANDLE", () => context.Import(new byte[GmmContext.IpcHandleSize]));
        Fails<ArgumentException>(() => context.Import(new byte[10]));
        Fails<ArgumentException>(() => context.Import(null));
    }

    internal void Event()
    {
        bool flag = false;
        using (GmmStream first = context.Stream(0))
        using (GmmStream second = context.Stream(0))
        using (GmmEvent point = context.IpcEvent(0))
        using (GmmEvent plain = context.Event(0))
        {
            first.Call(() =>
            {
                Thread.Sleep(50);
                Volatile.Write(ref flag, true);
            });
            point.Record(first);
            using (GmmEvent imported = context.ImportEvent(point.Export()))
            {
                second.WaitFor(imported);
                second.Synchronize();
                Check(Volatile.Read(ref flag), "the second stream waited for the first");
                imported.Synchronize();
                Check(imported.Query(), "the event has passed");
            }
            Fails(GmmResult.InvalidHandle, "INVALID_HANDLE", () => plain.Export());
            Fails(GmmResult.IpcInvalidHandle, "IPC_INVALID_HANDLE",
                () => context.ImportEvent(new byte[GmmContext.IpcHandleSize]));
        }
        Fails(GmmResult.Busy, "BUSY", () => context.ConfigureIpc(new GmmIpcOptions { Directory = "/tmp" }));
        using (GmmContext other = new GmmContext(new GmmContextOptions { Backend = GmmBackend.Host }))
        {
            Fails(
                GmmResult.InvalidValue, "INVALID_VALUE", () => other.ConfigureIpc(new GmmIpcOptions { Users = { 1 } }));
            other.ConfigureIpc(new GmmIpcOptions());
        }
    }

    internal void Legacy()
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

    internal void Fd()
    {
        SmokeTest.Need(device.CanExportFd, "file descriptors of memory");
        using (GmmHeap heap = context.Heap(new GmmHeapOptions { Kind = GmmKind.Vmm, Exportable = true }))
        using (GmmBuffer pooled = heap.Alloc(64 * MiB))
        using (GmmExportedFd one = pooled.ExportFd())
        {
            Check(one.Size >= one.Offset + 64 * MiB, "one allocation holds the pooled block");
        }
        using (GmmBuffer buffer = context.Alloc(MiB, new GmmAllocOptions { Kind = GmmKind.Vmm, Dedicated = true }))
        {
            GmmExportedFd exported = buffer.ExportFd();
            Check(exported.Fd >= 0 && exported.Size >= exported.Offset + MiB, "the allocation holds the block");
            using (GmmBuffer again = context.ImportFd(
                       exported.Fd, device.IsCpu ? GmmFdType.File : GmmFdType.Opaque, exported.Size, 0))
            {
                Same(exported.Size, again.Size, "the size of the import");
                Check(again.Address != buffer.Address, "a mapping of its own");
                buffer.Write(0, Pattern(MiB));
                SameBytes(Pattern(MiB), again.Read(exported.Offset, MiB), "what the block holds, through the import");
                again.Write(exported.Offset + 5, new byte[] { 99 });
                Same((byte)99, buffer.Read(5, 1)[0], "a byte that was written through the import");
            }
            string file = FileOf(exported.Fd.ToString());
            int open = file == null ? 0 : DescriptorsOf(file);
            Check(file == null || open >= 1, "the descriptor is open");
            exported.Dispose();
            exported.Dispose();
            Fails<ObjectDisposedException>(() => exported.Detach());
            SmokeTest.Need(file != null, "inodes in /proc/self/fdinfo");
            Same(open - 1, DescriptorsOf(file), "descriptors of the memory open afterwards");
        }
    }

    // Of one file, as the runtime's own threads open and close descriptors at any time.
    private static int DescriptorsOf(string file)
    {
        int open = 0;
        foreach (string entry in Directory.GetFileSystemEntries("/proc/self/fd"))
        {
            open += FileOf(Path.GetFileName(entry)) == file ? 1 : 0;
        }
        return open;
    }

    // The device and inode of what a descriptor of this process refers to; null when it is not open.
    private static string FileOf(string descriptor)
    {
        try
        {
            string inode = null;
            foreach (string line in File.ReadAllLines("/proc/self/fdinfo/" + descriptor))
            {
                inode = line.StartsWith("ino:") ? line : inode;
            }
            return inode;
        }
        catch (IOException)
        {
            return null;
        }
    }
}
