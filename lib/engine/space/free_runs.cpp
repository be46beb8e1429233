// SPDX-License-Identifier: Apache-2.0
#include "engine/space/free_runs.h"

namespace gmm {

void FreeRuns::insert(Span *run) {
  const uint32_t bin = class_of_count(run->bytes() / kGranule);
  bins_[bin].push_front(run);
  used_[bin / 64] |= uint64_t{1} << bin % 64;
  bytes_ += run->bytes();
  if (!whole_regions_) {
    releasable_ += run->bytes();
  } else if ((run->region->listed_free += run->bytes()) == run->region->size.load(std::memory_order_relaxed)) {
    releasable_ += run->region->listed_free;
  }
  run->listed = true;
}

void FreeRuns::remove(Span *run) {
  const uint32_t bin = class_of_count(run->bytes() / kGranule);
  List<Span, SpanOrder>::remove(run);
  if (bins_[bin].empty()) used_[bin / 64] &= ~(uint64_t{1} << bin % 64);
  bytes_ -= run->bytes();
  if (!whole_regions_) {
    releasable_ -= run->bytes();
  } else {
    if (run->region->listed_free == run->region->size.load(std::memory_order_relaxed))
      releasable_ -= run->region->listed_free;
    run->region->listed_free -= run->bytes();
  }
  run->listed = false;
}

Span *FreeRuns::best_fit(uint64_t count, uint64_t alignment, uint64_t allowed) {
  const uint64_t wanted = count * kGranule;
  const uint32_t first = class_of_count(count);
  for (uint32_t word = first / 64; word < kWords; ++word) {
    uint64_t bits = used_[word];
    if (word == first / 64) bits &= ~uint64_t{0} << first % 64;
    for (; bits != 0; bits &= bits - 1) {
      auto &bin = bins_[word * 64 + static_cast<uint32_t>(std::countr_zero(bits))];
      Span *best = nullptr;
      uint32_t looked = 0;
      for (Span *run = bin.front(); run != nullptr && (best == nullptr || looked < kSearch);
           run = bin.next(run), ++looked) {
        if ((run->streams & ~allowed) != 0) continue;
        if (aligned_start(run, alignment) + wanted > run->end()) continue;
        if (best != nullptr && best->bytes() <= run->bytes()) continue;
        best = run;
        if (run->bytes() == wanted) break;
      }
      if (best != nullptr) return best;
    }
  }
  return nullptr;
}

}  // namespace gmm
