// SPDX-License-Identifier: Apache-2.0
// What the cases of the suite use: opening, children, helpers.
#include "backend_conformance.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

extern char **environ;

namespace gmm::test {
namespace {

const std::vector<BackendUnderTest> *g_backends;

// A failed step of a child: says so and gives the exit status.
int child_failed(int step, Status status) {
  std::fprintf(stderr, "child: step %d: result %d: %s\n", step, status.code(), last_message());
  return step;
}

// Imports a VMM file, compares it with pattern(size, seed) and writes pattern(size, seed + 1).
int import_vmm(Backend &backend, uint64_t size, uint8_t seed) {
  const Device device{0};
  PhysicalHandle handle;
  void *base = nullptr;
  if (Status s = backend.import_fd(kChildFd, size, device, &handle); !s.ok()) return child_failed(1, s);
  if (Status s = backend.reserve(size, &base); !s.ok()) return child_failed(2, s);
  if (Status s = backend.map(base, size, handle); !s.ok()) return child_failed(3, s);
  if (Status s = backend.set_access(base, size, device, 0); !s.ok()) return child_failed(4, s);
  std::vector<uint8_t> seen(size);
  if (Status s = backend.copy(device, GMM_STREAM_DEFAULT, seen.data(), base, size); !s.ok()) return child_failed(5, s);
  if (Status s = backend.stream_synchronize(device, GMM_STREAM_DEFAULT); !s.ok()) return child_failed(6, s);
  if (seen != pattern(size, seed)) return child_failed(7, Status());
  const std::vector<uint8_t> answer = pattern(size, static_cast<uint8_t>(seed + 1));
  if (Status s = backend.copy(device, GMM_STREAM_DEFAULT, base, answer.data(), size); !s.ok())
    return child_failed(8, s);
  if (Status s = backend.stream_synchronize(device, GMM_STREAM_DEFAULT); !s.ok()) return child_failed(9, s);
  if (Status s = backend.unmap(base, size); !s.ok()) return child_failed(10, s);
  if (Status s = backend.unreserve(base, size); !s.ok()) return child_failed(11, s);
  if (Status s = backend.release(handle); !s.ok()) return child_failed(12, s);
  return 0;
}

// The same for kHost memory, which the host reads directly.
int import_host(Backend &backend, uint64_t size, uint8_t seed) {
  Allocation memory;
  if (Status s = backend.import_host(kChildFd, size, Device{0}, true, &memory); !s.ok()) return child_failed(21, s);
  if (std::memcmp(memory.base, pattern(size, seed).data(), size) != 0) return child_failed(22, Status());
  std::memcpy(memory.base, pattern(size, static_cast<uint8_t>(seed + 1)).data(), size);
  if (Status s = backend.deallocate(memory); !s.ok()) return child_failed(23, s);
  if (fcntl(kChildFd, F_GETFD) != -1) return child_failed(24, Status());  // it was taken over, and so closed
  return 0;
}

int play_import(const std::vector<std::string> &arguments) {
  const std::string &name = arguments.at(0), &what = arguments.at(1);
  const uint64_t size = std::stoull(arguments.at(2));
  const uint8_t seed = static_cast<uint8_t>(std::stoul(arguments.at(3)));
  for (const BackendUnderTest &each : *g_backends) {
    if (each.name != name) continue;
    Backend *backend = nullptr;
    if (Status s = each.open(HostAllocator(), Log(nullptr, nullptr), &backend); !s.ok()) return child_failed(31, s);
    const int result = what == "vmm" ? import_vmm(*backend, size, seed) : import_host(*backend, size, seed);
    backend->destroy();
    return result;
  }
  return child_failed(32, Status());
}

}  // namespace

int conformance_main(int argc, char **argv, const std::vector<BackendUnderTest> &backends,
                     const std::vector<ChildRole> &roles) {
  g_backends = &backends;
  if (argc >= 3 && std::strcmp(argv[1], "--play") == 0) {
    const std::vector<std::string> arguments(argv + 3, argv + argc);
    if (std::strcmp(argv[2], "import") == 0) return play_import(arguments);
    for (const ChildRole &role : roles)
      if (std::strcmp(argv[2], role.name) == 0) return role.play(arguments);
    std::fprintf(stderr, "no such role: %s\n", argv[2]);
    return 99;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

int play_in_child(const char *role, const std::vector<std::string> &arguments, int fd) {
  std::vector<std::string> words = {"/proc/self/exe", "--play", role};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char *> pointers;
  for (std::string &word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (fd >= 0) posix_spawn_file_actions_adddup2(&actions, fd, kChildFd);
  pid_t child = -1;
  const int error = posix_spawn(&child, "/proc/self/exe", &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  int state = 0;
  if (error != 0 || waitpid(child, &state, 0) != child || !WIFEXITED(state)) return -1;
  return WEXITSTATUS(state);
}

void *CountingAllocator::allocate(void *self, uint64_t size, uint64_t alignment) {
  CountingAllocator *counter = static_cast<CountingAllocator *>(self);
  if (counter->left_.load() >= 0 && counter->left_.fetch_sub(1) <= 0) {
    counter->left_.store(0);
    return nullptr;
  }
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

std::vector<uint8_t> pattern(uint64_t size, uint8_t seed) {
  std::vector<uint8_t> bytes(size);
  for (uint64_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>(seed + i * 7 + (i >> 12));
  return bytes;
}

void BackendConformance::SetUp() {
  ASSERT_OK(GetParam().open(allocator_.allocator(), log_.log(), &backend_));
  ASSERT_NE(backend_, nullptr);
}

void BackendConformance::TearDown() { close(); }

void BackendConformance::close() {
  if (backend_ == nullptr) return;
  backend_->destroy();
  backend_ = nullptr;
  EXPECT_EQ(allocator_.blocks(), 0) << "bookkeeping leaked";
  EXPECT_EQ(allocator_.bytes(), 0) << "bookkeeping was given back with another size";
}

gmm_device_info BackendConformance::info(Device device) {
  gmm_device_info out = {};
  EXPECT_OK(backend().device_info(device, &out));
  return out;
}

void BackendConformance::write(void *destination, const std::vector<uint8_t> &bytes, Device device) {
  ASSERT_OK(backend().copy(device, GMM_STREAM_DEFAULT, destination, bytes.data(), bytes.size()));
  ASSERT_OK(backend().stream_synchronize(device, GMM_STREAM_DEFAULT));
}

std::vector<uint8_t> BackendConformance::read(const void *source, uint64_t size, Device device) {
  std::vector<uint8_t> bytes(size);
  EXPECT_OK(backend().copy(device, GMM_STREAM_DEFAULT, bytes.data(), source, size));
  EXPECT_OK(backend().stream_synchronize(device, GMM_STREAM_DEFAULT));
  return bytes;
}

Status BackendConformance::map_new(uint64_t size, Mapping *out, Device device) {
  Mapping made;
  made.size = size;
  GMM_TRY(backend().reserve(size, &made.base));
  GMM_TRY(backend().create(device, size, &made.handle));
  GMM_TRY(backend().map(made.base, size, made.handle));
  GMM_TRY(backend().set_access(made.base, size, device, 0));
  *out = made;
  return Status();
}

Status BackendConformance::drop(const Mapping &mapping) {
  GMM_TRY(backend().unmap(mapping.base, mapping.size));
  GMM_TRY(backend().release(mapping.handle));
  return backend().unreserve(mapping.base, mapping.size);
}

}  // namespace gmm::test
