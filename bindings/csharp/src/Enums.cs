/* SPDX-License-Identifier: Apache-2.0 */
namespace Gmm
{
    /// <summary>The backend of a context.</summary>
    public enum GmmBackend
    {
        /// <summary>
        /// The backend that GMM_BACKEND names; else cuda when a driver and a device answer; else host.
        /// </summary>
        Auto = 0,
        /// <summary>Ordinary memory of this machine; needs no GPU.</summary>
        Host = 1,
        /// <summary>The CUDA driver, opened at run time.</summary>
        Cuda = 2,
        /// <summary>SYCL USM, by dpctl's C library; only when it is named.</summary>
        Sycl = 3
    }

    /// <summary>Kinds of memory.</summary>
    public enum GmmKind
    {
        /// <summary>In options it means DEVICE, in an answer memory that gmm does not know.</summary>
        Unspecified = 0,
        /// <summary>A driver allocation on the device. It has the driver's legacy IPC.</summary>
        Device = 1,
        /// <summary>Mapped on the device: pausable, movable, exportable as a file descriptor.</summary>
        Vmm = 2,
        /// <summary>Page-locked on the host, visible to every device.</summary>
        Host = 3,
        /// <summary>One address for host and devices; the driver moves the pages.</summary>
        Managed = 4
    }

    /// <summary>The state of an address.</summary>
    public enum GmmState
    {
        /// <summary>Not memory of this context.</summary>
        Unknown = 0,
        /// <summary>The memory is usable.</summary>
        Active = 1,
        /// <summary>The address is kept; the memory is gone until a resume.</summary>
        Paused = 2,
        /// <summary>The address lies in memory that gmm holds, in no live block.</summary>
        Free = 3,
        /// <summary>Another process's memory.</summary>
        Imported = 4,
        /// <summary>The program's own memory, page-locked.</summary>
        Pinned = 5,
        /// <summary>Some of a block or tag is usable, and some paused.</summary>
        PartlyPaused = 6,
        /// <summary>The memory is imported, and its exporter has revoked it by a forced pause.</summary>
        Revoked = 7
    }

    /// <summary>Who can use an address, in SYCL's words.</summary>
    public enum GmmUsm
    {
        /// <summary>Not memory of any device.</summary>
        Unknown = 0,
        /// <summary>The device only.</summary>
        Device = 1,
        /// <summary>Host memory that devices reach.</summary>
        Host = 2,
        /// <summary>Host and devices; the pages move.</summary>
        Shared = 3
    }

    /// <summary>What a pause does with the contents of a tag's memory.</summary>
    public enum GmmContents
    {
        /// <summary>The contents are dropped; after a resume the bytes are undefined.</summary>
        Drop = 0,
        /// <summary>The contents are kept in host memory.</summary>
        Host = 1,
        /// <summary>
        /// The contents are kept in a file in the folder for backups. The file ends with the process.
        /// </summary>
        File = 2
    }

    /// <summary>Hints about managed memory.</summary>
    public enum GmmAdvice
    {
        /// <summary>Mostly read: each location may keep a copy.</summary>
        SetReadMostly = 1,
        /// <summary>Undoes SET_READ_MOSTLY.</summary>
        UnsetReadMostly = 2,
        /// <summary>Pages stay at the location where possible.</summary>
        SetPreferredLocation = 3,
        /// <summary>Undoes SET_PREFERRED_LOCATION.</summary>
        UnsetPreferredLocation = 4,
        /// <summary>The location keeps a mapping of the pages.</summary>
        SetAccessedBy = 5,
        /// <summary>Undoes SET_ACCESSED_BY.</summary>
        UnsetAccessedBy = 6
    }

    /// <summary>The severity of a log message.</summary>
    public enum GmmLogLevel
    {
        /// <summary>Something failed and could not be reported through an exception.</summary>
        Error = 1,
        /// <summary>Something works, but not as well as asked.</summary>
        Warning = 2,
        /// <summary>The chosen backend and devices.</summary>
        Info = 3,
        /// <summary>Details.</summary>
        Debug = 4
    }

