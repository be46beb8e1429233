// SPDX-License-Identifier: Apache-2.0
// The memory that this context exported: which block a handle names, and how many importers hold it.
//
// An export is one block for as long as it lives. The driver shares the extent that the block lies in, or, for a large
// VMM block, several consecutive extents. The tokens of exports of the same extents begin alike, by which an importer
// knows that it has mapped the memory already. The rest of a token is the export's own, so a handle of a block that was
// freed names nothing. Importers are counted on the extents by their connections, so the system counts down a killed
// importer. The heap holds the memory of a freed block until its importers are gone.
//
// An import in the exporting process returns the original address and counts like any other: the block's memory stays
// after its free until the import is closed. It does not stand in the way of a pause, which keeps the address.
//
// The broker's thread never waits for the lock of a heap, which a pause holds for long. grant() answers BUSY, and
// importer_gone() leaves the block that it should give back to catch_up().
#ifndef GMM_ENGINE_IPC_EXPORTS_H
#define GMM_ENGINE_IPC_EXPORTS_H

#include <gmm/ipc.h>

#include <atomic>

#include "base/lock.h"
#include "base/range_table.h"
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
      : core_(core),
        heaps_(heaps),
        settings_(settings),
        broker_(broker),
        next_id_(next_id),
        exports_(core.allocator),
        own_table_(core.allocator),
        ranges_(core.allocator) {}

  Status export_block(const void *memory, gmm_ipc_handle *out);
  // The driver's handle of the block's allocation. Not counted.
  Status export_legacy(const void *memory, gmm_ipc_legacy_info *out);

  // Import and close of a handle that this context made: the original memory.
  Status import_own(const IpcHandle &handle, void **out);
  Status close_own(const void *memory);
  // The block around an address that this context has imported itself, live or freed. `value` as IpcImports::kind() and
  // IpcImports::device() read it. No lock.
  bool find_own(const void *address, Range *out) const {
    return own_table_.find(reinterpret_cast<uint64_t>(address), out);
  }
  // For a block that was freed, but is imported: [address, address + size) lies in it and is not paused.
  Status check_own(const Range &range, const void *address, uint64_t size, const char *operation) const;
  // Forgets all imports of this context's own memory. The context ends.
  void clear();

  // After a forced pause: the importers of paused memory see the revocation and do not count any more.
  void revoke_paused();

  // For the broker (IpcResolver). No function waits for a lock that a pause may hold. grant() without `counts` only
  // says whether the block lives.
  Status grant(uint64_t id, const uint8_t token[kIpcTokenSize], IpcGrant *out);
  void importer_gone(uint64_t id);
  // Gives back blocks that only importers kept. False: nothing is left to do.
  bool catch_up();

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
    uint32_t importers;                  // other processes
    uint32_t own_imports;                // of this context; the first one is counted on the extents
    uint64_t place;                      // IpcImports::kind() and device()
    uint64_t first_extent, last_extent;  // ids
    uint64_t next_extent_id;             // at the export: later memory at the same addresses has this or a larger one
  };
  template <class Fn>
  bool for_each_extent(const Export &entry, Fn fn) const;
  Extent *first_extent(const Export &entry) const;
  uint64_t generation_of(const Export &entry) const;
  Status check_grant(const Export &entry, Heap &heap) const;
  Export *find(uint64_t id);
  Status find_or_add(const Block &block, Export *out);
  Status describe(const Block &block, Export *out) const;
  Status make_token(Export *entry) const;
  void add_fabric(Extent &extent, IpcHandle *handle) const;
  bool is_block_live(const Export &entry) const;
  void remove_stale();
  bool publish_own();
  void count_own(const Export &entry, bool is_import);
  static bool give_back(Heap &heap);

  Core &core_;
  HeapSet &heaps_;
  IpcSettings &settings_;
  IpcBroker &broker_;
  std::atomic<uint64_t> &next_id_;
  Mutex mutex_{LockRank::kIpcExports};        // after a heap's mutex, before the broker's lock of its slots
  Vector<Export> exports_;                    // ascending by id
  RangeTable own_table_;                      // of exports with own imports, for readers without a lock
  Vector<Range> ranges_;                      // scratch of publish_own()
  std::atomic<bool> may_hold_blocks_{false};  // importer_gone() left something to catch_up()
  uint64_t remove_stale_at_ = 64;             // the number of exports at which those of freed memory are removed
};

}  // namespace gmm
#endif
