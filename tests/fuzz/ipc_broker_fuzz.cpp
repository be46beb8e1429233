// SPDX-License-Identifier: Apache-2.0
// The broker of a context. It must grant memory for a correct request only, and must count its importers correctly.
#include <sys/mman.h>

#include <atomic>

#include "engine/ipc/broker.h"
#include "engine/ipc/client.h"
#include "engine/ipc/directory.h"
#include "socket_fuzz.h"

namespace {

using namespace gmm;

constexpr uint8_t kToken[kIpcTokenSize] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
constexpr uint64_t kAllocation = 3;
constexpr uint64_t kAllocationSize = 4096;
std::atomic<int> importers{0};

Status resolve(void *, uint64_t id, const uint8_t token[kIpcTokenSize], IpcGrant *out) {
  if (id != kAllocation || !ipc_token_equal(token, kToken)) return fail(GMM_ERROR_IPC_REFUSED, "wrong token");
  if (out->wants_fds) {
    const int fd = ::memfd_create("fuzz", MFD_CLOEXEC);
    require(fd >= 0 && ::ftruncate(fd, kAllocationSize) == 0);
    out->add_extent(fd, kAllocationSize);
  }
  out->reply.allocation_size = kAllocationSize;
  if (out->counts) ++importers;
  return Status();
}
void importer_gone(void *, uint64_t id) { require(id == kAllocation && --importers >= 0); }
Status control(void *, int32_t, const ControlRequest &) { return fail(GMM_ERROR_IPC_REFUSED, "no control"); }
void discard(void *, uint32_t, const char *) {}

struct Target {
  static constexpr size_t kAnswerSize = sizeof(IpcReply);
  FuzzFolder folder;
  IpcBroker broker{HostAllocator(), Log(discard, nullptr),
                   IpcResolver{resolve, importer_gone, nullptr, {control, nullptr}}};
  IpcEndpoint endpoint;
  Target() { require(::setenv("GMM_IPC_DIR", folder.path, 1) == 0 && broker.start(&endpoint).ok()); }
  ~Target() { broker.stop(); }
  int connect() const {
    char name[kIpcNameSize];
    ipc_socket_name(endpoint, name);
    return folder.connect_to(name);
  }
  std::vector<uint8_t> message(unsigned which) const {
    IpcRequest request;
    request.want = static_cast<IpcWant>(which);
    request.allocation = kAllocation;
    std::memcpy(request.token, kToken, sizeof kToken);
    request.start_time = endpoint.start_time;
    request.serial = endpoint.serial;
    return bytes_of(request);
  }
  void check_service() const {
    IpcHandle handle;
    handle.exporter = endpoint;
    handle.allocation = kAllocation;
    handle.allocation_size = kAllocationSize;
    std::memcpy(handle.token, kToken, sizeof kToken);
    IpcConnection connection;
    IpcAnswer answer;
    require(ipc_connect(handle, IpcWant::kCount, 30000, &connection, &answer).ok());
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static Target target;
  send_steps(target, data, size);
  target.check_service();
  // Every grant ends with its connection.
  for (int i = 0; importers != 0; ++i) {
    require(i < 20000);
    ::usleep(50);
  }
  return 0;
}
