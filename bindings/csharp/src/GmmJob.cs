/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Runtime.InteropServices;
using System.Text;
using System.Threading;

namespace Gmm
{
    /// <summary>
    /// Registers of text that all ranks of a <see cref="GmmJob"/> reach. They are set once: a register that has a value
    /// keeps it. Keys and values are ASCII text of at most 127 and 511 characters.
    /// </summary>
    /// <remarks>
    /// The methods run on the thread that is in the job's operation. They return in the given time, or soon after it.
    /// They may be called again with the same arguments. What they throw counts as a message that was lost: the library
    /// asks again until its time is over, and the exception is then the InnerException of the GmmException. A
    /// ThreadInterruptedException ends the operation at once.
    /// </remarks>
    public interface IGmmExchange
    {
        /// <summary>
        /// Sets a register that has no value, in one step for all ranks. Returns the value that it has then, or null
        /// when nobody answered.
        /// </summary>
        string Set(string key, string value, TimeSpan timeout);

        /// <summary>The value of a register, or null when it has none in this time.</summary>
        string Get(string key, TimeSpan timeout);

        /// <summary>Removes a register that nobody reads any more. It may do nothing.</summary>
        void Erase(string key);
    }

    /// <summary>A caller's IGmmExchange as C calls it, and what it threw.</summary>
    internal sealed class ExchangeCall : HeldByC
    {
        private const int MostBytes = 512; // GMM_EXCHANGE_VALUE

        private readonly IGmmExchange exchange;
        private int running;
        private Exception thrown; // this and the next: of the thread that is in the operation
        private bool ended;

        internal ExchangeCall(IGmmExchange exchange)
        {
            this.exchange = exchange;
            Hold();
        }

        /// <summary>False while an operation runs.</summary>
        internal bool Begin()
        {
            if (Interlocked.CompareExchange(ref running, 1, 0) != 0)
            {
                return false;
            }
            thrown = null;
            ended = false;
            return true;
        }

        /// <summary>What the exchange threw first, or what ended the operation; null: nothing.</summary>
        internal Exception End()
        {
            Exception told = thrown;
            Interlocked.Exchange(ref running, 0);
            return told;
        }

        /// <summary>Called from C; a gmm_result.</summary>
        internal static int Call(IntPtr user, int operation, IntPtr key, IntPtr value, IntPtr stands, ulong timeout)
        {
            ExchangeCall call = Of<ExchangeCall>(user);
            return call.ended ? (int)GmmResult.Cancelled : call.Perform(operation, key, value, stands, timeout);
        }

        private int Perform(int operation, IntPtr key, IntPtr value, IntPtr stands, ulong timeout)
        {
            try
            {
                string name = Callbacks.Text(key);
                if (operation == 2)
                {
                    exchange.Erase(name);
                    return (int)GmmResult.Ok;
                }
                TimeSpan time = TimeSpan.FromMilliseconds(timeout);
                string text = operation == 0 ? exchange.Set(name, Callbacks.Text(value), time)
                    : exchange.Get(name, time);
                if (text == null)
                {
                    return (int)GmmResult.NotReady;
                }
                byte[] bytes = Encoding.UTF8.GetBytes(text);
                if (bytes.Length == 0 || bytes.Length >= MostBytes)
                {
                    return (int)GmmResult.Io;
                }
                Marshal.Copy(bytes, 0, stands, bytes.Length);
                Marshal.WriteByte(stands, bytes.Length, 0);
                return (int)GmmResult.Ok;
            }
            catch (Exception error)
            {
                ended = error is ThreadInterruptedException;
                if (thrown == null || ended)
                {
                    thrown = error;
                }
                return (int)(ended ? GmmResult.Cancelled : GmmResult.Io);
            }
        }
    }

    /// <summary>
    /// One rank of a job, until Dispose(): the processes of a job pause and resume tags as one transaction, or not at
    /// all.
    /// </summary>
    /// <remarks>
    /// Every rank calls the methods in the same order, with tags of the same names. A rank that refuses, fails, dies,
    /// hangs or is late ends the operation on all ranks in time, with an exception that names it. Everything is as
    /// before then. A rank that cannot reach the exchange after it agreed gets NotReady, and Info() says InDoubt:
    /// calling the same method again finds out what was decided.
    /// </remarks>
    public sealed class GmmJob : IDisposable
    {
        private readonly GmmJobHandle handle;
        private readonly ExchangeCall exchange;

