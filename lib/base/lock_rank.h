// SPDX-License-Identifier: Apache-2.0
// The order of all locks of the library. lib/engine/LOCKS.md tells it with reasons; tests/unit/locks_test.py compares
// the two.
#ifndef GMM_BASE_LOCK_RANK_H
#define GMM_BASE_LOCK_RANK_H

#include <cstdint>

namespace gmm {

// A thread takes a lock only if all locks that it holds stand above it. The two kinds:
//  - kOperation: its holder may wait, for a stream, for another process, for a file. Whoever takes it may so wait too.
//    Nobody takes one while it holds a brief lock.
//  - kBrief: its holder never waits.
// The rank "Heap" is of both kinds (OperationLock in base/lock.h).
enum class LockKind : uint8_t { kOperation, kBrief };

// LOCK(enumerator, name, kind)
#define GMM_LOCK_RANKS(LOCK)                                  \
  LOCK(kPreloadContext, "preload context", kOperation)        \
  LOCK(kPreloadSettings, "preload settings", kOperation)      \
  LOCK(kPreloadDriver, "preload driver", kOperation)          \
  LOCK(kPreloadConfig, "preload config", kBrief)              \
  LOCK(kPreloadLabels, "preload labels", kBrief)              \
  LOCK(kPreloadMemory, "preload memory", kBrief)              \
  LOCK(kPreloadCaptures, "preload captures", kBrief)          \
  LOCK(kTraceControl, "Trace control", kOperation)            \
  LOCK(kDecommitSet, "Decommit set", kOperation)              \
  LOCK(kIpcBroker, "IpcBroker", kOperation)                   \
  LOCK(kCaptureHeaps, "CaptureHeaps", kOperation)             \
  LOCK(kMakeHeap, "Context make heap", kOperation)            \
  LOCK(kPauser, "Pauser", kOperation)                         \
  LOCK(kDecommitRound, "Decommit round", kOperation)          \
  LOCK(kHeapCaches, "HeapCaches", kOperation)                 \
  LOCK(kIpcEvents, "IpcEvents", kBrief)                       \
  LOCK(kTagCount, "Tag count", kBrief)                        \
  LOCK(kHeap, "Heap", kOperation)                             \
  LOCK(kBackupTransfers, "BackupStore transfers", kOperation) \
  LOCK(kBackupPlacing, "BackupFile placing", kOperation)      \
  LOCK(kBackupGrowth, "BackupArena growth", kOperation)       \
  LOCK(kTraceLanes, "Trace lanes", kOperation)                \
  LOCK(kTraceFile, "TraceFile", kOperation)                   \
  LOCK(kIpcExports, "IpcExports", kBrief)                     \
  LOCK(kHeapCachesList, "HeapCaches list", kBrief)            \
  LOCK(kHeapSet, "HeapSet", kBrief)                           \
  LOCK(kTagClaims, "TagClaims", kBrief)                       \
  LOCK(kReadySignal, "ReadySignal", kBrief)                   \
  LOCK(kTagTable, "TagTable", kBrief)                         \
  LOCK(kLimits, "Limits", kBrief)                             \
  LOCK(kPinTable, "PinTable", kBrief)                         \
  LOCK(kDecommitWake, "Decommit wake", kBrief)                \
  LOCK(kTicket, "Ticket", kBrief)                             \
  LOCK(kByDevice, "ByDevice", kBrief)                         \
  LOCK(kLease, "Lease", kBrief)                               \
  LOCK(kWatchers, "Watchers", kBrief)                         \
  LOCK(kIpcSettings, "IpcSettings", kBrief)                   \
  LOCK(kIpcImports, "IpcImports", kBrief)                     \
  LOCK(kIpcClient, "IpcClient", kBrief)                       \
  LOCK(kIpcBrokerSlots, "IpcBroker slots", kBrief)            \
  LOCK(kBackupSettings, "BackupSettings", kBrief)             \
  LOCK(kBackupViews, "BackupViews", kBrief)                   \
  LOCK(kBackupArena, "BackupArena", kBrief)                   \
  LOCK(kBackupPageable, "BackupPageable", kBrief)             \
  LOCK(kBackupFile, "BackupFile", kBrief)                     \
  LOCK(kCopyThreads, "CopyThreads", kBrief)                   \
  LOCK(kDeferredRelease, "DeferredRelease", kBrief)           \
  LOCK(kRetiredMemory, "RetiredMemory", kBrief)               \
  LOCK(kObjectPool, "ObjectPool", kBrief)                     \
  LOCK(kCudaDevices, "cuda Devices", kBrief)                  \
  LOCK(kSyclEvent, "SyclEvent", kBrief)                       \
  LOCK(kSyclStream, "SyclStream", kBrief)                     \
  LOCK(kSyclStreamTable, "SyclStreamTable", kBrief)           \
  LOCK(kSyclMark, "SyclStream mark", kBrief)                  \
  LOCK(kHostViews, "HostViews", kBrief)                       \
  LOCK(kHostEvent, "HostEvent", kBrief)                       \
  LOCK(kHostStreamTable, "HostStreamTable", kBrief)           \
  LOCK(kHostStream, "HostStream", kBrief)                     \
  LOCK(kThreadRecords, "thread records", kBrief)              \
  LOCK(kRegistry, "Registry", kBrief)                         \
  LOCK(kThreadMessages, "thread messages", kBrief)            \
  LOCK(kHostViewsList, "HostViews list", kBrief)              \
  LOCK(kLeaseArbiters, "lease arbiters", kBrief)              \
  LOCK(kTest, "a test's own", kBrief)

enum class LockRank : uint8_t {
#define GMM_LOCK_RANK(enumerator, name, kind) enumerator,
  GMM_LOCK_RANKS(GMM_LOCK_RANK)
#undef GMM_LOCK_RANK
};

}  // namespace gmm
#endif
