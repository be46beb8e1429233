// SPDX-License-Identifier: Apache-2.0
// Helpers of the tests of the backends. The duties of every backend are tested in tests/api.
#ifndef GMM_TESTS_UNIT_BACKEND_BACKEND_TEST_H
#define GMM_TESTS_UNIT_BACKEND_BACKEND_TEST_H

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
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

 private:
  static void *allocate(void *self, uint64_t size, uint64_t alignment) {
    static_cast<CountingAllocator *>(self)->blocks_ += 1;
    return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  }
  static void deallocate(void *self, void *memory, uint64_t) {
    static_cast<CountingAllocator *>(self)->blocks_ -= 1;
    std::free(memory);
  }
  std::atomic<int64_t> blocks_{0};
};

// Log messages, kept.
class LogKeeper {
 public:
  Log log() { return Log(&write, this); }
  std::vector<std::string> messages() {
    LockGuard lock(mutex_);
    return messages_;
  }

 private:
  static void write(void *self, uint32_t, const char *message) {
    LogKeeper *keeper = static_cast<LogKeeper *>(self);
    LockGuard lock(keeper->mutex_);
    keeper->messages_.emplace_back(message);
  }
  Mutex mutex_{LockRank::kTest};
  std::vector<std::string> messages_;
};

inline ::testing::AssertionResult ok(Status status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "result " << status.code() << ", native " << last_native() << ": "
                                       << last_message();
}

// And there is a message.
inline ::testing::AssertionResult failed_with(gmm_result code, Status status) {
  if (status.code() != code)
    return ::testing::AssertionFailure() << "result " << status.code() << " instead of " << code << ": "
                                         << last_message();
  if (last_message()[0] == '\0') return ::testing::AssertionFailure() << "result " << code << " without a message";
  return ::testing::AssertionSuccess();
}
#define EXPECT_OK(expression) EXPECT_TRUE(::gmm::test::ok(expression))
#define ASSERT_OK(expression) ASSERT_TRUE(::gmm::test::ok(expression))
#define EXPECT_FAILS(code, expression) EXPECT_TRUE(::gmm::test::failed_with(code, expression))

}  // namespace gmm::test
#endif
