/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;

namespace Gmm
{
    /// <summary>How to open a context.</summary>
    public sealed class GmmContextOptions
    {
        /// <summary>The backend.</summary>
        public GmmBackend Backend { get; set; }
        /// <summary>
        /// The receiver of messages; with null, warnings and errors go to stderr when GMM_LOG is set. A logger that
        /// refers to the context keeps it from the garbage collector.
        /// </summary>
        public GmmLogger Logger { get; set; }
        /// <summary>Host backend: the bytes that each device pretends to have; 0 means the machine's memory.</summary>
        public long HostMemory { get; set; }
        /// <summary>Host backend: the number of devices; 0 means one.</summary>
        public int HostDevices { get; set; }
        /// <summary>
        /// As <see cref="GmmContext.DecommitAfterMilliseconds"/>; 0 means the value of GMM_DECOMMIT_AFTER_MS in the
        /// environment, else never.
        /// </summary>
        public long DecommitAfterMilliseconds { get; set; }
        /// <summary>
        /// Promises that the program allocates nothing while it captures a CUDA graph. An allocation on a stream then
        /// does not ask the driver.
        /// </summary>
        public bool NoCapture { get; set; }
        /// <summary>The logger does not hear of blocks that are live when the context ends.</summary>
        public bool NoLeakReport { get; set; }
        /// <summary>Host backend: the CPU faults on Device and Vmm memory, as it would with a GPU.</summary>
        public bool StrictHost { get; set; }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>What a pause does with a tag's memory.</summary>
    public sealed class GmmTagOptions
    {
        /// <summary>What a pause does with the contents; Drop when not set.</summary>
        public GmmContents Contents { get; set; }
        /// <summary>The priority: a higher one resumes first.</summary>
        public int Priority { get; set; }
        /// <summary>
        /// Promises that nobody writes the contents after their first pause. What was kept once is not copied again.
        /// </summary>
        public bool ReadOnly { get; set; }
        /// <summary>A resume compares the kept contents with their checksums.</summary>
        public bool Checksum { get; set; }
        /// <summary>
        /// Contents in host memory are never page-locked, so a resume returns their memory to the system.
        /// </summary>
        public bool Pageable { get; set; }

