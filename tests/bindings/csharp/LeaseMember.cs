/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using Gmm;

/// <summary>A process with a lease that does what it is told, and its handle in the test.</summary>
internal sealed class LeaseMember : IDisposable
{
    internal const int CardMiB = 64;
    private const int MiB = 1 << 20;

    private readonly string name;
    private readonly Process process;

    internal LeaseMember(string folder, string name)
    {
        this.name = name;
        ProcessStartInfo start = Child.Start("lease", name);
        start.RedirectStandardInput = true;
        start.RedirectStandardOutput = true;
        start.EnvironmentVariables["GMM_IPC_DIR"] = folder;
        start.EnvironmentVariables["GMM_HOST_CARD"] = Path.Combine(folder, "card");
        start.EnvironmentVariables["FAKE_CUDA_LEDGER"] = Path.Combine(folder, "ledger");
        start.EnvironmentVariables["FAKE_CUDA_MEMORY"] = ((long)CardMiB * MiB).ToString();
        process = Process.Start(start);
    }

    internal void Tell(string command)
    {
        process.StandardInput.WriteLine(command);
        process.StandardInput.Flush();
    }

    internal string Hear()
    {
        string line = process.StandardOutput.ReadLine();
        if (line == null)
        {
            process.WaitForExit();
            throw new InvalidOperationException(name + " has ended with " + process.ExitCode);
        }
        return line;
    }

    internal string Ask(string command)
    {
        Tell(command);
        return Hear();
    }

    /// <summary>SIGKILL.</summary>
    internal void Kill()
    {
        process.Kill();
    }

    public void Dispose()
    {
        using (process)
        {
            try
            {
                process.StandardInput.Close();
            }
            catch (IOException)
            {
                // it was killed
            }
            if (!process.WaitForExit(Tap.Patience))
            {
                Kill();
                throw new InvalidOperationException(name + " does not end");
            }
            int code = process.ExitCode;
            Tap.Check(code == 0 || code == 9 || code == 128 + 9, name + " has ended with " + code);
        }
    }

    // The process.

    private static volatile string asker = "nobody";

    internal static void Run(string name)
    {
        GmmContextOptions options = new GmmContextOptions();
        if (Environment.GetEnvironmentVariable("GMM_BACKEND") == "host")
        {
            options.HostDevices = 1;
            options.HostMemory = (long)CardMiB * MiB;
        }
        using (GmmContext context = new GmmContext(options))
        {
            if (context.Device(0).TotalMemory > 16L << 30)
            {
                Say("too large");
                return;
            }
            GmmTag tag = context.Tag("weights", GmmContents.Host, 0);
            GmmLeaseOptions wanted = new GmmLeaseOptions
            {
                Name = name, Arbiter = "tests", ResidencyMilliseconds = 1, Offer = { [tag] = 1 },
                Asked = (lease, ask) => asker = ask.Name
            };
            using (GmmLease lease = context.Lease(wanted))
            {
                Say("ready");
                Obey(context, lease, tag, name[0]);
            }
        }
    }

    private static void Say(object answer)
    {
        Console.Out.WriteLine(answer);
        Console.Out.Flush();
    }

    private static void Obey(GmmContext context, GmmLease lease, GmmTag tag, int seed)
    {
        GmmBuffer block = null;
        byte[] pattern = { };
        for (string line = Console.In.ReadLine(); line != null; line = Console.In.ReadLine())
        {
            string[] words = line.Split(' ');
            switch (words[0])
            {
                case "request":
                    Say(Request(lease, long.Parse(words[1]), long.Parse(words[2])));
                    break;
                case "alloc":
                    pattern = new byte[int.Parse(words[1]) * MiB];
                    for (int i = 0; i < pattern.Length; i++)
                    {
                        pattern[i] = (byte)(i * 7 + seed);
                    }
                    block = context.Alloc(pattern.Length, new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag });
                    block.Write(0, pattern);
                    Say(true);
                    break;
                case "check":
                    Tap.SameBytes(pattern, block.Read(0, pattern.Length), "the contents");
                    Say(true);
                    break;
                case "release":
                    Say(lease.Release());
                    break;
                case "info":
                    GmmLeaseInfo info = lease.Info();
                    Say(info.State + " grants " + info.Grants + " evictions " + info.Evictions + " asked " + info.Asked
                        + " by " + asker);
                    break;
                case "status":
                    List<string> states = new List<string>();
                    foreach (GmmLeaseMember each in
                             context.LeaseStatus("tests", TimeSpan.FromMilliseconds(Tap.Patience)).Members)
                    {
                        states.Add(each.Name + " " + each.State);
                    }
                    states.Sort();
                    Say(string.Join(" ", states));
                    break;
                default:
                    throw new ArgumentException(line);
            }
        }
        if (block != null)
        {
            block.Dispose();
        }
    }

    private static string Request(GmmLease lease, long mib, long milliseconds)
    {
        GmmLeaseRequest request = new GmmLeaseRequest
        {
            Amounts = { [0] = mib * MiB }, TimeoutMilliseconds = milliseconds
        };
        try
        {
            return lease.Request(request).ToString();
        }
        catch (GmmException error)
        {
            return error.Result + " " + error.Message.Replace('\n', ' ');
        }
    }
}
