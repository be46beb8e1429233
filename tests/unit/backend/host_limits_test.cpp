// SPDX-License-Identifier: Apache-2.0
// How the host backend meets the limits of its process.
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "host_backend_test.h"

namespace gmm::test {
namespace {

TEST(HostBackendLimits, AreErrors) {
  if (kPageLocksAreReal) {
    EXPECT_EQ(play_in_child("locked_memory", {}, -1), 0);
  }
  EXPECT_EQ(play_in_child("descriptors", {}, -1), 0);
  EXPECT_EQ(play_in_child("threads", {}, -1), 0);
}

// --- Played in a process of its own ------------------------------------------------------------------

#define CHECK(condition)                                                                              \
  do {                                                                                                \
    if (!(condition)) {                                                                               \
      std::fprintf(stderr, "child: %s:%d: %s: %s\n", __FILE__, __LINE__, #condition, last_message()); \
      return 1;                                                                                       \
    }                                                                                                 \
  } while (false)

// Lowers a limit for as long as it lives, and gives up root's right to pass it.
class LowLimit {
 public:
  LowLimit(int what, rlim_t value) : what_(static_cast<__rlimit_resource_t>(what)) {
    if (getrlimit(what_, &before_) != 0) return;
    const rlimit wanted = {value, before_.rlim_max};
    ok = setrlimit(what_, &wanted) == 0 && (geteuid() != 0 || (setgid(65534) == 0 && setuid(65534) == 0));
  }
  // A leak sanitizer needs a thread at the end of the program.
  ~LowLimit() { setrlimit(what_, &before_); }
  bool ok = false;

 private:
  __rlimit_resource_t what_;
  rlimit before_ = {};
};

int play_locked_memory(const std::vector<std::string> &) {
  LogKeeper log;
  Backend *backend = nullptr;
  LowLimit limit(RLIMIT_MEMLOCK, 64 << 10);
  CHECK(limit.ok);
  CHECK(open_host(HostAllocator(), log.log(), 0, 1, &backend).ok());
  Allocation first, second;
  CHECK(!fail(GMM_ERROR_IO, "an older failure").ok());
  CHECK(backend->allocate(Kind::kHost, kFirst, kUnit, &first).ok());
  CHECK(backend->allocate(Kind::kHost, kFirst, kUnit, &second).ok());
  CHECK(std::strcmp(last_message(), "an older failure") == 0);
  CHECK(log.messages().size() == 1);
  CHECK(log.messages()[0].find("RLIMIT_MEMLOCK") != std::string::npos);
  std::memset(first.base, 1, kUnit);
  void *pointer = nullptr;
  CHECK(backend->pin(second.base, kUnit, 0, kFirst, &pointer).code() == GMM_ERROR_SYSTEM);
  CHECK(std::strstr(last_message(), "RLIMIT_MEMLOCK") != nullptr && last_native() != 0 && pointer == nullptr);
  CHECK(backend->pin(second.base, 8192, 0, kFirst, &pointer).ok());  // below the limit it works
  CHECK(backend->unpin(second.base, 8192).ok());
  CHECK(backend->deallocate(first).ok() && backend->deallocate(second).ok());
  backend->destroy();
  return 0;
}

int play_descriptors(const std::vector<std::string> &) {
  Backend *backend = nullptr;
  CHECK(open_host(HostAllocator(), Log(nullptr, nullptr), 512 * kMiB, 1, &backend).ok());
  LowLimit limit(RLIMIT_NOFILE, 32);
  CHECK(limit.ok);
  std::vector<PhysicalHandle> handles;
  Status status;
  for (int i = 0; i < 40 && status.ok(); ++i) {
    PhysicalHandle handle;
    status = backend->create(kFirst, kUnit, &handle);
    if (status.ok()) handles.push_back(handle);
  }
  CHECK(status.code() == GMM_ERROR_SYSTEM && !handles.empty());
  CHECK(last_native() == EMFILE && std::strstr(last_message(), "ulimit -n") != nullptr);
  Allocation plain, managed;
  CHECK(backend->allocate(Kind::kDevice, kFirst, kUnit, &plain).code() == GMM_ERROR_SYSTEM);
  // Managed memory needs no descriptor.
  CHECK(backend->allocate(Kind::kManaged, kFirst, kUnit, &managed).ok() && backend->deallocate(managed).ok());
  CHECK(backend->release(handles.back()).ok());
  CHECK(backend->create(kFirst, kUnit, &handles.back()).ok());
  for (PhysicalHandle handle : handles) CHECK(backend->release(handle).ok());
  gmm_device_info info = {};
  CHECK(backend->device_info(kFirst, &info).ok() && info.free_memory == 512 * kMiB);  // failures took nothing
  backend->destroy();
  return 0;
}

int play_threads(const std::vector<std::string> &) {
  Backend *backend = nullptr;
  CHECK(open_host(HostAllocator(), Log(nullptr, nullptr), 0, 1, &backend).ok());
  LowLimit limit(RLIMIT_NPROC, 0);
  CHECK(limit.ok);
  gmm_stream stream = nullptr;
  char from = 1, to = 0;
  CHECK(backend->stream_create(kFirst, 0, &stream).ok());
  CHECK(backend->copy(kFirst, stream, &to, &from, 1).code() == GMM_ERROR_SYSTEM);
  CHECK(last_native() == EAGAIN && std::strstr(last_message(), "ulimit -u") != nullptr);
  CHECK(backend->stream_synchronize(kFirst, stream).ok());  // nothing was queued
  CHECK(to == 0);
  CHECK(backend->stream_destroy(stream).ok());
  backend->destroy();
  return 0;
}

}  // namespace

std::vector<ChildRole> host_child_roles() {
  return {{"locked_memory", play_locked_memory}, {"descriptors", play_descriptors}, {"threads", play_threads}};
}

}  // namespace gmm::test
