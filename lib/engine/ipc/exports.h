// SPDX-License-Identifier: Apache-2.0
// The memory that this context exported: which block a handle names, and how many importers hold it.
//
// An export is one block for as long as it lives. What the driver shares is an extent, or, for a VMM block that lies
// over several, consecutive extents; each is a piece of the export. Exports of the same extents carry one token, by
// which an importer knows that it has mapped the memory already. Importers are counted on the extents by their
// connections, so the system counts a killed importer down. The heap holds the memory of a block that is freed until
// its importers are gone.
#ifndef GMM_ENGINE_IPC_EXPORTS_H
#define GMM_ENGINE_IPC_EXPORTS_H

#include <gmm/ipc.h>

#include <atomic>

#include "base/lock.h"
#include "base/vector.h"
#include "engine/heap/block.h"
#include "engine/heap/heap_set.h"
#include "engine/ipc/broker.h"
#include "engine/ipc/settings.h"

namespace gmm {

class IpcExports {
 public:
  // `next_id` is the sequence that exports and events take their ids from.
  IpcExports(Core &core, HeapSet &heaps, IpcSettings &settings, IpcBroker &broker, std::atomic<uint64_t> &next_id)
      : core_(core),
        heaps_(heaps),
        settings_(settings),
        broker_(broker),
        next_id_(next_id),
        exports_(core.allocator),
        shared_extents_(core.allocator) {}

  Status export_block(const void *memory, gmm_ipc_handle *out);
  // The driver's handle of the block's allocation. Not counted.
  Status export_legacy(const void *memory, gmm_ipc_legacy_info *out);

  // Import and close of a handle that this context made: the original memory.
  Status import_own(const IpcHandle &handle, void **out);
  Status close_own(const void *memory);

  // After a forced pause: the importers of what was paused see the revocation and are counted no more.
  void revoke_paused();

  // For the broker (IpcResolver).
  Status grant(uint64_t piece_id, const uint8_t token[kIpcTokenSize], IpcGrant *out);
  void importer_gone(uint64_t piece_id);

 private:
  struct Export {
    uint64_t id;
    uint8_t token[kIpcTokenSize];
    uintptr_t block;
    uintptr_t base;               // of the first extent
    uint64_t size;                // of all extents
    uint64_t granted_generation;  // of the last grant
    uint32_t pieces;
    uint32_t importers;  // grants to other processes, all pieces together
    uint32_t self_imports;
    uint64_t extents[kIpcMaxPieces];  // ids: later memory at the same address has others
  };
  // Consecutive extents that some exports have in common.
  struct SharedExtents {
    uint64_t first, last;  // ids
    uint8_t token[kIpcTokenSize];
    uint8_t legacy[kLegacyHandleSize];
    bool has_legacy;
  };

  Extent *extent_of(const Export &entry, uint32_t piece) const;
  Export *find(uint64_t id);
  Status find_or_add(const Block &block, Export *out);
  Status describe(const Block &block, Export *out) const;
  SharedExtents *find_shared_extents(const Export &entry);
  Status find_or_add_shared_extents(const Export &entry, SharedExtents **out);
  Status export_legacy_once(SharedExtents &extents, void *driver_base);
  bool is_block_live(const Export &entry) const;
  void remove_stale();

  Core &core_;
  HeapSet &heaps_;
  IpcSettings &settings_;
  IpcBroker &broker_;
  std::atomic<uint64_t> &next_id_;
  Mutex mutex_;                           // before HeapSet::mutex, a heap's mutex and the broker's lock of its slots
  Vector<Export> exports_;                // ascending by id
  Vector<SharedExtents> shared_extents_;  // ascending by first, last
  uint64_t remove_stale_at_ = 64;         // the number of exports at which those of freed memory are removed
};

}  // namespace gmm
#endif
