// SPDX-License-Identifier: Apache-2.0
// How much memory was free during the whole of the last age: the least that was free at any moment of it. Memory that
// steady use takes and gives back again and again is never among it, so a heap that works keeps its memory, however
// short the age.
#ifndef GMM_ENGINE_HEAP_LOW_WATER_H
#define GMM_ENGINE_HEAP_LOW_WATER_H

#include <cstdint>

namespace gmm {

// Not thread-safe. The age is cut into phases, so that the answer is late by a phase at most.
class LowWater {
 public:
  static constexpr uint32_t kPhases = 4;
  static constexpr uint64_t phase(uint64_t age) { return age / kPhases + (age % kPhases != 0 ? 1 : 0); }

  // `low`: the fewest bytes that were free since the last call. Returns the bytes that were free during the whole age
  // up to now; 0 as long as that is not known. Another age starts anew.
  uint64_t note(uint64_t low, uint64_t now, uint64_t age) {
    if (age != age_) {
      *this = LowWater();
      age_ = age;
      began_ = now;
      return 0;
    }
    if (low < current_) current_ = low;
    if (now - began_ >= phase(age)) {
      lows_[next_] = current_;
      next_ = (next_ + 1) % kPhases;
      if (known_ < kPhases) ++known_;
      current_ = UINT64_MAX;
      began_ = now;
    }
    if (known_ < kPhases) return 0;
    uint64_t least = current_;
    for (uint64_t each : lows_)
      if (each < least) least = each;
    return least;
  }
  // Bytes became free that nobody had used for the age.
  void add(uint64_t bytes) {
    if (current_ != UINT64_MAX) current_ += bytes;
    for (uint64_t &each : lows_) each += bytes;
  }
  // Free bytes went to the driver.
  void subtract(uint64_t bytes) {
    if (current_ != UINT64_MAX) current_ = less(current_, bytes);
    for (uint64_t &each : lows_) each = less(each, bytes);
  }

 private:
  static uint64_t less(uint64_t from, uint64_t bytes) { return from < bytes ? 0 : from - bytes; }

  uint64_t age_ = 0;
  uint64_t began_ = 0;             // of the phase under way
  uint64_t current_ = UINT64_MAX;  // its low
  uint64_t lows_[kPhases] = {};
  uint32_t next_ = 0;
  uint32_t known_ = 0;
};

}  // namespace gmm
#endif
