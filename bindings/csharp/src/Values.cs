/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;

namespace Gmm
{
    /// <summary>What a context opened.</summary>
    public sealed class GmmContextInfo
    {
        internal GmmContextInfo(gmm_context_info from)
        {
            Backend = (GmmBackend)from.backend;
            DeviceCount = (int)from.device_count;
            BackendName = from.backend_name;
            DriverVersion = from.driver_version;
            DecommitAfterMilliseconds = (long)from.decommit_after_ms;
        }

        /// <summary>The chosen backend.</summary>
        public GmmBackend Backend { get; }

        /// <summary>The number of devices.</summary>
        public int DeviceCount { get; }

        /// <summary>"host" or "cuda".</summary>
        public string BackendName { get; }

        /// <summary>The driver's version; on the host backend the kernel's release.</summary>
        public string DriverVersion { get; }

        /// <summary>
        /// The milliseconds after which idle memory goes back to the driver, with the default resolved, or <see
        /// cref="GmmContext.DecommitNever"/>.
        /// </summary>
        public long DecommitAfterMilliseconds { get; }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>What a device is and can do.</summary>
    public sealed class GmmDeviceInfo
    {
        internal GmmDeviceInfo(gmm_device_info from)
        {
            Device = from.device;
            Capabilities = (int)from.capabilities;
            Kinds = (int)from.kinds;
            TotalMemory = (long)from.total_memory;
            FreeMemory = (long)from.free_memory;
            Granularity = (long)from.granularity;
            Name = from.name;
            Uuid = from.uuid;
            CanPause = (from.capabilities & Native.GMM_DEVICE_CAN_PAUSE) != 0;
            CanExportFd = (from.capabilities & Native.GMM_DEVICE_CAN_EXPORT_FD) != 0;
            CanLegacyIpc = (from.capabilities & Native.GMM_DEVICE_CAN_LEGACY_IPC) != 0;
            CanConcurrentManaged = (from.capabilities & Native.GMM_DEVICE_CAN_CONCURRENT_MANAGED) != 0;
            CanPin = (from.capabilities & Native.GMM_DEVICE_CAN_PIN) != 0;
            CanPageable = (from.capabilities & Native.GMM_DEVICE_CAN_PAGEABLE) != 0;
            CanHostNuma = (from.capabilities & Native.GMM_DEVICE_CAN_HOST_NUMA) != 0;
            CanHostPageTables = (from.capabilities & Native.GMM_DEVICE_CAN_HOST_PAGE_TABLES) != 0;
            IsCpu = (from.capabilities & Native.GMM_DEVICE_IS_CPU) != 0;
        }

        /// <summary>The device's number, from 0.</summary>
        public int Device { get; }

        /// <summary>The capabilities as bits of the C interface.</summary>
        public int Capabilities { get; }

        /// <summary>The kinds that the device has, as bits; see Has().</summary>
        public int Kinds { get; }

        /// <summary>Total memory in bytes.</summary>
        public long TotalMemory { get; }

        /// <summary>Free memory in bytes, as the driver or the system reports it now.</summary>
        public long FreeMemory { get; }

        /// <summary>The granularity in bytes: VMM memory comes in multiples of it.</summary>
        public long Granularity { get; }

        /// <summary>The device's name.</summary>
        public string Name { get; }

        /// <summary>The device's UUID, 16 bytes.</summary>
        public byte[] Uuid { get; }

        /// <summary>VMM memory can pause and resume.</summary>
        public bool CanPause { get; }

        /// <summary>VMM and HOST memory can be exported as a file descriptor.</summary>
        public bool CanExportFd { get; }

        /// <summary>DEVICE memory has the driver's 64-byte handle.</summary>
        public bool CanLegacyIpc { get; }

        /// <summary>Host and device may use managed memory at once; prefetch works.</summary>
        public bool CanConcurrentManaged { get; }

        /// <summary>The program's own memory can be pinned.</summary>
        public bool CanPin { get; }

        /// <summary>The device reads ordinary host memory.</summary>
        public bool CanPageable { get; }


        /// <summary>VMM memory may lie on a NUMA node of the host.</summary>
        public bool CanHostNuma { get; }

