// SPDX-License-Identifier: Apache-2.0
// The private pools of a device: the memory of CUDA graphs and of torch.cuda.MemPool, whose addresses PyTorch wants to
// see, keep and restore. A pool takes segments of gmm and divides them itself, by the rules of PyTorch's own allocator.
// All other tensors are blocks of gmm, which no pool sees. The file compiles and is tested without PyTorch's headers.
//
// Invariants: the blocks of a segment have no gaps between them; no two free blocks of a segment are neighbours; a free
// block that no stream uses is in its pool's set.
//
// Locks: one mutex for a device's pools. No call of gmm runs under it but those of events, because a callback of the
// program may wait for a thread that frees a tensor. No event is asked while threads allocate to a pool, as a graph may
// be captured there.
#ifndef GMM_TORCH_POOLS_HPP
#define GMM_TORCH_POOLS_HPP

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

#include "memory.hpp"

namespace gmm_torch {

using PoolId = std::pair<unsigned long long, unsigned long long>;  // PyTorch's MempoolId_t

// PyTorch's allocator rounds sizes to 512 bytes and calls a block of at most 1 MiB small. Its names count such sizes.
constexpr uint64_t kRound = 512;
constexpr uint64_t kSmallSize = 1 << 20;
constexpr uint64_t kSmallSegment = 2ull << 20;
constexpr uint64_t kLargeSegment = 20ull << 20;
constexpr uint64_t kLargeRequest = 10ull << 20;  // from here on a request gets a segment of its own size

constexpr uint64_t rounded(uint64_t size) { return size < kRound ? kRound : (size + kRound - 1) & ~(kRound - 1); }

// A part of a segment, as a snapshot describes it.
struct Part {
  uint64_t address = 0, size = 0, requested = 0;
  bool allocated = false, active = false;  // active: allocated, or still used by a stream
  gmm_stream stream = nullptr;
};

struct Pool;

struct Segment {
  uint64_t address, size;
  gmm_stream stream;
  bool small;
  Pool *pool;
};

struct PoolBlock : Part {
  Segment *segment = nullptr;
  Uses uses;  // by record_stream()
};

struct BySize {
  bool operator()(const PoolBlock *a, const PoolBlock *b) const {
    return std::tuple(a->stream, a->size, a->address) < std::tuple(b->stream, b->size, b->address);
  }
};

struct Pool {
  PoolId id;
  int64_t uses = 0;
  bool use_on_oom = false, no_split = false;
  std::shared_ptr<void> source;          // an allocator of the program for the segments; NULL: gmm
  std::map<uint64_t, Segment> segments;  // by address
  std::map<uint64_t, PoolBlock> blocks;  // of all segments, by address
  std::set<PoolBlock *, BySize> free_blocks[2];
};

// A block of a pool at one moment.
struct PoolPart {
  PoolId pool;
  Segment segment;
  Part part;
};

// The services that the pools of a device need.
class Backing {
 public:
  virtual void *take(uint64_t size, const std::shared_ptr<void> &source, gmm_stream stream) = 0;  // NULL: there is none
  virtual void freed(const PoolBlock &block) = 0;  // streams have finished with a block that was freed before

 protected:
  ~Backing() = default;
};

class Pools {
 public:
  Pools(gmm_device device, Backing &backing) : device_(device), backing_(backing) {}

  // Calls set(Pool &) with a pool, which is made when it is new.
  template <class Set>
  void configure(PoolId id, Set set) {
    const Guard guard(mutex_);
    set(pool_of(id));
  }

  // Counts one more user of a pool.
  void retain(PoolId id) {
    configure(id, [](Pool &pool) { ++pool.uses; });
  }

  // A pool without users keeps its memory until collect().
  void release(PoolId id) {
    const Guard guard(mutex_);
    const auto at = pools_.find(id);
    if (at == pools_.end()) return;
    if (at->second.uses > 0) --at->second.uses;
    if (at->second.uses == 0 && at->second.segments.empty()) pools_.erase(at);
  }

  int64_t uses(PoolId id) const {
    const Guard guard(mutex_);
    const auto at = pools_.find(id);
    return at == pools_.end() ? 0 : at->second.uses;
  }

  // From now on threads allocate to the pool, for whose streams the filter is true. False: they do already.
  bool begin(PoolId id, std::function<bool(gmm_stream)> filter) {
    const Guard guard(mutex_);
    for (const auto &each : begun_)
      if (each.first == id) return false;
    begun_.emplace_back(id, std::move(filter));
    any_begun_.store(true, std::memory_order_release);
    return true;
  }