    /// <summary>The result of a call; see <see cref="GmmException.Result"/>.</summary>
    public enum GmmResult
    {
        /// <summary>Success.</summary>
        Ok = 0,
        /// <summary>Success: the state was already as requested, so the call changed nothing.</summary>
        Unchanged = 1,
        /// <summary>A required argument is NULL.</summary>
        NullArgument = -1,
        /// <summary>A size is zero where bytes are needed, or reaches past the memory.</summary>
        InvalidSize = -2,
        /// <summary>A size is beyond what any backend can address.</summary>
        SizeOverflow = -3,
        /// <summary>Not a power of two, too large, or the address is not aligned.</summary>
        InvalidAlignment = -4,
        /// <summary>An unknown memory kind, or one that the operation does not take.</summary>
        InvalidKind = -5,
        /// <summary>The device does not exist.</summary>
        InvalidDevice = -6,
        /// <summary>The tag does not exist.</summary>
        InvalidTag = -7,
        /// <summary>Unknown flags, or flags that exclude each other.</summary>
        InvalidFlags = -8,
        /// <summary>struct_size is the size of no release, or a reserved field is not zero.</summary>
        InvalidDescriptor = -9,
        /// <summary>Another argument is out of its range.</summary>
        InvalidValue = -10,
        /// <summary>Not a context, heap, stream or event, or no longer one.</summary>
        InvalidHandle = -11,
        /// <summary>This context did not return the address.</summary>
        UnknownPointer = -12,
        /// <summary>The block was freed before.</summary>
        AlreadyFreed = -13,
        /// <summary>The address lies inside a block where its start is required.</summary>
        InteriorPointer = -14,
        /// <summary>The range overlaps one that is pinned differently.</summary>
        Overlap = -15,
        /// <summary>No pin starts at this address.</summary>
        NotPinned = -16,
        /// <summary>A pop, end or close without a push, begin or import.</summary>
        Unbalanced = -17,
        /// <summary>Another lease of the context offers the tag.</summary>
        Offered = -19,
        /// <summary>The device has too little memory, even after a trim.</summary>
        OutOfMemory = -20,
        /// <summary>The host has too little memory for data or bookkeeping.</summary>
        OutOfHostMemory = -21,
        /// <summary>The call would exceed a limit of gmm_limit_set().</summary>
        LimitExceeded = -22,
        /// <summary>The memory is paused: resume its tag first.</summary>
        Paused = -23,
        /// <summary>Live blocks, importers or pins use what the call would change.</summary>
        Busy = -24,
        /// <summary>The driver forbids it while a stream is captured into a graph.</summary>
        Capturing = -25,
        /// <summary>This backend, device, kind or older library cannot do it.</summary>
        NotSupported = -26,
        /// <summary>The requested backend has no driver or no device here.</summary>
        NoBackend = -27,
        /// <summary>The context belongs to the parent process.</summary>
        Forked = -28,
        /// <summary>The program cancelled the operation, which was undone.</summary>
        Cancelled = -29,
        /// <summary>The driver refused a call.</summary>
        Driver = -30,
        /// <summary>The operating system refused a call.</summary>
        System = -31,
        /// <summary>A file could not be written or read completely.</summary>
        Io = -32,
        /// <summary>The checksum of a backup differs from the one at its save.</summary>
        Corrupt = -33,
        /// <summary>The bytes are no handle of gmm, or one of another version.</summary>
        IpcInvalidHandle = -40,
        /// <summary>The exporting process ended, or freed the memory.</summary>
        IpcPeerGone = -41,
        /// <summary>The exporter refused: a user that it did not name, or a wrong token.</summary>
        IpcRefused = -42,
        /// <summary>The exporter did not answer in time.</summary>
        IpcTimeout = -43,
        /// <summary>The exporter revoked the memory by a forced pause.</summary>
        IpcRevoked = -44,
        /// <summary>The operation has not ended, or the wait reached its timeout first.</summary>
        NotReady = -50,
        /// <summary>A code of a newer library.</summary>
        Unknown = -2147483648
    }

    /// <summary>What a watcher is told; an event is one of them.</summary>
    [System.Flags]
    public enum GmmWatchEvents
    {
        /// <summary>In options it means all that they concern.</summary>
        None = 0,
        /// <summary>
        /// The memory is about to lose its pages. Nothing has happened yet. A refusal ends the operation with Busy.
        /// </summary>
        Prepare = 1,
        /// <summary>
        /// The devices are idle, and the pages go after the answer. The contents are still there.
        /// </summary>
        Losing = 2,
        /// <summary>The memory has pages again, with the contents that its tag keeps.</summary>
        Restored = 4,
        /// <summary>The operation has ended without effect.</summary>
        Failed = 8,
        /// <summary>The device's budget has fallen below <see cref="GmmWatchOptions.Budget"/>.</summary>
        Budget = 16
    }

    /// <summary>Who may have the memory of the offered tags: InUse, the program alone; else others, too.</summary>
    public enum GmmLeaseState
    {
        /// <summary>It has asked for nothing, or has released.</summary>
        Idle = 0,
        /// <summary>A request waits for the turn.</summary>
        Waiting = 1,
        /// <summary>The program has its memory until <see cref="GmmLease.Release"/>.</summary>
        InUse = 2
    }
}
