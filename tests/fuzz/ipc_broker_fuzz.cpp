// SPDX-License-Identifier: Apache-2.0
// Sends any bytes, in any parts, to a live broker. The broker must grant memory for a correct request only, must count
// its importers correctly, and must go on serving.
//
// An input is a list of steps. The first byte of a step says what it does:
//   bits 0-1  0: sends the step's data; 1: sends a correct request in which the data changes one byte; 2: opens a new
//             connection; 3: shuts down the writing side
//   bit 2     first receives the broker's answer
//   bits 3-4  the request's IpcWant
// The second byte is the length of the step's data, which follows.
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "engine/ipc/broker.h"
#include "engine/ipc/client.h"
#include "engine/ipc/directory.h"
#include "standalone.h"

namespace {

using namespace gmm;

constexpr uint8_t kToken[kIpcTokenSize] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
constexpr uint64_t kAllocation = 3;
constexpr uint64_t kAllocationSize = 4096;
std::atomic<int> importers{0};

Status resolve(void *, uint64_t id, const uint8_t token[kIpcTokenSize], IpcGrant *out) {
  if (id != kAllocation || !ipc_token_equal(token, kToken)) return fail(GMM_ERROR_IPC_REFUSED, "wrong token");
  if (out->wants_fds) {
    out->fds[0] = ::memfd_create("fuzz", MFD_CLOEXEC);
    if (out->fds[0] < 0 || ::ftruncate(out->fds[0], kAllocationSize) != 0) std::abort();
    out->sizes[0] = kAllocationSize;
    out->extents = 1;
  }
  out->allocation_size = kAllocationSize;
  if (out->counts) ++importers;
  return Status();
}
void importer_gone(void *, uint64_t id) {
  if (id != kAllocation || --importers < 0) std::abort();
}
void discard(void *, uint32_t, const char *) {}

struct Target {
  IpcBroker broker{HostAllocator(), Log(discard, nullptr), IpcResolver{resolve, importer_gone, nullptr}};
  IpcEndpoint endpoint;
  char directory[32] = "/tmp/gmm-fuzz-XXXXXX";
  Target() {
    if (::mkdtemp(directory) == nullptr || ::setenv("GMM_IPC_DIR", directory, 1) != 0 || !broker.start(&endpoint).ok())
      std::abort();
  }
  ~Target() {
    broker.stop();
    if (::rmdir(directory) != 0) std::abort();
  }
};

int connect_to(const Target &target) {
  sockaddr_un address = {};
  char name[kIpcNameSize];
  ipc_socket_name(target.endpoint, name);
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", target.directory, name);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || ::connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof address) != 0) std::abort();
  return fd;
}

void check_service(const Target &target) {
  IpcHandle handle;
  handle.exporter = target.endpoint;
  handle.allocation = kAllocation;
  handle.allocation_size = kAllocationSize;
  std::memcpy(handle.token, kToken, sizeof kToken);
  IpcImport import;
  if (!ipc_connect(handle, IpcWant::kCount, 30000, &import).ok()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static Target target;
  int fd = connect_to(target);
  while (size >= 2) {
    const unsigned how = data[0] & 3u;
    const bool wait = (data[0] & 4u) != 0;
    const uint16_t want = data[0] >> 3 & 3u;
    size_t length = data[1];
    data += 2;
    size -= 2;
    if (length > size) length = size;
    if (wait) {
      pollfd answer = {fd, POLLIN, 0};
      IpcReply reply;
      if (::poll(&answer, 1, 20) == 1) (void)!::recv(fd, &reply, sizeof reply, MSG_DONTWAIT);
    }
    if (how == 0) {
      ::send(fd, data, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    } else if (how == 1) {
      IpcRequest request;
      request.want = static_cast<IpcWant>(want);
      request.allocation = kAllocation;
      std::memcpy(request.token, kToken, sizeof kToken);
      request.start_time = target.endpoint.start_time;
      request.serial = target.endpoint.serial;
      uint8_t bytes[sizeof request];
      std::memcpy(bytes, &request, sizeof bytes);
      if (length >= 2) bytes[data[0] % sizeof bytes] = data[1];
      ::send(fd, bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    } else if (how == 2) {
      ::close(fd);
      fd = connect_to(target);
    } else {
      ::shutdown(fd, SHUT_WR);
    }
    data += length;
    size -= length;
  }
  ::close(fd);
  check_service(target);
  // Every grant ends with its connection.
  for (int i = 0; importers != 0; ++i) {
    if (i == 20000) std::abort();
    ::usleep(50);
  }
  return 0;
}