  // False: no thread allocates to the pool.
  bool end(PoolId id) {
    const Guard guard(mutex_);
    const bool found = std::erase_if(begun_, [&](const auto &each) { return each.first == id; }) != 0;
    any_begun_.store(!begun_.empty(), std::memory_order_release);
    return found;
  }

  // The pool that an allocation on a stream of this thread goes to: the one that was begun first, as in PyTorch.
  bool find(gmm_stream stream, PoolId *out) const {
    if (!any_begun_.load(std::memory_order_acquire)) return false;
    const Guard guard(mutex_);
    const auto at = std::find_if(begun_.begin(), begun_.end(), [&](const auto &each) { return each.second(stream); });
    if (at != begun_.end()) *out = at->first;
    return at != begun_.end();
  }

  PoolBlock *allocate(PoolId id, uint64_t requested, gmm_stream stream) {
    const uint64_t size = rounded(requested);
    const bool small = size <= kSmallSize;
    uint64_t segment_size = 0;
    std::shared_ptr<void> source;
    {
      const Guard guard(mutex_);
      if (begun_.empty()) process_events();
      Pool &pool = pool_of(id);
      if (PoolBlock *block = reuse(pool, requested, stream)) return block;
      segment_size = small ? kSmallSegment : size < kLargeRequest ? kLargeSegment : whole(size);
      if (pool.no_split) segment_size = whole(size);
      source = pool.source;
    }
    void *memory = backing_.take(segment_size, source, stream);
    if (memory == nullptr && segment_size > whole(size)) {
      segment_size = whole(size);
      memory = backing_.take(segment_size, source, stream);
    }
    if (memory == nullptr) return nullptr;
    const Guard guard(mutex_);
    Pool &pool = pool_of(id);
    const uint64_t address = reinterpret_cast<uintptr_t>(memory);
    Segment &segment = pool.segments[address] = {address, segment_size, stream, small, &pool};
    return use(add(segment, address, segment_size, stream), size, requested);
  }

  // A block of any pool that lends its memory when the device has no more.
  PoolBlock *borrow(uint64_t requested, gmm_stream stream, PoolId *from) {
    const Guard guard(mutex_);
    process_events();
    for (auto &[id, pool] : pools_) {
      PoolBlock *block = pool.use_on_oom ? reuse(pool, requested, stream) : nullptr;
      if (block == nullptr) continue;
      *from = id;
      return block;
    }
    return nullptr;
  }

  // Frees a block. True: it is free now; false: streams of record_stream() still use it, and freed() comes later.
  bool free(PoolBlock *block) {
    const Guard guard(mutex_);
    block->allocated = false;
    block->requested = 0;
    const bool idle = block->uses.empty() || (begun_.empty() && block->uses.have_passed(false));
    if (idle)
      put(block);
    else
      waiting_.push_back(block);  // in a capture without its events, which would never pass
    return idle;
  }

  void record(PoolBlock *block, gmm_stream stream) {
    const Guard guard(mutex_);
    if (stream != block->stream) block->uses.add(device_, stream);
  }

  // The segments without a busy block, of pools without users. The caller waits for the device, then gives them back.
  // None while threads allocate to a pool, as a capture forbids the wait. only: the one pool; {0, 0}: all.
  struct Idle {
    void *memory;
    uint64_t size;
    std::shared_ptr<void> source;
  };
  std::vector<Idle> collect(PoolId only = {}) {
    std::vector<Idle> idle;
    const Guard guard(mutex_);
    if (!begun_.empty()) return idle;
    process_events();
    for (auto at = pools_.begin(); at != pools_.end();) {
      Pool &pool = at->second;
      if (pool.uses != 0 || (only != PoolId{} && only != pool.id)) {
        ++at;
        continue;
      }
      for (auto next = pool.segments.begin(); next != pool.segments.end();) {
        const auto segment = next++;
        const auto block = pool.blocks.find(segment->first);
        if (block->second.size != segment->second.size || block->second.active) continue;
        idle.push_back({reinterpret_cast<void *>(segment->first), segment->second.size, pool.source});
        pool.free_blocks[segment->second.small].erase(&block->second);
        pool.blocks.erase(block);
        pool.segments.erase(segment);
      }
      at = pool.segments.empty() ? pools_.erase(at) : std::next(at);
    }
    return idle;
  }

  // The blocks of all segments, by pool and address. only: of one pool; {0, 0}: of all.
  std::vector<PoolPart> parts(PoolId only = {}) const {
    std::vector<PoolPart> out;
    const Guard guard(mutex_);
    for (const auto &[id, pool] : pools_)
      if (only == PoolId{} || only == id)
        for (const auto &[address, block] : pool.blocks) out.push_back({id, *block.segment, block});
    return out;
  }

