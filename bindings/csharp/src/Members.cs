/* SPDX-License-Identifier: Apache-2.0 */
using System.Collections.Generic;

namespace Gmm
{
    // Members of the generated values and options that C# adds.

    public sealed partial class GmmAllocOptions
    {
        /// <summary>
        /// The block's name of 1 to 63 bytes in UTF-8, for snapshots and the report of leaks; null means none.
        /// </summary>
        public string Name { get; set; }
    }

    public sealed partial class GmmPauseOptions
    {
        /// <summary>The contents setting of this pause, which overrides that of the tags; null: theirs.</summary>
        public GmmContents? Contents
        {
            get => Drop ? GmmContents.Drop : KeepHost ? GmmContents.Host : KeepFile ? GmmContents.File
                : (GmmContents?)null;
            set
            {
                Drop = value == GmmContents.Drop;
                KeepHost = value == GmmContents.Host;
                KeepFile = value == GmmContents.File;
            }
        }
    }

    public sealed partial class GmmWatchOptions
    {
        /// <summary>All events that the options concern.</summary>
        private GmmWatchEvents DefaultEvents =>
            (Tag == null && Address == System.IntPtr.Zero ? GmmWatchEvents.None : GmmWatchEvents.Prepare
                | GmmWatchEvents.Losing | GmmWatchEvents.Restored | GmmWatchEvents.Failed)
            | (BudgetBytes != 0 ? GmmWatchEvents.Budget : GmmWatchEvents.None);
    }

    public sealed partial class GmmLeaseOptions
    {
        /// <summary>
        /// The offered tags with what it costs to bring a byte of each back; the lowest goes first. Between two turns
        /// the program does not use their memory, and gmm pauses it for others.
        /// </summary>
        public IDictionary<GmmTag, long> Offer { get; } = new Dictionary<GmmTag, long>();
    }

    public sealed partial class GmmLegacyHandle
    {
        /// <summary>Bytes of the driver's handle.</summary>
        public const int HandleSize = 64;
    }
}
