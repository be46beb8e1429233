/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Reflection;
using System.Runtime.InteropServices;
using System.Threading;
using Gmm;

/// <summary>The second process of the tests. Its exit code says what came of it.</summary>
internal static class Child
{
    private static List<object> live;

    internal static int ExitWithLiveBuffers()
    {
        GmmContext context = new GmmContext(new GmmContextOptions { Logger = (level, message) => { } });
        live = new List<object>();
        live.Add(context.Alloc(1 << 20, GmmKind.Host));
        GmmStream stream = context.Stream(0);
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
        return 0;
    }

    [DllImport("libc.so.6", EntryPoint = "__cxa_atexit")]
    private static extern int AtExit(IntPtr function, IntPtr argument, IntPtr library);

    [DllImport("libc.so.6", EntryPoint = "dlsym")]
    private static extern IntPtr Symbol(IntPtr library, string name);

    /// <summary>Two threads of the library are inside callbacks; one of them ends the program.</summary>
    internal static int ExitInsideCallbacks()
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
        ManualResetEvent queued = new ManualResetEvent(false);
        stream.Call(() =>
        {
            queued.WaitOne();
            Environment.Exit(0);
        });
        GmmBuffer filled = context.Alloc(32 << 20, new GmmAllocOptions { Kind = GmmKind.Host, Stream = stream });
        live.Add(filled);
        for (int i = 0; i < 200; i++)
        {
            filled.Fill(i);
            stream.Call(() => { });
        }
        // The stream goes on after the runtime has closed its libraries, as the end takes half a second.
        Tap.Same(0, AtExit(Symbol(IntPtr.Zero, "usleep"), (IntPtr)500000, IntPtr.Zero), "the answer of atexit");
        queued.Set();
        Thread.Sleep(Tap.Patience);
        return 1;
    }

    internal static int TaskThrows()
    {
        using (GmmContext context = new GmmContext())
        using (GmmStream stream = context.Stream(0))
        {
            stream.Call(() => { throw new InvalidOperationException("from the task"); });
            stream.Synchronize();
            Thread.Sleep(Tap.Patience); // the exception ends the program during this
        }
        return 0;
    }

    /// <summary>Runs this program again with this argument; returns its exit code and its output.</summary>
    internal static int Run(string argument, out string output)
    {
        bool mono = Type.GetType("Mono.Runtime") != null;
        ProcessStartInfo start = new ProcessStartInfo(mono ? "mono" : Process.GetCurrentProcess().MainModule.FileName,
            "\"" + Assembly.GetExecutingAssembly().Location + "\" " + argument)
        {
            UseShellExecute = false, RedirectStandardOutput = true, RedirectStandardError = true
        };
        using (Process process = Process.Start(start))
        {
            StringWriter errors = new StringWriter();
            process.ErrorDataReceived += (sender, line) => errors.WriteLine(line.Data);
            process.BeginErrorReadLine();
            output = process.StandardOutput.ReadToEnd();
            if (!process.WaitForExit(Tap.Patience))
            {
                process.Kill();
                throw new InvalidOperationException("the second process does not end");
            }
            process.WaitForExit();
            output += errors;
            return process.ExitCode;
        }
    }

    internal static void Run(string argument)
    {
        int code = Run(argument, out string output);
        Tap.Same(0, code, "exit code of the second process with the output: " + output);
    }
}
