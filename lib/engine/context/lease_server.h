// SPDX-License-Identifier: Apache-2.0
// The arbiter of leases as a process runs it: its lock, its socket, its connections (engine/lease/README.md).
//
// What it owns: the lock of the arbiter's name, the socket, and a connection and a process's descriptor for each
// member. It waits for nothing but its sockets. A peer of another user is cut before a byte of it is read.
//
// Bounds: LeaseArbiter::kMembers connections; kHandshakeMs until the first report; kReaders of the status, which read
// it in kStatusMs; a message that finds no room in the
// peer's socket is left out, as the next one says the same.
//
// Locks: none while it runs. open() and close() take the lock of the list of this process's arbiters for a moment.
// Callers: context/lease.cpp, which runs it in a thread, or in the thread of gmm_lease_serve().
#ifndef GMM_ENGINE_CONTEXT_LEASE_SERVER_H
#define GMM_ENGINE_CONTEXT_LEASE_SERVER_H

#include <atomic>

#include "base/host_allocator.h"
#include "base/local_socket.h"
#include "base/log.h"
#include "base/status.h"
#include "base/vector.h"
#include "engine/ipc/peer_user.h"
#include "engine/lease/arbiter.h"

namespace gmm {

// Where an arbiter of that name is found: names in the directory of the sockets.
struct LeaseNames {
  explicit LeaseNames(const char *arbiter);
  char socket[kLeaseNameSize + 16], unready[kLeaseNameSize + 48], lock[kLeaseNameSize + 16];
};

class LeaseServer {
 public:
  static constexpr uint64_t kHandshakeMs = 2000, kStatusMs = 5000;
  static constexpr uint32_t kReaders = 8;

  // The directory is open, and stays so. The policy must not change.
  LeaseServer(const HostAllocator &allocator, const Log &log, const IpcPolicy &policy, int32_t directory,
              const char *name);
  ~LeaseServer() { close(); }
  LeaseServer(const LeaseServer &) = delete;
  LeaseServer &operator=(const LeaseServer &) = delete;

  // BUSY: another one has the lock, in this process or in another one.
  Status open();
  // Serves until stop() or `until`.
  void run(uint64_t until);
  void stop();  // any thread
  void close();

 private:
  struct Connection {
    int32_t socket = -1, process = -1;  // a descriptor of the peer's process; -1: there is none
    int32_t pid = 0;
    uint32_t received = 0;
    uint64_t since = 0;
    bool is_member = false;  // it sent a report
    LeaseReport report;      // as far as it came
  };
  // Who asked for the status. What finds no room in its socket is sent later.
  struct Reader {
    int32_t socket = -1;
    uint64_t sent = 0, since = 0;
    Vector<char> text;
  };
  Status listen();
  bool may_complain(uint64_t now);
  void accept_all(uint64_t now);
  void receive(uint32_t slot, uint64_t now);
  void drop(uint32_t slot, uint64_t now);
  void send_orders(uint64_t now);
  int32_t detach(uint32_t slot, uint64_t now);
  void begin_status(int32_t socket, uint64_t now);
  void send_status(Reader &reader, uint64_t now);
  void end_status(Reader &reader);
  bool write_status(Vector<char> *text, uint64_t now);

  const HostAllocator allocator_;
  const Log &log_;
  const IpcPolicy &policy_;
  const int32_t directory_;
  char name_[kLeaseNameSize] = {};
  const LeaseNames names_;
  uint64_t claim_ = 0;  // in the list of this process's arbiters
  int32_t lock_ = -1, listener_ = -1;
  bool was_left_ = false;  // the one before may have left members with grants
  os::NameIdentity socket_identity_;
  os::SocketPoller poller_;
  bool has_poller_ = false;
  uint64_t complain_at_ = 0, accept_again_ = 0;  // 0: it accepts
  std::atomic<bool> stopping_{false};
  LeaseArbiter *arbiter_ = nullptr;
  Connection connections_[LeaseArbiter::kMembers];
  Reader readers_[kReaders];
};

}  // namespace gmm
#endif
