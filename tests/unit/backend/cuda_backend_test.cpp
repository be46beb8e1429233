// SPDX-License-Identifier: Apache-2.0
// The conformance suite for the CUDA backend, on a real driver or on the fake. The suite runs again on fakes of other
// versions and habits.
#include "cuda_backend_test.h"

#include <dlfcn.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <ostream>

extern char **environ;

#if defined(__SANITIZE_ADDRESS__)
// The fake driver's threads run when the process ends, and LeakSanitizer (GCC 12) crashes on their thread-local
// storage. What leaks is counted: the backend's memory by CountingAllocator, the driver's by fake_cuda_live().
extern "C" int __lsan_is_turned_off();
extern "C" int __lsan_is_turned_off() { return 1; }
#endif

bool operator==(const fake_cuda_live_t &a, const fake_cuda_live_t &b) { return std::memcmp(&a, &b, sizeof a) == 0; }

std::ostream &operator<<(std::ostream &out, const fake_cuda_live_t &live) {
  return out << "allocations " << live.allocations << " reservations " << live.reservations << " handles "
             << live.handles << " mappings " << live.mappings << " registrations " << live.registrations << " streams "
             << live.streams << " events " << live.events << " imports " << live.imports << " contexts "
             << live.context_references << " device " << live.device_bytes << " host " << live.host_bytes << " managed "
             << live.managed_bytes << " dropped " << live.dropped << " graphs " << live.graphs << " user objects "
             << live.user_objects;
}

namespace gmm::test {

Status open_cuda(const HostAllocator &allocator, const Log &log, Backend **out) {
  return cuda_backend_create(allocator, log, out);
}

DriverUnderTest &DriverUnderTest::get() {
  static DriverUnderTest driver;
  return driver;
}

DriverUnderTest::DriverUnderTest() {
  const char *path = std::getenv("GMM_CUDA_DRIVER");
  void *library = dlopen(path != nullptr && *path != '\0' ? path : "libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return;
  const auto find = [library](const char *name, auto *out) {
    *out = reinterpret_cast<std::remove_pointer_t<decltype(out)>>(dlsym(library, name));
  };
  find("fake_cuda_live", &live_);
  find("fake_cuda_fail", &fail_);
  find("fake_cuda_failures", &failures_);
  find("fake_cuda_count", &count_);
  cuda_driver_look_up(library, this);
}

fake_cuda_live_t DriverUnderTest::live() const {
  fake_cuda_live_t out = {};
  live_(&out);
  return out;
}

void DriverUnderTest::fail(const char *entry, uint64_t kth, CUresult result) const {
  EXPECT_EQ(fail_(entry, kth, result), 0) << (entry == nullptr ? "any" : entry);
}

CUcontext DriverUnderTest::current() const {
  CUcontext context = nullptr;
  EXPECT_EQ(cuCtxGetCurrent(&context), CUDA_SUCCESS);
  return context;
}

int run_again(const std::vector<std::string> &changes, const std::string &filter) {
  std::vector<std::string> variables = changes;
  for (char **variable = environ; *variable != nullptr; ++variable) {
    bool changed = std::strncmp(*variable, "GTEST_", 6) == 0;
    for (const std::string &change : changes) {
      const size_t name = change.find('=') + 1;
      changed = changed || std::strncmp(*variable, change.c_str(), name) == 0;
    }
    if (!changed) variables.emplace_back(*variable);
  }
  std::vector<std::string> words = {"/proc/self/exe", "--gtest_brief=1", "--gtest_filter=" + filter};
  std::vector<char *> arguments, environment;
  for (std::string &word : words) arguments.push_back(word.data());
  for (std::string &variable : variables) environment.push_back(variable.data());
  arguments.push_back(nullptr);
  environment.push_back(nullptr);
  pid_t child = -1;
  int state = 0;
  if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments.data(), environment.data()) != 0) return -1;
  if (waitpid(child, &state, 0) != child || !WIFEXITED(state)) return -1;
  return WEXITSTATUS(state);
}

namespace {

uint64_t device_memory_in_use(Backend &backend) {
  gmm_device_info info = {};
  EXPECT_OK(backend.device_info(Device{0}, &info));
  return info.total_memory - info.free_memory;
}

const std::vector<BackendUnderTest> kBackends = {{"cuda", open_cuda, device_memory_in_use}};
const std::vector<ChildRole> kRoles = {{"legacy_import", play_legacy_import}, {"late_end", play_late_end}};

INSTANTIATE_TEST_SUITE_P(Backends, BackendConformance, ::testing::ValuesIn(kBackends),
                         [](const auto &info) { return std::string(info.param.name); });

// The whole suite and the tests that say so, on another fake.
struct Setting {
  const char *name;
  std::vector<std::string> environment;
};
class CudaSettings : public ::testing::TestWithParam<Setting> {};

TEST_P(CudaSettings, PassTheSuite) {
  if (!DriverUnderTest::get().is_fake()) GTEST_SKIP() << "needs the fake driver";
  EXPECT_EQ(run_again(GetParam().environment, "Backends/BackendConformance.*:CudaContext.*:CudaOperations.*"), 0);
}

INSTANTIATE_TEST_SUITE_P(Fakes, CudaSettings,
                         ::testing::Values(Setting{"Cuda12_0", {"FAKE_CUDA_VERSION=12000"}},
                                           Setting{"Cuda12_2", {"FAKE_CUDA_VERSION=12020"}},
                                           Setting{"Unaligned", {"FAKE_CUDA_UNALIGNED=1"}},
                                           Setting{"ThreeDevices", {"FAKE_CUDA_DEVICES=3"}}),
                         [](const auto &info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gmm::test

int main(int argc, char **argv) {
  return gmm::test::conformance_main(argc, argv, gmm::test::kBackends, gmm::test::kRoles);
}
