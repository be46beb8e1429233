// SPDX-License-Identifier: Apache-2.0
// Helpers of the tests of the CUDA backend: the driver under test, real or fake, and the list of everything that the
// backend does.
#ifndef GMM_TESTS_UNIT_BACKEND_CUDA_BACKEND_TEST_H
#define GMM_TESTS_UNIT_BACKEND_CUDA_BACKEND_TEST_H

#include <functional>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend_conformance.h"
#include "cuda_functions.h"
#include "fake_cuda/fake_cuda.h"

// Where GoogleTest finds them: beside the type.
bool operator==(const fake_cuda_live_t &a, const fake_cuda_live_t &b);
std::ostream &operator<<(std::ostream &out, const fake_cuda_live_t &live);

namespace gmm::test {

// The driver's own entries, and the fake's controls where it is the fake.
class DriverUnderTest : public cuda_driver {
 public:
  static DriverUnderTest &get();
  bool is_fake() const { return live_ != nullptr; }
  fake_cuda_live_t live() const;
  // The kth call of `entry` (NULL: of any) fails once; kth 0 takes everything back.
  void fail(const char *entry, uint64_t kth, CUresult result) const;
  uint64_t failures() const { return failures_(); }
  uint64_t count(const char *entry) const { return count_(entry); }

  CUcontext current() const;

 private:
  DriverUnderTest();
  decltype(&::fake_cuda_live) live_ = nullptr;
  decltype(&::fake_cuda_fail) fail_ = nullptr;
  decltype(&::fake_cuda_failures) failures_ = nullptr;
  decltype(&::fake_cuda_count) count_ = nullptr;
};

// What an operation works on.
struct World {
  Backend *backend = nullptr;
  Allocation allocation, second;
  void *base = nullptr;
  PhysicalHandle handle, other;
  int32_t fd = -1;
  gmm_stream stream = nullptr;
  NativeEvent event = nullptr;
  void *memory = nullptr;  // the caller's own
  void *pointer = nullptr;
  uint8_t bytes[kLegacyHandleSize] = {};
};
inline constexpr uint64_t kWorldSize = kExtentAlignment;

struct Operation {
  const char *name;
  gmm_kind_mask kinds;    // the kinds that it needs
  uint32_t capabilities;  // and the capabilities
  std::function<Status(World &)> prepare;
  std::function<Status(World &)> run;
  std::function<Status(World &)> undo;  // after a run that succeeded: everything is back
};
// All but what needs another process.
const std::vector<Operation> &operations();
bool possible(Backend &backend, const Operation &operation);

// Something to put through with the first, the second, ... call of the driver failing, each time from a fresh start.
struct Trial {
  std::function<void()> begin;
  std::function<Status()> run;
  std::function<void()> end;  // after a run that succeeded: everything is back
};
// `entry` NULL: any call of those that the fake counts. A failure must have a message, change nothing and leave the
// thread's context alone, and a retry must work. Adds the failures that came through to `seen`. A device that is
// started meanwhile may stay so.
void fail_each_call(const char *entry, CUresult result, const Trial &trial, uint64_t *seen);
Trial trial_of(Backend &backend, const Operation &operation);

Status open_cuda(const HostAllocator &allocator, const Log &log, Backend **out);

// Runs this program again with one filter and a changed environment; the exit status.
int run_again(const std::vector<std::string> &environment, const std::string &filter);

int play_legacy_import(const std::vector<std::string> &arguments);
int play_late_end(const std::vector<std::string> &arguments);

class CudaBackendTest : public ::testing::Test {
 protected:
  static constexpr Device kFirst{0};
  static constexpr uint64_t kUnit = kExtentAlignment;
  void SetUp() override { ASSERT_OK(open_cuda(allocator_.allocator(), log_.log(), &backend_)); }
  void TearDown() override {
    if (backend_ != nullptr) backend_->destroy();
    EXPECT_EQ(allocator_.blocks(), 0);
  }
  Backend &backend() { return *backend_; }
  DriverUnderTest &driver() { return DriverUnderTest::get(); }
  CountingAllocator allocator_;
  LogKeeper log_;
  Backend *backend_ = nullptr;
};

}  // namespace gmm::test
#endif
