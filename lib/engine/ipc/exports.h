// SPDX-License-Identifier: Apache-2.0
// The memory that this context exported: which block a handle names, and how many importers hold it.
//
// An export is one block for as long as it lives. The driver shares the extent that the block lies in, or, for a large
// VMM block, several consecutive extents. The tokens of exports of the same extents begin alike, by which an importer
// knows that it has mapped the memory already.
//
// An import in the exporting process returns the original address and counts like any other: the block's memory stays
// after its free until the import is closed. It does not stand in the way of a pause, which keeps the address.
//
// An operation that has the heap frees what importer_gone() left (Heap::free_held_for_importers()).
#ifndef GMM_ENGINE_IPC_EXPORTS_H
#define GMM_ENGINE_IPC_EXPORTS_H

#include <gmm/ipc.h>

#include <atomic>

#include "base/lock.h"
#include "base/vector.h"
#include "engine/heap/block.h"
#include "engine/heap/heap_set.h"
#include "engine/ipc/broker.h"
#include "engine/ipc/policy.h"

namespace gmm {

class IpcExports {
 public:
  // `next_id` is the sequence that exports and events take their ids from.
  IpcExports(Core &core, HeapSet &heaps, IpcSettings &settings, IpcBroker &broker, std::atomic<uint64_t> &next_id)
      : core_(core), heaps_(heaps), settings_(settings), broker_(broker), next_id_(next_id), exports_(core.allocator) {}

  Status export_block(const void *memory, gmm_ipc_handle *out);
  // The driver's handle of the block's allocation. Not counted.
  Status export_legacy(const void *memory, gmm_ipc_legacy_info *out);

  // For a handle of this context: whether its block lives, and *base of its allocation. With `counts` the context is an
  // importer until importer_gone(). Waits for an operation that has the heap.
  Status import_own(const IpcHandle &handle, bool counts, uintptr_t *base);
  // After a forced pause: the importers of paused memory see the revocation and do not count any more.
  void revoke_paused();

  // For the broker (IpcResolver). No function waits for a lock that a pause may hold. grant() without `counts` only
  // says whether the block lives.
  Status grant(uint64_t id, const uint8_t token[kIpcTokenSize], IpcGrant *out);
  void importer_gone(uint64_t id, bool is_own = false);

 private:
  struct Export {
    uint64_t id;
    uint8_t token[kIpcTokenSize];
    uintptr_t block;
    uint64_t block_size;          // bytes that the program asked for
    uintptr_t base;               // of the first extent
    uint64_t size;                // of all extents
    uint64_t granted_generation;  // of the last grant
    uint32_t extents;
    uint32_t importers;       // this context may be one
    uint64_t next_extent_id;  // at the export: later memory at the same addresses has this or a larger one
  };
  template <class Fn>
  bool for_each_extent(const Export &entry, Fn fn) const;
  Extent *first_extent(const Export &entry) const;
  uint64_t generation_of(const Export &entry) const;
  Export *find(uint64_t id);
  template <typename Fn>
  Status with_live(uint64_t id, const uint8_t token[kIpcTokenSize], bool may_wait, Fn fn);
  Status count_importer(const Export &entry, bool is_own);
  Status find_or_add(const Block &block, Export *out);
  Status describe(const Block &block, Export *out) const;
  Status make_token(Export *entry) const;
  void add_fabric(Extent &extent, IpcHandle *handle) const;
  void remove_stale();

  Core &core_;
  HeapSet &heaps_;
  IpcSettings &settings_;
  IpcBroker &broker_;
  std::atomic<uint64_t> &next_id_;
  Mutex mutex_{LockRank::kIpcExports};  // after a heap's mutex, before that of the broker's connections
  Vector<Export> exports_;              // ascending by id
  uint64_t remove_stale_at_ = 64;       // the number of exports at which those of freed memory are removed
};

}  // namespace gmm
#endif
