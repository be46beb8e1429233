// SPDX-License-Identifier: Apache-2.0
// Free runs of a heap by size, in two-level bins after TLSF (Masmano et al., 2004), and by address.
//
// A block lies in the first run that holds it. Best fit leaves rests that are smaller than what comes next: a server
// whose contexts grow block by block held 1.088 of its live bytes with it, and 1.039 with first fit. Blocks that come
// together also lie together then, so that whole extents are free when they go. Where regions go as a whole, best fit
// holds less.
#ifndef GMM_ENGINE_SPACE_FREE_RUNS_H
#define GMM_ENGINE_SPACE_FREE_RUNS_H

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/list.h"
#include "engine/space/span.h"

namespace gmm {

// Not thread-safe: under the heap's lock.
class FreeRuns {
 public:
  // whole_regions: a region is one driver allocation, which goes as a whole.
  explicit FreeRuns(bool whole_regions = false) : whole_regions_(whole_regions) { std::fill_n(lowest_, kBins, kNone); }
  void insert(Span *run);
  void remove(Span *run);

  // A run that holds `count` granules at `alignment`, whose streams are all in `allowed`; NULL for none. It is the one
  // at the lowest address, as far as bins are in order. Where a region goes as a whole it is the smallest, as far as
  // bins are searched.
  Span *find(uint64_t count, uint64_t alignment, uint64_t allowed) {
    return whole_regions_ ? best_fit(count, alignment, allowed) : first_fit(count, alignment, allowed);
  }
  uint64_t bytes() const { return bytes_; }
  // Bytes of the regions that are free whole, where a region goes as a whole; else all, since neighbours freed on
  // different streams may hold an extent together.
  uint64_t releasable() const { return releasable_; }
  // Called when a run was taken and its rest is back in the list; between the two, fewer bytes are listed
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
  static constexpr uintptr_t kNone = UINTPTR_MAX;
  // How far a better run is searched once one is known.
  static constexpr uint32_t kSearch = 48;

  static bool fits(const Span *run, uint64_t bytes, uint64_t alignment, uint64_t allowed) {
    return (run->streams & ~allowed) == 0 && aligned_start(run, alignment) + bytes <= run->end();
  }
  // Calls fn(bin) -> bool for the used bins from `first` on until it returns false.
  template <typename Fn>
  void for_each_used(uint32_t first, Fn fn) const {
    for (uint32_t word = first / 64; word < kWords; ++word) {
      uint64_t bits = used_[word];
      if (word == first / 64) bits &= ~uint64_t{0} << first % 64;
      for (; bits != 0; bits &= bits - 1)
        if (!fn(word * 64 + static_cast<uint32_t>(std::countr_zero(bits)))) return;
    }
  }
  Span *first_fit(uint64_t count, uint64_t alignment, uint64_t allowed);
  void search_bin(uint32_t bin, uint64_t bytes, uint64_t alignment, uint64_t allowed, uint32_t *looked, Span **found);
  Span *best_fit(uint64_t count, uint64_t alignment, uint64_t allowed);

  const bool whole_regions_;
  List<Span, SpanOrder> bins_[kBins];
  uint64_t used_[kWords] = {};
  // Address of a bin's first run: the lowest of the runs that were listed since another one was the first. kNone: the
  // bin is empty.
  uintptr_t lowest_[kBins];
  uint64_t bytes_ = 0;
  uint64_t releasable_ = 0;
  uint64_t low_ = 0;
};

}  // namespace gmm
#endif
