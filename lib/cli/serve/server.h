// SPDX-License-Identifier: Apache-2.0
// The server of the machine: its folder's lock, its socket, its connections. It has no context and no memory of a GPU.
//
// A server owns the lock of its folder, so there is one for a folder. When its socket's name is gone, as somebody
// deleted the folder or the name, it ends: its clients find another one, or start it. A peer of another user is cut
// before a byte of it is read. A message begins with the kind of the service that it is for.
//
// Bounds: kHandshakeMs until the first message; a message that finds no space in the peer's socket is left out, as the
// next one says the same.
//
// Locks: none. One thread uses it.
// Callers: serve.cpp.
#ifndef GMM_CLI_SERVE_SERVER_H
#define GMM_CLI_SERVE_SERVER_H

#include <atomic>

#include "base/local_socket.h"
#include "base/status.h"
#include "cli/serve/arbiter.h"
#include "engine/ipc/policy.h"

namespace gmm {

class Server {
 public:
  static constexpr uint64_t kHandshakeMs = 2000, kIdleMs = 30'000;

  // The folder is open, and stays so. `ends_when_idle`: after kIdleMs without a connection.
  Server(int32_t folder, const IpcPolicy &policy, bool ends_when_idle)
      : folder_(folder), policy_(policy), ends_when_idle_(ends_when_idle) {}
  ~Server();
  Server(const Server &) = delete;
  Server &operator=(const Server &) = delete;

  // `listener`: a socket that listens, of systemd; -1: the server makes its own. BUSY: another server has the folder.
  Status open(int32_t listener);
  // Serves until it ends by itself, or stop().
  void run();
  void stop();  // any thread

 private:
  struct Connection {
    int32_t socket = -1, process = -1;  // a descriptor of the peer's process; -1: there is none
    int32_t pid = 0;
    uint64_t since = 0;                      // of its beginning, or its last question
    LeaseArbiter::Member *member = nullptr;  // it sent a report
    uint32_t received = 0;                   // of the next message
    union Message {
      ServeHeader header;
      LeaseReport report;
      LeaseQuestion question;
      Message() : header(ServeKind::kLeaseReport) {}
    } message;
  };
  Status make_socket(bool *was_left);
  bool has_lost_its_name() const;
  void accept_all(uint64_t now);
  void receive(Connection *connection, uint64_t now);
  bool take_message(Connection *connection, uint64_t now);
  bool take_report(Connection *connection, uint64_t now);
  bool answer_question(Connection *connection, uint64_t now);
  void send_commands(uint64_t now);
  uint64_t end_slow_handshakes(uint64_t now);
  void drop(Connection *connection, uint64_t now);
  [[gnu::format(printf, 3, 4)]] void complain(uint64_t now, const char *format, ...);

  const HostAllocator allocator_;
  const int32_t folder_;
  const IpcPolicy policy_;
  const bool ends_when_idle_;
  int32_t listener_ = -1;
  bool made_socket_ = false;
  os::NameIdentity socket_identity_;
  os::SocketPoller poller_;
  uint64_t idle_since_ = 0, complain_at_ = 0;
  uint64_t accept_again_ = 0;  // 0: it accepts
  std::atomic<bool> stopping_{false};
  LeaseArbiter *arbiter_ = nullptr;
  Vector<Connection *> connections_;
};

}  // namespace gmm
#endif
