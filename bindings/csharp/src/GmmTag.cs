/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Threading;

namespace Gmm
{
    /// <summary>
    /// A tag groups allocations to be paused, limited and counted together. It lives until Destroy() or the end
    /// of its context.
    /// </summary>
    public sealed partial class GmmTag
    {
        private readonly GmmContext context;

        internal GmmTag(GmmContext context, uint number)
        {
            this.context = context;
            Number = (int)number;
        }

        /// <summary>The tag's number in the C interface.</summary>
        public int Number { get; }

        /// <summary>
        /// Makes this the current tag of the calling thread until the scope is disposed of: <c>using (tag.Push()) { ...
        /// }</c>.
        /// </summary>
        public IDisposable Push()
        {
            context.PushTag(Number);
            return new Scope(context);
        }

        /// <summary>
        /// Gives the tag's VMM memory back to the driver; see GmmContext.Pause(). Returns the bytes that went back.
        /// </summary>
        public long Pause() => context.Pause(this);

        /// <summary>Pauses the tag, with options.</summary>
        public long Pause(GmmPauseOptions options) => context.Pause(options, this);

        /// <summary>
        /// Gives the tag's paused memory its pages back; see GmmContext.Resume(). Returns the bytes taken from the
        /// driver.
        /// </summary>
        public long Resume() => context.Resume(this);

        /// <summary>Resumes the tag and reports the progress.</summary>
        public long Resume(GmmProgress progress) => context.Resume(progress, this);

        /// <summary>Resumes the tag, with options.</summary>
        public long Resume(GmmPauseOptions options) => context.Resume(options, this);

        /// <summary>
        /// Pauses the tag until the returned object is disposed of: <c>using (tag.Paused()) { ... }</c>.
        /// </summary>
        public IDisposable Paused()
        {
            Pause();
            return new PausedScope(this);
        }

        /// <summary>Pauses the tag in the background.</summary>
        public GmmTicket PauseAsync() => context.PauseAsync(this);

        /// <summary>Pauses the tag in the background, with options.</summary>
        public GmmTicket PauseAsync(GmmPauseOptions options) => context.PauseAsync(options, this);

        /// <summary>Resumes the tag in the background.</summary>
        public GmmTicket ResumeAsync() => context.ResumeAsync(this);

        /// <summary>Resumes the tag in the background and reports the progress.</summary>
        public GmmTicket ResumeAsync(GmmProgress progress) => context.ResumeAsync(progress, this);

        /// <summary>Resumes the tag in the background, with options.</summary>
        public GmmTicket ResumeAsync(GmmPauseOptions options) => context.ResumeAsync(options, this);

        /// <summary>
        /// Discards the kept contents of the tag's paused memory: after a resume the bytes are undefined. Returns the
        /// number of bytes discarded.
        /// </summary>
        public long DiscardBackup() => context.DiscardBackup(this);

        private sealed class PausedScope : IDisposable
        {
            private readonly GmmTag tag;
            private bool closed;

            internal PausedScope(GmmTag tag)
            {
                this.tag = tag;
            }

            /// <summary>A resume that fails may be tried again.</summary>
            public void Dispose()
            {
                lock (tag)
                {
                    if (!closed)
                    {
                        tag.Resume();
                        closed = true;
                    }
                }
            }
        }

        private sealed class Scope : IDisposable
        {
            private readonly GmmContext context;
            private readonly Thread thread = Thread.CurrentThread;
            private bool closed;

            internal Scope(GmmContext context)
            {
                this.context = context;
            }

            public void Dispose()
            {
                if (Thread.CurrentThread != thread)
                {
                    throw new InvalidOperationException(
                        "a tag is pushed for one thread: dispose of its scope on that thread");
                }
                if (!closed)
                {
                    closed = true;
                    context.PopTag();
                }
            }
        }

        /// <summary>The number, the name and the memory.</summary>
        public override string ToString()
        {
            try
            {
                GmmPauseInfo info = Info();
                return "GmmTag { " + Number + " \"" + info.Name + "\", " + Show.Size(info.ActiveBytes) + " active, "
                    + Show.Size(info.PausedBytes) + " paused }";
            }
            catch (Exception error) when (error is ObjectDisposedException || error is GmmException)
            {
                return "GmmTag { " + Number + " }";
            }
        }
    }
}
