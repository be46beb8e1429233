// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/heap_caches.h"

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

void *alloc(Heap &heap, uint64_t size, gmm_stream stream = kDefaultStream) {
  void *block = nullptr;
  EXPECT_TRUE(cached_alloc(heap, size, 0, stream, &block).ok()) << last_message();
  return block;
}

// Each has a few free blocks of every class: little for a thread, and much for hundreds of them.
TEST(HeapCaches, IdleThreadsHoldLittleTogether) {
  constexpr uint32_t kThreads = 192;
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i) {
    std::atomic<bool> touched{false};
    threads.emplace_back([&] {
      for (uint32_t index = 0; index < kSmallClasses; ++index)
        EXPECT_TRUE(cached_free(engine.core, alloc(*heap, small_class_size(index)), kDefaultStream).ok());
      touched = true;
      while (!over) usleep(1000);
    });
    while (!touched) usleep(100);
  }
  EXPECT_LE(heap->own_quota().held(), GrowthPolicy::kMostIdle * 3);
  over = true;
  for (std::thread &thread : threads) thread.join();
  uint64_t released = 0;
  EXPECT_TRUE(heap->reclaim().release(UINT64_MAX, true, &released).ok());
  EXPECT_EQ(heap->own_quota().held(), 0u);
  EXPECT_TRUE(heap->close(false).ok());
}

}  // namespace
}  // namespace gmm::test
