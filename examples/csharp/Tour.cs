// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Globalization;
using System.IO;
using System.Reflection;
using System.Runtime.InteropServices;
using Gmm;

/// <summary>
/// The tour in C#: every step of the interface on every kind of memory, as one table, then a replay of real traces.
/// ../README.md says what each step must hold; the same program stands in four more languages beside it.
/// </summary>
internal sealed class Tour
{
    private const int MiB = 1 << 20;
    private const int Block = 64 * MiB;
    private const string OnlyManaged = "a hint about pages is for MANAGED memory";
    private const string OnlyVmm = "only VMM memory can give its pages back and keep its address";

    /// <summary>This kind lacks the step.</summary>
    private sealed class NotThere : Exception
    {
        internal NotThere(string why) : base(why)
        {
        }
    }

    private static readonly GmmKind[] kinds = { GmmKind.Device, GmmKind.Vmm, GmmKind.Host, GmmKind.Managed };

    private readonly GmmContext context;
    private readonly GmmDeviceInfo device;
    private readonly GmmStream stream;
    private readonly GmmTag tag;

    // It stays pinned, so that its address holds.
    private readonly byte[] host = new byte[Block];
    private readonly IntPtr hostAddress;

    private readonly List<KeyValuePair<string, Func<string>>> steps = new List<KeyValuePair<string, Func<string>>>();
    private readonly List<string> footnotes = new List<string>();
    private readonly List<string> failures = new List<string>();
    private GmmKind kind;
    private GmmBuffer block;

    private Tour(GmmContext context, GmmStream stream)
    {
        this.context = context;
        this.stream = stream;
        device = context.Device(0);
        // On the host backend the contents go to a file: a copy in host memory would be as large as what goes back.
        tag = context.Tag("tour", device.IsCpu ? GmmContents.File : GmmContents.Host, 0);
        hostAddress = GCHandle.Alloc(host, GCHandleType.Pinned).AddrOfPinnedObject();
        Add("alloc", Alloc);
        Add("write and read", WriteAndRead);
        Add("query", () => LookAt(block.Address));
        Add("query interior", () => LookAt((IntPtr)((long)block.Address + Block / 2)));
        Add("query foreign", QueryForeign);
        Add("pin", Pin);
        Add("advise", Advise);
        Add("prefetch", Prefetch);
        Add("move", Move);
        Add("share", Share);
        Add("pause", Pause);
        Add("resume", Resume);
        Add("free", Free);
    }

    private void Add(string name, Func<string> step)
    {
        steps.Add(new KeyValuePair<string, Func<string>>(name, step));
    }

    // Bytes in and out.

    private static byte Pattern(int i, int complement)
    {
        return (byte)((i * 31L + i / 4096) ^ complement);
    }

    private void FillHost(int size, int complement)
    {
        for (int i = 0; i < size; i++)
        {
            host[i] = Pattern(i, complement);
        }
    }

    private void CheckHost(int size, int complement)
    {
        for (int i = 0; i < size; i++)
        {
            if (host[i] != Pattern(i, complement))
            {
                throw new InvalidOperationException("byte " + i + " is " + host[i] + ", expected "
                    + Pattern(i, complement));
            }
        }
    }

    private void Write(IntPtr memory, int complement)
    {
        FillHost(Block, complement);
        context.Copy(memory, hostAddress, Block, stream);
        stream.Synchronize();
    }

    private void CheckBytes(IntPtr memory, int complement)
    {
        Array.Clear(host, 0, Block);
        context.Copy(hostAddress, memory, Block, stream);
        stream.Synchronize();
        CheckHost(Block, complement);
    }

    private static void Check(bool holds, string otherwise)
    {
        if (!holds)
        {
            throw new InvalidOperationException(otherwise);
        }
    }

    private static void Need(bool there, string otherwise)
    {
        if (!there)
        {
            throw new NotThere(otherwise);
        }
    }

    internal static string MiBs(long bytes)
    {
        return string.Format(CultureInfo.InvariantCulture, "{0:0.0} MiB", (double)bytes / MiB);
    }

    // The steps.

    private string Alloc()
    {
        block = context.Alloc(Block,
            new GmmAllocOptions { Kind = kind, Tag = tag, Stream = stream, Dedicated = kind == GmmKind.Vmm });
        Check((long)block.Address % 256 == 0, "0x" + block.Address.ToString("x") + " is not a multiple of 256");
        return "ok";
    }

    private string WriteAndRead()
    {
        Write(block.Address, 0);
        CheckBytes(block.Address, 0);
        return "ok";
    }

    private string LookAt(IntPtr address)
    {
        GmmPointerInfo info = context.Query(address);
        Check(info.Kind == kind && info.Base == block.Address && info.Size == Block && info.Device == 0
            && info.Tag == tag.Number && info.State == GmmState.Active,
            info.Kind + ", base 0x" + info.Base.ToString("x") + ", size " + info.Size + ", device " + info.Device
                + ", tag " + info.Tag + ", " + info.State);
        return "ok";
    }

    private string QueryForeign()
    {
        GmmState state = context.Query(hostAddress).State;
        Check(state == GmmState.Unknown, "memory of the program has state " + state);
        return "ok";
    }

