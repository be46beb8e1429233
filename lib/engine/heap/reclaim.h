// SPDX-License-Identifier: Apache-2.0
// Free memory of a heap back to the driver: on demand, and when nobody used it for an age (engine/heap/decommit.h).
//
// Idle memory. Two things must hold of an extent that goes: at each look during the age it was free, and in all no more
// goes than was free at every moment of the age, also between the looks. The first keeps what was used just now; the
// second keeps what steady use will want again.
// Reserve. gmm_heap_reserve() names bytes that the heap keeps: every release stays above them. Dedicated blocks do not
// count, as their memory serves no other block.
//
// Lock: the heap's, which each function takes, but for release_locked() and those of the reserve, which want it held.
// None holds it while it waits for a stream.
// Callers: Growth, Heap, and through Heap trims, Decommit and the end of graphs.
#ifndef GMM_ENGINE_HEAP_RECLAIM_H
#define GMM_ENGINE_HEAP_RECLAIM_H

#include <cstdint>

#include "engine/heap/heap_part.h"
#include "engine/heap/low_water.h"

namespace gmm {

class Reclaim : HeapPart {
 public:
  using HeapPart::HeapPart;

  // All free extents. wait: after the work that may use them; else only where that is done.
  Status release(bool wait, uint64_t *released);
  // Spares that no work uses, until `at_most` bytes went.
  Status return_spares(uint64_t at_most, uint64_t *released);
  Status wait_for_external();
  // Waits for these and for the device.
  Status wait_for_device();
  // release() of what is done, with the lock held, and only what a rule allows. Dedicated blocks go in any case, unless
  // the rule bounds them.
  Status release_locked(uint64_t at_most, uint64_t *released, const ReleaseRule *rule = nullptr);
  // Free bytes that release() may offer to the driver.
  uint64_t releasable();
  // Bytes that stay with the heap; 0: none.
  void set_reserve(uint64_t bytes) { reserve_ = bytes; }
  uint64_t reserve() const { return reserve_; }
  // Bytes held beside dedicated blocks that the reserve does not keep.
  uint64_t above_reserve();

  // --- Idle memory; one thread at a time ---------------------------------------------------------------------------
  // Looks at what is free, at a time of any clock that goes forward. Empties the caches of threads that did nothing
  // with the heap for the age, as far as nobody must be waited for. Returns how many bytes were free during the whole
  // age and may go.
  uint64_t look_for_idle(uint64_t now, uint64_t age);
  // After it: extents that were seen free for the age and whose work is done, never more than `at_most` bytes in all,
  // and no further one after `slice` bytes, so that the lock is free again soon. Nothing while a stream is being
  // captured.
  Status release_idle(uint64_t now, uint64_t age, uint64_t at_most, uint64_t slice, uint64_t *released);
  // Spares that were seen for the age, in such slices. Steady use wants none of them.
  Status release_idle_spares(uint64_t now, uint64_t age, uint64_t slice, uint64_t *released);

 private:
  Status release_spares(uint64_t at_most, uint64_t *released, const ReleaseRule *rule);
  Status release_allocation(Span *run, uint64_t *released, const ReleaseRule *rule);
  void stamp_free_extents(uint64_t since);

  uint64_t reserve_ = 0;
  uint64_t look_ = 0;   // how often look_for_idle() looked
  LowWater low_water_;  // of the bytes that may go
};

}  // namespace gmm
#endif
