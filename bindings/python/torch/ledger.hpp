// SPDX-License-Identifier: Apache-2.0
// PyTorch's blocks for allocator.hpp: the live ones, their sums, and the history.
//
// Locks: a Ledger's shards and a Counters each have a lock of their own, held for some tens of nanoseconds. No call
// leaves this file under one.
#ifndef GMM_TORCH_LEDGER_HPP
#define GMM_TORCH_LEDGER_HPP

#include <c10/core/CachingDeviceAllocator.h>
#include <sched.h>

#include <atomic>
#include <deque>

#include "pools.hpp"

namespace gmm_torch {

using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingDeviceAllocator::Stat;

// A lock for a few instructions. Its holder calls nothing, so it spins, and yields to a holder that lost its core.
class SpinLock {
 public:
  void lock() {
    for (uint32_t spins = 0; held_.exchange(true, std::memory_order_acquire); ++spins)
      while (held_.load(std::memory_order_relaxed))
        if (++spins % 128 == 0) sched_yield();
  }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

enum Type : size_t { kAggregate, kSmall, kLarge };  // as in PyTorch's StatArray

// The counters of a device, by PyTorch's names.
class Counters {
 public:
  // A block comes or goes. allocation: for the program. active: for the streams too, of which those of record_stream()
  // use it longer.
  template <void (Stat::*step)(size_t)>
  void change(uint64_t size, uint64_t requested, bool allocation = true, bool active = true) {
    const std::lock_guard<SpinLock> guard(lock_);
    for (const Type type : {kAggregate, size <= kSmallSize ? kSmall : kLarge}) {
      if (allocation) {
        (stats_.allocation[type].*step)(1);
        (stats_.allocated_bytes[type].*step)(size);
        (stats_.requested_bytes[type].*step)(requested);
      }
      if (active) {
        (stats_.active[type].*step)(1);
        (stats_.active_bytes[type].*step)(size);
      }
    }
  }

  void count(int64_t DeviceStats::*number) {
    const std::lock_guard<SpinLock> guard(lock_);
    ++(stats_.*number);
  }

  // The memory of the heaps now, and its peak so far. The heaps' extents serve both sizes: the small pool's
  // share of the reserved bytes are those of small blocks, and the large pool's is the rest.
  void observe(const gmm_stats_info &heaps) {
    const std::lock_guard<SpinLock> guard(lock_);
    const auto held = static_cast<int64_t>(heaps.reserved_bytes),
               peak = static_cast<int64_t>(heaps.peak_reserved_bytes);
    const int64_t small = std::min(held, stats_.active_bytes[kSmall].current);
    set(stats_.reserved_bytes[kSmall], small);
    set(stats_.reserved_bytes[kLarge], held - small);
    set(stats_.reserved_bytes[kAggregate], held);
    // A peak that rose since the last look is a peak since the last reset too.
    int64_t &seen = stats_.reserved_bytes[kAggregate].peak;
    if (peak > peak_seen_) seen = std::max(seen, peak);
    peak_seen_ = std::max(peak_seen_, peak);
    // PyTorch counts free parts of segments that cannot go back to the driver; gmm knows the bytes that are free.
    const int64_t free_bytes = std::max<int64_t>(0, held - stats_.active_bytes[kAggregate].current);
    for (const Type type : {kAggregate, kLarge}) {
      set(stats_.segment[type], static_cast<int64_t>(heaps.extents));
      set(stats_.inactive_split_bytes[type], free_bytes);
    }
  }

  DeviceStats read() const {
    const std::lock_guard<SpinLock> guard(lock_);
    return stats_;
  }

  template <class Do>
  void each(Do with) {
    const std::lock_guard<SpinLock> guard(lock_);
    DeviceStats &s = stats_;
    for (auto *stats : {&s.allocation, &s.allocated_bytes, &s.requested_bytes, &s.active, &s.active_bytes, &s.segment,
                        &s.reserved_bytes, &s.inactive_split, &s.inactive_split_bytes})
      for (Stat &stat : *stats) with(stat);
  }

  void reset_accumulated() {
    each([](Stat &stat) { stat.reset_accumulated(); });
    const std::lock_guard<SpinLock> guard(lock_);
    stats_.num_alloc_retries = stats_.num_ooms = 0;
  }

 private:
  // Of a number that is only read now and then.
  static void set(Stat &stat, int64_t now) {
    if (now > stat.current) stat.increase(static_cast<size_t>(now - stat.current));
    if (now < stat.current) stat.decrease(static_cast<size_t>(stat.current - now));
  }

  mutable SpinLock lock_;
  DeviceStats stats_;
  int64_t peak_seen_ = 0;
};

// A live block.
struct Live {
  void *memory = nullptr;
  uint64_t requested = 0;
  gmm_stream stream = nullptr;
  PoolBlock *block = nullptr;  // of a private pool; NULL: gmm's own block
  void *context = nullptr;     // where it was allocated, while a history is recorded; the owner frees it
  PoolId pool;
  int32_t device = 0;

  uint64_t bytes() const { return block != nullptr ? block->size : rounded(requested); }  // as PyTorch counts it
};

// The live blocks by address: hash tables with open addressing, one for each shard of the addresses.
// PyTorch's own ska::flat_hash_map in their place takes 35 ns for an insert and a take, where these take 25.
class Ledger {
 public:
  void insert(const Live &live) {
    const uint64_t hash = hash_of(live.memory);
    Shard &shard = shards_[hash >> kShardShift];
    const std::lock_guard<SpinLock> guard(shard.lock);
    if ((shard.count + 1) * 4 > shard.slots.size() * 3) grow(shard);
    *find(shard, hash, live.memory) = live;
    ++shard.count;
  }

