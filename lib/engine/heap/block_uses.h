// SPDX-License-Identifier: Apache-2.0
// Uses of live blocks beyond the stream that frees them: by further streams (gmm_record_use()) and by exports.
//
// Owns the uses and the held blocks. A use names a live block and a further stream, or the block and the id of its
// export; the block's slot has the mark kUsedElsewhere for as long as it has one. A held block is free, but in no slab
// and no free run: importers still have its memory, or the freeing stream could not be made to wait for the block's
// other streams, as one of them is in a graph capture or was destroyed.
// Invariants: a block has at most one use for each stream and one for its export, however often they are told. A block
// with a use is not held.
// The uses lie in a hash table by block, so a free finds those of its block in the same few steps however many there
// are.
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
      : core_(core), streams_(streams), uses_(core.allocator), lists_(core.allocator), held_(core.allocator) {}

  // Notes that a stream uses the block too. Once more changes nothing.
  Status record(const CacheEntry &block, StreamKey key);
  // Notes an export under *id. For a block that is exported already, *id becomes the known id.
  Status mark_exported(const CacheEntry &block, uint64_t *id);
  // Replaces the id of an export.
  void export_anew(const void *block, uint64_t old_id, uint64_t id);
  // Whether the live block was exported under this id.
  bool exported_as(const void *block, uint64_t id);
  bool is_exported(const void *block);
  // Whether a per-thread stream of another thread uses the block: only waiting for the whole device covers that.
  bool used_by_other_threads(const void *block, uint64_t thread);

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

  uint64_t count() const { return count_; }
  // The most uses that a function looks at for one block.
  uint64_t longest_list() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Use {
    const void *block;  // NULL: the place is free
    StreamKey key;
    uint64_t exported;  // the export's id; 0: a stream's use
    uint32_t next;      // of its list, or of the free places
  };
  struct Held {
    CacheEntry entry;
    uint64_t streams;  // bits of the streams that may still use it, for which a free was noted
  };
  bool has_importers(const CacheEntry &entry) const;
  uint32_t &list_of(const void *block) {
    const uint64_t mixed = reinterpret_cast<uintptr_t>(block) * 0x9e3779b97f4a7c15;
    return lists_[(mixed >> 32) & (lists_.size() - 1)];
  }
  // Calls fn(Use &) for the uses of a block until it returns false.
  template <typename Fn>
  void for_each_of(const void *block, Fn fn) {
    if (lists_.empty()) return;
    for (uint32_t i = list_of(block); i != kNone; i = uses_[i].next)
      if (uses_[i].block == block && !fn(uses_[i])) return;
  }
  // Ends the uses of one list for which fn(const Use &) is true.
  template <typename Fn>
  void end_in(uint32_t *list, Fn fn);
  [[nodiscard]] bool add(const Use &use);
  [[nodiscard]] bool make_lists(uint64_t count);

  const Core &core_;
  StreamOrder &streams_;
  Vector<Use> uses_;        // places
  Vector<uint32_t> lists_;  // the first place of each list; a power of two, and never fewer than uses
  uint32_t spare_ = kNone;  // the first free place
  uint64_t count_ = 0;
  Vector<Held> held_;
};

}  // namespace gmm
#endif
