// SPDX-License-Identifier: Apache-2.0
// A folder for the sockets of one test, and what both sides of a connection need.
#ifndef GMM_TESTS_UNIT_ENGINE_IPC_TEST_SUPPORT_H
#define GMM_TESTS_UNIT_ENGINE_IPC_TEST_SUPPORT_H

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "base/local_socket.h"
#include "base/process.h"
#include "engine/ipc/client.h"
#include "engine/ipc/directory.h"

namespace gmm::test {

inline constexpr uint64_t kSize = 2 << 20;
// The timeout of events that must happen; a busy machine is slow.
inline constexpr uint32_t kPatience = 60000;

// Waits until another thread or process has made fn() true.
template <typename Fn>
bool eventually(Fn fn) {
  for (const uint64_t end = monotonic_ms() + kPatience; !fn(); ::usleep(2000))
    if (monotonic_ms() > end) return false;
  return true;
}

inline int open_descriptors() {
  int count = 0;
  DIR *listing = ::opendir("/proc/self/fd");
  while (::readdir(listing) != nullptr) ++count;
  ::closedir(listing);
  return count;
}

struct IpcImport : IpcAnswer {
  Status connect(const IpcHandle &handle, IpcWant want, uint64_t timeout, const IpcPolicy &policy = kIpcDefaultPolicy) {
    return ipc_connect(handle, want, timeout, &connection, this, policy);
  }
  IpcConnection connection;
};

class FolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/gmm-ipc-test-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    folder_ = path;
    ::setenv("GMM_IPC_DIR", path, 1);
    handle_.kind = Kind::kVmm;
    handle_.allocation_size = handle_.block_size = kSize;
    handle_.token[0] = 1;
    handle_.exporter = {static_cast<uint32_t>(::getpid()), 999999, 0, pid_namespace()};
    ASSERT_EQ(process_start_time(::getpid(), &handle_.exporter.start_time), 0);
    descriptors_ = open_descriptors();
  }
  void TearDown() override {
    EXPECT_EQ(open_descriptors(), descriptors_) << "a descriptor was left open";
    ::unsetenv("GMM_IPC_DIR");
    EXPECT_EQ(::rmdir(folder_.c_str()), 0) << std::strerror(errno);
  }
  static std::string name_of(const IpcEndpoint &endpoint) {
    char name[kIpcNameSize];
    ipc_socket_name(endpoint, name);
    return name;
  }
  std::string path_of(const IpcEndpoint &endpoint) const { return folder_ + "/" + name_of(endpoint); }
  sockaddr_un address_of(const IpcEndpoint &endpoint) const {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path_of(endpoint).c_str());
    return address;
  }
  int listen_as(const IpcEndpoint &endpoint) const {
    const sockaddr_un address = address_of(endpoint);
    const int listener = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::bind(listener, reinterpret_cast<const sockaddr *>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener, 1), 0);
    return listener;
  }
  // 0, or the error number of connect().
  int connect_to(const IpcEndpoint &endpoint, int fd) const {
    const sockaddr_un address = address_of(endpoint);
    return ::connect(fd, reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0 ? 0 : errno;
  }
  void remove(const IpcEndpoint &endpoint) const { EXPECT_EQ(::unlink(path_of(endpoint).c_str()), 0); }

  IpcHandle handle_;  // of this process, which has no broker of that serial
  std::string folder_;
  int descriptors_ = 0;
};

}  // namespace gmm::test
#endif
