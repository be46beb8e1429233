// SPDX-License-Identifier: Apache-2.0
// When a VMM heap asks the driver for more memory, how much, and when it moves free extents instead.
//
// Allowance. Memory beyond the most bytes that were ever live at once is waste, so an allowance over that
// peak bounds it. The heap grows while it stays inside: new memory costs about as much as moving memory. Past the
// allowance, whole free extents are mapped to the new addresses first, and only the rest is new.
//
// Budget of moves. It is a time, which each move spends as the driver takes it. Each block of the heap earns a
// microsecond, also one that a thread cache gives out, and all together a twentieth of the time that passes at most. So
// the driver has about 1,250 moves a second, and 10,000 at the start. While more than half of the budget is left, the
// allowance is peak + peak/128. It then rises linearly to peak + peak/8. So a program that needs the same moves at each
// step, such as one whose steps need nearly all that is held for one large block, ends with a little more memory and no
// moves. With nothing left the heap grows. Questions to streams, drains of other threads' caches and waits have budgets
// of the same form, which the blocks that come from the heap earn.
//
// A host far ahead of its device. Free memory moves when the work that used it is done. Such a host finds
// little. It has the largest allowance at once, and waits for the device before it grows past that.
//
// Extents. The driver's cost follows their number, so a heap that only grows takes them in steps. Before the first free
// a very large block gets few large extents: these are a model's weights, which stay, and are paused handle by handle.
// As many growths as blocks were freed, up to 16, take what is wanted: a step taken at the peak is waste for good.
// Their extents are small, about 384 a heap and 48 a block. Only whole ones move, and free memory in an extent beside
// a block stays where it is. In extents of 24 MiB that was 14% of a heap of 1.5 GiB. In small ones it is 1.5%, for ten
// times as many moves. A model that is loaded later comes in steps and large extents again.
#ifndef GMM_ENGINE_HEAP_GROWTH_POLICY_H
#define GMM_ENGINE_HEAP_GROWTH_POLICY_H

#include <algorithm>
#include <cstdint>

#include "backend/backend.h"

namespace gmm {

class GrowthPolicy {
 public:
  // Nanoseconds.
  struct Budget {
    const int64_t most;
    int64_t left = most;
    bool any() const { return left > 0; }
    void earn(int64_t more) { left = std::min(left + more, most); }
    void spend(int64_t cost) { left -= cost; }
  };
  // On an H200 a move takes 28 microseconds for 2 MiB and 47 for 8 to 64, an event to record or to query 110 ns, and 64
  // KiB are read in 14 ns.
  static constexpr int64_t kMoveCost = 40'000, kQuestionCost = 120, kDrainCost = 10'000;
  // For moves of extents, questions to streams, drains of other threads' caches and waits for queued work. Where one
  // thread allocates and another frees, the heap rather grows by what their caches hold than that every block takes a
  // round of drains.
  Budget moves{400'000'000}, questions{20'000}, drains{200'000}, waits{500'000'000};

  // The program took and freed so many blocks since the heap began, until this time in nanoseconds.
  void worked(uint64_t taken, uint64_t freed, uint64_t now) {
    const uint64_t more = taken > taken_ ? std::min(taken - taken_, kMostBlocks) : 0;
    moves.earn(static_cast<int64_t>(std::min(more * kEarned, (now - at_) / kShareOfTime)));
    if (freed > freed_) small_growths_ = std::min(small_growths_ + freed - freed_, kMostSmallGrowths);
    taken_ = std::max(taken, taken_);
    freed_ = std::max(freed, freed_);
    at_ = now;
  }
  // A block of this size came from the heap.
  void took(uint64_t bytes) {
    questions.earn(100 + static_cast<int64_t>(bytes >> 15));
    drains.earn(32 + static_cast<int64_t>(bytes >> 16));
    waits.earn(static_cast<int64_t>(bytes >> 16));
  }
  bool has_freed() const { return freed_ != 0; }
  void moved(uint64_t bytes) { moves.spend(kMoveCost + static_cast<int64_t>(bytes / kBytesToMove)); }
  // The bytes that the caches of idle threads may hold together, before a heap that wants to grow empties them whatever
  // that costs.
  static constexpr uint64_t kMostIdle = uint64_t{64} << 20;
  void grew() {
    if (small_growths_ != 0) --small_growths_;
  }
  // The most bytes that were live at once, when the caches knew `seen` as the most and `live` are now, with the wanted
  // block.
  uint64_t peak(uint64_t seen, uint64_t live) {
    if (peak_live_ < seen) peak_live_ = seen;
    if (peak_live_ < live) peak_live_ = live;
    return peak_live_;
  }

