// SPDX-License-Identifier: Apache-2.0
// An exporter of one memfd, and helpers for both sides.
#ifndef GMM_TESTS_UNIT_ENGINE_IPC_TEST_SUPPORT_H
#define GMM_TESTS_UNIT_ENGINE_IPC_TEST_SUPPORT_H

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "base/local_socket.h"
#include "base/process.h"
#include "engine/ipc/broker.h"
#include "engine/ipc/client.h"
#include "engine/ipc/directory.h"

namespace gmm::test {

inline constexpr uint64_t kSize = 2 << 20;
inline constexpr uint64_t kAllocation = 17;
// The timeout of events that must happen; a busy machine is slow.
inline constexpr uint32_t kPatience = 60000;

// The log of a broker.
struct Journal {
  std::mutex mutex;
  std::string text;
  int lines = 0;
  static void write(void *self, uint32_t, const char *message) {
    auto *journal = static_cast<Journal *>(self);
    std::lock_guard<std::mutex> guard(journal->mutex);
    journal->text += message;
    journal->text += '\n';
    ++journal->lines;
  }
  bool has(const char *words) { return count(words) != 0; }
  // How often the words were written.
  int count(const std::string &words) {
    std::lock_guard<std::mutex> guard(mutex);
    int found = 0;
    for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++found;
    return found;
  }
};

struct Exporter {
  Journal journal;
  int memory = -1;
  uint8_t token[kIpcTokenSize] = {};
  std::atomic<int> importers{0};
  std::atomic<uint32_t> extents{1};
  std::atomic<int> resolved{0};
  std::atomic<gmm_result> answer{GMM_OK};
  std::atomic<bool> revoke_inside{false};
  IpcBroker broker;
  IpcHandle handle;

  explicit Exporter(uint64_t handshake_ms = IpcBroker::kHandshakeMs)
      : broker(HostAllocator(), Log(Journal::write, &journal), IpcResolver{resolve, importer_gone, this},
               kIpcDefaultPolicy, handshake_ms) {
    memory = ::memfd_create("exported", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (::ftruncate(memory, kSize) != 0) std::abort();
    if (!random_bytes(token, sizeof token).ok()) std::abort();
  }
  ~Exporter() {
    broker.stop();
    ::close(memory);
  }
  Status start() {
    handle.kind = Kind::kVmm;
    handle.allocation = kAllocation;
    handle.allocation_size = handle.block_size = extents * kSize;
    handle.generation = 5;
    std::memcpy(handle.token, token, sizeof token);
    return broker.start(&handle.exporter);
  }
  static Status resolve(void *self, uint64_t id, const uint8_t given[kIpcTokenSize], IpcGrant *out) {
    auto *exporter = static_cast<Exporter *>(self);
    ++exporter->resolved;
    if (exporter->answer != GMM_OK) return fail(exporter->answer, "the test made it fail");
    if (id != kAllocation || !ipc_token_equal(given, exporter->token))
      return fail(GMM_ERROR_IPC_REFUSED, "wrong token");
    while (out->wants_fds && out->extents < exporter->extents) {
      const int fd = ::fcntl(exporter->memory, F_DUPFD_CLOEXEC, 3);
      if (fd < 0) return fail(GMM_ERROR_SYSTEM, "no descriptor");
      out->sizes[out->extents] = kSize;
      out->fds[out->extents++] = fd;
    }
    out->allocation_size = exporter->extents * kSize;
    out->generation = 5;
    if (!out->counts) return Status();
    ++exporter->importers;
    if (exporter->revoke_inside) exporter->broker.revoke(kAllocation);
    return Status();
  }
  static void importer_gone(void *self, uint64_t id) {
    auto *exporter = static_cast<Exporter *>(self);
    if (id != kAllocation) std::abort();
    --exporter->importers;
  }
};

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

inline std::string to_hex(const gmm_ipc_handle &handle) {
  std::string text;
  char two[3];
  for (uint8_t byte : handle.bytes) {
    std::snprintf(two, sizeof two, "%02x", byte);
    text += two;
  }
  return text;
}
inline gmm_ipc_handle from_hex(const char *text) {
  gmm_ipc_handle handle = {};
  for (unsigned i = 0; i < sizeof handle.bytes; ++i) {
    unsigned byte = 0;
    if (std::sscanf(text + 2 * i, "%2x", &byte) != 1) std::abort();
    handle.bytes[i] = static_cast<uint8_t>(byte);
  }
  return handle;
}

// Listens on the socket of an endpoint; returns the socket's name.
inline std::string listen_in(const std::string &folder, const IpcEndpoint &endpoint, int *listener) {
  char name[kIpcNameSize];
  ipc_socket_name(endpoint, name);
  const int directory = ::open(folder.c_str(), O_PATH | O_CLOEXEC);
  sockaddr_un address;
  os::socket_address(directory, name, &address);
  *listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool bound = ::bind(*listener, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0;
  ::close(directory);
  if (!bound || ::listen(*listener, 1) != 0) std::abort();
  return name;
}

// A connection to the broker that is not made by the client.
inline int raw_connect(const IpcEndpoint &endpoint) {
  char path[kIpcPathSize], name[kIpcNameSize];
  if (!ipc_directory_candidate(0, path)) return -1;
  const int directory = ::open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  ipc_socket_name(endpoint, name);
  os::socket_address(directory, name, &address);
  const bool connected = ::connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0;
  ::close(directory);
  if (connected) return fd;
  ::close(fd);
  return -1;
}

}  // namespace gmm::test
#endif
