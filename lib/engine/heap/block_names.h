// SPDX-License-Identifier: Apache-2.0
// Names of live blocks (gmm_name()).
//
// Owns the names, in a hash table by the block's address. The slot of a named block has the mark kUsedElsewhere, so a
// free that must forget a name learns of it without a look of its own.
// Invariant: each name belongs to a live block. Heap forgets it with the free, or all of them with a reset.
// Lock: the heap's, held by the caller of every function.
// Callers: Heap, for gmm_name() and frees of marked blocks; trace/, which shows names.
#ifndef GMM_ENGINE_HEAP_BLOCK_NAMES_H
#define GMM_ENGINE_HEAP_BLOCK_NAMES_H

#include <cstdint>

#include "base/hash_table.h"
#include "base/status.h"
#include "base/vector.h"
#include "engine/heap/cache_entry.h"

namespace gmm {

class BlockNames {
 public:
  static constexpr uint64_t kSize = 64;  // bytes, the zero at the end included

  explicit BlockNames(const HostAllocator &allocator) : names_(allocator), indices_(allocator) {}

  // 1 to 63 bytes, or NULL for no name. OUT_OF_HOST_MEMORY: the block keeps the name that it had.
  Status set(const CacheEntry &block, const char *name);
  void forget(const void *block);
  // Forgets everything: all blocks of the heap are free.
  void clear();
  // "": it has none.
  const char *of(const void *block) const;
  uint64_t count() const { return names_.size(); }

 private:
  struct Name {
    const void *block;
    char text[kSize];
  };
  // The index of a block's name; NULL: it has none.
  const uint32_t *index_of(const void *block) const;

  Vector<Name> names_;  // without gaps
  HashTable<uint32_t> indices_;
};

}  // namespace gmm
#endif
