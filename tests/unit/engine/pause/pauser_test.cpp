// SPDX-License-Identifier: Apache-2.0
#include "engine/pause/pauser.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <future>
#include <random>
#include <thread>

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

PauseRequest request(const gmm_tag *tags, uint32_t count, uint32_t flags = 0) {
  PauseRequest made;
  made.tags = tags;
  made.count = count;
  made.flags = flags;
  return made;
}

// Heaps of one tag that keeps contents, with small, large and dedicated blocks that carry a pattern.
class Paused {
 public:
  // Sizes have up to 9 + `size_bits` bits.
  explicit Paused(gmm_contents contents = GMM_CONTENTS_HOST, unsigned size_bits = 13, int count = 36) {
    EXPECT_TRUE(tags.init().ok());
    gmm_tag_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.contents = contents;
    EXPECT_TRUE(tags.create("kept", &desc, &tag).ok());
    for (Kind kind : {Kind::kVmm, Kind::kVmm, Kind::kDevice}) {
      HeapOptions options;
      options.kind = kind;
      options.device = Device{0};
      options.tag = tag;
      owned.push_back(std::make_unique<Heap>(engine.core, engine.backups, engine.captures, options));
      EXPECT_TRUE(owned.back()->init().ok());
      EXPECT_TRUE(set.add(*owned.back()));
    }
    std::mt19937 random(4);
    for (int i = 0; i < count; ++i) {
      Heap &heap = *owned[random() % 3];
      const uint64_t size = 1 + random() % (uint64_t{512} << (random() % (size_bits + 1)));
      void *block = nullptr;
      const Status status =
          i % 12 == 0 ? dedicated_alloc(heap, size, &block) : cached_alloc(heap, size, 0, GMM_STREAM_DEFAULT, &block);
      EXPECT_TRUE(status.ok()) << last_message();
      std::memset(block, i + 1, size);
      blocks.push_back({static_cast<uint8_t *>(block), size, static_cast<uint8_t>(i + 1), heap.options().kind});
    }
  }
  ~Paused() {
    pauser.clear();
    for (auto &heap : owned) EXPECT_TRUE(heap->close(true).ok()) << last_message();
    for (auto &heap : owned) EXPECT_EQ(heap->own_quota().held(), 0u);
    EXPECT_EQ(engine.backend->count("create"), engine.backend->count("release"));
  }
  void check_contents() {
    for (const Block &block : blocks)
      for (uint64_t at = 0; at < block.size;
           at += at + 1 == block.size ? 1 : std::min<uint64_t>(997, block.size - at - 1))
        ASSERT_EQ(block.at[at], block.mark) << "at " << at << " of " << block.size;
  }
  void check_heaps() {
    for (auto &heap : owned) ASSERT_NO_FATAL_FAILURE(check_heap(engine, *heap));
  }
  gmm_tag_info info() {
    gmm_tag_info out = {};
    pauser.query(tag, &out);
    return out;
  }
  struct Block {
    uint8_t *at;
    uint64_t size;
    uint8_t mark;
    Kind kind;
  };
  Engine engine;
  TagTable tags{HostAllocator()};
  HeapSet set{HostAllocator()};
  Quota held;
  Watchers watchers{engine.core, set, held, &held};
  Pauser pauser{engine.core, engine.backups, set, tags, watchers};
  gmm_tag tag = 0;
  std::vector<std::unique_ptr<Heap>> owned;
  std::vector<Block> blocks;
};

TEST(Pauser, PhysicalMemoryGoesAndContentsComeBack) {
  for (gmm_contents contents : {GMM_CONTENTS_HOST, GMM_CONTENTS_FILE}) {
    Paused test(contents);
    const uint64_t held = test.info().active_bytes;
    uint64_t bytes = 0;
    ASSERT_TRUE(test.pauser.pause(request(&test.tag, 1, 0), &bytes).ok()) << last_message();
    EXPECT_EQ(bytes, held);
    EXPECT_EQ(test.info().active_bytes, 0u);
    EXPECT_EQ(test.info().paused_bytes, held);
    test.check_heaps();
    EXPECT_EQ(test.pauser.pause(request(&test.tag, 1, 0), &bytes).code(), GMM_UNCHANGED);
    ASSERT_TRUE(test.pauser.resume(request(&test.tag, 1), true, &bytes).ok()) << last_message();
    EXPECT_EQ(bytes, held);
    EXPECT_EQ(test.info().active_bytes, held);
    EXPECT_EQ(test.info().paused_bytes, 0u);
    EXPECT_EQ(test.info().backup_host_bytes + test.info().backup_file_bytes, 0u);
    test.check_heaps();
    test.check_contents();
    EXPECT_EQ(test.pauser.resume(request(&test.tag, 1), true, &bytes).code(), GMM_UNCHANGED);
  }
}

