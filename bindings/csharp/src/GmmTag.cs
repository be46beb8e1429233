/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Threading;

namespace Gmm
{
    /// <summary>A tag groups allocations to be paused, limited and counted together. It lives as long as its context.</summary>
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

        /// <summary>Makes this the current tag of the calling thread until the scope is disposed of: <c>using (tag.Push()) { ... }</c>.</summary>
        public IDisposable Push()
        {
            context.PushTag(Number);
            return new Scope(context);
        }

        /// <summary>Gives the tag's VMM memory back to the driver; see <see cref="GmmContext.Pause"/>. Returns the bytes that went back.</summary>
        public long Pause()
        {
            return context.Pause(this);
        }

        /// <summary>Gives the tag's paused memory its pages back; see <see cref="GmmContext.Resume"/>. Returns the bytes taken from the driver.</summary>
        public long Resume()
        {
            return context.Resume(this);
        }

        /// <summary>How the tag stands.</summary>
        public GmmPauseInfo Info()
        {
            return context.PauseInfo(Number);
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
                    throw new InvalidOperationException("a tag is pushed for one thread: dispose of its scope on that thread");
                }
                if (!closed)
                {
                    closed = true;
                    context.PopTag();
                }
            }
        }
    }
}
