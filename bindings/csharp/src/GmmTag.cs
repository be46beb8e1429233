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
            context.Run(self => Native.gmm_tag_push(self, (uint)Number));
            Thread thread = Thread.CurrentThread;
            return new Once(() =>
            {
                if (Thread.CurrentThread != thread)
                {
                    throw new InvalidOperationException(
                        "a tag is pushed for one thread: dispose of its scope on that thread");
                }
                context.Run(self => Native.gmm_tag_pop(self));
            });
        }

        /// <summary>
        /// Pauses the tag until the returned object is disposed of: <c>using (tag.Paused()) { ... }</c>.
        /// </summary>
        public IDisposable Paused()
        {
            Pause();
            return new Once(() => Resume());
        }

        /// <summary>The number, the name and the memory.</summary>
        public override string ToString() => Show.Open(nameof(GmmTag), () =>
        {
            GmmPauseInfo info = Info();
            return Number + " \"" + info.Name + "\", " + Show.Size(info.ActiveBytes) + " active, "
                + Show.Size(info.PausedBytes) + " paused";
        }, "" + Number);
    }
}
