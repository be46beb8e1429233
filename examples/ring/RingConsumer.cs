/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;
using System.Text;
using Gmm;

/// <summary>A consumer of the ring: see ring.py for what is said on stdin and stdout.</summary>
internal sealed class RingConsumer
{
    private static readonly uint[] Table = MakeTable();

    private readonly GmmContext context;
    private readonly GmmBuffer ring;
    private readonly List<GmmEvent> ready;
    private readonly int size;
    private int done;
    private int bad;

    private RingConsumer(GmmContext context, GmmBuffer ring, List<GmmEvent> ready, int size)
    {
        this.context = context;
        this.ring = ring;
        this.ready = ready;
        this.size = size;
    }

    private static uint[] MakeTable()
    {
        uint[] table = new uint[256];
        for (uint i = 0; i < 256; i++)
        {
            uint value = i;
            for (int bit = 0; bit < 8; bit++)
            {
                value = (value & 1) != 0 ? 0xEDB88320u ^ (value >> 1) : value >> 1;
            }
            table[i] = value;
        }
        return table;
    }

    // As zlib's crc32().
    private static uint Checksum(byte[] bytes)
    {
        uint value = 0xFFFFFFFFu;
        foreach (byte each in bytes)
        {
            value = Table[(value ^ each) & 0xFF] ^ (value >> 8);
        }
        return ~value;
    }

    private static byte[] Bytes(string hexadecimal)
    {
        byte[] made = new byte[hexadecimal.Length / 2];
        for (int i = 0; i < made.Length; i++)
        {
            made[i] = Convert.ToByte(hexadecimal.Substring(2 * i, 2), 16);
        }
        return made;
    }

    private static string Text(byte[] bytes)
    {
        StringBuilder made = new StringBuilder();
        foreach (byte each in bytes)
        {
            made.Append(each.ToString("x2"));
        }
        return made.ToString();
    }

    private static void Say(string line)
    {
        Console.Out.WriteLine(line);
        Console.Out.Flush();
    }

    private void Run()
    {
        string language = "C#-" + Environment.Version;
        using (GmmStream stream = context.Stream(0))
        using (GmmBuffer staging = context.Alloc(size, GmmKind.Host))
        using (GmmEvent copied = ready.Count == 0 ? null : context.IpcEvent(0))
        {
            Say("hello " + language + " " + (copied == null ? "-" : Text(copied.Export())));
            Consume(stream, staging, copied);
            Say("done " + done + " " + bad);
        }
    }

    private void Consume(GmmStream stream, GmmBuffer staging, GmmEvent copied)
    {
        for (string line = Console.In.ReadLine(); line != null && line != "end"; line = Console.In.ReadLine())
        {
            string[] words = line.Split(' ');
            int number = int.Parse(words[1]);
            int slot = int.Parse(words[2]);
            if (copied != null)
            {
                stream.WaitFor(ready[slot]);
            }
            staging.CopyFrom(0, ring, (long)slot * size, size, stream);
            if (copied != null)
            {
                copied.Record(stream);
                Say("taken " + number);
                stream.Synchronize();
            }
            else
            {
                stream.Synchronize();
                Say("taken " + number);
            }
            byte[] frame = staging.Read(0, size);
            bool right = Checksum(frame) == uint.Parse(words[3]) && BitConverter.ToInt64(frame, 0) == number;
            done++;
            bad += right ? 0 : 1;
            Say("checked " + number + (right ? " ok" : " bad"));
        }
    }

    private static int Main()
    {
        string[] words = Console.In.ReadLine().Split(' ');
        GmmBackend backend = (GmmBackend)Enum.Parse(typeof(GmmBackend), words[1], true);
        using (GmmContext context = new GmmContext(new GmmContextOptions { Backend = backend }))
        using (GmmBuffer ring = context.Import(Bytes(words[5])))
        {
            List<GmmEvent> ready = new List<GmmEvent>();
            for (string line = Console.In.ReadLine(); line.StartsWith("ready "); line = Console.In.ReadLine())
            {
                ready.Add(context.ImportEvent(Bytes(line.Substring(6))));
            }
            RingConsumer consumer = new RingConsumer(context, ring, ready, int.Parse(words[4]));
            consumer.Run();
            foreach (GmmEvent point in ready)
            {
                point.Dispose();
            }
            return consumer.bad == 0 ? 0 : 1;
        }
    }
}