        /// <summary>The device uses the host's page tables, as on Grace Hopper.</summary>
        public bool CanHostPageTables { get; }

        /// <summary>The device is no GPU but the host backend's.</summary>
        public bool IsCpu { get; }

        /// <summary>Whether the device has this kind of memory.</summary>
        public bool Has(GmmKind kind)
        {
            return (Kinds & (1 << (int)kind)) != 0;
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>A live block at the time of GmmContext.Blocks().</summary>
    public sealed class GmmBlockInfo
    {
        internal GmmBlockInfo(gmm_block_info from)
        {
            Address = from.address;
            Size = (long)from.size;
            ReservedSize = (long)from.reserved_size;
            Kind = (GmmKind)from.kind;
            Device = from.device;
            Tag = (int)from.tag;
            State = (GmmState)from.state;
            Name = from.name;
        }

        /// <summary>The start of the block.</summary>
        public System.IntPtr Address { get; }

        /// <summary>The requested bytes.</summary>
        public long Size { get; }

        /// <summary>The bytes that the block takes, rounding included.</summary>
        public long ReservedSize { get; }

        /// <summary>The kind of memory.</summary>
        public GmmKind Kind { get; }

        /// <summary>The device.</summary>
        public int Device { get; }

        /// <summary>The tag's number.</summary>
        public int Tag { get; }

        /// <summary>Active or Paused.</summary>
        public GmmState State { get; }

        /// <summary>The name that gmm_name() of the C interface gave the block; empty without one.</summary>
        public string Name { get; }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>The description of an address.</summary>
    public sealed class GmmPointerInfo
    {
        internal GmmPointerInfo(gmm_pointer_info from)
        {
            Kind = (GmmKind)from.kind;
            Base = from.base_address;
            Size = (long)from.size;
            ReservedSize = (long)from.reserved_size;
            Device = from.device;
            Tag = (int)from.tag;
            State = (GmmState)from.state;
            Usm = (GmmUsm)from.usm;
            IpcRoutes = (int)from.ipc_routes;
            AllocationBase = from.allocation_base;
            AllocationSize = (long)from.allocation_size;
            DevicePointer = from.device_pointer;
            Generation = (long)from.generation;
            HostAccessible = (from.flags & Native.GMM_POINTER_HOST_ACCESSIBLE) != 0;
            DeviceAccessible = (from.flags & Native.GMM_POINTER_DEVICE_ACCESSIBLE) != 0;
            LegacyIpc = (from.ipc_routes & Native.GMM_IPC_ROUTE_LEGACY) != 0;
            FdIpc = (from.ipc_routes & Native.GMM_IPC_ROUTE_FD) != 0;
            DmaBufIpc = (from.ipc_routes & Native.GMM_IPC_ROUTE_DMA_BUF) != 0;
            PeerGone = (from.flags & Native.GMM_POINTER_PEER_GONE) != 0;
            FabricIpc = (from.ipc_routes & Native.GMM_IPC_ROUTE_FABRIC) != 0;
            Comm = (from.flags & Native.GMM_POINTER_COMM) != 0;
        }

        /// <summary>The kind of memory.</summary>
        public GmmKind Kind { get; }

        /// <summary>The start of the block.</summary>
        public System.IntPtr Base { get; }

        /// <summary>The requested bytes.</summary>
        public long Size { get; }

        /// <summary>The bytes that the block takes, rounding included.</summary>
        public long ReservedSize { get; }

        /// <summary>The device; -1 for foreign host memory.</summary>
        public int Device { get; }

        /// <summary>The tag's number; 0 for memory that gmm did not allocate.</summary>
        public int Tag { get; }

        /// <summary>The state of the address.</summary>
        public GmmState State { get; }

        /// <summary>Who can use the address.</summary>
        public GmmUsm Usm { get; }

        /// <summary>Ways to share it, as bits of the C interface.</summary>
        public int IpcRoutes { get; }

        /// <summary>The start of the driver's allocation that the block lies in.</summary>
        public System.IntPtr AllocationBase { get; }

        /// <summary>Bytes of the driver's allocation.</summary>
        public long AllocationSize { get; }

        /// <summary>The address that devices use. It is another one for some pinned memory only.</summary>
        public System.IntPtr DevicePointer { get; }

        /// <summary>Counts the pauses of the memory.</summary>
        public long Generation { get; }

        /// <summary>The CPU may read and write it through the same address.</summary>
        public bool HostAccessible { get; }

        /// <summary>Devices may read and write it.</summary>
        public bool DeviceAccessible { get; }

        /// <summary>The driver's 64-byte handle can share it.</summary>
        public bool LegacyIpc { get; }

        /// <summary>A file descriptor can share it.</summary>
        public bool FdIpc { get; }


        /// <summary>Whether it can be shared as a Linux dma-buf.</summary>
        public bool DmaBufIpc { get; }

        /// <summary>The memory is imported, and its exporter has ended.</summary>
        public bool PeerGone { get; }

        /// <summary>Another machine of the same NVLink domain can import its handle.</summary>
        public bool FabricIpc { get; }

        /// <summary>The block is memory for network libraries: GmmAllocOptions.Comm.</summary>
        public bool Comm { get; }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>The state of a tag.</summary>
    public sealed class GmmPauseInfo
    {
        internal GmmPauseInfo(gmm_tag_info from)
        {
            Tag = (int)from.tag;
            Contents = (GmmContents)from.contents;
            Priority = from.priority;
            ActiveBytes = (long)from.active_bytes;
            PausedBytes = (long)from.paused_bytes;
            BackupHostBytes = (long)from.backup_host_bytes;
            BackupFileBytes = (long)from.backup_file_bytes;
            Pauses = (long)from.pauses;
            Name = from.name;
            BackupPinnedBytes = (long)from.backup_pinned_bytes;
            BackupZeroBytes = (long)from.backup_zero_bytes;
            BackupActiveBytes = (long)from.backup_active_bytes;
            ForeignBytes = (long)from.foreign_bytes;
            ReadOnly = (from.flags & Native.GMM_TAG_READ_ONLY) != 0;
            Checksum = (from.flags & Native.GMM_TAG_CHECKSUM) != 0;
            Pageable = (from.flags & Native.GMM_TAG_PAGEABLE) != 0;
            State = (GmmState)from.state;
        }

        /// <summary>The part of BackupHostBytes in page-locked memory.</summary>
        public long BackupPinnedBytes { get; }

        /// <summary>Contents that are all zero and take no room.</summary>
        public long BackupZeroBytes { get; }

        /// <summary>Contents of active read-only memory that are kept for the next pause.</summary>
        public long BackupActiveBytes { get; }

        /// <summary>
        /// Bytes that left gmm at the last pause and did not return to the device, as others hold them.
        /// </summary>
        public long ForeignBytes { get; }

        /// <summary>Whether nobody writes the contents after their first pause.</summary>
        public bool ReadOnly { get; }

        /// <summary>Whether a resume compares the kept contents with their checksums.</summary>
        public bool Checksum { get; }

        /// <summary>Whether contents in host memory are never page-locked.</summary>
        public bool Pageable { get; }

        /// <summary>Active, Paused, or PartlyPaused when the tag has both kinds of memory.</summary>
        public GmmState State { get; }

        /// <summary>The tag's number.</summary>
        public int Tag { get; }

        /// <summary>What a pause does with the contents.</summary>
        public GmmContents Contents { get; }

        /// <summary>The priority: a higher one resumes first.</summary>
        public int Priority { get; }

        /// <summary>Bytes of VMM memory that has pages now.</summary>
        public long ActiveBytes { get; }

        /// <summary>Bytes of VMM memory without pages.</summary>
        public long PausedBytes { get; }

        /// <summary>The part of the paused bytes whose contents are in host memory.</summary>
        public long BackupHostBytes { get; }

        /// <summary>The part of the paused bytes whose contents are in a file.</summary>
        public long BackupFileBytes { get; }

        /// <summary>The number of pauses of this tag.</summary>
        public long Pauses { get; }

        /// <summary>The tag's name.</summary>
        public string Name { get; }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>The progress of a pause or resume in the background.</summary>
    public sealed class GmmTicketInfo
    {
        internal GmmTicketInfo(gmm_ticket_info from)
        {
            Done = from.done != 0;
            Result = (GmmResult)from.result;
            Bytes = (long)from.bytes;
            CopiedBytes = (long)from.copied_bytes;
            TotalBytes = (long)from.total_bytes;
        }

        /// <summary>Whether it has ended, with success or failure.</summary>
        public bool Done { get; }

        /// <summary>The result; NotReady while it runs.</summary>
        public GmmResult Result { get; }

        /// <summary>Bytes that changed state; 0 while it runs.</summary>
        public long Bytes { get; }

        /// <summary>Bytes of contents copied so far.</summary>
        public long CopiedBytes { get; }

        /// <summary>Bytes of contents to copy; 0 until that is known.</summary>
        public long TotalBytes { get; }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>The bytes of kept contents in each place.</summary>
    public sealed class GmmBackupInfo
    {
        internal GmmBackupInfo(gmm_backup_info from)
        {
            ArenaBytes = (long)from.arena_bytes;
            ArenaUsed = (long)from.arena_used;
            ArenaLimit = (long)from.arena_limit;
            PageableBytes = (long)from.pageable_bytes;
            FileBytes = (long)from.file_bytes;
            ZeroBytes = (long)from.zero_bytes;
            CopiedBytes = (long)from.copied_bytes;
            SkippedBytes = (long)from.skipped_bytes;
        }

        /// <summary>Page-locked bytes; Trim() gives back what holds no contents.</summary>
        public long ArenaBytes { get; }

        /// <summary>The page-locked bytes that hold contents.</summary>
        public long ArenaUsed { get; }

        /// <summary>The most bytes that may be page-locked.</summary>
        public long ArenaLimit { get; }

        /// <summary>Contents in other host memory.</summary>
        public long PageableBytes { get; }

        /// <summary>Contents in files.</summary>
        public long FileBytes { get; }

        /// <summary>Contents that are all zero and take no room.</summary>
        public long ZeroBytes { get; }

        /// <summary>Bytes copied by all pauses and resumes so far.</summary>
        public long CopiedBytes { get; }

        /// <summary>Bytes not copied, since they were zero, or read-only and already kept.</summary>
        public long SkippedBytes { get; }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>What <see cref="GmmContext.Compact"/> did.</summary>
    public sealed class GmmCompactInfo
    {
        internal GmmCompactInfo(gmm_compact_info from)
        {
            MovedBytes = (long)from.moved_bytes;
            ReleasedBytes = (long)from.released_bytes;
            LargestFree = (long)from.largest_free;
        }

        /// <summary>Bytes of free memory that were mapped beside other free memory.</summary>
        public long MovedBytes { get; }
        /// <summary>Bytes that returned to the driver.</summary>
        public long ReleasedBytes { get; }
        /// <summary>Bytes of the largest free run.</summary>
        public long LargestFree { get; }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>Counters of a scope.</summary>
    public sealed class GmmStatistics
    {
        internal GmmStatistics(gmm_stats_info from)
        {
            LiveTags = (int)from.live_tags;
            LiveBytes = (long)from.live_bytes;
            LiveBlocks = (long)from.live_blocks;
            PeakLiveBytes = (long)from.peak_live_bytes;
            CachedBytes = (long)from.cached_bytes;
            ReservedBytes = (long)from.reserved_bytes;
            PeakReservedBytes = (long)from.peak_reserved_bytes;
            PausedBytes = (long)from.paused_bytes;
            PinnedBytes = (long)from.pinned_bytes;
            ImportedBytes = (long)from.imported_bytes;
            Allocations = (long)from.allocations;
            Frees = (long)from.frees;
            Failures = (long)from.failures;
            Extents = (long)from.extents;
            BackendCalls = (long)from.backend_calls;
            LimitBytes = (long)from.limit_bytes;
            ForeignBytes = (long)from.foreign_bytes;
        }

        /// <summary>Tags with memory in the scope.</summary>
        public int LiveTags { get; }

        /// <summary>Bytes requested and not freed.</summary>
        public long LiveBytes { get; }

        /// <summary>Blocks not freed.</summary>
        public long LiveBlocks { get; }

        /// <summary>The highest LiveBytes at any growth of a heap or call of Stats().</summary>
        public long PeakLiveBytes { get; }

        /// <summary>Bytes that are free and held for later allocations.</summary>
        public long CachedBytes { get; }

        /// <summary>Bytes held from the driver.</summary>
        public long ReservedBytes { get; }

        /// <summary>The highest ReservedBytes.</summary>
        public long PeakReservedBytes { get; }

        /// <summary>Bytes of addresses without memory.</summary>
        public long PausedBytes { get; }

        /// <summary>Pinned bytes of the program's own memory; only in the scope of everything.</summary>
        public long PinnedBytes { get; }

        /// <summary>Imported bytes of other processes' memory; only in the scope of everything.</summary>
        public long ImportedBytes { get; }

        /// <summary>Allocations that succeeded.</summary>
        public long Allocations { get; }

        /// <summary>Blocks freed.</summary>
        public long Frees { get; }

        /// <summary>Allocations that failed because memory or a limit was short.</summary>
        public long Failures { get; }

        /// <summary>Driver allocations held.</summary>
        public long Extents { get; }

        /// <summary>
        /// Driver and system calls that allocate, map, unmap or free; only in the scope of everything.
        /// </summary>
        public long BackendCalls { get; }

        /// <summary>The limit of exactly this scope; <see cref="GmmContext.NoLimit"/>: none.</summary>
        public long LimitBytes { get; }

        /// <summary>Bytes that gmm gave up in pauses and that others hold.</summary>
        public long ForeignBytes { get; }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>What a watcher is told about an event. Sizes are bytes.</summary>
    public sealed class GmmWatchInfo
    {
        internal GmmWatchInfo(WatchCall.Fields from)
        {
            Event = (GmmWatchEvents)from.Event;
            Tag = (int)from.Tag;
            Device = from.Device;
            Address = from.Address;
            Size = (long)from.Size;
            Generation = (long)from.Generation;
            BudgetBytes = (long)from.BudgetBytes;
            RemainingMilliseconds = (long)from.RemainingMilliseconds;
            Cause = (GmmResult)from.Cause;
        }

        /// <summary>The event.</summary>
        public GmmWatchEvents Event { get; }

        /// <summary>The number of the memory's tag; 0 for Budget.</summary>
        public int Tag { get; }

        /// <summary>The device of the watched range; else that of the options.</summary>
        public int Device { get; }

        /// <summary>The start of the watched range; zero for a tag.</summary>
        public System.IntPtr Address { get; }

        /// <summary>Bytes of the watched range; 0 for a tag.</summary>
        public long Size { get; }

        /// <summary>The generation of the watched range, as a query tells it; 0 for a tag.</summary>
        public long Generation { get; }

        /// <summary>For Budget: what the budget is now; else 0.</summary>
        public long BudgetBytes { get; }

        /// <summary>
        /// Milliseconds until the answer is too late; 0: the operation waits no more, or never did.
        /// </summary>
        public long RemainingMilliseconds { get; }

        /// <summary>For Failed: the result of the operation; else Ok.</summary>
        public GmmResult Cause { get; }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>A lease that waits for what another one has in use.</summary>
    public sealed class GmmLeaseAsk
    {
        internal GmmLeaseAsk(LeaseCall.Fields from)
        {
            Name = from.Text;
            Process = from.Process;
            Priority = from.Priority;
            Bytes = (long)from.Bytes;
            WaitingMilliseconds = (long)from.WaitingMilliseconds;
        }

        /// <summary>The name of the lease that waits.</summary>
        public string Name { get; }

        /// <summary>Its process; 0: not known here.</summary>
        public int Process { get; }

        /// <summary>Its priority.</summary>
        public int Priority { get; }

        /// <summary>Bytes that it wants on all devices; others may have a part of them.</summary>
        public long Bytes { get; }

        /// <summary>Milliseconds since its request.</summary>
        public long WaitingMilliseconds { get; }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>How a lease stands. Sizes are bytes.</summary>
    public sealed class GmmLeaseInfo
    {
        internal GmmLeaseInfo(gmm_lease_info from)
        {
            State = (GmmLeaseState)from.state;
            Server = (long)from.server;
            ServerProcess = from.server_process;
            Grants = (long)from.grants;
            Shorts = (long)from.shorts;
            Asked = (long)from.asked;
            Evictions = (long)from.evictions;
            EvictedBytes = (long)from.evicted_bytes;
            ActiveBytes = (long)from.active_bytes;
            PausedBytes = (long)from.paused_bytes;
        }

        /// <summary>The state.</summary>
        public GmmLeaseState State { get; }

        /// <summary>The number of the server, which a later one exceeds; 0: none answers now.</summary>
        public long Server { get; }

        /// <summary>The process of the server; 0: none, or not known here.</summary>
        public int ServerProcess { get; }

        /// <summary>Requests that succeeded.</summary>
        public long Grants { get; }

        /// <summary>Grants that were too small when the memory was taken.</summary>
        public long Shorts { get; }

        /// <summary>Calls of the handler.</summary>
        public long Asked { get; }

        /// <summary>Pauses for others that succeeded.</summary>
        public long Evictions { get; }

        /// <summary>Bytes that these returned to the devices.</summary>
        public long EvictedBytes { get; }

        /// <summary>Bytes of the offered tags that have pages, on all devices.</summary>
        public long ActiveBytes { get; }

        /// <summary>Bytes of the offered tags that are paused, on all devices.</summary>
        public long PausedBytes { get; }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>A lease of the machine, and one of its devices.</summary>
    public sealed class GmmLeaseEntryInfo
    {
        internal GmmLeaseEntryInfo(gmm_lease_entry_info from)
        {
            State = (GmmLeaseState)from.state;
            Uuid = from.uuid;
            Name = from.name;
            Process = from.process;
            Priority = from.priority;
            SinceMilliseconds = (long)from.since_ms;
            FreeBytes = (long)from.free_bytes;
            HeldBytes = (long)from.held_bytes;
            FloorBytes = (long)from.floor_bytes;
            OfferedBytes = (long)from.offered_bytes;
            WantedBytes = (long)from.wanted_bytes;
            GrantedBytes = (long)from.granted_bytes;
            Server = (long)from.server;
            ServerProcess = from.server_process;
        }

        /// <summary>The state.</summary>
        public GmmLeaseState State { get; }

        /// <summary>The UUID of the device; zero: the lease has no memory of a device yet.</summary>
        public byte[] Uuid { get; }

        /// <summary>The name of the lease.</summary>
        public string Name { get; }

        /// <summary>Its process; 0: not known here.</summary>
        public int Process { get; }

        /// <summary>Its priority.</summary>
        public int Priority { get; }

        /// <summary>Milliseconds in this state.</summary>
        public long SinceMilliseconds { get; }

        /// <summary>Free bytes of the device, as the lease's process measured.</summary>
        public long FreeBytes { get; }

        /// <summary>Bytes that its context holds.</summary>
        public long HeldBytes { get; }

        /// <summary>Bytes that are left to it.</summary>
        public long FloorBytes { get; }

        /// <summary>Bytes that others may have.</summary>
        public long OfferedBytes { get; }

        /// <summary>Bytes that its request wants.</summary>
        public long WantedBytes { get; }

        /// <summary>Bytes that it was granted and has not allocated yet.</summary>
        public long GrantedBytes { get; }

        /// <summary>The number of the server.</summary>
        public long Server { get; }

        /// <summary>The process of the server; 0: not known here.</summary>
        public int ServerProcess { get; }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>What an out-of-memory handler learns.</summary>
    public sealed class GmmOomInfo
    {
        internal GmmOomInfo(int device, GmmKind kind, int tag, long requested, long reserved, int attempt,
            GmmResult cause)
        {
            Device = device;
            Kind = kind;
            Tag = tag;
            Requested = requested;
            Reserved = reserved;
            Attempt = attempt;
            Cause = cause;
        }

        /// <summary>The device whose memory is exhausted.</summary>
        public int Device { get; }

        /// <summary>The requested kind.</summary>
        public GmmKind Kind { get; }

        /// <summary>The tag's number.</summary>
        public int Tag { get; }

        /// <summary>Bytes of the allocation.</summary>
        public long Requested { get; }

        /// <summary>The bytes that the context holds on the device.</summary>
        public long Reserved { get; }

        /// <summary>The number of this call for the allocation, from 1.</summary>
        public int Attempt { get; }

        /// <summary>OutOfMemory, OutOfHostMemory or LimitExceeded.</summary>
        public GmmResult Cause { get; }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }
}
