// SPDX-License-Identifier: Apache-2.0
// Free runs of a heap by size: best fit with two-level bins, after TLSF (Masmano et al., 2004), but searching a bin for
// its best entry, since one run too large costs more here than a few links.
#ifndef GMM_ENGINE_SPACE_FREE_RUNS_H
#define GMM_ENGINE_SPACE_FREE_RUNS_H

#include <cstdint>

#include "base/list.h"
#include "engine/space/span.h"

namespace gmm {

// Not thread-safe: under the heap's lock.
class FreeRuns {
 public:
  // whole_regions: a region is one driver allocation, which goes as a whole.
  explicit FreeRuns(bool whole_regions = false) : whole_regions_(whole_regions) {}
  void insert(Span *run);
  void remove(Span *run);

  // The smallest run found that holds `count` granules at `alignment`, whose streams are all in `allowed`; NULL for
  // none.
  Span *best_fit(uint64_t count, uint64_t alignment, uint64_t allowed);
  uint64_t bytes() const { return bytes_; }
  // Of the regions that are free whole, where a region goes as a whole; else all, since neighbours freed on different
  // streams may hold an extent together.
  uint64_t releasable() const { return releasable_; }
  // Called when a run was taken and what is left of it is back in the list; between the two, fewer bytes are listed
  // than free.
  void note_low() {
    if (releasable_ < low_) low_ = releasable_;
  }
  // The fewest releasable bytes since the last call.
  uint64_t take_low() {
    note_low();
    const uint64_t low = low_;
    low_ = releasable_;
    return low;
  }

  // Where a block of this alignment would start in the run.
  static uintptr_t aligned_start(const Span *run, uint64_t alignment) {
    return (run->begin() + alignment - 1) & ~(alignment - 1);
  }
  template <typename Fn>
  void for_each(Fn fn) {
    for (auto &bin : bins_)
      for (Span *run = bin.front(), *next; run != nullptr; run = next) {
        next = bin.next(run);
        fn(run);
      }
  }

 private:
  static constexpr uint32_t kBins = class_of_count(kMaxSize / kGranule) + 1;
  static constexpr uint32_t kWords = (kBins + 63) / 64;
  // A bin is searched this far for a better fit.
  static constexpr uint32_t kSearch = 48;

  const bool whole_regions_;
  List<Span, SpanOrder> bins_[kBins];
  uint64_t used_[kWords] = {};
  uint64_t bytes_ = 0;
  uint64_t releasable_ = 0;
  uint64_t low_ = 0;
};

}  // namespace gmm
#endif
