// SPDX-License-Identifier: Apache-2.0
// A heap over the host backend without a context, and what must hold of it after every step.
#ifndef GMM_TESTS_UNIT_ENGINE_HEAP_TEST_SUPPORT_H
#define GMM_TESTS_UNIT_ENGINE_HEAP_TEST_SUPPORT_H

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <bit>
#include <chrono>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "engine/context/context.h"
#include "engine/failing_backend.h"
#include "engine/heap/thread_cache.h"
#include "soon.h"

namespace gmm::test {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr gmm_stream kDefaultStream = GMM_STREAM_DEFAULT;
inline constexpr StreamKey kKey{GMM_STREAM_DEFAULT, 0};

// The objects of a context that heaps need.
class Engine {
 public:
  explicit Engine(uint64_t memory = uint64_t{4} << 30, const Log &log = Log(nullptr, nullptr), uint32_t devices = 1)
      : core(HostAllocator(), log) {
    gate_ = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    core.gate = ::new (gate_) Gate();
    EXPECT_TRUE(core.page_map.init());
    Backend *host = nullptr;
    EXPECT_TRUE(
        host_backend_create(HostAllocator(), Log(nullptr, nullptr), HostBackendOptions{memory, devices}, &host).ok());
    backend = std::make_unique<FailingBackend>(host);
    core.backend = backend.get();
    prepare_barriers();
  }
  ~Engine() {
    backend->destroy();
    munmap(gate_, 4096);
  }
  gmm_stream stream() {
    gmm_stream made = nullptr;
    EXPECT_TRUE(backend->stream_create(Device{0}, 0, &made).ok());
    return made;
  }

  std::unique_ptr<FailingBackend> backend;
  Core core;
  BackupStore backups{core};
  HeapSet heaps{core.allocator};
  CaptureHeaps captures{core.allocator};

 private:
  void *gate_;
};

inline std::unique_ptr<Heap> make_heap(Engine &engine, Kind kind, uint64_t minimum_extent = 0) {
  HeapOptions options;
  options.kind = kind;
  options.device = Device{0};
  options.minimum_extent = minimum_extent;
  auto heap = std::make_unique<Heap>(engine.core, engine.backups, engine.captures, options);
  EXPECT_TRUE(heap->init().ok());
  return heap;
}

// One block; {nullptr, nullptr} when nothing free fits and the heap may not grow.
inline Status take(Heap &heap, uint64_t size, StreamKey key, bool may_grow, CacheEntry *out, uint64_t alignment = 1) {
  BlockRequest request;
  request.size = size;
  request.alignment = alignment;
  request.key = key;
  request.may_grow = may_grow;
  *out = CacheEntry{nullptr, nullptr};
  uint32_t count = 0;
  return heap.take(request, out, &count);
}

// A block that is handed out; put() takes it back.
inline CacheEntry taken(Heap &heap, uint64_t size, StreamKey key = kKey) {
  CacheEntry entry;
  EXPECT_TRUE(take(heap, size, key, true, &entry).ok()) << last_message();
  EXPECT_NE(entry.block, nullptr);
  entry.slot->store(size);
  return entry;
}

inline void put(Heap &heap, const CacheEntry &entry, StreamKey key = kKey) {
  entry.slot->store(0);
  heap.caches().count(HeapTotals{.frees = 1});
  heap.put_back(&entry, 1, key);
}

// Spans tile every region, free runs lie on memory, and the quota holds what extents have.
inline void check_heap(Engine &engine, Heap &heap) {
  const Core &core = engine.core;
  LockGuard guard(heap.mutex);
  constexpr uint64_t kSearched = uint64_t{256} << 20;  // not every granule of a region's unused addresses
  uint64_t held = 0;
  heap.for_each_region([&](Region &each) {
    Region *const region = &each;
    const uintptr_t end = region->base + region->size;
    uint64_t live = 0;
    bool last_was_unbacked = false;
    Span *span = region->first, *last = nullptr;
    for (uintptr_t at = region->base; at < end; last = span, span = span->after) {
      ASSERT_NE(span, nullptr);
      ASSERT_EQ(span->before, last);
      ASSERT_EQ(span->begin(), at);
      ASSERT_GT(span->bytes(), 0u);
      ASSERT_EQ(span->bytes() % kGranule, 0u);
      ASSERT_EQ(span->region, region);
      ASSERT_EQ(span->heap.load(), &heap);
      ASSERT_FALSE(span->is(SpanState::kNone));
      if (span->live()) {
        ++live;
        for (uintptr_t inside = span->begin(); inside < span->end(); inside += kGranule)
          ASSERT_EQ(core.page_map.find(reinterpret_cast<void *>(inside)), span);
      } else if (span->bytes() < kSearched) {
        for (uintptr_t inside = span->begin(); inside < span->end(); inside += kGranule) {
          const Span *found = core.page_map.find(reinterpret_cast<void *>(inside));
          ASSERT_FALSE(found != nullptr && found->live() && inside - found->begin() < found->bytes());
        }
      }
      ASSERT_FALSE(last_was_unbacked && span->is(SpanState::kUnbacked)) << "unbacked neighbours are one span";
      last_was_unbacked = span->is(SpanState::kUnbacked);
      const bool paused = region->paused != 0;
      if (span->is(SpanState::kFree)) {
        ASSERT_EQ(span->listed, !paused);
      }
      if (span->is(SpanState::kSlab)) {
        ASSERT_EQ(span->listed, !paused && span->free_blocks != 0);
      }
      for (uintptr_t inside = span->begin(); inside < span->end(); inside += kExtentAlignment)
        ASSERT_EQ(core.page_map.find_extent(reinterpret_cast<void *>(inside)) == nullptr,
                  span->is(SpanState::kUnbacked));
      at = span->end();
      ASSERT_LE(at, end);
    }
    ASSERT_EQ(span, nullptr);
    ASSERT_EQ(live, region->live_spans);
    for (Extent *extent = region->extents.front(); extent != nullptr; extent = region->extents.next(extent)) {
      if (extent->mapped || extent->handle.value != 0) held += extent->size;
      ASSERT_EQ(extent->region.load(), region);
    }
  });
  ASSERT_EQ(heap.own_quota().held(), held);
}

}  // namespace gmm::test
#endif
