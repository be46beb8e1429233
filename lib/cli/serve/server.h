// SPDX-License-Identifier: Apache-2.0
// The server of the machine: its folder's lock, its socket, its connections. It has no context and no memory of a GPU.
//
// A server owns the lock of its folder, so there is one for a folder. When its socket's name is gone, as somebody
// deleted the folder or the name, it ends: its clients find another one, or start it. A server that keeps memory makes
// the name again, as that memory may have no other holder. A message begins with the kind of the service that it is
// for. A command to a member that finds no space in the peer's socket is left out, as the next one says the same.
//
// Locks: none of its own. One thread uses it.
// Callers: serve.cpp.
#ifndef GMM_CLI_SERVE_SERVER_H
#define GMM_CLI_SERVE_SERVER_H

#include "cli/serve/arbiter.h"
#include "cli/serve/keeper.h"
#include "engine/ipc/peer_server.h"

namespace gmm {

class Server final : private PeerServer {
 public:
  static constexpr uint64_t kIdleMs = 30'000;

  // The folder is open, and stays so. `ends_when_idle`: after kIdleMs without a connection or kept memory.
  Server(int32_t folder, const IpcPolicy &policy, bool ends_when_idle)
      : PeerServer(HostAllocator(), policy), ends_when_idle_(ends_when_idle) {
    folder_ = folder;
  }
  ~Server();

  // `listener`: a socket that listens, of systemd; -1: the server makes its own. BUSY: another server has the folder.
  Status open(int32_t listener);
  // Serves until it ends by itself, or stop().
  void run();
  void stop() { request_stop(); }  // any thread

 private:
  struct Client : Connection {
    int32_t process = -1;                    // a descriptor of the peer's process; -1: there is none
    LeaseArbiter::Member *member = nullptr;  // it sent a report
    Keeper::Client *keeps = nullptr;         // it sent a request about published memory
  };
  union Message {
    ServeHeader header;
    LeaseReport report;
    LeaseQuestion question;
    KeepRequest keep;
    Message() : header(ServeKind::kLeaseReport) {}
  };
  Status make_socket(bool *was_left);
  bool has_lost_its_name() const { return made_socket_ && !has_name(); }
  Connection *make(int32_t pid) override;
  void receive(Connection *connection) override;
  void ended(Connection *connection) override;
  void turn_away(int32_t, gmm_result) override {}  // a client tries again
  void log(const char *text) override;
  bool remake_socket();
  bool take_message(Client *client);
  void send_commands(uint64_t now);
  void send_answers(uint64_t now);

  const bool ends_when_idle_;
  bool made_socket_ = false;
  uint64_t idle_since_ = 0;
  Message message_;  // the last one
  os::Descriptors fds_;
  LeaseArbiter *arbiter_ = nullptr;
  Keeper *keeper_ = nullptr;
};

}  // namespace gmm
#endif