        internal gmm_tag_desc ToNative()
        {
            gmm_tag_desc desc = new gmm_tag_desc();
            desc.contents = (uint)Contents;
            desc.priority = Priority;
            desc.flags = (ReadOnly ? (uint)Native.GMM_TAG_READ_ONLY : 0)
                | (Checksum ? (uint)Native.GMM_TAG_CHECKSUM : 0)
                | (Pageable ? (uint)Native.GMM_TAG_PAGEABLE : 0);
            return desc;
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>What to watch: the memory of a tag or of a range, a device's budget, or both.</summary>
    public sealed class GmmWatchOptions
    {
        /// <summary>VMM memory of this tag, now and later.</summary>
        public GmmTag Tag { get; set; }
        /// <summary>The start of a range in one VMM block.</summary>
        public IntPtr Address { get; set; }
        /// <summary>Bytes of the range.</summary>
        public long Size { get; set; }
        /// <summary>Budget tells when the device's budget falls below so many bytes; 0: never.</summary>
        public long Budget { get; set; }
        /// <summary>The device of the budget.</summary>
        public int Device { get; set; }
        /// <summary>Only these events; None: all that the options concern.</summary>
        public GmmWatchEvents Events { get; set; }
        /// <summary>Milliseconds for each answer; 0 means 10,000.</summary>
        public long TimeoutMilliseconds { get; set; }
        /// <summary>Prepare and Losing come in ascending order, Restored and Failed in descending order.</summary>
        public int Order { get; set; }
        /// <summary>A name for messages, of 1 to 63 bytes in UTF-8; null: none.</summary>
        public string Name { get; set; }

        internal void Fill(gmm_watch_desc desc, IntPtr user)
        {
            GmmWatchEvents all = (Tag != null || Address != IntPtr.Zero
                ? GmmWatchEvents.Prepare | GmmWatchEvents.Losing | GmmWatchEvents.Restored | GmmWatchEvents.Failed
                : GmmWatchEvents.None) | (Budget != 0 ? GmmWatchEvents.Budget : GmmWatchEvents.None);
            desc.events = (uint)(Events == GmmWatchEvents.None ? all : Events);
            desc.tag = Tag == null ? 0 : (uint)Tag.Number;
            desc.device = Device;
            desc.address = Address;
            desc.size = (ulong)Size;
            desc.budget_bytes = (ulong)Budget;
            desc.timeout_ms = (ulong)TimeoutMilliseconds;
            desc.order = Order;
            desc.set_name(Name);
            desc.set_callback(user);
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>What a lease is, and what it offers.</summary>
    public sealed class GmmLeaseOptions
    {
        /// <summary>
        /// For messages and `gmm serve --status`: 1 to 63 letters, digits, '.', '-' and '_', no '.' first.
        /// </summary>
        public string Name { get; set; }
        /// <summary>
        /// The offered tags with what it costs to bring a byte of each back; the lowest goes first. Between two turns
        /// the program does not use their memory, and gmm pauses it for others.
        /// </summary>
        public IDictionary<GmmTag, long> Offer { get; } = new Dictionary<GmmTag, long>();
        /// <summary>The highest is served first; the lowest gives up memory first.</summary>
        public int Priority { get; set; }
        /// <summary>
        /// Bytes of each device that are left to this process. What it holds counts, and more than a device has means
        /// all of it.
        /// </summary>
        public long Floor { get; set; }
        /// <summary>
        /// Milliseconds after a grant in which the offered tags stay, so that processes do not only copy; 0 means as
        /// long as the last resume took, at least 100.
        /// </summary>
        public long ResidencyMilliseconds { get; set; }
        /// <summary>Hears that others want what is in use; null: nobody does.</summary>
        public GmmLeaseHandler Asked { get; set; }

        internal void Fill(gmm_lease_desc desc, IntPtr user)
        {
            Show.CheckSize("Floor", Floor);
            Show.CheckSize("ResidencyMilliseconds", ResidencyMilliseconds);
            desc.set_name(Name);
            desc.priority = Priority;
            desc.floor_bytes = (ulong)Floor;
            desc.residency_ms = (ulong)ResidencyMilliseconds;
            desc.set_asked(user);
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>What a turn of a lease needs beyond the paused memory of the offered tags.</summary>
    public sealed class GmmLeaseRequest
    {
        /// <summary>
        /// Bytes that the program will allocate, by device. They are kept free for the lease until the program
        /// allocates them or releases.
        /// </summary>
        public IDictionary<int, long> Amounts { get; } = new Dictionary<int, long>();
        /// <summary>Milliseconds to wait for the turn, at most a day; 0 means 60,000.</summary>
        public long TimeoutMilliseconds { get; set; }

        internal void Fill(gmm_lease_request_desc desc)
        {
            Show.CheckSize("TimeoutMilliseconds", TimeoutMilliseconds);
            desc.timeout_ms = (ulong)TimeoutMilliseconds;
            foreach (KeyValuePair<int, long> amount in Amounts)
            {
                Show.CheckSize("Amounts", amount.Value);
                desc.add_amount(amount.Key, (ulong)amount.Value);
            }
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>How to pause.</summary>
    public sealed class GmmPauseOptions
    {
        /// <summary>
        /// Pauses also when importers hold the memory. They keep the old pages, and this process gets new ones.
        /// </summary>
        public bool Force { get; set; }
        /// <summary>What this pause does with the contents, whatever the tags say; null means what they say.</summary>
        public GmmContents? Contents { get; set; }
        /// <summary>Receives the progress of the copies.</summary>
        public GmmProgress Progress { get; set; }

        internal uint Flags
        {
            get
            {
                int kept = !Contents.HasValue ? 0
                    : Contents == GmmContents.Drop ? Native.GMM_PAUSE_DROP
                    : Contents == GmmContents.Host ? Native.GMM_PAUSE_KEEP_HOST : Native.GMM_PAUSE_KEEP_FILE;
                return (uint)(kept | (Force ? Native.GMM_PAUSE_FORCE : 0));
            }
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>How to resume.</summary>
    public sealed class GmmResumeOptions
    {
        /// <summary>
        /// Keeps the backups in host memory of blocks over 128 KiB. <see cref="GmmBuffer.Backup"/> goes on to read
        /// them, until the memory is freed or a resume without this option.
        /// </summary>
        public bool Retain { get; set; }
        /// <summary>Receives the progress of the copies.</summary>
        public GmmProgress Progress { get; set; }

        internal uint Flags
        {
            get { return Retain ? (uint)Native.GMM_RESUME_RETAIN : 0; }
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>Configures where kept contents go. Values that are not set have their defaults.</summary>
    public sealed class GmmBackupOptions
    {
        /// <summary>Uses no page-locked memory beyond a small ring for copies.</summary>
        public bool NoArena { get; set; }
        /// <summary>Skips pageable memory: contents beyond the page-locked memory go to a file.</summary>
        public bool NoPageable { get; set; }
        /// <summary>
        /// Files have names in the directory: one a block, and beyond 48 files several blocks share one. They stay for
        /// later pauses until <see cref="GmmContext.Trim()"/> or the end of the context.
        /// </summary>
        public bool NamedFiles { get; set; }
        /// <summary>
        /// The limit of page-locked memory in bytes; 0 means GMM_BACKUP_ARENA_LIMIT, or what the host can spare.
        /// </summary>
        public long ArenaLimit { get; set; }
        /// <summary>
        /// The limit of other host memory in bytes; 0 means GMM_BACKUP_PAGEABLE_LIMIT, or what the host can spare.
        /// </summary>
        public long PageableLimit { get; set; }
        /// <summary>The directory of files; null means GMM_BACKUP_DIR, or /tmp.</summary>
        public string Directory { get; set; }
        /// <summary>
        /// The number of threads that copy, touch and scan host memory; 0 means one for each core, 16 at most.
        /// </summary>
        public int Threads { get; set; }

        internal gmm_backup_desc ToNative()
        {
            gmm_backup_desc desc = new gmm_backup_desc();
            desc.flags = (NoArena ? (uint)Native.GMM_BACKUP_NO_ARENA : 0)
                | (NoPageable ? (uint)Native.GMM_BACKUP_NO_PAGEABLE : 0)
                | (NamedFiles ? (uint)Native.GMM_BACKUP_NAMED_FILES : 0);
            desc.arena_limit = (ulong)ArenaLimit;
            desc.pageable_limit = (ulong)PageableLimit;
            desc.threads = (uint)Threads;
            if (Directory != null)
            {
                desc.set_directory(Directory);
            }
            return desc;
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>How to allocate.</summary>
    public sealed class GmmAllocOptions
    {
        /// <summary>The kind of memory; Device when not set.</summary>
        public GmmKind Kind { get; set; }
        /// <summary>The device; for Host and Managed memory the one that it counts for.</summary>
        public int Device { get; set; }
        /// <summary>The tag; null means the thread's current tag.</summary>
        public GmmTag Tag { get; set; }
        /// <summary>The stream on which the block is used first; null means the default stream.</summary>
        public GmmStream Stream { get; set; }
        /// <summary>The alignment in bytes, a power of two up to 2 MiB; 0 means 256.</summary>
        public long Alignment { get; set; }
        /// <summary>The block gets a driver allocation of its own.</summary>
        public bool Dedicated { get; set; }
        /// <summary>
        /// The block is VMM memory for network libraries, in a driver allocation of its own; the kind may be left out.
        /// </summary>
        public bool Comm { get; set; }
        /// <summary>The bytes read as zero.</summary>
        public bool Zero { get; set; }
        /// <summary>
        /// The block's name of 1 to 63 bytes in UTF-8, for snapshots and the report of leaks; null means none.
        /// </summary>
        public string Name { get; set; }

        internal gmm_alloc_desc ToNative(IntPtr stream)
        {
            gmm_alloc_desc desc = new gmm_alloc_desc();
            desc.kind = (uint)Kind;
            desc.device = Device;
            desc.tag = Tag == null ? 0 : (uint)Tag.Number;
            desc.stream = stream;
            desc.alignment = (ulong)Alignment;
            desc.flags = (Dedicated ? (uint)Native.GMM_ALLOC_DEDICATED : 0) | (Zero ? (uint)Native.GMM_ALLOC_ZERO : 0)
                | (Comm ? (uint)Native.GMM_ALLOC_COMM : 0);
            return desc;
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>
    /// The scope of a limit or a count: one device or all, one tag or all, one kind or all. Null means all.
    /// </summary>
    public sealed class GmmScope
    {
        /// <summary>Limits the scope to one device.</summary>
        public int? Device { get; set; }
        /// <summary>Limits the scope to one tag.</summary>
        public GmmTag Tag { get; set; }
        /// <summary>Limits the scope to one kind.</summary>
        public GmmKind? Kind { get; set; }

        /// <summary>The scope for C; a null scope means everything.</summary>
        internal static gmm_scope_desc ToNative(GmmScope scope)
        {
            gmm_scope_desc made = new gmm_scope_desc();
            if (scope != null)
            {
                made.flags = (scope.Device.HasValue ? (uint)Native.GMM_SCOPE_DEVICE : 0)
                    | (scope.Tag != null ? (uint)Native.GMM_SCOPE_TAG : 0)
                    | (scope.Kind.HasValue ? (uint)Native.GMM_SCOPE_KIND : 0);
                made.device = scope.Device ?? 0;
                made.tag = scope.Tag == null ? 0 : (uint)scope.Tag.Number;
                made.kind = (uint)(scope.Kind ?? GmmKind.Unspecified);
            }
            return made;
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }
}
