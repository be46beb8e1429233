/* SPDX-License-Identifier: Apache-2.0 */
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

        /// <summary>The backend that was taken.</summary>
        public GmmBackend Backend { get; }

        /// <summary>How many devices it shows.</summary>
        public int DeviceCount { get; }

        /// <summary>"host" or "cuda".</summary>
        public string BackendName { get; }

        /// <summary>As the driver tells it; the kernel's release on the host.</summary>
        public string DriverVersion { get; }

        /// <summary>Milliseconds after which idle memory goes back by itself, the default resolved, or <see cref="GmmContext.DecommitNever"/>.</summary>
        public long DecommitAfterMilliseconds { get; }
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
            CanFabric = (from.capabilities & Native.GMM_DEVICE_CAN_FABRIC) != 0;
            IsHost = (from.capabilities & Native.GMM_DEVICE_IS_HOST) != 0;
        }

        /// <summary>Its ordinal.</summary>
        public int Device { get; }

        /// <summary>The capabilities as bits of the C interface.</summary>
        public int Capabilities { get; }

        /// <summary>The kinds it has as bits; see Has().</summary>
        public int Kinds { get; }

        /// <summary>Bytes.</summary>
        public long TotalMemory { get; }

        /// <summary>Bytes, as the driver or the system tells now.</summary>
        public long FreeMemory { get; }

        /// <summary>Bytes: VMM memory comes in multiples of this.</summary>
        public long Granularity { get; }

        /// <summary>Its name.</summary>
        public string Name { get; }

        /// <summary>16 bytes.</summary>
        public byte[] Uuid { get; }

        /// <summary>VMM memory can pause and resume.</summary>
        public bool CanPause { get; }

        /// <summary>VMM and HOST memory can be a file descriptor.</summary>
        public bool CanExportFd { get; }

        /// <summary>DEVICE memory has the driver's 64-byte handle.</summary>
        public bool CanLegacyIpc { get; }

        /// <summary>Host and device may use managed memory at once; prefetch works.</summary>
        public bool CanConcurrentManaged { get; }

        /// <summary>The program's own memory can be pinned.</summary>
        public bool CanPin { get; }

        /// <summary>The device reads ordinary host memory.</summary>
        public bool CanPageable { get; }

        /// <summary>Fabric handles between nodes.</summary>
        public bool CanFabric { get; }

        /// <summary>Not a GPU: the host backend.</summary>
        public bool IsHost { get; }

        /// <summary>Whether the device has this kind of memory.</summary>
        public bool Has(GmmKind kind)
        {
            return (Kinds & (1 << (int)kind)) != 0;
        }
    }

    /// <summary>What an address is.</summary>
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
            FabricIpc = (from.ipc_routes & Native.GMM_IPC_ROUTE_FABRIC) != 0;
            DmaBufIpc = (from.ipc_routes & Native.GMM_IPC_ROUTE_DMA_BUF) != 0;
            PeerGone = (from.flags & Native.GMM_POINTER_PEER_GONE) != 0;
        }

        /// <summary>The kind of memory.</summary>
        public GmmKind Kind { get; }

        /// <summary>Start of the block.</summary>
        public System.IntPtr Base { get; }

        /// <summary>Bytes asked for.</summary>
        public long Size { get; }

        /// <summary>Bytes the block takes, rounding included.</summary>
        public long ReservedSize { get; }

        /// <summary>The device; -1 for foreign host memory.</summary>
        public int Device { get; }

        /// <summary>The tag's number; 0 for memory that gmm did not allocate.</summary>
        public int Tag { get; }

        /// <summary>What stands there.</summary>
        public GmmState State { get; }

        /// <summary>Who can use it.</summary>
        public GmmUsm Usm { get; }

        /// <summary>Ways to share it, as bits of the C interface.</summary>
        public int IpcRoutes { get; }

        /// <summary>Start of the driver's allocation that the block lies in.</summary>
        public System.IntPtr AllocationBase { get; }

        /// <summary>Bytes of the driver's allocation.</summary>
        public long AllocationSize { get; }

        /// <summary>The address that devices use; the same but for some pinned memory.</summary>
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

        /// <summary>A fabric handle can share it.</summary>
        public bool FabricIpc { get; }

        /// <summary>Whether it can be shared as a Linux dma-buf.</summary>
        public bool DmaBufIpc { get; }

        /// <summary>Imported, and the exporter ended.</summary>
        public bool PeerGone { get; }
    }

    /// <summary>How a tag stands.</summary>
    public sealed class GmmPauseInfo
    {
        internal GmmPauseInfo(gmm_pause_info from)
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
            RetainedBytes = (long)from.retained_bytes;
            ReadOnly = (from.flags & Native.GMM_TAG_READ_ONLY) != 0;
            Checksum = (from.flags & Native.GMM_TAG_CHECKSUM) != 0;
            State = (GmmState)from.state;
        }

        /// <summary>Of BackupHostBytes, what lies in page-locked memory.</summary>
        public long BackupPinnedBytes { get; }

        /// <summary>Contents that are all zero and take no room.</summary>
        public long BackupZeroBytes { get; }

        /// <summary>Kept of active read-only memory, for the next pause.</summary>
        public long RetainedBytes { get; }

        /// <summary>Whether the contents are not written after they were first paused.</summary>
        public bool ReadOnly { get; }

        /// <summary>Whether what is kept is compared at the resume.</summary>
        public bool Checksum { get; }

        /// <summary>Active, Paused, or PartlyPaused when both kinds of memory are there.</summary>
        public GmmState State { get; }

        /// <summary>The tag's number.</summary>
        public int Tag { get; }

        /// <summary>What a pause does with the contents.</summary>
        public GmmContents Contents { get; }

        /// <summary>Higher resumes first.</summary>
        public int Priority { get; }

        /// <summary>VMM memory that has pages now.</summary>
        public long ActiveBytes { get; }

        /// <summary>VMM memory whose pages are gone.</summary>
        public long PausedBytes { get; }

        /// <summary>Of it, contents kept in host memory.</summary>
        public long BackupHostBytes { get; }

        /// <summary>Of it, contents kept in a file.</summary>
        public long BackupFileBytes { get; }

        /// <summary>How often this tag was paused.</summary>
        public long Pauses { get; }

        /// <summary>The tag's name.</summary>
        public string Name { get; }
    }

    /// <summary>How far a pause or resume in the background is.</summary>
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

        /// <summary>Whether it has ended, however.</summary>
        public bool Done { get; }

        /// <summary>What it came to; NotReady while it runs.</summary>
        public GmmResult Result { get; }

        /// <summary>Bytes that changed state; 0 while it runs.</summary>
        public long Bytes { get; }

        /// <summary>Of the contents, so far.</summary>
        public long CopiedBytes { get; }

        /// <summary>Of contents to copy; 0 until that is known.</summary>
        public long TotalBytes { get; }
    }

    /// <summary>Where kept contents lie, in bytes.</summary>
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

        /// <summary>Page-locked now; Trim() gives back what is unused.</summary>
        public long ArenaBytes { get; }

        /// <summary>Of them, holding contents.</summary>
        public long ArenaUsed { get; }

        /// <summary>The most that may be page-locked.</summary>
        public long ArenaLimit { get; }

        /// <summary>Contents in other host memory.</summary>
        public long PageableBytes { get; }

        /// <summary>Contents in files.</summary>
        public long FileBytes { get; }

        /// <summary>Contents that are all zero: they take no room.</summary>
        public long ZeroBytes { get; }

        /// <summary>By all pauses and resumes so far.</summary>
        public long CopiedBytes { get; }

        /// <summary>Not copied as they were zero, or kept already and read-only.</summary>
        public long SkippedBytes { get; }
    }

    /// <summary>Counters of a scope.</summary>
    public sealed class GmmStatistics
    {
        internal GmmStatistics(gmm_statistics from)
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
        }

        /// <summary>Tags with memory in the scope.</summary>
        public int LiveTags { get; }

        /// <summary>Asked for and not freed.</summary>
        public long LiveBytes { get; }

        /// <summary>Blocks not freed.</summary>
        public long LiveBlocks { get; }

        /// <summary>Highest LiveBytes seen when memory was taken from the driver or read here.</summary>
        public long PeakLiveBytes { get; }

        /// <summary>Free but held, ready to be given out.</summary>
        public long CachedBytes { get; }

        /// <summary>Held from the driver.</summary>
        public long ReservedBytes { get; }

        /// <summary>Highest ReservedBytes.</summary>
        public long PeakReservedBytes { get; }

        /// <summary>Addresses kept, pages gone.</summary>
        public long PausedBytes { get; }

        /// <summary>The program's own memory; whole context only.</summary>
        public long PinnedBytes { get; }

        /// <summary>Other processes' memory; whole context only.</summary>
        public long ImportedBytes { get; }

        /// <summary>Calls that succeeded.</summary>
        public long Allocations { get; }

        /// <summary>Blocks freed.</summary>
        public long Frees { get; }

        /// <summary>Allocations that failed for want of memory.</summary>
        public long Failures { get; }

        /// <summary>Driver allocations held.</summary>
        public long Extents { get; }

        /// <summary>Calls into the driver or system that allocate, map, unmap or free; whole context only.</summary>
        public long BackendCalls { get; }
    }

    /// <summary>What an out-of-memory handler is told.</summary>
    public sealed class GmmOomInfo
    {
        internal GmmOomInfo(int device, GmmKind kind, int tag, long requested, long reserved, int attempt, GmmResult cause)
        {
            Device = device;
            Kind = kind;
            Tag = tag;
            Requested = requested;
            Reserved = reserved;
            Attempt = attempt;
            Cause = cause;
        }

        /// <summary>The device that is short.</summary>
        public int Device { get; }

        /// <summary>The kind that was asked for.</summary>
        public GmmKind Kind { get; }

        /// <summary>The tag's number.</summary>
        public int Tag { get; }

        /// <summary>Bytes of the allocation.</summary>
        public long Requested { get; }

        /// <summary>Bytes the context holds on the device.</summary>
        public long Reserved { get; }

        /// <summary>1 at the first call for this allocation.</summary>
        public int Attempt { get; }

        /// <summary>OutOfMemory, OutOfHostMemory or LimitExceeded.</summary>
        public GmmResult Cause { get; }
    }
}
