/* SPDX-License-Identifier: Apache-2.0 */
namespace Gmm
{
    /// <summary>What a context runs on.</summary>
    public enum GmmBackend
    {
        /// <summary>GMM_BACKEND from the environment; else cuda when a driver and a device answer; else host.</summary>
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
        /// <summary>In options: DEVICE. In an answer: memory that gmm does not know.</summary>
        Unspecified = 0,
        /// <summary>A driver allocation on the device; has the driver's legacy IPC.</summary>
        Device = 1,
        /// <summary>Mapped on the device: pausable, movable, exportable as a file descriptor.</summary>
        Vmm = 2,
        /// <summary>Page-locked on the host, visible to every device.</summary>
        Host = 3,
        /// <summary>One address for host and devices; the driver moves the pages.</summary>
        Managed = 4
    }

    /// <summary>What stands at an address.</summary>
    public enum GmmState
    {
        /// <summary>Not memory of this context.</summary>
        Unknown = 0,
        /// <summary>Usable.</summary>
        Active = 1,
        /// <summary>The address is kept, the memory is gone until a resume.</summary>
        Paused = 2,
        /// <summary>Inside memory that gmm holds, in no live block.</summary>
        Free = 3,
        /// <summary>Another process's memory.</summary>
        Imported = 4,
        /// <summary>The program's own memory, page-locked.</summary>
        Pinned = 5,
        /// <summary>A block over several pieces of memory, or a tag: some of it is usable, some paused.</summary>
        PartlyPaused = 6,
        /// <summary>Imported, but the exporter has taken it back by a forced pause.</summary>
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

    /// <summary>What becomes of the contents of a tag's memory when it pauses.</summary>
    public enum GmmContents
    {
        /// <summary>Gone; after resume the bytes are undefined.</summary>
        Drop = 0,
        /// <summary>Kept in host memory.</summary>
        Host = 1,
        /// <summary>Kept in a file in the folder for backups, which goes with the process.</summary>
        File = 2
    }

    /// <summary>Hints about managed memory.</summary>
    public enum GmmAdvice
    {
        /// <summary>Mostly read: each location may keep a copy.</summary>
        SetReadMostly = 1,
        /// <summary>Takes SET_READ_MOSTLY back.</summary>
        UnsetReadMostly = 2,
        /// <summary>Pages stay at the location where they can.</summary>
        SetPreferredLocation = 3,
        /// <summary>Takes SET_PREFERRED_LOCATION back.</summary>
        UnsetPreferredLocation = 4,
        /// <summary>The location keeps a mapping of the pages.</summary>
        SetAccessedBy = 5,
        /// <summary>Takes SET_ACCESSED_BY back.</summary>
        UnsetAccessedBy = 6
    }

    /// <summary>Weight of a log message.</summary>
    public enum GmmLogLevel
    {
        /// <summary>Something failed and could not be reported through an exception.</summary>
        Error = 1,
        /// <summary>Something works, but not as well as asked.</summary>
        Warning = 2,
        /// <summary>Which backend and device were taken.</summary>
        Info = 3,
        /// <summary>Details.</summary>
        Debug = 4
    }

    /// <summary>What a call came to; see <see cref="GmmException.Result"/>.</summary>
    public enum GmmResult
    {
        /// <summary>Success.</summary>
        Ok = 0,
        /// <summary>Success: everything was as asked already.</summary>
        Unchanged = 1,
        /// <summary>Success: it has not ended yet, or the time to wait was over first.</summary>
        NotReady = 2,
        /// <summary>A required argument is NULL.</summary>
        NullArgument = -1,
        /// <summary>A size is zero where bytes are needed, or reaches past the memory.</summary>
        InvalidSize = -2,
        /// <summary>A size is beyond what any backend can address.</summary>
        SizeOverflow = -3,
        /// <summary>Not a power of two, too large, or an address that is not aligned.</summary>
        InvalidAlignment = -4,
        /// <summary>An unknown memory kind, or one the operation does not take.</summary>
        InvalidKind = -5,
        /// <summary>No such device.</summary>
        InvalidDevice = -6,
        /// <summary>No such tag.</summary>
        InvalidTag = -7,
        /// <summary>Unknown flags, or flags that exclude each other.</summary>
        InvalidFlags = -8,
        /// <summary>Struct_size too small, or unknown or reserved fields not zero.</summary>
        InvalidDescriptor = -9,
        /// <summary>Another argument is out of its range.</summary>
        InvalidValue = -10,
        /// <summary>A context, heap, stream or event that is not (or no longer) one.</summary>
        InvalidHandle = -11,
        /// <summary>The address was not given out by this context.</summary>
        UnknownPointer = -12,
        /// <summary>The block was freed before.</summary>
        AlreadyFreed = -13,
        /// <summary>Inside a block where its start is required.</summary>
        InteriorPointer = -14,
        /// <summary>The range overlaps one that is pinned differently.</summary>
        Overlap = -15,
        /// <summary>No pin starts at this address.</summary>
        NotPinned = -16,
        /// <summary>A pop, end or close without its push, begin or import.</summary>
        Unbalanced = -17,
        /// <summary>The device has no room, even after trimming.</summary>
        OutOfMemory = -20,
        /// <summary>The host has no room for data or bookkeeping.</summary>
        OutOfHostMemory = -21,
        /// <summary>A limit set by gmm_set_limit() would be passed.</summary>
        LimitExceeded = -22,
        /// <summary>The memory is paused: resume its tag first.</summary>
        Paused = -23,
        /// <summary>Live blocks, importers or pins hold what the call would change.</summary>
        Busy = -24,
        /// <summary>Not allowed while a stream is being captured into a graph.</summary>
        Capturing = -25,
        /// <summary>This backend, device or kind cannot do it.</summary>
        NotSupported = -26,
        /// <summary>The backend asked for has no driver or no device here.</summary>
        NoBackend = -27,
        /// <summary>The context belongs to the parent process.</summary>
        Forked = -28,
        /// <summary>The program asked for the end of the operation, which was undone.</summary>
        Cancelled = -29,
        /// <summary>The driver refused a call.</summary>
        Driver = -30,
        /// <summary>The operating system refused a call.</summary>
        System = -31,
        /// <summary>A file could not be written or read whole.</summary>
        Io = -32,
        /// <summary>What was kept is not what was written: a checksum differs.</summary>
        Corrupt = -33,
        /// <summary>These bytes are not a handle of gmm, or of another version.</summary>
        IpcInvalidHandle = -40,
        /// <summary>The exporting process ended, or freed the memory.</summary>
        IpcPeerGone = -41,
        /// <summary>The exporter refused: another user, or a wrong token.</summary>
        IpcRefused = -42,
        /// <summary>The exporter did not answer in time.</summary>
        IpcTimeout = -43,
        /// <summary>The exporter took the memory back: a forced pause.</summary>
        IpcRevoked = -44,
        /// <summary>A code of a newer library.</summary>
        Unknown = -2147483648
    }
}
