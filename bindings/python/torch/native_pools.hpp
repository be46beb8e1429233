// SPDX-License-Identifier: Apache-2.0
// The private pools of a device: the memory of CUDA graphs and of torch.cuda.MemPool, whose addresses PyTorch wants to
// see, keep and restore. A pool takes segments of gmm and divides them itself, by the rules of PyTorch's own allocator.
// All other tensors are blocks of gmm, which no pool sees.
//
// Invariants: a segment's blocks are a list in the order of their addresses, without gaps; no two free blocks of a
// segment are neighbours; a free block that no stream uses is in its pool's set.
//
// Locks: one mutex for a device's pools. No call of gmm runs under it but those of events, because a callback of the
// program may wait for a thread that frees a tensor.
#ifndef GMM_TORCH_NATIVE_POOLS_HPP
#define GMM_TORCH_NATIVE_POOLS_HPP

#include <deque>
#include <map>
#include <set>

#include "native_ledger.hpp"

namespace gmm_torch {

constexpr uint64_t kSmallSegment = 2ull << 20;
constexpr uint64_t kLargeSegment = 20ull << 20;
constexpr uint64_t kLargeRequest = 10ull << 20;  // from here on a request gets a segment of its own size

struct Pool;
struct Segment;

struct PoolBlock {
  uint64_t address = 0, size = 0, requested = 0;
  Stream stream = nullptr;
  Segment *segment = nullptr;
  PoolBlock *before = nullptr, *after = nullptr;
  bool allocated = false;
  uint32_t events = 0;          // of streams that still use the block
  std::vector<Stream> streams;  // of record_stream()

  bool busy() const { return allocated || events != 0 || !streams.empty(); }
};

struct BySize {
  bool operator()(const PoolBlock *a, const PoolBlock *b) const {
    if (a->stream != b->stream) return a->stream < b->stream;
    return a->size != b->size ? a->size < b->size : a->address < b->address;
  }
};

struct Segment {
  uint64_t address = 0, size = 0;
  Stream stream = nullptr;
  bool small = false;
  Pool *pool = nullptr;
  PoolBlock *first = nullptr;
};

struct Pool {
  PoolId id;
  int64_t uses = 0;
  bool use_on_oom = false, no_split = false;
  std::shared_ptr<void> source;  // an allocator of the program for the segments; NULL: gmm
  std::set<PoolBlock *, BySize> free_blocks[2];
  std::vector<std::unique_ptr<Segment>> segments;
};

// A pool's blocks at one moment.
struct PoolState {
  struct Block {
    uint64_t address, size, requested;
    Stream stream;
    bool allocated;
  };
  PoolId id;
  std::map<uint64_t, std::vector<Block>> segments;  // by address
};

// What the pools of a device need.
class Backing {
 public:
  virtual void *take(uint64_t size, const std::shared_ptr<void> &source, Stream stream) = 0;  // NULL: there is none
  virtual void give(void *memory, uint64_t size, const std::shared_ptr<void> &source) = 0;
  virtual void *event(Stream stream) = 0;           // NULL: the stream's work is done
  virtual bool passed(void *event, bool wait) = 0;  // wait: until it has passed
  virtual void forget(void *event) = 0;
  virtual void freed(const PoolBlock &block) = 0;  // streams have finished with a block that was freed before

 protected:
  ~Backing() = default;
};

class Pools {
 public:
  explicit Pools(Backing &backing) : backing_(backing) {}

  // Counts one more user of a pool, which is made when it is new.
  void retain(PoolId id) {
    const Guard guard(mutex_);
    ++pool_of(id).uses;
  }

  void set_source(PoolId id, std::shared_ptr<void> source) {
    const Guard guard(mutex_);
    pool_of(id).source = std::move(source);
  }

  void set_use_on_oom(PoolId id, bool on) {
    const Guard guard(mutex_);
    pool_of(id).use_on_oom = on;
  }