    private string Pin()
    {
        Need(device.CanPin, "the device cannot pin");
        using (GmmPin pin = context.Pin(hostAddress, MiB, 0, false))
        {
            FillHost(MiB, 255);
            context.Copy(block.Address, pin.Address, MiB, stream);
            stream.Synchronize();
            Array.Clear(host, 0, MiB);
            context.Copy(pin.Address, block.Address, MiB, stream);
            stream.Synchronize();
            CheckHost(MiB, 255);
        }
        Write(block.Address, 0);
        return "ok";
    }

    private string Advise()
    {
        Need(kind == GmmKind.Managed, OnlyManaged);
        block.Advise(GmmAdvice.SetPreferredLocation, 0);
        block.Advise(GmmAdvice.UnsetPreferredLocation, 0);
        CheckBytes(block.Address, 0);
        return "ok";
    }

    private string Prefetch()
    {
        Need(kind == GmmKind.Managed, OnlyManaged);
        block.Prefetch(GmmContext.HostLocation, stream);
        block.Prefetch(0, stream);
        stream.Synchronize();
        CheckBytes(block.Address, 0);
        return "ok";
    }

    private string Move()
    {
        Need(kind == GmmKind.Vmm || kind == GmmKind.Managed,
            "the driver cannot move DEVICE and HOST memory: use VMM or MANAGED");
        IntPtr address = block.Address;
        block.Move(GmmContext.HostLocation, stream, false);
        CheckBytes(address, 0);
        block.Move(0, stream, false);
        CheckBytes(address, 0);
        return LookAt(address);
    }

    private string Share()
    {
        Need(kind != GmmKind.Managed, "the driver has no way to share MANAGED memory: use DEVICE, VMM or HOST");
        byte[] handle = block.Export();
        // The second process is this program, started in the same way: by mono, or by itself.
        string own = Assembly.GetExecutingAssembly().Location;
        bool mono = Type.GetType("Mono.Runtime") != null;
        ProcessStartInfo start = new ProcessStartInfo(mono ? "mono" : Process.GetCurrentProcess().MainModule.FileName,
            "\"" + own + "\" --peer " + Block)
        {
            UseShellExecute = false,
            RedirectStandardInput = true
        };
        using (Process second = Process.Start(start))
        {
            second.StandardInput.BaseStream.Write(handle, 0, handle.Length);
            second.StandardInput.BaseStream.Flush();
            second.StandardInput.Close();
            second.WaitForExit();
            Check(second.ExitCode == 0,
                "the second process ended with " + second.ExitCode + "; its message stands above");
        }
        CheckBytes(block.Address, 255);
        Write(block.Address, 0);
        return "ok";
    }

    /// <summary>The process's resident bytes, or the bytes that a GPU has in use, as the system reports them.</summary>
    private long InUse()
    {
        if (!device.IsCpu)
        {
            GmmDeviceInfo now = context.Device(0);
            return now.TotalMemory - now.FreeMemory;
        }
        foreach (string line in File.ReadAllLines("/proc/self/status"))
        {
            if (line.StartsWith("VmRSS:", StringComparison.Ordinal))
            {
                return long.Parse(line.Substring(6).Replace("kB", "").Trim(), CultureInfo.InvariantCulture) * 1024;
            }
        }
        throw new IOException("/proc/self/status has no VmRSS");
    }

    private string Pause()
    {
        Need(kind == GmmKind.Vmm, OnlyVmm);
        Need(device.CanPause, "the device cannot pause");
        context.Trim();
        long before = InUse();
        tag.Pause();
        context.Trim(); // what the copies went through stays for the next pause otherwise
        long gone = before - InUse();
        GmmState state = block.Query().State;
        Check(state == GmmState.Paused, "after the pause the state is " + state);
        Check(gone >= Block / 4 * 3, "only " + MiBs(gone) + " came back to the system");
        return MiBs(gone);
    }

    private string Resume()
    {
        Need(kind == GmmKind.Vmm, OnlyVmm);
        Need(device.CanPause, "the device cannot pause");
        long bytes = tag.Resume();
        LookAt(block.Address);
        CheckBytes(block.Address, 0);
        return MiBs(bytes);
    }

    private string Free()
    {
        IntPtr address = block.Address;
        block.Dispose();
        GmmState state = context.Query(address).State;
        Check(state == GmmState.Free || state == GmmState.Unknown, "after the free the state is " + state);
        long live = context.Statistics(new GmmScope { Tag = tag }).LiveBlocks;
        Check(live == 0, live + " blocks are live still");
        stream.Synchronize();
        context.Trim();
        return "ok";
    }

    // The whole.

    /// <summary>What a step needs: bytes for those that compare them, a pause for a resume, a block for all.</summary>
    private static string Needs(string step)
    {
        switch (step)
        {
            case "alloc":
                return "";
            case "resume":
                return "pause";
            case "move":
            case "share":
            case "pause":
            case "advise":
            case "prefetch":
            case "pin":
                return "write and read";
            default:
                return "alloc";
        }
    }

