/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Reflection;
using System.Threading;
using Gmm;

/// <summary>The second process of the tests. Its exit code says what came of it.</summary>
internal static class Child
{
    internal static int Go(string[] arguments)
    {
        switch (arguments[0])
        {
            case "import":
                Change(int.Parse(arguments[1]));
                return 0;
            case "exit":
                ExitWithLiveBuffers();
                return 0;
            case "exit-inside":
                ExitInsideCallbacks();
                return 1;
            case "task-throws":
                TaskThrows();
                return 0;
            default:
                throw new ArgumentException(arguments[0]);
        }
    }

    /// <summary>Imports the handle on stdin, checks that the bytes count up from 1, and writes the complement of
    /// each.</summary>
    private static void Change(int size)
    {
        byte[] handle = Convert.FromBase64String(Console.In.ReadLine());
        using (GmmContext context = new GmmContext())
        using (GmmBuffer buffer = context.Import(handle))
        {
            Tap.Check(buffer.Size >= size, "the size " + buffer.Size);
            byte[] bytes = buffer.Read(0, size);
            Tap.SameBytes(Tap.Pattern(size), bytes, "the bytes of the first process");
            for (int i = 0; i < size; i++)
            {
                bytes[i] = (byte)~bytes[i];
            }
            buffer.Write(0, bytes);
        }
    }

    private static List<object> live;

    private static void ExitWithLiveBuffers()
    {
        GmmContext context = new GmmContext(new GmmContextOptions { Logger = (level, message) => { } });
        live = new List<object>();
        foreach (GmmKind kind in new[] { GmmKind.Device, GmmKind.Vmm, GmmKind.Host, GmmKind.Managed })
        {
            GmmBuffer buffer = context.Alloc(1 << 20, kind);
            buffer.Fill(1);
            live.Add(buffer);
        }
        GmmStream stream = context.Stream(0);
        live.Add(stream);
        live.Add(context.Alloc(1 << 20, new GmmAllocOptions { Stream = stream }));
        GmmHeap heap = context.Heap(new GmmHeapOptions { Kind = GmmKind.Vmm });
        live.Add(heap.Alloc(1 << 20));
        live.Add(context.Pin(new byte[1 << 16]));
        // Work that is under way when the runtime ends, on a thread that is attached to it.
        stream.Call(() => { });
        stream.Call(() => Thread.Sleep(200));
        GmmTag tag = context.Tag("left", GmmContents.Host, 0);
        live.Add(context.Alloc(64 << 20, new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag }));
        live.Add(tag.PauseAsync(new GmmPauseOptions
        {
            Progress = (done, total) =>
            {
                Thread.Sleep(200);
                return true;
            }
        }));
        live.Add(tag.ResumeAsync().AsTask());
        GmmLease lease = context.Lease(
            new GmmLeaseOptions { Name = "left" });
        live.Add(lease);
        lease.Request();
        Thread.Sleep(50);
        Console.WriteLine("leaving with " + live.Count + " live objects");
    }

    /// <summary>Two threads of the library are inside callbacks; one of them ends the program.</summary>
    private static void ExitInsideCallbacks()
    {
        GmmContext context = new GmmContext();
        GmmTag tag = context.Tag("left", GmmContents.Host, 0);
        GmmBuffer buffer = context.Alloc(4 << 20, new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag });
        buffer.Fill(1);
        GmmStream stream = context.Stream(0);
        live = new List<object> { buffer, stream };
        ManualResetEvent paused = new ManualResetEvent(false);
        live.Add(tag.PauseAsync(new GmmPauseOptions
        {
            Progress = (done, total) =>
            {
                paused.Set();
                Thread.Sleep(Tap.Patience);
                return true;
            }
        }));
        paused.WaitOne();
        stream.Call(() => Environment.Exit(0));
        Thread.Sleep(Tap.Patience);
    }

    private static void TaskThrows()
    {
        using (GmmContext context = new GmmContext())
        using (GmmStream stream = context.Stream(0))
        {
            stream.Call(() => { throw new InvalidOperationException("from the task"); });
            stream.Synchronize();
            Thread.Sleep(Tap.Patience); // the exception ends the program during this
        }
    }

    /// <summary>How to run this program again with these arguments.</summary>
    internal static ProcessStartInfo Start(params string[] arguments)
    {
        bool mono = Type.GetType("Mono.Runtime") != null;
        ProcessStartInfo start = new ProcessStartInfo(mono ? "mono" : Process.GetCurrentProcess().MainModule.FileName,
            "\"" + Assembly.GetExecutingAssembly().Location + "\" child " + string.Join(" ", arguments));
        start.UseShellExecute = false;
        return start;
    }

    /// <summary>Runs this program again with these arguments; returns its exit code and its output.</summary>
    internal static int Run(byte[] input, out string said, params string[] arguments)
    {
        ProcessStartInfo start = Start(arguments);
        start.RedirectStandardInput = true;
        start.RedirectStandardOutput = true;
        start.RedirectStandardError = true;
        using (Process process = Process.Start(start))
        {
            process.StandardInput.WriteLine(Convert.ToBase64String(input));
            process.StandardInput.Close();
            StringWriter errors = new StringWriter();
            process.ErrorDataReceived += (sender, line) => errors.WriteLine(line.Data);
            process.BeginErrorReadLine();
            string output = process.StandardOutput.ReadToEnd();
            if (!process.WaitForExit(Tap.Patience))
            {
                process.Kill();
                throw new InvalidOperationException("the second process does not end");
            }
            process.WaitForExit();
            said = output + errors;
            return process.ExitCode;
        }
    }

    internal static void Run(byte[] input, params string[] arguments)
    {
        string said;
        int code = Run(input, out said, arguments);
        Tap.Same(0, code, "exit code of the second process, which said: " + said);
    }
}
