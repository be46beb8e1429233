// SPDX-License-Identifier: Apache-2.0
using System;
using System.Diagnostics;
using System.IO;
using System.Linq;
using System.Reflection;
using Gmm;

/// <summary>The tour in C#: blocks in using statements, a pause, a second process, an error.</summary>
internal static class Tour
{
    private const int Block = 64 << 20;

    private static byte[] Pattern(int first)
    {
        byte[] bytes = new byte[Block];
        for (int i = 0; i < Block; i++)
        {
            bytes[i] = (byte)(first + i * 31 + i / 4096);
        }
        return bytes;
    }

    private static void Must(bool holds, string what)
    {
        if (!holds)
        {
            throw new InvalidOperationException("not true: " + what);
        }
    }

    /// <summary>The second process: imports the block whose handle is on stdin, and writes other bytes.</summary>
    private static void Peer(GmmContext context)
    {
        MemoryStream handle = new MemoryStream();
        Console.OpenStandardInput().CopyTo(handle);
        using (GmmBuffer shared = context.Import(handle.ToArray()))
        {
            Must(shared.Read(0, Block).SequenceEqual(Pattern(0)), "the bytes arrived");
            shared.Write(0, Pattern(1));
        }
    }

    private static void Share(GmmBuffer block)
    {
        // The second process is this program, started in the same way: by mono, or by itself.
        string own = Assembly.GetExecutingAssembly().Location;
        bool mono = Type.GetType("Mono.Runtime") != null;
        string program = mono ? "mono" : Process.GetCurrentProcess().MainModule.FileName;
        ProcessStartInfo start = new ProcessStartInfo(program, "\"" + own + "\" --peer")
        {
            UseShellExecute = false,
            RedirectStandardInput = true
        };
        byte[] handle = block.Export();
        using (Process second = Process.Start(start))
        {
            second.StandardInput.BaseStream.Write(handle, 0, handle.Length);
            second.StandardInput.Close();
            second.WaitForExit();
            Must(second.ExitCode == 0, "the second process succeeded");
        }
        Must(block.Read(0, Block).SequenceEqual(Pattern(1)), "its bytes are here");
    }

    private static void Run(GmmContext context)
    {
        GmmDeviceInfo device = context.Device(0);
        byte[] bytes = Pattern(0);

        // Managed memory: one address on the host and the device.
        if (device.Has(GmmKind.Managed))
        {
            using (GmmStream stream = context.Stream(0))
            using (GmmBuffer block = context.Alloc(Block,
                new GmmAllocOptions { Kind = GmmKind.Managed, Stream = stream }))
            {
                block.Write(0, bytes);
                block.Advise(GmmAdvice.SetPreferredLocation, 0);
                block.Prefetch(0, stream);
                Must(block.Read(0, Block).SequenceEqual(bytes), "managed bytes are as written");
            }
        }

        // A tag's blocks are limited, counted and paused together. A paused block keeps its address and here its bytes.
        GmmTag tag = context.Tag("tour", GmmContents.Host, 0);
        if (device.CanPause)
        {
            using (GmmBuffer block = context.Alloc(Block, new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag }))
            {
                block.Write(0, bytes);
                Must(tag.Pause() >= Block && block.Query().State == GmmState.Paused, "the block is paused");
                tag.Resume();
                Must(block.Read(0, Block).SequenceEqual(bytes), "a resume brings the bytes back");
            }
        }

        // Another process imports a block by a handle of 256 bytes.
        using (GmmBuffer block = context.Alloc(Block, new GmmAllocOptions { Tag = tag }))
        {
            block.Write(0, bytes);
            Share(block);
        }

        // A failure has a result, and a message that says what was asked, what stood in the way and what to do.
        context.SetLimit(new GmmScope { Tag = tag }, Block);
        try
        {
            context.Alloc(2L * Block, new GmmAllocOptions { Tag = tag }).Dispose();
            throw new InvalidOperationException("a limit was passed");
        }
        catch (GmmException error)
        {
            Must(error.Result == GmmResult.LimitExceeded && error.Message.Contains("a limit of"), "the error says why");
        }
        Console.WriteLine("tour in C#: ok, backend " + context.Info().BackendName + ", device 0: " + device.Name);
    }

    private static int Main(string[] words)
    {
        using (GmmContext context = new GmmContext())
        {
            if (words.Length == 1 && words[0] == "--peer")
            {
                Peer(context);
            }
            else
            {
                Run(context);
            }
        }
        return 0;
    }
}
