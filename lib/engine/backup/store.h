// SPDX-License-Identifier: Apache-2.0
// The backup of a context: it keeps the contents of paused memory until a resume, and copies them out and in.
//
// This module owns the kept contents. They are chunks of at most 4 MiB, each in one tier. A save puts a chunk into the
// first tier that can take it:
//   1. the arena (arena.h): page-locked host memory, up to `arena_limit` or until the driver or RLIMIT_MEMLOCK refuses
//      more, which may happen in the middle of a save;
//   2. pageable host memory (pageable.h), up to `pageable_limit`;
//   3. a backup file (file.h), which reserves its blocks before the save changes anything.
// A chunk that is all zero lies in no tier: the device finds zeros (Backend::find_zeros(), a kernel on CUDA),
// and a chunk is copied where it cannot. A chunk that an earlier save kept and that is still valid is not copied again.
//
// Files.
// - transfer.h: a save or a restore, with its window of 24 in-flight batches.
// - tiers.h: kept contents, their chunks, and the three tiers together.
// - checksum.h: a chunk's checksum.
// - copy_threads.h: the threads that do the host's part of a transfer.
// - staging.h: page-locked slots, for tiers that the device does not copy to itself.
// - range_allocator.h: the free ranges of a tier.
// - settings.h: the limits, the folder and the number of threads.
//
// Invariants.
// - The chunks of KeptContents ascend by address and do not overlap. Each owns its range in its tier until it is
//   dropped.
// - A transfer is all or nothing for KeptContents: save() commits after the last copy, in steps that cannot fail.
// - A file has blocks for all its chunks, and the data is on the disk when save() returns.
// - The device never copies to host memory that was freed. When the driver refuses to wait for a failed transfer, that
//   memory is abandoned.
//
// - Transfers run at the same time, as many as there are callers. They share the tiers and the copy threads. Each has
//   staging buffers of its own; the store keeps those of one for the next.
//
// Locks, in their order: the caller's (Pauser's, of heaps); transfers_mutex_, for the begin and end of a transfer;
// BackupFile::placing, from a reservation in the file to its last range; BackupArena's growth_mutex_, while segments
// become ready, which waits for copy threads and the driver; then one lock of a tier, of settings or of copy threads.
// No lock follows these but DeferredRelease's in BackupArena::clear(), and nothing waits for a copy thread or for the
// device under them. No step of a caller runs under a lock of the store. Kept contents belong to the caller, who lets
// one thread at a time use those of an extent.
//
// Callers: pause/ saves, restores, reads and drops; api/pause.cpp configures, prepares and queries; gmm_trim() trims.
#ifndef GMM_ENGINE_BACKUP_STORE_H
#define GMM_ENGINE_BACKUP_STORE_H

#include <gmm/pause.h>

#include "base/lock.h"
#include "engine/backup/tiers.h"
#include "engine/backup/transfer.h"
#include "engine/backup/views.h"

namespace gmm {

// Bytes of kept contents by tier.
struct BackupTotals {
  uint64_t arena = 0, pageable = 0, file = 0, zero = 0;

  uint64_t all() const { return arena + pageable + file + zero; }
};

// A context has one. Thread-safe.
class BackupStore : NoCopy {
 public:
  explicit BackupStore(Core &core) : views(core.allocator), allocator_(core.allocator), tiers_(core) {}
  ~BackupStore() { clear(); }

  // Sets limits and folder from the next save on, and threads from the next transfer on that begins alone. Kept
  // contents stay where they are. IO: the folder cannot be used. INVALID_VALUE: its name is too long.
  Status configure(const gmm_backup_desc &desc);
  // Backup files have names, one a block where a part names its blocks.
  bool names_files() { return tiers_.settings.names_files(); }
  // gmm_backup_reserve(): makes `bytes` of the arena ready and free.
  Status prepare(Device device, uint64_t bytes);

  // As save_contents() and restore_contents() do it (transfer.h). No work is queued on the device.
  Status save(Device device, gmm_contents contents, uint32_t flags, const BackupPart *parts, uint64_t count,
              const BackupSteps &steps);
  Status restore(Device device, const BackupPart *parts, uint64_t count, const BackupSteps &steps);
  // Copies kept contents of the range to host memory, without the device. INVALID_VALUE: chunks do not cover all of it.
  // CORRUPT and IO name the range of the chunk.
  Status read(const KeptContents &kept, ByteRange range, void *out);

  // Drops the chunks that overlap the range.
  void drop(KeptContents &kept, ByteRange range = ByteRange{0, UINTPTR_MAX});
  static BackupTotals totals(const KeptContents &kept);
  // Drops the kept contents of the extent, if it has any, and ends its views. The caller holds the
  // lock of the extent's heap.
  void forget(Extent &extent);
  // Drops those of a range inside it. Of paused memory only chunks inside the range go: the rest of a chunk is its
  // neighbours'.
  void forget(Extent &extent, ByteRange range);
  // The extent is about to be paused again: what a resume retained of it goes, and its views wait for new contents.
  void end_retained(Extent &extent);
  // Drops what an operation saved that ended without effect. Views stay, and are made anew when they are asked for.
  void drop_saved(Extent &extent);

  // Returns page-locked memory and a backup file that keep nothing to the system. Returns the bytes of memory. Does not
  // wait for a transfer under way, and leaves its slots and the file alone.
  uint64_t trim();
  void query(gmm_backup_info *out);
  // The context ends: everything goes back to the system, and no KeptContents is valid any more.
  void clear();

  // Adds the kept contents of `from` to those of `into`, which it follows. False without host memory: nothing changed.
  [[nodiscard]] bool merge(Extent &into, Extent &from);

  BackupViews views;

 private:
  template <typename Fn>
  Status in_transfer(Fn fn);
  Status read_chunk(const Chunk &chunk, ByteRange part, char *out, char **buffer);

  const HostAllocator allocator_;
  Mutex transfers_mutex_{LockRank::kBackupTransfers};  // guards the next three
  uint32_t running_ = 0;                               // transfers
  TransferBuffers *spare_ = nullptr;
  uint32_t thread_count_ = UINT32_MAX;  // the setting that tiers_.threads has
  BackupTiers tiers_;
};

}  // namespace gmm
#endif