// What is allocated during a pause lies in addresses of its own, which do not pile up.
TEST(Pauser, ManyPausesReserveNoMoreAddresses) {
  Paused test;
  const auto cycle = [&] {
    uint64_t bytes = 0;
    ASSERT_TRUE(test.pauser.pause(request(&test.tag, 1, 0), &bytes).ok());
    void *made = nullptr;
    ASSERT_TRUE(cached_alloc(*test.owned[0], 5 << 20, 0, GMM_STREAM_DEFAULT, &made).ok());
    ASSERT_TRUE(test.pauser.resume(request(&test.tag, 1), true, &bytes).ok());
    ASSERT_TRUE(cached_free(test.engine.core, made, GMM_STREAM_DEFAULT).ok());
  };
  for (int i = 0; i < 3; ++i) cycle();
  FailingBackend &backend = *test.engine.backend;
  const uint64_t before = backend.count("reserve") - backend.count("unreserve");
  for (int i = 0; i < 20; ++i) cycle();
  EXPECT_LE(backend.count("reserve") - backend.count("unreserve"), before);
  test.check_heaps();
}

TEST(Pauser, BlocksMayBeFreedAndMadeMeanwhile) {
  Paused test;
  uint64_t bytes = 0;
  ASSERT_TRUE(test.pauser.pause(request(&test.tag, 1, 0), &bytes).ok());
  std::vector<Paused::Block> kept;
  for (size_t i = 0; i < test.blocks.size(); ++i) {
    if (i % 3 == 0)
      kept.push_back(test.blocks[i]);
    else
      ASSERT_TRUE(cached_free(test.engine.core, test.blocks[i].at, GMM_STREAM_DEFAULT).ok());
  }
  void *made = nullptr;
  ASSERT_TRUE(cached_alloc(*test.owned[0], 5 << 20, 0, GMM_STREAM_DEFAULT, &made).ok());
  std::memset(made, 99, 5 << 20);
  kept.push_back({static_cast<uint8_t *>(made), 5 << 20, 99, Kind::kVmm});
  test.check_heaps();
  // A second pause takes what was made meanwhile.
  ASSERT_TRUE(test.pauser.pause(request(&test.tag, 1, 0), &bytes).ok());
  EXPECT_GE(bytes, 5u << 20);
  test.check_heaps();
  ASSERT_TRUE(test.pauser.resume(request(nullptr, 0), true, &bytes).ok()) << last_message();
  test.blocks = kept;
  test.check_heaps();
  test.check_contents();
  EXPECT_EQ(test.info().paused_bytes, 0u);
}

// A resume gives up the addresses of dedicated blocks that were freed meanwhile, and another heap may get them before
// the contents of the others are copied back.
TEST(Pauser, AddressesThatWentToAnotherHeapAreLeftAlone) {
  Paused test;
  Heap &heap = *test.owned[0];
  constexpr uint64_t kSize = uint64_t{8} << 20;
  void *freed = nullptr, *taken = nullptr;
  ASSERT_TRUE(dedicated_alloc(heap, kSize, &freed).ok());
  std::memset(freed, 55, kSize);
  HeapOptions options;
  options.kind = Kind::kVmm;
  options.device = Device{0};
  Heap other(test.engine.core, test.engine.backups, test.engine.captures, options);
  ASSERT_TRUE(other.init().ok());
  // The thread runs before the addresses are free, as the system may put a new thread's stack there.
  std::promise<void> go;
  std::thread taker([&] {
    void *volatile first = std::malloc(100);  // the thread's own arena is made now, too
    std::free(first);
    go.get_future().wait();
    EXPECT_TRUE(dedicated_alloc(other, kSize, &taken).ok()) << last_message();
  });
  uint64_t bytes = 0;
  EXPECT_TRUE(test.pauser.pause(request(&test.tag, 1, 0), &bytes).ok());
  EXPECT_TRUE(cached_free(test.engine.core, freed, GMM_STREAM_DEFAULT).ok());
  test.engine.backend->before("stream_create", [&] {
    test.engine.backend->reserve_next_at(freed);
    go.set_value();
    taker.join();
    if (taken != nullptr) std::memset(taken, 77, kSize);
  });
  EXPECT_TRUE(test.pauser.resume(request(&test.tag, 1), true, &bytes).ok()) << last_message();
  if (taker.joinable()) {  // the resume did not come that far
    go.set_value();
    taker.join();
  }
  ASSERT_EQ(taken, freed);
  for (uint64_t at = 0; at < kSize; at += 4096) ASSERT_EQ(static_cast<uint8_t *>(taken)[at], 77) << "at " << at;
  test.check_contents();
  EXPECT_TRUE(other.close(true).ok());
}

