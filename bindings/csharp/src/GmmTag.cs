/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Threading;

namespace Gmm
{
    /// <summary>
    /// A tag groups allocations to be paused, limited and counted together. It lives until Destroy() or the end
    /// of its context.
    /// </summary>
    public sealed class GmmTag
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
        public long Pause()
        {
            return context.Pause(this);
        }

        /// <summary>
        /// Gives the tag's paused memory its pages back; see GmmContext.Resume(). Returns the bytes taken from the
        /// driver.
        /// </summary>
        public long Resume()
        {
            return context.Resume(this);
        }

        /// <summary>Pauses the tag, with options.</summary>
        public long Pause(GmmPauseOptions options)
        {
            return context.Pause(options, this);
        }

        /// <summary>Resumes the tag and reports the progress.</summary>
        public long Resume(GmmProgress progress)
        {
            return context.Resume(progress, this);
        }

        /// <summary>Resumes the tag, with options.</summary>
        public long Resume(GmmPauseOptions options)
        {
            return context.Resume(options, this);
        }

        /// <summary>
        /// Pauses the tag until the returned object is disposed of: <c>using (tag.Paused()) { ... }</c>.
        /// </summary>
        public IDisposable Paused()
        {
            Pause();
            return new PausedScope(this);
        }

        /// <summary>Pauses the tag in the background.</summary>
        public GmmTicket PauseAsync()
        {
            return context.PauseAsync(this);
        }

        /// <summary>Pauses the tag in the background, with options.</summary>
        public GmmTicket PauseAsync(GmmPauseOptions options)
        {
            return context.PauseAsync(options, this);
        }

        /// <summary>Resumes the tag in the background.</summary>
        public GmmTicket ResumeAsync()
        {
            return context.ResumeAsync(this);
        }

        /// <summary>Resumes the tag in the background and reports the progress.</summary>
        public GmmTicket ResumeAsync(GmmProgress progress)
        {
            return context.ResumeAsync(progress, this);
        }

        /// <summary>Resumes the tag in the background, with options.</summary>
        public GmmTicket ResumeAsync(GmmPauseOptions options)
        {
            return context.ResumeAsync(options, this);
        }

        /// <summary>
        /// Replaces all settings of the tag from its next pause or resume on. Backups of memory that is paused now stay
        /// as they are.
        /// </summary>
        public void Update(GmmTagOptions options)
        {
            context.UpdateTag(Number, options);
        }

        /// <summary>
        /// Destroys the tag and returns its free memory. Busy while it has memory or heaps, or a thread has pushed it.
        /// </summary>
        public void Destroy()
        {
            context.DestroyTag(Number);
        }

        /// <summary>
        /// Discards the kept contents of the tag's paused memory: after a resume the bytes are undefined. Returns the
        /// number of bytes discarded.
        /// </summary>
        public long DiscardBackup()
        {
            return context.DiscardBackup(this);
        }

        /// <summary>The state of the tag.</summary>
        public GmmPauseInfo Info()
        {
            return context.PauseInfo(Number);
        }

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
            return Show.Or("GmmTag { " + Number + " }", () =>
            {
                GmmPauseInfo info = Info();
                return "GmmTag { " + Number + " \"" + info.Name + "\", " + Show.Size(info.ActiveBytes) + " active, "
                    + Show.Size(info.PausedBytes) + " paused }";
            });
        }
    }
}