  // Removes a block. False: it is not live here.
  bool take(const void *memory, Live *out) {
    return with_slot(memory, [&](Shard &shard, Live *slot) {
      *out = *slot;
      remove(shard, slot);
      --shard.count;
    });
  }

  bool look(const void *memory, Live *out) const {
    return with_slot(memory, [&](Shard &, Live *slot) { *out = *slot; });
  }

  // Calls visit(const Live &) for each block of a shard while its lock is held.
  template <class Visit>
  void each(Visit visit) const {
    for (Shard &shard : shards_) {
      const std::lock_guard<SpinLock> guard(shard.lock);
      for (const Live &live : shard.slots)
        if (live.memory != nullptr) visit(live);
    }
  }

 private:
  static constexpr uint32_t kShards = 64;
  static constexpr uint32_t kShardShift = 58;

  struct alignas(64) Shard {
    SpinLock lock;
    std::vector<Live> slots;
    uint64_t count = 0;
  };

  static uint64_t hash_of(const void *memory) {
    return (reinterpret_cast<uintptr_t>(memory) >> 8) * 0x9E3779B97F4A7C15ull;
  }

  template <class Use>
  bool with_slot(const void *memory, Use use) const {
    const uint64_t hash = hash_of(memory);
    Shard &shard = shards_[hash >> kShardShift];
    const std::lock_guard<SpinLock> guard(shard.lock);
    if (shard.slots.empty()) return false;
    Live *slot = find(shard, hash, memory);
    if (slot->memory == nullptr) return false;
    use(shard, slot);
    return true;
  }

  static size_t home(const Shard &shard, uint64_t hash) { return (hash >> 20) & (shard.slots.size() - 1); }

  // The slot of an address, or the empty one where it belongs.
  static Live *find(Shard &shard, uint64_t hash, const void *memory) {
    size_t at = home(shard, hash);
    while (shard.slots[at].memory != nullptr && shard.slots[at].memory != memory)
      at = (at + 1) & (shard.slots.size() - 1);
    return &shard.slots[at];
  }

  static void grow(Shard &shard) {
    std::vector<Live> old(shard.slots.empty() ? 64 : shard.slots.size() * 2);
    old.swap(shard.slots);
    for (const Live &live : old)
      if (live.memory != nullptr) *find(shard, hash_of(live.memory), live.memory) = live;
  }

  // Moves later blocks of the same run back, so that none is cut off from its home by an empty slot.
  static void remove(Shard &shard, Live *slot) {
    const size_t mask = shard.slots.size() - 1;
    size_t hole = static_cast<size_t>(slot - shard.slots.data());
    for (size_t at = (hole + 1) & mask; shard.slots[at].memory != nullptr; at = (at + 1) & mask) {
      const size_t wanted = home(shard, hash_of(shard.slots[at].memory));
      if (((at - wanted) & mask) < ((at - hole) & mask)) continue;
      shard.slots[hole] = shard.slots[at];
      hole = at;
    }
    shard.slots[hole] = Live{};
  }

  mutable Shard shards_[kShards];
};

// The last entries of a history. Those that go end after the lock is released, as their ends may call Python.
template <class Entry>
class Ring {
 public:
  // is_new: begins without entries.
  void begin(size_t most, bool is_new) {
    std::deque<Entry> gone;
    const std::lock_guard<std::mutex> guard(mutex_);
    most_ = std::max<size_t>(1, most);
    if (is_new) gone.swap(entries_);
  }

  void add(Entry entry) {
    std::vector<Entry> gone;
    const std::lock_guard<std::mutex> guard(mutex_);
    for (; entries_.size() >= most_; entries_.pop_front()) gone.push_back(std::move(entries_.front()));
    entries_.push_back(std::move(entry));
  }

  std::vector<Entry> read() const {
    const std::lock_guard<std::mutex> guard(mutex_);
    return {entries_.begin(), entries_.end()};
  }

 private:
  mutable std::mutex mutex_;
  std::deque<Entry> entries_;
  size_t most_ = 1;
};

// Calls visit(address, size, parts) for the memory of extents, in pieces without gaps: touching extents are one piece,
// and each hole ends one. taken: the live blocks by address, and the holes, whose part is not allocated.
template <class Visit>
void each_piece(std::map<uint64_t, uint64_t> extents, const std::map<uint64_t, Part> &taken, Visit visit) {
  std::vector<Part> parts;
  uint64_t begin = 0, at = 0;
  const auto fill_to = [&](uint64_t address) {
    if (address > at) parts.push_back({at, address - at});
    at = std::max(at, address);
  };
  const auto end_piece = [&] {
    if (at > begin) visit(begin, at - begin, parts);
    parts.clear();
  };
  for (auto extent = extents.begin(); extent != extents.end();) {
    begin = at = extent->first;
    uint64_t end = begin;
    for (; extent != extents.end() && extent->first == end; ++extent) end += extent->second;
    for (auto next = taken.lower_bound(begin); next != taken.end() && next->first < end; ++next) {
      Part part = next->second;
      fill_to(part.address);
      const auto after = std::next(next);
      const uint64_t limit = after != taken.end() ? std::min(end, after->first) : end;
      part.size = std::min(part.size, limit - part.address);  // a size that is rounded up may reach into the next block
      if (part.allocated) {
        parts.push_back(part);
        at += part.size;
      } else {
        end_piece();
        begin = at = part.address + part.size;
      }
    }
    fill_to(end);
    end_piece();
  }
}

}  // namespace gmm_torch

#endif