    private string Cell(string name, Func<string> step, Dictionary<string, string> column)
    {
        try
        {
            string before;
            Check(!column.TryGetValue(Needs(name), out before) || before != "FAILED", "not reached");
            return step();
        }
        catch (NotThere why)
        {
            return Footnote(why.Message);
        }
        catch (GmmException error)
        {
            return error.Result == GmmResult.NotSupported ? Footnote(error.Message)
                : Failed(name, error.Name + ": " + error.Message);
        }
        catch (Exception error)
        {
            return Failed(name, error.Message);
        }
    }

    private string Footnote(string text)
    {
        if (!footnotes.Contains(text))
        {
            footnotes.Add(text);
        }
        return "- [" + (footnotes.IndexOf(text) + 1) + "]";
    }

    private string Failed(string name, string message)
    {
        failures.Add("FAILED " + kind.ToString().ToUpperInvariant() + " " + name + ": " + message);
        return "FAILED";
    }

    private void Table()
    {
        List<Dictionary<string, string>> columns = new List<Dictionary<string, string>>();
        string heading = "step".PadRight(18);
        foreach (GmmKind each in kinds)
        {
            if (!device.Has(each))
            {
                continue;
            }
            kind = each;
            Dictionary<string, string> column = new Dictionary<string, string>();
            foreach (KeyValuePair<string, Func<string>> step in steps)
            {
                column[step.Key] = Cell(step.Key, step.Value, column);
            }
            columns.Add(column);
            heading += each.ToString().ToUpperInvariant().PadRight(14);
        }
        Console.WriteLine("\n" + heading);
        foreach (KeyValuePair<string, Func<string>> step in steps)
        {
            string line = step.Key.PadRight(18);
            foreach (Dictionary<string, string> column in columns)
            {
                line += column[step.Key].PadRight(14);
            }
            Console.WriteLine(line);
        }
        Console.WriteLine();
        for (int i = 0; i < footnotes.Count; i++)
        {
            Console.WriteLine("[" + (i + 1) + "] " + footnotes[i]);
        }
        failures.ForEach(Console.WriteLine);
    }

    /// <summary>Runs as the second process: imports the handle on stdin, checks the bytes and changes each.</summary>
    private void Peer()
    {
        byte[] handle = new byte[GmmContext.IpcHandleSize];
        using (System.IO.Stream input = Console.OpenStandardInput())
        {
            int at = 0;
            for (int got = 1; at < handle.Length && got > 0; at += got)
            {
                got = input.Read(handle, at, handle.Length - at);
            }
            Check(at == handle.Length, "no handle on stdin");
        }
        using (GmmBuffer shared = context.Import(handle))
        {
            CheckBytes(shared.Address, 0);
            Write(shared.Address, 255);
        }
    }

    private static string Language()
    {
        Type mono = Type.GetType("Mono.Runtime");
        if (mono == null)
        {
            return RuntimeInformation.FrameworkDescription;
        }
        string name = (string)mono.GetMethod("GetDisplayName", BindingFlags.NonPublic | BindingFlags.Static)
            .Invoke(null, null);
        return "mono " + string.Join(".", name.Split(' ')[0].Split('.'), 0, 2);
    }

    private static int Main(string[] words)
    {
        bool second = words.Length == 2 && words[0] == "--peer"
            && words[1] == Block.ToString(CultureInfo.InvariantCulture);
        if (!second && words.Length > 0 && words[0].StartsWith("-", StringComparison.Ordinal))
        {
            Console.Error.WriteLine("use: Tour [TRACE.gz ...]");
            return 2;
        }
        List<string> failures;
        using (GmmContext context = new GmmContext())
        using (GmmStream stream = context.Stream(0))
        {
            Tour tour = new Tour(context, stream);
            if (second)
            {
                tour.Peer();
                return 0;
            }
            GmmContextInfo info = context.Info();
            Console.WriteLine("gmm " + GmmContext.Version + ", C# " + Language() + ", backend " + info.BackendName
                + " (" + info.DriverVersion + "), device 0: " + tour.device.Name);
            if (tour.device.IsCpu)
            {
                Console.WriteLine("This is the host backend: it needs no GPU, and its figures say nothing about one.");
            }
            tour.Table();
            failures = tour.failures;
        }
        if (words.Length > 0)
        {
            Console.WriteLine("\nReplay of real PyTorch traces, kind VMM");
            Console.WriteLine("{0,-17} {1,-13} {2,-13} {3,-13} {4,-7} {5,-13} {6}", "trace", "operations", "requested",
                "reserved", "ratio", "ns/op first", "ns/op again");
        }
        foreach (string trace in words)
        {
            try
            {
                Replay.Run(trace);
            }
            catch (Exception error)
                when (error is IOException || error is GmmException || error is InvalidDataException)
            {
                failures.Add(trace);
                Console.WriteLine("FAILED replay: " + trace + ": " + error.Message);
            }
        }
        Console.WriteLine(failures.Count == 0 ? "\ntour: ok" : "\ntour: " + failures.Count + " steps failed");
        return failures.Count == 0 ? 0 : 1;
    }
}
