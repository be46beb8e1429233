// SPDX-License-Identifier: Apache-2.0
#include "engine/range/pin.h"

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

class PinTest : public testing::Test {
 protected:
  PinTest() {
    memory = static_cast<char *>(mmap(nullptr, 16 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  ~PinTest() override {
    table.clear();
    EXPECT_EQ(engine.backend->count("pin"), engine.backend->count("unpin")) << "pages stay registered";
    munmap(memory, 16 * 4096);
  }
  Status pin(uint64_t offset, uint64_t size, void **device_pointer = nullptr) {
    return table.pin(memory + offset, size, 0, Device{0}, device_pointer);
  }
  bool found(uint64_t offset, uint64_t base, uint64_t size) {
    Range range;
    return table.find(memory + offset, &range) && range.base == reinterpret_cast<uint64_t>(memory) + base &&
           range.size == size;
  }
  Engine engine;
  PinTable table{engine.core};
  char *memory;
};

TEST_F(PinTest, APinIsFoundWholeAndOnlyWhileItLasts) {
  void *device_pointer = nullptr;
  ASSERT_TRUE(pin(100, 5000, &device_pointer).ok()) << last_message();
  EXPECT_NE(device_pointer, nullptr);
  EXPECT_EQ(table.bytes(), 5000u);
  EXPECT_TRUE(found(100, 100, 5000));
  EXPECT_TRUE(found(5099, 100, 5000));
  Range range;
  EXPECT_FALSE(table.find(memory + 99, &range));
  EXPECT_FALSE(table.find(memory + 5100, &range));
  EXPECT_EQ(table.unpin(memory + 101).code(), GMM_ERROR_NOT_PINNED);
  ASSERT_TRUE(table.unpin(memory + 100).ok());
  EXPECT_EQ(table.bytes(), 0u);
  EXPECT_FALSE(table.find(memory + 100, &range));
  EXPECT_EQ(table.unpin(memory + 100).code(), GMM_ERROR_NOT_PINNED);
}

TEST_F(PinTest, PinsNestAndOverlapsAreRefused) {
  ASSERT_TRUE(pin(0, 4 * 4096).ok());
  ASSERT_TRUE(pin(0, 4096).ok());
  ASSERT_TRUE(pin(4096, 4096).ok());
  ASSERT_TRUE(pin(0, 4096).ok());
  EXPECT_EQ(engine.backend->count("pin"), 1u);
  EXPECT_EQ(pin(3 * 4096, 2 * 4096).code(), GMM_ERROR_OVERLAP);
  EXPECT_TRUE(found(5000, 0, 4 * 4096));
  ASSERT_TRUE(table.unpin(memory).ok());
  ASSERT_TRUE(table.unpin(memory).ok());
  EXPECT_TRUE(found(5000, 0, 4 * 4096));
  ASSERT_TRUE(table.unpin(memory).ok());
  EXPECT_TRUE(found(5000, 4096, 4096));
  EXPECT_EQ(engine.backend->count("unpin"), 0u) << "the inner pin needs the registration";
  ASSERT_TRUE(table.unpin(memory + 4096).ok());
  EXPECT_EQ(engine.backend->count("unpin"), 1u);
}

TEST_F(PinTest, NeighboursShareAPage) {
  ASSERT_TRUE(pin(0, 4096 + 100).ok());
  ASSERT_TRUE(pin(4096 + 100, 2 * 4096).ok());
  ASSERT_TRUE(pin(4096 * 3 + 200, 100).ok());
  EXPECT_TRUE(found(4096 + 99, 0, 4096 + 100));
  EXPECT_TRUE(found(4096 + 100, 4096 + 100, 2 * 4096));
  ASSERT_TRUE(table.unpin(memory).ok());
  EXPECT_TRUE(found(4096 + 100, 4096 + 100, 2 * 4096));
  ASSERT_TRUE(table.unpin(memory + 4096 + 100).ok());
  ASSERT_TRUE(table.unpin(memory + 4096 * 3 + 200).ok());
  EXPECT_EQ(engine.backend->count("pin"), engine.backend->count("unpin"));
}

TEST_F(PinTest, OwnMemoryAndEndlessRangesAreRefused) {
  auto heap = make_heap(engine, Kind::kHost);
  void *block = nullptr;
  ASSERT_TRUE(cached_alloc(*heap, 1000, 0, GMM_STREAM_DEFAULT, &block).ok());
  EXPECT_EQ(table.pin(block, 1000, 0, Device{0}, nullptr).code(), GMM_ERROR_INVALID_KIND);
  EXPECT_EQ(table.pin(memory, ~uint64_t{0} - 4096, 0, Device{0}, nullptr).code(), GMM_ERROR_SIZE_OVERFLOW);
  EXPECT_TRUE(heap->close(true).ok());
}

// The pin shares its first and last page with others.
TEST_F(PinTest, TheKthFailureChangesNothing) {
  for (uint64_t k = 1;; ++k) {
    ASSERT_TRUE(pin(3 * 4096 + 10, 100).ok());
    ASSERT_TRUE(pin(6 * 4096 + 10, 100).ok());
    engine.backend->refuse(k, "pin");
    const Status status = pin(3 * 4096 + 110, 3 * 4096 - 100);
    const bool failed = engine.backend->refused() != 0;
    engine.backend->refuse(0);
    EXPECT_EQ(status.ok(), !failed);
    if (!status.ok()) {
      EXPECT_EQ(table.bytes(), 200u);
      EXPECT_EQ(table.unpin(memory + 3 * 4096 + 110).code(), GMM_ERROR_NOT_PINNED);
    } else {
      ASSERT_TRUE(table.unpin(memory + 3 * 4096 + 110).ok());
    }
    ASSERT_TRUE(table.unpin(memory + 3 * 4096 + 10).ok());
    ASSERT_TRUE(table.unpin(memory + 6 * 4096 + 10).ok());
    EXPECT_EQ(engine.backend->count("pin"), engine.backend->count("unpin"));
    if (!failed) break;
  }
}

// A refused unpin leaves every page of the pin registered.
TEST_F(PinTest, ARefusedUnpinCanBeTriedAgain) {
  for (uint64_t k = 1;; ++k) {
    ASSERT_TRUE(pin(3 * 4096 + 10, 100).ok());
    ASSERT_TRUE(pin(2 * 4096, 4096 + 10).ok());
    ASSERT_TRUE(pin(3 * 4096 + 110, 3 * 4096).ok());
    ASSERT_TRUE(table.unpin(memory + 3 * 4096 + 10).ok());
    ASSERT_TRUE(table.unpin(memory + 2 * 4096).ok());
    const uint64_t registered = engine.backend->count("pin") - engine.backend->count("unpin");
    EXPECT_EQ(registered, 2u);
    engine.backend->refuse(k, "unpin");
    const Status status = table.unpin(memory + 3 * 4096 + 110);
    const bool failed = engine.backend->refused() != 0;
    engine.backend->refuse(0);
    EXPECT_EQ(status.ok(), !failed);
    if (failed) {
      EXPECT_EQ(engine.backend->count("pin") - engine.backend->count("unpin"), registered) << k;
      EXPECT_TRUE(found(4 * 4096, 3 * 4096 + 110, 3 * 4096));
      ASSERT_TRUE(table.unpin(memory + 3 * 4096 + 110).ok());
    }
    if (!failed) break;
  }
}

}  // namespace
}  // namespace gmm::test