  void set_no_split(PoolId id) {
    const Guard guard(mutex_);
    pool_of(id).no_split = true;
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

  bool has(PoolId id) const {
    const Guard guard(mutex_);
    return pools_.count(id) != 0;
  }

  // A block of a pool. may_grow: false leaves it at the memory that the pool has. capturing: no event may be asked.
  PoolBlock *allocate(PoolId id, uint64_t requested, Stream stream, bool capturing, bool may_grow = true) {
    const uint64_t size = rounded(requested);
    const bool small = size <= kSmallSize;
    uint64_t segment_size = 0;
    std::shared_ptr<void> source;
    {
      const Guard guard(mutex_);
      if (!capturing) process_events();
      Pool &pool = pool_of(id);
      if (PoolBlock *block = fit(pool, small, size, stream)) return use(block, size, requested);
      if (!may_grow) return nullptr;
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
    pool.segments.push_back(std::make_unique<Segment>());
    Segment &segment = *pool.segments.back();
    segment.address = reinterpret_cast<uintptr_t>(memory);
    segment.size = segment_size;
    segment.stream = stream;
    segment.small = small;
    segment.pool = &pool;
    auto *block = new PoolBlock;
    block->address = segment.address;
    block->size = segment.size;
    block->stream = stream;
    block->segment = &segment;
    segment.first = block;
    return use(block, size, requested);
  }

  // A block of any pool that lends its memory when the device has no more.
  PoolBlock *borrow(uint64_t requested, Stream stream, PoolId *from) {
    std::vector<PoolId> lenders;
    {
      const Guard guard(mutex_);
      for (const auto &entry : pools_)
        if (entry.second.use_on_oom) lenders.push_back(entry.first);
    }
    for (const PoolId id : lenders) {
      *from = id;
      if (PoolBlock *block = allocate(id, requested, stream, false, false)) return block;
    }
    return nullptr;
  }

  // Frees a block. True: it is free now; false: streams of record_stream() still use it, and freed() will tell.
  bool free(PoolBlock *block, bool capturing) {
    const Guard guard(mutex_);
    block->allocated = false;
    if (block->streams.empty()) {
      put(block);
      return true;
    }
    if (capturing) {
      deferred_.push_back(block);  // an event of a capture would never pass
    } else if (record_events(block)) {
      put(block);
      return true;
    }
    return false;
  }

  void record(PoolBlock *block, Stream stream) {
    const Guard guard(mutex_);
    if (stream == block->stream) return;
    if (std::find(block->streams.begin(), block->streams.end(), stream) == block->streams.end())
      block->streams.push_back(stream);
  }

  // The segments without a busy block, of pools without users. The caller waits for the device, then gives them back.
  // only: the one pool; {0, 0}: all.
  struct Idle {
    void *memory;
    uint64_t size;
    std::shared_ptr<void> source;
  };
  std::vector<Idle> collect(PoolId only = {}) {
    std::vector<Idle> idle;
    const Guard guard(mutex_);
    process_events();
    for (auto at = pools_.begin(); at != pools_.end();) {
      Pool &pool = at->second;
      if (pool.uses != 0 || (only != PoolId{} && only != pool.id)) {
        ++at;
        continue;
      }
      auto &segments = pool.segments;
      for (auto &segment : segments) {
        PoolBlock *block = segment->first;
        if (block->after != nullptr || block->busy()) continue;
        idle.push_back({reinterpret_cast<void *>(segment->address), segment->size, pool.source});
        pool.free_blocks[segment->small].erase(block);
        delete block;
        segment.reset();
      }
      segments.erase(std::remove(segments.begin(), segments.end(), nullptr), segments.end());
      at = segments.empty() ? pools_.erase(at) : std::next(at);
    }
    return idle;
  }

  void give(const std::vector<Idle> &idle) {
    for (const Idle &each : idle) backing_.give(each.memory, each.size, each.source);
  }

  std::vector<void *> live(PoolId id) const {
    std::vector<void *> out;
    const Guard guard(mutex_);
    each_block(id, [&](const PoolBlock &block) {
      if (block.allocated) out.push_back(reinterpret_cast<void *>(block.address));
    });
    return out;
  }

  PoolState checkpoint(PoolId id) const {
    PoolState state;
    state.id = id;
    const Guard guard(mutex_);
    each_block(id, [&](const PoolBlock &block) {
      state.segments[block.segment->address].push_back(
          {block.address, block.size, block.requested, block.stream, block.allocated});
    });
    return state;
  }

  // Makes a pool's blocks those of a state. Segments that are newer become free. freed: the blocks that were allocated;
  // made: those that are now. False: a segment of the state is gone; nothing changes. It waits for the streams that
  // still use freed blocks.
  bool restore(const PoolState &state, std::vector<void *> *freed, std::vector<PoolBlock *> *made) {
    const Guard guard(mutex_);
    process_events(true);
    const auto at = pools_.find(state.id);
    if (at == pools_.end()) return state.segments.empty();
    Pool &pool = at->second;
    size_t found = 0;
    for (const auto &segment : pool.segments) {
      found += state.segments.count(segment->address);
    }
    if (found != state.segments.size()) return false;
    for (const auto &segment : pool.segments) {
      for (PoolBlock *block = segment->first; block != nullptr;) {
        PoolBlock *after = block->after;
        if (block->allocated)
          freed->push_back(reinterpret_cast<void *>(block->address));
        else
          pool.free_blocks[segment->small].erase(block);
        delete block;
        block = after;
      }
      segment->first = nullptr;
      const auto kept = state.segments.find(segment->address);
      if (kept == state.segments.end()) {
        add(*segment, {segment->address, segment->size, 0, segment->stream, false}, nullptr, made);
        continue;
      }
      PoolBlock *last = nullptr;
      for (const PoolState::Block &block : kept->second) last = add(*segment, block, last, made);
    }
    return true;
  }

  // Calls visit(const Pool &, const Segment &, std::vector<Part>) for the segments of a pool; {0, 0}: of all.
  template <class Visit>
  void each_segment(PoolId only, Visit visit) const {
    const Guard guard(mutex_);
    for (const auto &entry : pools_) {
      if (only != PoolId{} && only != entry.first) continue;
      for (const auto &segment : entry.second.segments) {
        std::vector<Part> parts;
        for (const PoolBlock *block = segment->first; block != nullptr; block = block->after) {
          Part part;
          part.address = block->address;
          part.size = block->size;
          part.requested = block->allocated ? block->requested : 0;
          part.allocated = block->allocated;
          part.active = block->busy();
          part.stream = block->stream;
          parts.push_back(part);
        }
        visit(entry.second, *segment, parts);
      }
    }
  }

 private:
  using Guard = std::lock_guard<std::mutex>;

  static uint64_t whole(uint64_t size) { return (size + kSmallSegment - 1) & ~(kSmallSegment - 1); }

  Pool &pool_of(PoolId id) {
    Pool &pool = pools_[id];
    pool.id = id;
    return pool;
  }

  template <class Visit>
  void each_block(PoolId id, Visit visit) const {
    const auto at = pools_.find(id);
    if (at == pools_.end()) return;
    for (const auto &segment : at->second.segments)
      for (const PoolBlock *block = segment->first; block != nullptr; block = block->after) visit(*block);
  }

  static PoolBlock *fit(Pool &pool, bool small, uint64_t size, Stream stream) {
    PoolBlock key;
    key.stream = stream;
    key.size = size;
    auto &free_blocks = pool.free_blocks[small];
    const auto at = free_blocks.lower_bound(&key);
    if (at == free_blocks.end() || (*at)->stream != stream) return nullptr;
    PoolBlock *block = *at;
    free_blocks.erase(at);
    return block;
  }

  // Takes the first bytes of a free block that is in no set.
  static PoolBlock *use(PoolBlock *block, uint64_t size, uint64_t requested) {
    Pool &pool = *block->segment->pool;
    const uint64_t rest = block->size - size;
    if (!pool.no_split && rest >= (block->segment->small ? kRound : kSmallSize + 1)) {
      auto *remainder = new PoolBlock;
      remainder->address = block->address + size;
      remainder->size = rest;
      remainder->stream = block->stream;
      remainder->segment = block->segment;
      remainder->before = block;
      remainder->after = block->after;
      if (block->after != nullptr) block->after->before = remainder;
      block->after = remainder;
      block->size = size;
      pool.free_blocks[block->segment->small].insert(remainder);
    }
    block->allocated = true;
    block->requested = requested;
    return block;
  }

  // Puts a free block into its pool's set, joined with free neighbours.
  void put(PoolBlock *block) {
    Segment &segment = *block->segment;
    auto &free_blocks = segment.pool->free_blocks[segment.small];
    block->requested = 0;
    if (PoolBlock *before = block->before; before != nullptr && !before->busy()) {
      free_blocks.erase(before);
      before->size += block->size;
      before->after = block->after;
      if (block->after != nullptr) block->after->before = before;
      delete block;
      block = before;
    }
    if (PoolBlock *after = block->after; after != nullptr && !after->busy()) {
      free_blocks.erase(after);
      block->size += after->size;
      block->after = after->after;
      if (after->after != nullptr) after->after->before = block;
      delete after;
    }
    free_blocks.insert(block);
  }

  PoolBlock *add(Segment &segment, const PoolState::Block &from, PoolBlock *last, std::vector<PoolBlock *> *made) {
    auto *block = new PoolBlock;
    block->address = from.address;
    block->size = from.size;
    block->requested = from.requested;
    block->stream = from.stream;
    block->segment = &segment;
    block->allocated = from.allocated;
    block->before = last;
    if (last != nullptr)
      last->after = block;
    else
      segment.first = block;
    if (from.allocated) {
      made->push_back(block);
    } else if (last != nullptr && !last->allocated) {  // the state had a block there that a stream still used
      segment.pool->free_blocks[segment.small].erase(last);
      last->size += block->size;
      last->after = nullptr;
      delete block;
      block = last;
      segment.pool->free_blocks[segment.small].insert(block);
    } else {
      segment.pool->free_blocks[segment.small].insert(block);
    }
    return block;
  }

  // True: no stream uses the block any more.
  bool record_events(PoolBlock *block) {
    for (const Stream stream : block->streams) {
      void *event = backing_.event(stream);
      if (event == nullptr) continue;
      pending_.push_back({event, block});
      ++block->events;
    }
    block->streams.clear();
    return block->events == 0;
  }

  // wait: until every event has passed.
  void process_events(bool wait = false) {
    std::vector<PoolBlock *> deferred;
    deferred.swap(deferred_);
    for (PoolBlock *block : deferred)
      if (record_events(block)) done(block);
    std::deque<Pending> waiting;
    for (const Pending &pending : pending_) {
      if (!backing_.passed(pending.event, wait)) {
        waiting.push_back(pending);
        continue;
      }
      backing_.forget(pending.event);
      if (--pending.block->events == 0) done(pending.block);
    }
    pending_.swap(waiting);
  }

  void done(PoolBlock *block) {
    backing_.freed(*block);
    put(block);
  }

  struct Pending {
    void *event;
    PoolBlock *block;
  };

  mutable std::mutex mutex_;
  Backing &backing_;
  std::map<PoolId, Pool> pools_;
  std::deque<Pending> pending_;
  std::vector<PoolBlock *> deferred_;
};

}  // namespace gmm_torch

#endif
