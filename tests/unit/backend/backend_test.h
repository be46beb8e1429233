// SPDX-License-Identifier: Apache-2.0
// Helpers of the tests of the backends. The duties of every backend are tested in tests/api.
#ifndef GMM_TESTS_UNIT_BACKEND_BACKEND_TEST_H
#define GMM_TESTS_UNIT_BACKEND_BACKEND_TEST_H

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/lock.h"

namespace gmm::test {

// Counts its memory, to find leaks.
class CountingAllocator {
 public:
  HostAllocator allocator() { return HostAllocator(&allocate, &deallocate, this); }
  int64_t blocks() const { return blocks_.load(); }
  int64_t bytes() const { return bytes_.load(); }

 private:
  static void *allocate(void *self, uint64_t size, uint64_t alignment);
  static void deallocate(void *self, void *memory, uint64_t size);
  std::atomic<int64_t> blocks_{0}, bytes_{0};
};

// Log messages, kept.
class LogKeeper {
 public:
  Log log() { return Log(&write, this); }
  std::vector<std::string> messages();

 private:
  static void write(void *self, uint32_t level, const char *message);
  Mutex mutex_{LockRank::kTest};
  std::vector<std::string> messages_;
};

::testing::AssertionResult ok(Status status);
::testing::AssertionResult failed_with(gmm_result code, Status status);  // and there is a message
#define EXPECT_OK(expression) EXPECT_TRUE(::gmm::test::ok(expression))
#define ASSERT_OK(expression) ASSERT_TRUE(::gmm::test::ok(expression))
#define EXPECT_FAILS(code, expression) EXPECT_TRUE(::gmm::test::failed_with(code, expression))

}  // namespace gmm::test
#endif
