// SPDX-License-Identifier: Apache-2.0
// The description of a live block, for every function that takes an address anywhere inside one.
#ifndef GMM_ENGINE_HEAP_BLOCK_H
#define GMM_ENGINE_HEAP_BLOCK_H

#include "base/device_text.h"
#include "engine/heap/heap.h"
#include "engine/space/core.h"

namespace gmm {

struct Block {
  Span *span = nullptr;
  Heap *heap = nullptr;
  Extent *extent = nullptr;   // of the block's start; NULL where a block of GMM_ALLOC_PAUSED has no pages
  Region *elastic = nullptr;  // of a block of GMM_ALLOC_PAUSED
  std::atomic<uint64_t> *slot = nullptr;
  uintptr_t base = 0;
  uint64_t requested = 0;  // bytes; 0: not live
  uint64_t reserved = 0;
  bool paused = false;  // some of it cannot be used
  bool partly = false;  // and some can
};

// Finds the live block around an address. UNKNOWN_POINTER or ALREADY_FREED, with `operation` in the message. No lock.
Status find_block(const Core &core, const void *address, const char *operation, Block *out);
// Finds it without a message: false when there is none.
bool find_block(const Core &core, const void *address, Block *out);
// The lock of a heap from find_locked() on.
class HeapLock : NoCopy {
 public:
  ~HeapLock() {
    if (heap_ != nullptr) heap_->mutex.unlock();
  }

 private:
  friend Status find_locked(const Core &, const void *, const char *, Block *, HeapLock *);
  Heap *heap_ = nullptr;
};
// find_block() under the lock of the block's heap, which `lock` releases.
Status find_locked(const Core &core, const void *address, const char *operation, Block *out, HeapLock *lock);
// "DEVICE", "VMM", "HOST" or "MANAGED", for messages.
inline const char *kind_name(Kind kind) { return kind_names[static_cast<uint32_t>(kind)]; }
// PAUSED, for a block of which some or all cannot be used.
Status paused_block(const Block &block, const void *address, const char *operation);
// Checks that [address, address + size) lies in the block; size 0 becomes the rest of the block.
Status check_range(const Block &block, const void *address, const char *operation, uint64_t *size);

}  // namespace gmm
#endif
