// SPDX-License-Identifier: Apache-2.0
#include "backend_test.h"

#include <cstdlib>

namespace gmm::test {

void *CountingAllocator::allocate(void *self, uint64_t size, uint64_t alignment) {
  CountingAllocator *counter = static_cast<CountingAllocator *>(self);
  counter->blocks_ += 1;
  counter->bytes_ += static_cast<int64_t>(size);
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

void CountingAllocator::deallocate(void *self, void *memory, uint64_t size) {
  CountingAllocator *counter = static_cast<CountingAllocator *>(self);
  counter->blocks_ -= 1;
  counter->bytes_ -= static_cast<int64_t>(size);
  std::free(memory);
}

void LogKeeper::write(void *self, uint32_t, const char *message) {
  LogKeeper *keeper = static_cast<LogKeeper *>(self);
  LockGuard lock(keeper->mutex_);
  keeper->messages_.emplace_back(message);
}

std::vector<std::string> LogKeeper::messages() {
  LockGuard lock(mutex_);
  return messages_;
}

::testing::AssertionResult ok(Status status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "result " << status.code() << ", native " << last_native() << ": "
                                       << last_message();
}

::testing::AssertionResult failed_with(gmm_result code, Status status) {
  if (status.code() != code)
    return ::testing::AssertionFailure() << "result " << status.code() << " instead of " << code << ": "
                                         << last_message();
  if (last_message()[0] == '\0') return ::testing::AssertionFailure() << "result " << code << " without a message";
  return ::testing::AssertionSuccess();
}

}  // namespace gmm::test
