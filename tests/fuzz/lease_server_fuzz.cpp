// SPDX-License-Identifier: Apache-2.0
// Sends any bytes, in any parts, to a live server. It must go on serving.
//
// An input is a list of steps. The first byte of a step says what it does:
//   bits 0-1  0: sends the step's data; 1: sends a correct message in which the data changes bytes; 2: opens a new
//             connection, and keeps the old one; 3: shuts down the writing side
//   bit 2     first receives the server's messages
//   bit 3     the message is a question, and not a report
// The second byte is the length of the step's data, which follows.
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "cli/serve/server.h"
#include "standalone.h"

namespace {

using namespace gmm;

struct Target {
  char directory[32] = "/tmp/gmm-fuzz-XXXXXX";
  int32_t folder = -1;
  Server *server = nullptr;
  std::thread thread;
  Target() {
    os::FolderFacts facts;
    if (::mkdtemp(directory) == nullptr || os::open_socket_folder(directory, false, &folder, &facts) != 0) std::abort();
    server = new Server(folder, IpcPolicy(), false);
    if (!server->open(-1).ok()) std::abort();
    thread = std::thread([this] { server->run(); });
  }
  ~Target() {
    server->stop();
    thread.join();
    delete server;
    os::remove_name(folder, kServeSocket);
    os::close_socket(folder);
    if (::rmdir(directory) != 0) std::abort();
  }
};

int connect_to(const Target &target) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", target.directory, kServeSocket);
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

// A request of a device of its own is granted, and a question is answered.
void check_service(const Target &target) {
  const timeval patience = {10, 0};
  LeaseReport report = good_report();
  report.identity = 77;
  report.rows[0].device.bytes[1] = 1;
  const int fd = connect_to(target), asking = connect_to(target);
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::setsockopt(asking, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  LeaseCommand command;
  ::send(fd, &report, sizeof report, MSG_NOSIGNAL);
  while (!command.answers(1, 1)) {
    if (::recv(fd, &command, sizeof command, MSG_WAITALL) != sizeof command) std::abort();
    ++report.number;  // it answers a round
    report.round = command.round;
    ::send(fd, &report, sizeof report, MSG_NOSIGNAL);
  }
  const LeaseQuestion question;
  LeaseEntry entry;
  ::send(asking, &question, sizeof question, MSG_NOSIGNAL);
  if (::recv(asking, &entry, sizeof entry, MSG_WAITALL) != sizeof entry || entry.count == 0) std::abort();
  ::close(fd);
  ::close(asking);
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
      uint8_t bytes[sizeof(LeaseCommand)];
      if (::poll(&answer, 1, 5) == 1) (void)!::recv(fds[last], bytes, sizeof bytes, MSG_DONTWAIT);
    }
    if (how == 0) {
      ::send(fds[last], data, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    } else if (how == 1) {
      const LeaseReport report = good_report();
      const LeaseQuestion question;
      uint8_t message[sizeof report];
      const size_t bytes = asks ? sizeof question : sizeof report;
      std::memcpy(message, asks ? static_cast<const void *>(&question) : &report, bytes);
      for (size_t i = 0; i + 2 < length; i += 3) message[(data[i] * size_t{256} + data[i + 1]) % bytes] = data[i + 2];
      ::send(fds[last], message, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
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
