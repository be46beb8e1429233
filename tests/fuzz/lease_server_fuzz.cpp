// SPDX-License-Identifier: Apache-2.0
// Sends any bytes, in any pieces, to a live arbiter of leases. It must go on serving.
//
// An input is a list of steps. The first byte of a step says what it does:
//   bits 0-1  0: sends the step's data; 1: sends a correct report in which the data changes bytes; 2: opens a new
//             connection, and keeps the old one; 3: shuts down the writing side
//   bit 2     first receives what the arbiter has sent
//   bit 3     the report asks for the arbiter's status
// The second byte is the length of the step's data, which follows.
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "engine/context/lease_server.h"
#include "engine/ipc/directory.h"
#include "standalone.h"

namespace {

using namespace gmm;

void discard(void *, uint32_t, const char *) {}

struct Target {
  char directory[32] = "/tmp/gmm-fuzz-XXXXXX";
  Log log{discard, nullptr};
  IpcPolicy policy;
  int32_t folder = -1;
  LeaseServer *server = nullptr;
  std::thread thread;
  Target() {
    os::FolderFacts facts;
    if (::mkdtemp(directory) == nullptr || os::open_socket_folder(directory, false, &folder, &facts) != 0) std::abort();
    server = new LeaseServer(HostAllocator(), log, policy, folder, "fuzz");
    if (!server->open().ok()) std::abort();
    thread = std::thread([this] { server->run(UINT64_MAX); });
  }
  ~Target() {
    server->stop();
    thread.join();
    delete server;
    os::remove_name(folder, "lease-fuzz.lock");
    os::close_socket(folder);
    if (::rmdir(directory) != 0) std::abort();
  }
};

int connect_to(const Target &target) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s/lease-fuzz.sock", target.directory);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || ::connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof address) != 0) std::abort();
  return fd;
}

LeaseReport good_report() {
  LeaseReport report;
  report.number = report.request = report.attempt = 1;
  report.identity = 5;
  report.state = LeaseState::kWaiting;
  report.devices = 1;
  report.name[0] = 'f';
  report.rows[0].device.bytes[0] = 1;
  report.rows[0].free = 1000;
  report.rows[0].wanted = 1;
  return report;
}

// A request of a device of its own is granted. What others were granted may have all places of devices for a moment.
void check_service(const Target &target) {
  static uint8_t device = 0;
  LeaseReport report = good_report();
  report.rows[0].device.bytes[1] = ++device;
  for (int tries = 0; tries < 3000; ++tries) {
    const int fd = connect_to(target);
    LeaseOrder order;
    const timeval patience = {2, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    report.number = 1;
    report.round = 0;
    ::send(fd, &report, sizeof report, MSG_NOSIGNAL);
    while (::recv(fd, &order, sizeof order, MSG_WAITALL) == sizeof order && order.granted_request != 1) {
      ++report.number;  // it answers a round
      report.round = order.round;
      ::send(fd, &report, sizeof report, MSG_NOSIGNAL);
    }
    ::close(fd);
    if (order.granted_request == 1) return;
    ::usleep(10'000);
  }
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static Target target;
  int fds[8] = {connect_to(target)};
  uint32_t last = 0;
  while (size >= 2) {
    const unsigned how = data[0] & 3u;
    const bool wait = (data[0] & 4u) != 0, asks = (data[0] & 8u) != 0;
    size_t length = data[1];
    data += 2;
    size -= 2;
    if (length > size) length = size;
    if (wait) {
      pollfd answer = {fds[last], POLLIN, 0};
      uint8_t bytes[sizeof(LeaseOrder)];
      if (::poll(&answer, 1, 5) == 1) (void)!::recv(fds[last], bytes, sizeof bytes, MSG_DONTWAIT);
    }
    if (how == 0) {
      ::send(fds[last], data, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    } else if (how == 1) {
      LeaseReport report = good_report();
      if (asks) report.identity = 0;
      for (size_t i = 0; i + 2 < length; i += 3)
        reinterpret_cast<uint8_t *>(&report)[(data[i] * size_t{256} + data[i + 1]) % sizeof report] = data[i + 2];
      ::send(fds[last], &report, sizeof report, MSG_NOSIGNAL | MSG_DONTWAIT);
    } else if (how == 2 && last + 1 < sizeof fds / sizeof *fds) {
      fds[++last] = connect_to(target);
    } else {
      ::shutdown(fds[last], SHUT_WR);
    }
    data += length;
    size -= length;
  }
  for (uint32_t i = 0; i <= last; ++i) ::close(fds[i]);
  check_service(target);
  return 0;
}