  // Bytes that a heap may hold when this many were live at once: at first, when the budget of moves is spent, and
  // now.
  static uint64_t least_allowance(uint64_t peak_live) { return peak_live + peak_live / 128; }
  static uint64_t largest_allowance(uint64_t peak_live) { return peak_live + peak_live / 8; }
  uint64_t allowance(uint64_t peak_live) const {
    const uint64_t least = least_allowance(peak_live), most = largest_allowance(peak_live);
    const int64_t half = moves.most / 2, spent = half - moves.left;
    if (behind_ || spent >= half) return most;
    return spent <= 0 ? least : least + (most - least) / 1024 * static_cast<uint64_t>(spent * 1024 / half);
  }
  // The part of `need` bytes that comes from free extents.
  uint64_t to_move(uint64_t held, uint64_t need, uint64_t peak_live) const {
    return !moves.any() ? 0 : over(allowance(peak_live), held, need);
  }
  // Whether the device is too far behind for that: it still works on the free memory.
  void is_behind(bool behind) { behind_ = behind; }
  // Bytes of new memory to take when `need` are wanted: a multiple of kExtentAlignment, as `need` is.
  uint64_t to_take(uint64_t held, uint64_t need, uint64_t peak_live, uint64_t minimum) const {
    uint64_t step = largest_extent(held);
    if (step > held) step = round(held);  // at first as much again as there is
    if (small_growths_ != 0) {
      const uint64_t allowed = least_allowance(peak_live),
                     room = allowed > held ? (allowed - held) & ~(kExtentAlignment - 1) : 0;
      if (step > room) step = room;
    }
    if (step < minimum) step = round(minimum);
    return step < need ? need : step;
  }
  // The largest extent to make; a larger need is met by several, so that they can be moved one by one.
  static uint64_t largest_extent(uint64_t held) { return std::clamp(round(held / 192), kLargeExtent, kLargestExtent); }
  // The largest extent for a block of this many bytes.
  uint64_t largest_extent(uint64_t held, uint64_t block) const {
    if (freed_ == 0 && block >= kVeryLargeBlock) return kVeryLargeExtent;
    if (small_growths_ == 0) return largest_extent(held);
    const uint64_t size = std::max(held / 384, block / 48);
    return std::clamp(size & ~(kExtentAlignment - 1), kExtentAlignment, kLargestExtent);
  }
  // The size of each extent when `bytes` are taken for a block, which `held` includes: equal ones that are not too
  // large.
  uint64_t extent_size(uint64_t held, uint64_t bytes, uint64_t block) const {
    const uint64_t largest = largest_extent(held, block), count = (bytes + largest - 1) / largest;
    return round(bytes / count);
  }

 private:
  static constexpr uint64_t kLargeExtent = uint64_t{24} << 20, kLargestExtent = uint64_t{256} << 20;
  static constexpr uint64_t kVeryLargeBlock = uint64_t{256} << 20, kVeryLargeExtent = uint64_t{1} << 30;
  static constexpr uint64_t kBytesToMove = 4096;
  // The time that a block earns. The work of a program for which it allocates takes 5 microseconds and more: a kernel's
  // launch.
  static constexpr int64_t kEarned = 1000;
  static constexpr uint64_t kMostBlocks = 1'000'000;
  static constexpr uint64_t kShareOfTime = 20;
  static constexpr uint64_t kMostSmallGrowths = 16;

  static uint64_t over(uint64_t allowed, uint64_t held, uint64_t need) {
    if (held + need <= allowed) return 0;
    const uint64_t bytes = held + need - allowed;
    return bytes < need ? bytes : need;
  }
  static uint64_t round(uint64_t bytes) { return (bytes + kExtentAlignment - 1) & ~(kExtentAlignment - 1); }

  uint64_t peak_live_ = 0;
  uint64_t taken_ = 0, freed_ = 0, at_ = 0;  // when worked() was called last
  uint64_t small_growths_ = 0;               // that are left
  bool behind_ = false;
};

}  // namespace gmm
#endif
