// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Globalization;
using System.IO;
using System.IO.Compression;
using Gmm;

/// <summary>Replays an allocation trace: lines of "a ID BYTES STREAM" and "f ID STREAM".</summary>
internal sealed class Replay
{
    // A free has size 0.
    private struct Operation
    {
        internal int Id;
        internal long Size;
        internal int Stream;
    }

    private readonly string name;
    private readonly Operation[] operations;
    private readonly int highest;
    private readonly long peak;
    private readonly Dictionary<string, int> streamNumbers = new Dictionary<string, int> { { "0", 0 } };

    private Replay(string path)
    {
        name = Path.GetFileName(path).Split('.')[0];
        List<Operation> lines = new List<Operation>();
        using (StreamReader reader = new StreamReader(new GZipStream(File.OpenRead(path), CompressionMode.Decompress)))
        {
            for (string line = reader.ReadLine(); line != null; line = reader.ReadLine())
            {
                lines.Add(Parse(line, lines.Count + 1));
            }
        }
        operations = lines.ToArray();
        foreach (Operation each in operations)
        {
            highest = Math.Max(highest, each.Id);
        }
        long[] live = new long[highest + 1];
        long requested = 0;
        foreach (Operation each in operations)
        {
            requested += each.Size > 0 ? each.Size : -live[each.Id];
            live[each.Id] = each.Size;
            peak = Math.Max(peak, requested);
        }
    }

    private Operation Parse(string line, int number)
    {
        string[] words = line.Split(' ');
        bool allocates = words[0] == "a" && words.Length == 4;
        if (!allocates && !(words[0] == "f" && words.Length == 3))
        {
            throw new IOException("line " + number + " is not of a trace: " + line);
        }
        string stream = words[words.Length - 1];
        if (!streamNumbers.ContainsKey(stream))
        {
            streamNumbers.Add(stream, streamNumbers.Count);
        }
        return new Operation
        {
            Id = int.Parse(words[1], CultureInfo.InvariantCulture),
            Size = allocates ? long.Parse(words[2], CultureInfo.InvariantCulture) : 0,
            Stream = streamNumbers[stream]
        };
    }

    /// <summary>Runs the trace twice in a context of its own and prints its line.</summary>
    internal static void Run(string path)
    {
        Replay replay = new Replay(path);
        using (GmmContext context = new GmmContext(new GmmContextOptions { HostMemory = 16L << 30 }))
        using (GmmHeap heap = context.Heap(new GmmHeapOptions { Kind = GmmKind.Vmm }))
        {
            GmmStream[] streams = new GmmStream[replay.streamNumbers.Count];
            streams[0] = GmmStream.Default;
            for (int i = 1; i < streams.Length; i++)
            {
                streams[i] = context.Stream(0);
            }
            double first = replay.Pass(context, heap, streams);
            long reserved = context.Statistics(new GmmScope { Kind = GmmKind.Vmm }).PeakReservedBytes;
            double again = replay.Pass(context, heap, streams);
            Console.WriteLine(string.Format(CultureInfo.InvariantCulture,
                "{0,-17} {1,-13} {2,-13} {3,-13} {4,-7:0.000} {5,-13:0} {6:0}", replay.name,
                replay.operations.Length, Tour.MiBs(replay.peak), Tour.MiBs(reserved), (double)reserved / replay.peak,
                first, again));
            foreach (GmmStream stream in streams)
            {
                stream.Dispose();
            }
        }
    }

    /// <summary>Returns nanoseconds an operation. It frees what is live at the end.</summary>
    private double Pass(GmmContext context, GmmHeap heap, GmmStream[] streams)
    {
        IntPtr[] live = new IntPtr[highest + 1];
        Stopwatch watch = Stopwatch.StartNew();
        foreach (Operation each in operations)
        {
            if (each.Size > 0)
            {
                live[each.Id] = heap.Allocate(each.Size, streams[each.Stream]);
            }
            else
            {
                context.Free(live[each.Id], streams[each.Stream]);
                live[each.Id] = IntPtr.Zero;
            }
        }
        foreach (IntPtr address in live)
        {
            context.Free(address, GmmStream.Default);
        }
        return watch.Elapsed.TotalMilliseconds * 1e6 / operations.Length;
    }
}