  // Makes a pool's blocks those of parts(). Segments that are newer become free. freed: the blocks that were allocated;
  // made: those that are now. False: a segment of them is gone, or a freed block's stream cannot be waited for;
  // nothing changes.
  bool restore(PoolId id, const std::vector<PoolPart> &wanted, std::vector<void *> *freed,
               std::vector<PoolBlock *> *made) {
    const Guard guard(mutex_);
    process_events(true);
    const auto found = pools_.find(id);
    if (found == pools_.end()) return wanted.empty();
    Pool &pool = found->second;
    for (const PoolPart &each : wanted)
      if (pool.segments.count(each.segment.address) == 0) return false;
    for (const PoolBlock *block : waiting_)
      if (block->segment->pool == &pool) return false;
    for (const auto &[address, block] : pool.blocks)
      if (block.allocated) freed->push_back(reinterpret_cast<void *>(address));
    for (auto &free_blocks : pool.free_blocks) free_blocks.clear();
    pool.blocks.clear();
    for (const auto &[of_pool, segment, from] : wanted) {
      PoolBlock *block = add(pool.segments[segment.address], from.address, from.size, from.stream);
      if (from.allocated)
        made->push_back(use(block, from.size, from.requested));
      else
        put(block);
    }
    for (auto &[address, segment] : pool.segments)
      if (pool.blocks.count(address) == 0) put(add(segment, address, segment.size, segment.stream));
    return true;
  }

 private:
  using Guard = std::lock_guard<std::mutex>;

  static uint64_t whole(uint64_t size) { return (size + kSmallSegment - 1) & ~(kSmallSegment - 1); }

  Pool &pool_of(PoolId id) {
    Pool &pool = pools_[id];
    pool.id = id;
    return pool;
  }

  // A block of the memory that the pool has; NULL: none fits.
  static PoolBlock *reuse(Pool &pool, uint64_t requested, gmm_stream stream) {
    PoolBlock key;
    key.stream = stream;
    key.size = rounded(requested);
    auto &free_blocks = pool.free_blocks[key.size <= kSmallSize];
    const auto at = free_blocks.lower_bound(&key);
    if (at == free_blocks.end() || (*at)->stream != stream) return nullptr;
    return use(free_blocks.extract(at).value(), key.size, requested);
  }

  // A free block that is in no set.
  static PoolBlock *add(Segment &segment, uint64_t address, uint64_t size, gmm_stream stream) {
    PoolBlock &block = segment.pool->blocks[address];
    block = {{address, size, 0, false, false, stream}, &segment, {}};
    return &block;
  }

  // Takes the first bytes of a free block that is in no set.
  static PoolBlock *use(PoolBlock *block, uint64_t size, uint64_t requested) {
    Segment &segment = *block->segment;
    Pool &pool = *segment.pool;
    const uint64_t rest = block->size - size;
    if (!pool.no_split && rest >= (segment.small ? kRound : kSmallSize + 1)) {
      block->size = size;
      pool.free_blocks[segment.small].insert(add(segment, block->address + size, rest, block->stream));
    }
    block->allocated = block->active = true;
    block->requested = requested;
    return block;
  }

  // Puts a free block into its pool's set, joined with free neighbours.
  static void put(PoolBlock *block) {
    Segment &segment = *block->segment;
    auto &blocks = segment.pool->blocks;
    auto &free_blocks = segment.pool->free_blocks[segment.small];
    const auto join = [&](auto first, auto second) {
      if (first->second.segment != &segment || second->second.segment != &segment) return false;
      if (first->second.active || second->second.active) return false;
      free_blocks.erase(&first->second);
      free_blocks.erase(&second->second);
      first->second.size += second->second.size;
      blocks.erase(second);
      return true;
    };
    auto at = blocks.find(block->address);
    block->active = false;
    if (const auto after = std::next(at); after != blocks.end()) join(at, after);
    if (at != blocks.begin())
      if (const auto before = std::prev(at); join(before, at)) at = before;
    free_blocks.insert(&at->second);
  }

  // wait: until every stream has finished.
  void process_events(bool wait = false) {
    std::erase_if(waiting_, [&](PoolBlock *block) {
      if (!block->uses.have_passed(wait)) return false;
      backing_.freed(*block);
      put(block);
      return true;
    });
  }

  mutable std::mutex mutex_;
  const gmm_device device_;
  Backing &backing_;
  std::map<PoolId, Pool> pools_;
  std::vector<PoolBlock *> waiting_;  // freed blocks that streams still use
  std::vector<std::pair<PoolId, std::function<bool(gmm_stream)>>> begun_;
  std::atomic<bool> any_begun_{false};  // while it is false, a device's allocations only read this
};

}  // namespace gmm_torch

#endif
