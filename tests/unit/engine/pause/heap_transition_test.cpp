// SPDX-License-Identifier: Apache-2.0
#include "engine/pause/heap_transition.h"

#include <cstring>

#include "engine/heap/test_support.h"
#include "engine/pause/heap_walk.h"

namespace gmm::test {
namespace {

// The steps of a transition, each by itself.
class Steps : public HeapTransition {
 public:
  using HeapTransition::extents_;
  using HeapTransition::HeapTransition;
  using HeapTransition::map;
  using HeapTransition::parts_;
  using HeapTransition::plan;
  using HeapTransition::plan_live_ranges;
  using HeapTransition::ranges_;
  using HeapTransition::sort_planned;
  using HeapTransition::unmap;

  void plan_all() {
    for_each_extent(heap_, [&](Extent &extent) { EXPECT_TRUE(plan(extent)); });
    sort_planned();
  }
};

class HeapTransitionTest : public testing::Test {
 protected:
  HeapTransitionTest() { EXPECT_TRUE(tags.init().ok()); }
  ~HeapTransitionTest() override {
    for (auto &heap : heaps) EXPECT_TRUE(heap->close(true).ok()) << last_message();
  }
  Heap &add_heap(gmm_tag tag = 0) {
    HeapOptions options;
    options.kind = Kind::kVmm;
    options.device = Device{0};
    options.tag = tag;
    heaps.push_back(std::make_unique<Heap>(engine.core, engine.backups, engine.captures, options));
    EXPECT_TRUE(heaps.back()->init().ok());
    return *heaps.back();
  }
  static void *dedicated(Heap &heap, uint64_t size) {
    void *block = nullptr;
    EXPECT_TRUE(dedicated_alloc(heap, size, &block).ok()) << last_message();
    return block;
  }

  Engine engine;
  TagTable tags{HostAllocator()};
  ReadySignal ready;
  const TransitionContext context{engine.core, engine.backups, tags, ready};
  std::vector<std::unique_ptr<Heap>> heaps;
};

TEST_F(HeapTransitionTest, TheLiveRangesOfAnExtentAreItsPart) {
  Heap &heap = add_heap();
  for (int i = 0; i < 4; ++i) dedicated(heap, uint64_t{2} << 20);
  LockGuard guard(heap.mutex);
  Steps steps(context, heap);
  steps.plan_all();
  ASSERT_TRUE(steps.plan_live_ranges().ok());
  ASSERT_EQ(steps.parts_.size(), steps.extent_count());
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < steps.parts_.size(); ++i) {
    const Extent &extent = *steps.extents_[i].extent;
    if (i != 0) {
      EXPECT_LE(end_of(*steps.extents_[i - 1].extent), base_of(extent)) << "extents are planned by address";
    }
    for (uint64_t k = 0; k < steps.parts_[i].range_count; ++k) {
      const ByteRange range = steps.parts_[i].ranges[k];
      EXPECT_GE(range.base, base_of(extent));
      EXPECT_LE(range.end(), end_of(extent));
      bytes += range.size;
    }
  }
  EXPECT_EQ(bytes, steps.bytes());
  EXPECT_EQ(bytes, uint64_t{8} << 20);
}

TEST_F(HeapTransitionTest, UnmapsAndMapsAgain) {
  Heap &heap = add_heap();
  char *block = static_cast<char *>(dedicated(heap, uint64_t{1} << 20));
  std::memset(block, 7, 4096);
  LockGuard guard(heap.mutex);
  Steps steps(context, heap);
  steps.plan_all();
  ASSERT_TRUE(steps.unmap(0, steps.extent_count()).ok());
  for (const auto &planned : steps.extents_) {
    EXPECT_EQ(planned.extent->state.load(), ExtentState::kUnmapped);
    EXPECT_FALSE(planned.extent->mapped);
  }
  engine.backend->refuse(1, "set_access");
  EXPECT_FALSE(steps.map(0, steps.extent_count()).ok());
  engine.backend->refuse(0);
  EXPECT_FALSE(steps.extents_[0].extent->mapped) << "what a failed call mapped is unmapped again";
  ASSERT_TRUE(steps.map(0, steps.extent_count()).ok()) << last_message();
  for (const auto &planned : steps.extents_) {
    EXPECT_TRUE(planned.extent->mapped);
    planned.extent->state = ExtentState::kActive;
  }
  EXPECT_EQ(block[4095], 7) << "the handle has the contents";
}

TEST_F(HeapTransitionTest, AnExtentThatStaysMappedStaysActive) {
  Heap &heap = add_heap();
  dedicated(heap, uint64_t{1} << 20);
  LockGuard guard(heap.mutex);
  Steps steps(context, heap);
  steps.plan_all();
  engine.backend->refuse(1, "unmap");
  EXPECT_FALSE(steps.unmap(0, steps.extent_count()).ok());
  engine.backend->refuse(0);
  EXPECT_EQ(steps.extents_[0].extent->state.load(), ExtentState::kActive);
  EXPECT_TRUE(steps.extents_[0].extent->mapped);
}

TEST_F(HeapTransitionTest, TheSetIsOrderedByPriorityAndUnlocksAtItsEnd) {
  gmm_tag made[3] = {};
  const int32_t priorities[] = {0, 5, 5};
  for (int i = 0; i < 3; ++i) {
    gmm_tag_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.contents = GMM_CONTENTS_DROP;
    desc.priority = priorities[i];
    const char name[] = {static_cast<char>('a' + i), 0};
    ASSERT_TRUE(tags.create(name, &desc, &made[i]).ok());
    add_heap(made[i]);
  }
  Heap &other = add_heap();
  {
    HeapTransitions<HeapTransition> set(context);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(set.add(*heaps[static_cast<size_t>(i)]).ok());
    ASSERT_EQ(set.size(), 3u);
    EXPECT_EQ(&set[0].heap(), heaps[1].get());
    EXPECT_EQ(&set[1].heap(), heaps[2].get()) << "those of one priority stay in their order";
    EXPECT_EQ(&set[2].heap(), heaps[0].get());
    EXPECT_FALSE(set.contains(other));
    set.erase(1);
    EXPECT_FALSE(set.contains(*heaps[2]));
    set.lock();
    EXPECT_FALSE(heaps[0]->mutex.try_lock());
    EXPECT_FALSE(heaps[1]->mutex.try_lock());
    ASSERT_TRUE(heaps[2]->mutex.try_lock());
    heaps[2]->mutex.unlock();
  }
  for (auto &heap : heaps) {
    ASSERT_TRUE(heap->mutex.try_lock());
    heap->mutex.unlock();
  }
}

}  // namespace
}  // namespace gmm::test