TEST(Pauser, EverythingFreedMeanwhileGoesBackAtTheResume) {
  Paused test;
  uint64_t bytes = 0;
  ASSERT_TRUE(test.pauser.pause(request(&test.tag, 1, 0), &bytes).ok());
  for (const Paused::Block &block : test.blocks)
    ASSERT_TRUE(cached_free(test.engine.core, block.at, GMM_STREAM_DEFAULT).ok());
  ASSERT_TRUE(test.pauser.resume(request(&test.tag, 1), true, &bytes).ok());
  EXPECT_EQ(bytes, 0u);
  test.check_heaps();
  EXPECT_EQ(test.info().active_bytes, 0u);
  EXPECT_EQ(test.info().paused_bytes, 0u);
  EXPECT_EQ(test.owned[0]->fast.has_paused.load(), 0u);
  test.owned[0]->for_each_region(
      [](Region &region) { EXPECT_FALSE(region.dedicated) << "a dedicated region keeps its addresses for nothing"; });
}

// Each k writes and copies all pages, which takes nearly all the time of these tests.
constexpr unsigned kFewPages = 7;

// One backend operation fails, for every operation of a pause: everything stays as it was, and a retry works.
TEST(Pauser, TheKthFailureOfAPauseChangesNothing) {
  for (gmm_contents contents : {GMM_CONTENTS_HOST, GMM_CONTENTS_FILE, GMM_CONTENTS_DROP}) {
    for (uint64_t k = 1;; ++k) {
      Paused test(contents, kFewPages);
      const gmm_tag_info before = test.info();
      uint64_t bytes = 0;
      test.engine.backend->refuse(k);
      const Status status = test.pauser.pause(request(&test.tag, 1, 0), &bytes);
      const bool failed = test.engine.backend->refused() != 0;
      test.engine.backend->refuse(0);
      ASSERT_NO_FATAL_FAILURE(test.check_heaps()) << k;
      if (!status.ok()) {
        ASSERT_NO_FATAL_FAILURE(test.check_contents()) << k;
        EXPECT_EQ(test.info().active_bytes, before.active_bytes) << k;
        EXPECT_EQ(test.info().paused_bytes, 0u) << k;
        EXPECT_EQ(test.info().backup_host_bytes + test.info().backup_file_bytes, 0u) << k;
        ASSERT_TRUE(test.pauser.pause(request(&test.tag, 1, 0), &bytes).ok()) << k;
      }
      ASSERT_TRUE(test.pauser.resume(request(&test.tag, 1), true, &bytes).ok()) << k << last_message();
      ASSERT_NO_FATAL_FAILURE(test.check_heaps()) << k;
      if (contents != GMM_CONTENTS_DROP) {
        ASSERT_NO_FATAL_FAILURE(test.check_contents()) << k;
      }
      EXPECT_EQ(test.info().active_bytes, before.active_bytes) << k;
      EXPECT_EQ(test.info().paused_bytes, 0u) << k;
      if (!failed) break;
    }
  }
}

TEST(Pauser, TheKthFailureOfAResumeChangesNothing) {
  for (gmm_contents contents : {GMM_CONTENTS_HOST, GMM_CONTENTS_FILE}) {
    for (uint64_t k = 1;; ++k) {
      Paused test(contents, kFewPages);
      const gmm_tag_info active = test.info();
      uint64_t bytes = 0;
      ASSERT_TRUE(test.pauser.pause(request(&test.tag, 1, 0), &bytes).ok());
      const gmm_tag_info before = test.info();
      test.engine.backend->refuse(k);
      const Status status = test.pauser.resume(request(&test.tag, 1), true, &bytes);
      const bool failed = test.engine.backend->refused() != 0;
      test.engine.backend->refuse(0);
      ASSERT_NO_FATAL_FAILURE(test.check_heaps()) << k;
      if (!status.ok()) {
        EXPECT_EQ(bytes, 0u);
        EXPECT_EQ(test.info().active_bytes, before.active_bytes) << k;
        EXPECT_EQ(test.info().paused_bytes, before.paused_bytes) << k;
        EXPECT_EQ(test.info().backup_host_bytes, before.backup_host_bytes) << k;
        ASSERT_TRUE(test.pauser.resume(request(&test.tag, 1), true, &bytes).ok()) << k << last_message();
      }
      ASSERT_NO_FATAL_FAILURE(test.check_heaps()) << k;
      ASSERT_NO_FATAL_FAILURE(test.check_contents()) << k;
      EXPECT_EQ(test.info().active_bytes, active.active_bytes) << k;
      EXPECT_EQ(test.info().paused_bytes, 0u) << k;
      if (!failed) break;
    }
  }
}

