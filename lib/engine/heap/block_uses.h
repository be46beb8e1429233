// SPDX-License-Identifier: Apache-2.0
// Uses of live blocks beyond the stream that frees them: by further streams (gmm_record_use()) and by exports.
//
// Owns two lists. A use names a live block and a further stream, or the block and the id of its export; the block's
// slot has the mark kUsedElsewhere for as long as one is listed. A held block is free, but in no slab and no free run:
// importers still have its memory, or the freeing stream could not be made to wait for the block's other streams, as
// one of them is in a graph capture or was destroyed.
// Invariants: a block is in at most one of the two lists, and every export of a block has one id.
// Lock: the heap's, held by the caller of every function.
// Callers: Heap, for gmm_record_use(), exports, frees of marked blocks and gmm_stream_forget().
#ifndef GMM_ENGINE_HEAP_BLOCK_USES_H
#define GMM_ENGINE_HEAP_BLOCK_USES_H

#include <cstdint>

#include "base/status.h"
#include "base/vector.h"
#include "engine/heap/cache_entry.h"
#include "engine/heap/stream_order.h"
#include "engine/space/core.h"

namespace gmm {

class BlockUses {
 public:
  BlockUses(const Core &core, StreamOrder &streams)
      : core_(core), streams_(streams), uses_(core.allocator), held_(core.allocator) {}

  // Notes that a stream uses the block too.
  Status record(const CacheEntry &block, StreamKey key);
  // Notes an export under *id. For a block that is exported already, *id becomes the known id.
  Status mark_exported(const CacheEntry &block, uint64_t *id);
  // Replaces the id of an export.
  void export_anew(const void *block, uint64_t old_id, uint64_t id);
  // Whether the live block was exported under this id.
  bool exported_as(const void *block, uint64_t id) const;
  // Whether a per-thread stream of another thread uses the block: only waiting for the whole device covers that.
  bool used_by_other_threads(const void *block, uint64_t thread) const;

  // The block is being freed on `key`: puts that stream behind the others that use the block, and forgets the uses.
  // key.thread is the calling thread. device_waited: what per-thread streams of other threads queued is done.
  // *held: the block is held here, and free_held() gives it back.
  Status order_after(const CacheEntry &block, StreamKey key, bool device_waited, bool *held);
  // Calls fn(entry, bits) for each held block that no importer has any more. The bits are those of the streams whose
  // queued work may use the block.
  template <typename Fn>
  void free_held(Fn fn) {
    for (uint64_t i = held_.size(); i-- > 0;) {
      const Held block = held_[i];
      if (has_importers(block.entry)) continue;
      held_.erase_unordered(i);
      fn(block.entry, block.streams);
    }
  }

  // The stream is about to go, and its work is done.
  void forget_stream(gmm_stream stream);
  // Forgets everything: all blocks of the heap are free.
  void clear();

 private:
  struct Use {
    void *block;
    StreamKey key;
    uint64_t exported;  // the export's id; 0: a stream's use
  };
  struct Held {
    CacheEntry entry;
    uint64_t streams;  // bits of the streams that may still use it, for which a free was noted
  };
  bool has_importers(const CacheEntry &entry) const;

  const Core &core_;
  StreamOrder &streams_;
  Vector<Use> uses_;
  Vector<Held> held_;
};

}  // namespace gmm
#endif
