// SPDX-License-Identifier: Apache-2.0
// The book that native_allocator.cpp keeps of PyTorch's blocks: which are live, what they add up to, and what happened.
// Nothing here is PyTorch's, so the file compiles and is tested without its headers.
//
// Locks: a Ledger's shards and a DeviceStats each have a lock of their own, held for some tens of nanoseconds. No call
// leaves this file under one.
#ifndef GMM_TORCH_NATIVE_LEDGER_HPP
#define GMM_TORCH_NATIVE_LEDGER_HPP

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace gmm_torch {

using Stream = void *;

struct PoolId {
  uint64_t first = 0, second = 0;
  bool operator==(const PoolId &other) const { return first == other.first && second == other.second; }
  bool operator!=(const PoolId &other) const { return !(*this == other); }
  bool operator<(const PoolId &other) const {
    return first != other.first ? first < other.first : second < other.second;
  }
};

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

// PyTorch's allocator rounds sizes to 512 bytes and calls a block of at most 1 MiB small. Its names count such sizes.
constexpr uint64_t kRound = 512;
constexpr uint64_t kSmallSize = 1 << 20;

constexpr uint64_t rounded(uint64_t size) { return size < kRound ? kRound : (size + kRound - 1) & ~(kRound - 1); }

struct Stat {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;

  void add(int64_t amount) {
    current += amount;
    peak = std::max(peak, current);
    allocated += amount;
  }
  void take(int64_t amount) {
    current -= amount;
    freed += amount;
  }
  // For what is only read now and then.
  void set(int64_t now) {
    if (now > current) add(now - current);
    if (now < current) take(current - now);
  }
  void reset_peak() { peak = current; }
  void reset_accumulated() { allocated = freed = 0; }
};

enum Type { kAggregate, kSmall, kLarge, kTypes };

struct Counters {
  Stat allocation[kTypes], allocated_bytes[kTypes], requested_bytes[kTypes], active[kTypes], active_bytes[kTypes];
  Stat segment[kTypes], reserved_bytes[kTypes], inactive_split[kTypes], inactive_split_bytes[kTypes];
  int64_t retries = 0, ooms = 0;
};

// What PyTorch calls inactive split blocks: the free parts of segments that have live parts, too. A segment without any
// could go back to the driver.
struct Inactive {
  int64_t blocks = 0, bytes = 0;
};

// The counters of a device.
class DeviceStats {
 public:
  void allocate(uint64_t size, uint64_t requested) {
    const std::lock_guard<SpinLock> guard(lock_);
    change(size, requested, [](Stat &stat, int64_t amount) { stat.add(amount); });
    activate(size, [](Stat &stat, int64_t amount) { stat.add(amount); });
  }

  // active: false while streams of record_stream() still use the block.
  void release(uint64_t size, uint64_t requested, bool active) {
    const std::lock_guard<SpinLock> guard(lock_);
    change(size, requested, [](Stat &stat, int64_t amount) { stat.take(amount); });
    if (!active) activate(size, [](Stat &stat, int64_t amount) { stat.take(amount); });
  }

  void deactivate(uint64_t size) {
    const std::lock_guard<SpinLock> guard(lock_);
    activate(size, [](Stat &stat, int64_t amount) { stat.take(amount); });
  }

  void count_retry() {
    const std::lock_guard<SpinLock> guard(lock_);
    ++counters_.retries;
  }

  void count_oom() {
    const std::lock_guard<SpinLock> guard(lock_);
    ++counters_.ooms;
  }

  // What the heaps hold now, and the most that they held so far. The heaps' extents serve both sizes: the small pool's
  // share of the reserved bytes is what small blocks take, and the large pool's is the rest.
  void observe(uint64_t reserved, uint64_t peak_reserved, uint64_t extents) {
    const std::lock_guard<SpinLock> guard(lock_);
    Counters &c = counters_;
    const int64_t small = std::min(static_cast<int64_t>(reserved), c.active_bytes[kSmall].current);
    c.reserved_bytes[kSmall].set(small);
    c.reserved_bytes[kLarge].set(static_cast<int64_t>(reserved) - small);
    c.reserved_bytes[kAggregate].set(static_cast<int64_t>(reserved));
    // A peak that rose since the last look is a peak since the last reset too.
    if (peak_reserved > peak_seen_)
      c.reserved_bytes[kAggregate].peak =
          std::max(c.reserved_bytes[kAggregate].peak, static_cast<int64_t>(peak_reserved));
    peak_seen_ = std::max(peak_seen_, peak_reserved);
    c.segment[kLarge].set(static_cast<int64_t>(extents));
    c.segment[kAggregate].set(static_cast<int64_t>(extents));
  }

  // Free memory beside live blocks. Like the heaps' other memory it is the large pool's.
  void observe_inactive(const Inactive &now) {
    const std::lock_guard<SpinLock> guard(lock_);
    for (const Type type : {kAggregate, kLarge}) {
      counters_.inactive_split[type].set(now.blocks);
      counters_.inactive_split_bytes[type].set(now.bytes);
    }
  }

  // How often blocks changed.
  uint64_t changes() const {
    const std::lock_guard<SpinLock> guard(lock_);
    return changes_;
  }

  Counters read() const {
    const std::lock_guard<SpinLock> guard(lock_);
    return counters_;
  }

  void reset_peaks() {
    each([](Stat &stat) { stat.reset_peak(); });
  }

  void reset_accumulated() {
    each([](Stat &stat) { stat.reset_accumulated(); });
    const std::lock_guard<SpinLock> guard(lock_);
    counters_.retries = counters_.ooms = 0;
  }

 private:
  template <class Do>
  void change(uint64_t size, uint64_t requested, Do change_one) {
    ++changes_;
    const Type type = size <= kSmallSize ? kSmall : kLarge;
    for (const Type which : {kAggregate, type}) {
      change_one(counters_.allocation[which], 1);
      change_one(counters_.allocated_bytes[which], static_cast<int64_t>(size));
      change_one(counters_.requested_bytes[which], static_cast<int64_t>(requested));
    }
  }

  template <class Do>
  void activate(uint64_t size, Do change_one) {
    ++changes_;
    const Type type = size <= kSmallSize ? kSmall : kLarge;
    for (const Type which : {kAggregate, type}) {
      change_one(counters_.active[which], 1);
      change_one(counters_.active_bytes[which], static_cast<int64_t>(size));
    }
  }

  template <class Do>
  void each(Do with) {
    const std::lock_guard<SpinLock> guard(lock_);
    Counters &c = counters_;
    for (Stat *stats : {c.allocation, c.allocated_bytes, c.requested_bytes, c.active, c.active_bytes, c.segment,
                        c.reserved_bytes, c.inactive_split, c.inactive_split_bytes})
      for (uint32_t type = 0; type < kTypes; ++type) with(stats[type]);
  }

  mutable SpinLock lock_;
  Counters counters_;
  uint64_t peak_seen_ = 0, changes_ = 0;
};

struct PoolBlock;  // native_pools.hpp

// A live block.
struct Live {
  void *memory = nullptr;
  uint64_t requested = 0;
  Stream stream = nullptr;
  PoolBlock *block = nullptr;  // of a private pool; NULL: gmm's own block
  void *context = nullptr;     // where it was allocated, while a history is recorded; the owner frees it
  PoolId pool;
  int32_t device = 0;
};

// The live blocks by address: hash tables with open addressing, one for each shard of the addresses.
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
  bool take(void *memory, Live *out) {
    const uint64_t hash = hash_of(memory);
    Shard &shard = shards_[hash >> kShardShift];
    const std::lock_guard<SpinLock> guard(shard.lock);
    if (shard.slots.empty()) return false;
    Live *slot = find(shard, hash, memory);
    if (slot->memory == nullptr) return false;
    *out = *slot;
    remove(shard, slot);
    --shard.count;
    return true;
  }

  bool look(void *memory, Live *out) const {
    const uint64_t hash = hash_of(memory);
    Shard &shard = shards_[hash >> kShardShift];
    const std::lock_guard<SpinLock> guard(shard.lock);
    if (shard.slots.empty()) return false;
    const Live *slot = find(shard, hash, memory);
    if (slot->memory == nullptr) return false;
    *out = *slot;
    return true;
  }

  // Calls visit(Live &) for each block of a shard while its lock is held.
  template <class Visit>
  void each(Visit visit) const {
    for (Shard &shard : shards_) {
      const std::lock_guard<SpinLock> guard(shard.lock);
      for (Live &live : shard.slots)
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

// The last entries of a history.
template <class Entry>
class Ring {
 public:
  void resize(size_t most) {
    const std::lock_guard<std::mutex> guard(mutex_);
    most_ = std::max<size_t>(1, most);
    if (entries_.size() > most_) {
      std::vector<Entry> last = in_order();
      entries_.assign(last.end() - static_cast<ptrdiff_t>(most_), last.end());
      next_ = 0;
    } else if (next_ != 0) {
      entries_ = in_order();
      next_ = 0;
    }
  }

  void add(Entry entry) {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (entries_.size() < most_) {
      entries_.push_back(std::move(entry));
      return;
    }
    std::swap(entries_[next_], entry);  // what goes ends behind the lock's scope
    next_ = (next_ + 1) % most_;
  }

  std::vector<Entry> read() const {
    const std::lock_guard<std::mutex> guard(mutex_);
    return in_order();
  }

  void clear() {
    std::vector<Entry> gone;
    const std::lock_guard<std::mutex> guard(mutex_);
    gone.swap(entries_);
    next_ = 0;
  }

 private:
  std::vector<Entry> in_order() const {
    std::vector<Entry> all(entries_.begin() + static_cast<ptrdiff_t>(next_), entries_.end());
    all.insert(all.end(), entries_.begin(), entries_.begin() + static_cast<ptrdiff_t>(next_));
    return all;
  }

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  size_t most_ = 1, next_ = 0;
};

// A part of a segment, as a snapshot tells it.
struct Part {
  uint64_t address = 0, size = 0, requested = 0;
  bool allocated = false, active = false;
  void *context = nullptr;
  Stream stream = nullptr;
};

struct Range {
  uint64_t address = 0, size = 0;
};

// For which blocks and extents what is free was counted last, and those extents.
struct Looked {
  std::mutex mutex;
  uint64_t blocks = UINT64_MAX, extents = UINT64_MAX;
  std::vector<Range> ranges;
};

// Joins ranges that touch.
inline std::vector<Range> joined(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range &a, const Range &b) { return a.address < b.address; });
  std::vector<Range> out;
  for (const Range &range : ranges) {
    if (!out.empty() && out.back().address + out.back().size == range.address)
      out.back().size += range.size;
    else
      out.push_back(range);
  }
  return out;
}

// Ranges without the parts of them that `holes` cover.
inline std::vector<Range> without(const std::vector<Range> &ranges, std::vector<Range> holes) {
  std::sort(holes.begin(), holes.end(), [](const Range &a, const Range &b) { return a.address < b.address; });
  std::vector<Range> out;
  for (const Range &range : ranges) {
    const uint64_t end = range.address + range.size;
    uint64_t at = range.address;
    for (const Range &hole : holes) {
      if (hole.address + hole.size <= at || hole.address >= end) continue;
      if (hole.address > at) out.push_back({at, hole.address - at});
      at = std::max(at, hole.address + hole.size);
    }
    if (at < end) out.push_back({at, end - at});
  }
  return out;
}

// The parts of a range, in order and without gaps: live blocks, sorted by address, and what is free between them.
inline std::vector<Part> parts_of(const Range &range, const std::vector<Part> &live) {
  std::vector<Part> out;
  const uint64_t end = range.address + range.size;
  uint64_t at = range.address;
  auto next = std::lower_bound(live.begin(), live.end(), at,
                               [](const Part &part, uint64_t address) { return part.address < address; });
  for (; next != live.end() && next->address < end; ++next) {
    Part part = *next;
    if (part.address > at) {
      Part gap;
      gap.address = at;
      gap.size = part.address - at;
      out.push_back(gap);
    }
    part.size = std::min(part.size, end - part.address);
    const auto after = next + 1;
    if (after != live.end()) part.size = std::min(part.size, after->address - part.address);
    at = part.address + part.size;
    out.push_back(part);
  }
  if (at < end) {
    Part gap;
    gap.address = at;
    gap.size = end - at;
    out.push_back(gap);
  }
  return out;
}

inline void add_inactive(const std::vector<Part> &parts, Inactive *out) {
  const auto is_active = [](const Part &part) { return part.active; };
  if (std::none_of(parts.begin(), parts.end(), is_active)) return;
  for (const Part &part : parts) {
    if (part.active) continue;
    ++out->blocks;
    out->bytes += static_cast<int64_t>(part.size);
  }
}

}  // namespace gmm_torch

#endif
