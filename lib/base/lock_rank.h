// SPDX-License-Identifier: Apache-2.0
// The order of all locks of the library. lib/engine/LOCKS.md has the rules. tests/unit/locks_test.py finds locks
// without a rank.
#ifndef GMM_BASE_LOCK_RANK_H
#define GMM_BASE_LOCK_RANK_H

#include <cstdint>

namespace gmm {

// A thread takes a lock only if all locks that it holds stand above it. The two kinds:
//  - kOperation: its holder may wait, for a stream, for another process, for a file. So may a thread that takes it.
//    Nobody takes one while it holds a brief lock.
//  - kBrief: its holder never waits.
// The rank "Heap" is of both kinds (OperationLock in base/lock.h).
enum class LockKind : uint8_t { kOperation, kBrief };

// LOCK(enumerator, name, kind, what it is held for)
#define GMM_LOCK_RANKS(LOCK)                                                                                   \
  LOCK(kPreloadContext, "preload context", kOperation, "the first use of gmm, and of a label on a device")     \
  LOCK(kPreloadSettings, "preload settings", kOperation, "the settings of the backup")                         \
  LOCK(kPreloadDriver, "preload driver", kOperation, "the search for the driver's functions")                  \
  LOCK(kPreloadConfig, "preload config", kBrief, "the reading of the environment")                             \
  LOCK(kPreloadLabels, "preload labels", kBrief, "the list of labels")                                         \
  LOCK(kPreloadCaptures, "preload captures", kBrief, "the list of captures")                                   \
  LOCK(kTraceControl, "Trace control", kOperation, "begin and end of a trace, which open and write a file")    \
  LOCK(kDecommitSet, "Decommit set", kOperation, "start and end of the thread that gives idle memory back")    \
  LOCK(kControl, "Control", kOperation, "start and end of threads that serve requests of other processes")     \
  LOCK(kIpcBroker, "IpcBroker", kOperation, "start and end of the broker's thread")                            \
  LOCK(kKeptLink, "IpcKept link", kOperation, "the start of a thread, and of a server, for published memory")  \
  LOCK(kCaptureHeaps, "CaptureHeaps", kOperation, "the list of capture heaps, and the end of one")             \
  LOCK(kMakeHeap, "Context make heap", kOperation, "the first allocation of a kind, device and tag")           \
  LOCK(kPauser, "Pauser", kOperation, "the claim of tags: a pause, a resume, a discard of kept contents")      \
  LOCK(kDecommitRound, "Decommit round", kOperation, "a round over the heaps")                                 \
  LOCK(kHeapCaches, "HeapCaches", kOperation, "the emptying of other threads' caches")                         \
  LOCK(kIpcEvents, "IpcEvents", kBrief, "the table of shared events")                                          \
  LOCK(kTagCount, "Tag count", kBrief, "the count of tags that hold memory")                                   \
  LOCK(kHeap, "Heap", kOperation, "see lib/engine/LOCKS.md")                                                   \
  LOCK(kBackupTransfers, "BackupStore transfers", kOperation, "begin and end of a save or restore")            \
  LOCK(kBackupPlacing, "BackupFile placing", kOperation, "the ranges of one save in the file")                 \
  LOCK(kBackupGrowth, "BackupArena growth", kOperation, "segments become ready, which waits for copy threads") \
  LOCK(kTraceBuffers, "Trace buffers", kOperation, "the buffers of a trace")                                   \
  LOCK(kTraceWritten, "Trace written", kOperation, "the stacks and modules that a trace has")                  \
  LOCK(kTraceFile, "TraceFile", kOperation, "one write; the only lock of a trace inside a free")               \
  LOCK(kIpcExports, "IpcExports", kBrief, "the table of exports")                                              \
  LOCK(kHeapCachesList, "HeapCaches list", kBrief, "the list of caches and the counters of ended ones")        \
  LOCK(kHeapSet, "HeapSet", kBrief, "the list of heaps and their visits")                                      \
  LOCK(kTagClaims, "TagClaims", kBrief, "the list of claims")                                                  \
  LOCK(kReadySignal, "ReadySignal", kBrief, "states of extents that a resume restores")                        \
  LOCK(kTagTable, "TagTable", kBrief, "the table of tags")                                                     \
  LOCK(kLimits, "Limits", kBrief, "the out-of-memory handler")                                                 \
  LOCK(kPinTable, "PinTable", kBrief, "a pin or unpin")                                                        \
  LOCK(kDecommitWake, "Decommit wake", kBrief, "the sleep of the thread")                                      \
  LOCK(kTicket, "Ticket", kBrief, "the end of a ticket's operation")                                           \
  LOCK(kByDevice, "ByDevice", kBrief, "the number of devices that still copy")                                 \
  LOCK(kLease, "Lease", kBrief, "the states of a lease, and what its threads tell each other")                 \
  LOCK(kWatchers, "Watchers", kBrief, "the list of watchers and what they are asked")                          \
  LOCK(kIpcSettings, "IpcSettings", kBrief, "the policy")                                                      \
  LOCK(kKept, "IpcKept", kBrief, "what this context publishes and attaches")                                   \
  LOCK(kIpcImports, "IpcImports", kBrief, "the table of imports")                                              \
  LOCK(kIpcConnections, "PeerServer connections", kBrief, "the importers that another thread ends")            \
  LOCK(kBackupSettings, "BackupSettings", kBrief, "limits and the folder")                                     \
  LOCK(kBackupViews, "BackupViews", kBrief, "the list of views")                                               \
  LOCK(kBackupArena, "BackupArena", kBrief, "its ranges")                                                      \
  LOCK(kBackupPageable, "BackupPageable", kBrief, "its ranges")                                                \
  LOCK(kBackupFile, "BackupFile", kBrief, "its ranges")                                                        \
  LOCK(kCopyThreads, "CopyThreads", kBrief, "the queue of tasks")                                              \
  LOCK(kDeferredRelease, "DeferredRelease", kBrief, "what the driver refused")                                 \
  LOCK(kStackTable, "StackTable", kBrief, "the stacks that a context has seen")                                \
  LOCK(kRetiredMemory, "RetiredMemory", kBrief, "the list of memory")                                          \
  LOCK(kObjectPool, "ObjectPool", kBrief, "the list of free objects")                                          \
  LOCK(kCudaDevices, "cuda Devices", kBrief, "the start of a device")                                          \
  LOCK(kHipFunctions, "hip functions", kBrief, "the functions of HIP's library")                               \
  LOCK(kSyclEvent, "SyclEvent", kBrief, "the mark of an event")                                                \
  LOCK(kSyclStream, "SyclStream", kBrief, "the list of tasks")                                                 \
  LOCK(kMemoryFiles, "MemoryFiles", kBrief, "the files of physical memory")                                    \
  LOCK(kHostViews, "HostViews", kBrief, "the table of views")                                                  \
  LOCK(kHostEvent, "HostEvent", kBrief, "the position of an event")                                            \
  LOCK(kStreamTable, "StreamTable", kBrief, "the table of streams of the backends host and SYCL")              \
  LOCK(kSyclMark, "SyclStream mark", kBrief, "whether a mark is reached")                                      \
  LOCK(kHostStream, "HostStream", kBrief, "the queue of tasks")                                                \
  LOCK(kThreadRecords, "thread records", kBrief, "the list of threads; usable in a forked child")              \
  LOCK(kRegistry, "Registry", kBrief, "the slots of heaps, tags or traces; usable in a forked child")          \
  LOCK(kThreadMessages, "thread messages", kBrief, "the texts of threads; usable in a forked child")           \
  LOCK(kHostViewsList, "HostViews list", kBrief, "the tables of all contexts; usable in a forked child")       \
  LOCK(kTest, "a test's own", kBrief, "tests")

enum class LockRank : uint8_t {
#define GMM_LOCK_RANK(enumerator, name, kind, held_for) enumerator,
  GMM_LOCK_RANKS(GMM_LOCK_RANK)
#undef GMM_LOCK_RANK
};

}  // namespace gmm
#endif