// A view of retained contents lives as long as its memory, also when a pause ends without effect.
TEST(Pauser, AnUndoneHoldEndsNoView) {
  Paused test;
  uint64_t bytes = 0;
  const auto block = *std::max_element(test.blocks.begin(), test.blocks.end(), [](const auto &a, const auto &b) {
    return (a.kind == Kind::kVmm ? a.size : 0) < (b.kind == Kind::kVmm ? b.size : 0);
  });
  const auto pause_and_retain = [&] {
    ASSERT_TRUE(test.pauser.pause(request(&test.tag, 1), &bytes).ok()) << last_message();
    ASSERT_TRUE(test.pauser.resume(request(&test.tag, 1, GMM_RESUME_RETAIN), true, &bytes).ok()) << last_message();
  };
  pause_and_retain();
  const void *view = nullptr, *again = nullptr;
  ASSERT_TRUE(test.pauser.map(block.at, block.size, &view).ok()) << last_message();
  TicketState ticket;
  PauseRequest held = request(&test.tag, 1, GMM_PAUSE_HOLD);
  held.ticket = &ticket;
  held.hold_ms = 0;  // it is undone at once
  EXPECT_EQ(test.pauser.pause(held, &bytes).code(), GMM_ERROR_CANCELLED);
  for (uint64_t i = 0; i < block.size; ++i) ASSERT_EQ(static_cast<const uint8_t *>(view)[i], block.mark);
  test.check_heaps();
  test.check_contents();
  EXPECT_FALSE(test.pauser.map(block.at, block.size, &again).ok()) << "no contents are kept";
  pause_and_retain();
  ASSERT_TRUE(test.pauser.map(block.at, block.size, &again).ok()) << last_message();
  EXPECT_EQ(again, view);
  test.check_contents();
}

// The driver refuses, and refuses what would undo it: nothing is lost, and a resume makes it whole.
TEST(Pauser, AFailureThatCannotBeUndoneIsMendedByAResume) {
  Paused test;
  const uint64_t held = test.info().active_bytes;
  uint64_t bytes = 0;
  // The second extent stays mapped, the first cannot be mapped again.
  test.engine.backend->refuse(2, "unmap");
  test.engine.backend->refuse_also(1, "map");
  ASSERT_FALSE(test.pauser.pause(request(&test.tag, 1, 0), &bytes).ok());
  test.engine.backend->refuse(0);
  ASSERT_NO_FATAL_FAILURE(test.check_heaps());
  EXPECT_EQ(test.pauser.pause(request(&test.tag, 1, 0), &bytes).code(), GMM_ERROR_BUSY)
      << "contents without a backup would go";
  ASSERT_TRUE(test.pauser.resume(request(&test.tag, 1), true, &bytes).ok()) << last_message();
  test.check_heaps();
  test.check_contents();
  EXPECT_EQ(test.info().active_bytes, held);
  ASSERT_TRUE(test.pauser.pause(request(&test.tag, 1, 0), &bytes).ok()) << last_message();
  ASSERT_TRUE(test.pauser.resume(request(&test.tag, 1), true, &bytes).ok()) << last_message();
  test.check_contents();
}

TEST(Pauser, HandlesThatStayedAreNotChargedAfterTheirBlocksWereFreed) {
  Paused test(GMM_CONTENTS_DROP);
  uint64_t bytes = 0;
  test.engine.backend->refuse(1, "release", true);
  ASSERT_TRUE(test.pauser.pause(request(&test.tag, 1, 0), &bytes).ok());
  EXPECT_EQ(bytes, 0u);
  test.engine.backend->refuse(0);
  test.check_heaps();
  for (const Paused::Block &block : test.blocks)
    ASSERT_TRUE(cached_free(test.engine.core, block.at, GMM_STREAM_DEFAULT).ok());
  ASSERT_TRUE(test.pauser.resume(request(&test.tag, 1), true, &bytes).ok());
  EXPECT_EQ(test.owned[0]->own_quota().held(), 0u);
  test.check_heaps();
}

TEST(Pauser, AForgottenHeapStartsAnew) {
  Paused test;
  uint64_t bytes = 0;
  ASSERT_TRUE(test.pauser.pause(request(&test.tag, 1, 0), &bytes).ok());
  for (auto &heap : test.owned) ASSERT_TRUE(heap->reset().ok());
  test.pauser.forget_all();
  for (auto &heap : test.owned) {
    check_heap(test.engine, *heap);
    EXPECT_EQ(heap->fast.has_paused.load(), 0u);
  }
  EXPECT_EQ(test.info().paused_bytes, 0u);
  EXPECT_EQ(test.info().backup_host_bytes, 0u);
  void *block = nullptr;
  ASSERT_TRUE(cached_alloc(*test.owned[0], 1000, 0, GMM_STREAM_DEFAULT, &block).ok());
  std::memset(block, 1, 1000);
  EXPECT_EQ(test.pauser.resume(request(&test.tag, 1), true, &bytes).code(), GMM_UNCHANGED);
}

}  // namespace
}  // namespace gmm::test
