// SPDX-License-Identifier: Apache-2.0
// Why memory of a device is short: who holds it, how much is free in pieces, and what would help.
//
// A failed allocation looks at it after its last trim. Then what is free inside of heaps lies beside live blocks.
// Locks: short visits of the heaps; no operation is waited for.
// Caller: Context.
#ifndef GMM_ENGINE_LIMITS_SHORTAGE_H
#define GMM_ENGINE_LIMITS_SHORTAGE_H

#include "engine/heap/heap_set.h"
#include "engine/limits/tag.h"

namespace gmm {

class Shortage {
 public:
  // Looks at the device of the heap that could not grow.
  Shortage(HeapSet &heaps, TagTable &tags, Heap &heap);
  // Puts the largest holders, the free pieces and the best pause before the message of the failure.
  Status explain(Status status, const char *what, uint64_t size) const;
  // Writes all of it as warnings. `held`: by this context on the device.
  void report(const Log &log, Backend &backend, const char *what, uint64_t size, uint64_t held) const;

 private:
  static constexpr uint32_t kHolders = 10, kInMessage = 3;
  // A tag. `active`: VMM memory, which a pause gives back.
  struct Holder {
    const Tag *tag = nullptr;
    uint64_t held = 0, live = 0, active = 0;
  };
  // The live blocks that are not paused and whose allocation has this stack.
  struct StackHolder {
    uint32_t stack = 0;
    uint64_t bytes = 0, blocks = 0;
  };
  void add_stacks(Heap &heap, Vector<StackHolder> *by_stack) const;

  const Device device_;
  const StackTable &table_;
  Holder holders_[kHolders];                     // the largest first
  StackHolder stacks_[kHolders];                 // the same; those of sampled allocations
  uint64_t free_ = 0, largest_ = 0, heaps_ = 0;  // of heaps that have something free
  const Holder *best_ = nullptr;                 // whose pause gives the most; null: none gives anything
};

}  // namespace gmm
#endif
