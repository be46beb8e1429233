// SPDX-License-Identifier: Apache-2.0
// The server of the machine: message 0 is a report, 1 is a question about leases, 2 publishes memory, 3 attaches it.
#include <sys/time.h>

#include <thread>

#include "cli/serve/server.h"
#include "socket_fuzz.h"

namespace {

using namespace gmm;

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

KeepRequest good_request(KeepVerb verb) {
  KeepRequest request;
  request.verb = verb;
  request.name[0] = 'f';
  request.memory.extents = 1;
  request.memory.size = request.memory.block_size = request.memory.sizes[0] = kExtentAlignment;
  return request;
}

struct Target {
  static constexpr size_t kAnswerSize = sizeof(KeepAnswer);
  FuzzFolder place;
  int32_t folder = -1;
  const IpcPolicy policy;  // lives as long as the server
  Server *server = nullptr;
  std::thread thread;
  Target() {
    os::FolderFacts facts;
    require(os::open_socket_folder(place.path, false, &folder, &facts) == 0);
    server = new Server(folder, policy, false);
    require(server->open(-1).ok());
    thread = std::thread([this] { server->run(); });
  }
  ~Target() {
    server->stop();
    thread.join();
    delete server;
    os::remove_name(folder, kServeSocket);
    os::close_socket(folder);
  }
  int connect() const { return place.connect_to(kServeSocket); }
  std::vector<uint8_t> message(unsigned which) const {
    if (which >= 2) return bytes_of(good_request(which == 2 ? KeepVerb::kRestoreReader : KeepVerb::kClaim));
    return which == 0 ? bytes_of(good_report()) : bytes_of(LeaseQuestion());
  }
  // A request of a device of its own is granted, and a question is answered.
  void check_service() const {
    const timeval patience = {10, 0};
    LeaseReport report = good_report();
    report.identity = 77;
    report.rows[0].device.bytes[1] = 1;
    const int fd = connect(), asking = connect();
    for (int each : {fd, asking}) ::setsockopt(each, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    LeaseCommand command;
    ::send(fd, &report, sizeof report, MSG_NOSIGNAL);
    while (!command.answers(1, 1)) {
      require(::recv(fd, &command, sizeof command, MSG_WAITALL) == sizeof command);
      ++report.number;  // it answers a round
      report.round = command.round;
      ::send(fd, &report, sizeof report, MSG_NOSIGNAL);
    }
    const LeaseQuestion question;
    LeaseEntry entry;
    ::send(asking, &question, sizeof question, MSG_NOSIGNAL);
    require(::recv(asking, &entry, sizeof entry, MSG_WAITALL) == sizeof entry && entry.info.entry_count != 0);
    ::close(asking);
    const int listing = connect();
    ::setsockopt(listing, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    const KeepRequest list;
    KeepAnswer answer;
    ::send(listing, &list, sizeof list, MSG_NOSIGNAL);
    require(::recv(listing, &answer, sizeof answer, MSG_WAITALL) == sizeof answer && answer.count == 0);
    ::close(listing);
    ::close(fd);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static Target target;
  send_steps(target, data, size);
  target.check_service();
  return 0;
}
