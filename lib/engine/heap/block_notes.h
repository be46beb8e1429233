// SPDX-License-Identifier: Apache-2.0
// Notes about live blocks that their slots have no room for: names (gmm_name()), stacks, further streams
// (gmm_record_use()) and exports.
//
// Owns the notes, in hash tables by the block's address, and the held blocks. The slot of a block with a note has the
// mark kUsedElsewhere, so a free learns of it without a look of its own. A held block is free, but in no slab and no
// free run: importers still have its memory, or the freeing stream could not be made to wait for the block's other
// streams, as one of them is in a graph capture or was destroyed.
// Invariants: each note belongs to a live block, which has at most one name, one stack of its allocation, one use for
// each stream and one export, however often they are noted. A held block has no note.
// Lock: the heap's, held by the caller of every function.
// Caller: Heap, for those functions, frees of marked blocks, and streams that end.
#ifndef GMM_ENGINE_HEAP_BLOCK_NOTES_H
#define GMM_ENGINE_HEAP_BLOCK_NOTES_H

#include <cstdint>

#include "base/hash_table.h"
#include "base/status.h"
#include "base/vector.h"
#include "engine/heap/stream_order.h"
#include "engine/space/core.h"

namespace gmm {

class BlockNotes {
 public:
  static constexpr uint64_t kNameSize = 64;  // bytes, the zero at the end included

  BlockNotes(const Core &core, StreamOrder &streams)
      : core_(core), streams_(streams), notes_(core.allocator), uses_(core.allocator), held_(core.allocator) {}

  // 1 to 63 bytes, or NULL for no name. OUT_OF_HOST_MEMORY: the block keeps the name that it had.
  Status set_name(const CacheEntry &block, const char *name);
  // The stack of the allocation, which stays, or of a free that begins. Without host memory none is noted.
  void set_stack(const CacheEntry &block, uint32_t stack, bool is_free);
  struct Note {
    const void *block;
    uint32_t stack, free_stack;  // numbers of Core::stacks; 0: none
    char name[kNameSize];        // "": none
  };
  // Zeros: there is none.
  Note of(const void *block) const;
  const HashTable<Note> &all() const { return notes_; }

  // Notes that a stream uses the block too. Once more changes nothing.
  Status record(const CacheEntry &block, StreamKey key);
  // Notes an export under *id. For a block that is exported already, *id becomes the known id.
  Status mark_exported(const CacheEntry &block, uint64_t *id);
  // Replaces the id of an export.
  void export_anew(const void *block, uint64_t old_id, uint64_t id);
  // Whether the live block was exported under this id.
  bool exported_as(const void *block, uint64_t id) const;
  bool is_exported(const void *block) const;
  // Whether a per-thread stream of another thread uses the block: only waiting for the whole device covers that.
  bool used_by_other_threads(const void *block, uint64_t thread) const;

  // The block is being freed on `key`: puts that stream behind the others that use the block, and forgets the notes.
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
    const void *block;
    StreamKey key;
    uint64_t exported;  // the export's id; 0: a stream's use
  };
  struct Held {
    CacheEntry entry;
    uint64_t streams;  // bits of the streams that may still use it, for which a free was noted
  };
  bool has_importers(const CacheEntry &entry) const;
  // NULL: there is no host memory for it.
  Note *note_of(const CacheEntry &block);
  // The use of a block for which fn(const Use &) is true; NULL: there is none.
  template <typename Fn>
  Use *find_use(const void *block, Fn fn) const;

  const Core &core_;
  StreamOrder &streams_;
  HashTable<Note> notes_;
  mutable HashTable<Use> uses_;  // several of one block lie side by side
  Vector<Held> held_;
};

}  // namespace gmm
#endif
