/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Diagnostics;
using System.Linq;
using System.Text.RegularExpressions;
using System.Threading;
using System.Threading.Tasks;
using Gmm;

/// <summary>Runs tests one after the other, reports them in the test anything protocol (TAP), and has what they
/// share.</summary>
internal sealed class Tap
{
    /// <summary>Milliseconds for what must come, on a machine however busy.</summary>
    internal const int Patience = 60000;

    private int count;
    private int failed;

    internal void Test(string name, Action step)
    {
        count++;
        try
        {
            step();
            Console.WriteLine("ok " + count + " - " + name);
        }
        catch (Exception error)
        {
            failed++;
            Console.WriteLine("not ok " + count + " - " + name);
            Console.WriteLine("# " + error.ToString().Replace("\n", "\n# "));
        }
        Console.Out.Flush();
    }

    /// <summary>The exit code of the program.</summary>
    internal int Finish()
    {
        Console.WriteLine("1.." + count);
        Console.Out.Flush();
        return failed == 0 ? 0 : 1;
    }

    internal static void Check(bool holds, string what)
    {
        if (!holds)
        {
            throw new InvalidOperationException("wrong: " + what);
        }
    }

    internal static void Same<T>(T expected, T got, string what)
    {
        if (!Equals(expected, got))
        {
            throw new InvalidOperationException(what + ": expected " + expected + ", got " + got);
        }
    }

    internal static E Fails<E>(Action step) where E : Exception
    {
        try
        {
            step();
        }
        catch (E error)
        {
            return error;
        }
        throw new InvalidOperationException("expected " + typeof(E).Name + ", nothing was thrown");
    }

    /// <summary>A GmmException with exactly this result, whose message says something.</summary>
    internal static GmmException Fails(GmmResult result, Action step)
    {
        GmmException error = Fails<GmmException>(step);
        Same(result, error.Result, "the result of: " + error);
        Same((int)result, error.Code, "the code of: " + error);
        string name = Regex.Replace(result.ToString(), "(?<!^)[A-Z]", "_$0").ToUpperInvariant();
        Same("GMM_ERROR_" + name, error.Name, "the name of: " + error);
        Check(error.Message.Length > 0, "a message");
        return error;
    }

    /// <summary>Each of the steps fails with this result.</summary>
    internal static void EachFails(GmmResult result, params Action[] steps)
    {
        foreach (Action step in steps)
        {
            Fails(result, step);
        }
    }

    /// <summary>Takes the value of a property whose getter throws.</summary>
    internal static void Ignore(long value)
    {
    }

    internal static void SameBytes(byte[] expected, byte[] got, string what)
    {
        Check(expected.SequenceEqual(got), what + ": they differ");
    }

    /// <summary>Bytes that count up from 1.</summary>
    internal static byte[] Pattern(int size)
    {
        byte[] bytes = new byte[size];
        for (int i = 0; i < size; i++)
        {
            bytes[i] = (byte)(i + 1);
        }
        return bytes;
    }

    internal static void Collect()
    {
        GC.Collect();
        GC.WaitForPendingFinalizers();
    }

    internal static void WaitFor(string what, Func<bool> condition)
    {
        Stopwatch watch = Stopwatch.StartNew();
        while (watch.ElapsedMilliseconds < Patience)
        {
            if (condition())
            {
                return;
            }
            Collect();
            Thread.Sleep(10);
        }
        throw new InvalidOperationException("waited in vain for " + what);
    }

    /// <summary>
    /// Runs the step on a thread that is gone afterwards, and throws what it threw. Join() waits for the end of the
    /// thread in C too: with a block of a paused tag in its cache it ends after the pause, and Mono's finalizers wait
    /// for ended threads.
    /// </summary>
    internal static void Elsewhere(Action step)
    {
        Task task = new Task(step);
        Thread thread = new Thread(() => task.RunSynchronously());
        thread.Start();
        thread.Join();
        task.GetAwaiter().GetResult();
    }

    /// <summary>
    /// Makes garbage on another thread: Mono's collector looks through stacks conservatively and might find old
    /// references on ours.</summary>
    internal static void Forget(int count, Action make)
    {
        Elsewhere(() =>
        {
            for (int i = 0; i < count; i++)
            {
                make();
            }
        });
    }
}