        internal GmmJob(GmmContextHandle context, IGmmExchange exchange, GmmJobOptions options)
        {
            if (exchange == null)
            {
                throw new ArgumentNullException(nameof(exchange), "the ranks of a job need an exchange");
            }
            ExchangeCall call = new ExchangeCall(exchange);
            this.exchange = call;
            handle = GmmSafeHandle.Child(context, call, native =>
            {
                using (gmm_job_desc desc = new gmm_job_desc())
                {
                    options.Fill(desc, call.User);
                    IntPtr address;
                    Native.gmm_job_create(native, desc, out address);
                    return new GmmJobHandle(address, context, call);
                }
            });
        }

        /// <summary>Pauses the tags on all ranks, or on none. Without tags it covers every tag.</summary>
        public GmmJobInfo Pause(params GmmTag[] tags)
        {
            return Pause(new GmmPauseOptions(), tags);
        }

        /// <summary>The same with options, which are equal on all ranks.</summary>
        public GmmJobInfo Pause(GmmPauseOptions options, params GmmTag[] tags)
        {
            return Run(true, options.Flags, options.Progress, tags);
        }

        /// <summary>
        /// Resumes the tags on all ranks, or on none. Without tags it covers every tag. All ranks hold their pages
        /// before one maps any. A rank that cannot have its pages ends it, and all stay paused with their contents.
        /// </summary>
        public GmmJobInfo Resume(params GmmTag[] tags)
        {
            return Resume(new GmmResumeOptions(), tags);
        }

        /// <summary>The same with options, which are equal on all ranks.</summary>
        public GmmJobInfo Resume(GmmResumeOptions options, params GmmTag[] tags)
        {
            return Run(false, options.Flags, options.Progress, tags);
        }

        private GmmJobInfo Run(bool pause, uint flags, GmmProgress progress, GmmTag[] tags)
        {
            using (Use job = new Use(handle))
            using (ProgressCall call = new ProgressCall(progress))
            using (gmm_pause_desc desc = GmmContext.Describe(flags, call, tags))
            using (gmm_job_info info = new gmm_job_info())
            {
                if (!exchange.Begin())
                {
                    throw new GmmException((int)GmmResult.Busy, 0, "GMM_ERROR_BUSY", "GmmJob: another thread, or "
                        + "the caller of its exchange, is in an operation of the job; wait for it.");
                }
                Exception thrown = null;
                try
                {
                    try
                    {
                        if (pause)
                        {
                            Native.gmm_job_pause(job.Address, desc, info);
                        }
                        else
                        {
                            Native.gmm_job_resume(job.Address, desc, info);
                        }
                    }
                    finally
                    {
                        thrown = exchange.End();
                    }
                }
                catch (GmmException error)
                {
                    if (call.Thrown != null)
                    {
                        call.Thrown.Throw();
                    }
                    if (thrown == null)
                    {
                        throw;
                    }
                    throw new GmmException(error.Code, error.NativeCode, error.Name, error.Message, thrown);
                }
                return new GmmJobInfo(info);
            }
        }

        /// <summary>The last operation, also after its failure.</summary>
        public GmmJobInfo Info()
        {
            using (Use job = new Use(handle))
            using (gmm_job_info info = new gmm_job_info())
            {
                Native.gmm_job_query(job.Address, info);
                return new GmmJobInfo(info);
            }
        }

        /// <summary>
        /// Ends this process's part of the job, once its operation on another thread has ended. An operation that is in
        /// doubt is undone. Inside the handler of a watcher it is Busy, and the job stays. A second call does nothing.
        /// </summary>
        public void Dispose()
        {
            WatchCall.CheckOutside("GmmJob.Dispose()", false);
            handle.CloseOrThrow();
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return handle.IsDisposed ? "GmmJob { closed }" : "GmmJob { open }";
        }
    }
}
