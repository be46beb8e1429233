// SPDX-License-Identifier: Apache-2.0
#include "engine/space/free_runs.h"

namespace gmm {

void FreeRuns::insert(Span *run) {
  const uint32_t bin = class_of_count(run->bytes() / kGranule);
  // In full order, a list would be walked for each run; that gained nothing.
  if (whole_regions_ || bins_[bin].empty() || run->begin() < lowest_[bin]) {
    bins_[bin].push_front(run);
    lowest_[bin] = run->begin();
  } else {
    bins_[bin].insert_after(bins_[bin].front(), run);
  }
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
  if (bins_[bin].empty())
    used_[bin / 64] &= ~(uint64_t{1} << bin % 64);
  else if (lowest_[bin] == run->begin())
    lowest_[bin] = bins_[bin].front()->begin();
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

// Mostly the first run of a bin will do, so that only the runs of the class itself and one more are looked at.
Span *FreeRuns::first_fit(uint64_t count, uint64_t alignment, uint64_t allowed) {
  const uint64_t bytes = count * kGranule;
  const uint32_t own = class_of_count(count), first = own + 1;
  uintptr_t lowest = UINTPTR_MAX;
  uint32_t lowest_bin = 0;
  for (uint32_t word = first / 64; word < kWords; ++word) {
    uint64_t bits = used_[word];
    if (word == first / 64) bits &= ~uint64_t{0} << first % 64;
    for (; bits != 0; bits &= bits - 1) {
      const uint32_t bin = word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
      const uintptr_t address = lowest_[bin];
      lowest_bin = address < lowest ? bin : lowest_bin;
      lowest = address < lowest ? address : lowest;
    }
  }
  Span *found = nullptr;
  if (lowest != UINTPTR_MAX) {
    found = bins_[lowest_bin].front();
    if (!fits(found, bytes, alignment, allowed)) return first_of_any(own, bytes, alignment, allowed);
  }
  for (Span *run = bins_[own].front(); run != nullptr && run->begin() < lowest; run = bins_[own].next(run))
    if (fits(run, bytes, alignment, allowed)) return run;
  return found;
}

// Looks at all runs that may come first.
Span *FreeRuns::first_of_any(uint32_t first, uint64_t bytes, uint64_t alignment, uint64_t allowed) {
  Span *found = nullptr;
  uintptr_t lowest = UINTPTR_MAX;
  for (uint32_t bin = first; bin < kBins; ++bin) {
    if (bins_[bin].empty() || lowest_[bin] >= lowest) continue;
    Span *run = bins_[bin].front();
    while (run != nullptr && !fits(run, bytes, alignment, allowed)) run = bins_[bin].next(run);
    if (run == nullptr || run->begin() >= lowest) continue;
    found = run;
    lowest = run->begin();
  }
  return found;
}

Span *FreeRuns::best_fit(uint64_t count, uint64_t alignment, uint64_t allowed) {
  const uint64_t bytes = count * kGranule;
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
        if (!fits(run, bytes, alignment, allowed)) continue;
        if (best != nullptr && best->bytes() <= run->bytes()) continue;
        best = run;
        if (run->bytes() == bytes) break;
      }
      if (best != nullptr) return best;
    }
  }
  return nullptr;
}

}  // namespace gmm
