// SPDX-License-Identifier: Apache-2.0
// The connections of one thread that serves processes of permitted users at a local socket: the broker of a context
// (broker.h), and the server of leases (cli/serve/server.h).
//
// A connection is pending from its start until keep(), and ends with drop(). The peer's user is checked before a byte
// of the connection is read. The thread waits for nothing but its sockets.
//
// SECURITY.md has the bounds, so that no peer can hold up another one.
//
// Lock: `connections_mutex_` is brief. Only the thread changes the list; another one may look through it.
#ifndef GMM_ENGINE_IPC_PEER_SERVER_H
#define GMM_ENGINE_IPC_PEER_SERVER_H

#include <atomic>
#include <cstdint>

#include "base/local_socket.h"
#include "base/lock.h"
#include "base/status.h"
#include "base/vector.h"
#include "engine/ipc/directory.h"
#include "engine/ipc/policy.h"

namespace gmm {

class PeerServer : NoCopy {
 public:
  static constexpr uint32_t kMaxPending = 64;
  static constexpr uint64_t kHandshakeMs = 2000;

 protected:
  struct Connection {
    int32_t socket = -1;
    int32_t pid = 0;  // of the peer, where it has a number here
    bool is_pending = true;
    uint64_t since = 0;  // when it became pending
  };

  // The policy must live as long as the server, and not change while the thread runs.
  PeerServer(const HostAllocator &allocator, const IpcPolicy &policy)
      : allocator_(allocator), policy_(policy), connections_(allocator) {}
  ~PeerServer() = default;

  // --- What is served, on the thread ---
  // A new connection; NULL: there is no memory, or something else lacks.
  virtual Connection *make(int32_t pid) = 0;
  // Bytes have come, or the end.
  virtual void receive(Connection *connection) = 0;
  // The last call for it: its socket is closed, or somebody else's.
  virtual void ended(Connection *connection) = 0;
  // Before a peer's socket is closed for this reason: IPC_REFUSED, or BUSY.
  virtual void turn_away(int32_t socket, gmm_result reason) = 0;
  virtual void log(const char *text) = 0;

  // --- The socket's name ---
  int listen(int32_t *listener);
  // Whether the name still means the last socket that listen() made.
  bool has_name() const;
  void remove_name() const { os::remove_name(folder_, name_); }

  // --- The loop ---
  bool is_stopping() const { return stopping_.load(std::memory_order_acquire); }
  void request_stop();
  // Waits until that time, or until something came, and serves it.
  void serve_until(uint64_t until);
  void accept_all();
  void keep(Connection *connection);
  void drop(Connection *connection);
  // Ends the connection as drop() does, but the caller has its socket, which stays open.
  int32_t release(Connection *connection);
  void drop_all();
  [[gnu::format(printf, 2, 3)]] void complain(const char *format, ...);

  const HostAllocator allocator_;
  const IpcPolicy &policy_;
  int32_t folder_ = -1;  // of the socket; this and its name are the owner's
  char name_[kIpcNameSize] = {};
  os::SocketPoller poller_;
  int32_t listener_ = -1;  // with itself as the key of the poller; its number stays while the thread runs
  std::atomic<bool> stopping_{false};
  uint32_t pending_ = 0;
  uint64_t accept_again_ = 0;  // when to accept again after a lack of descriptors; 0: it accepts
  Mutex connections_mutex_{LockRank::kIpcConnections};
  Vector<Connection *> connections_;

 private:
  void admit(int32_t socket);
  void remove(Connection *connection);
  Connection *oldest_pending() const;

  os::NameIdentity identity_;
  uint64_t complaints_since_ = 0;
  uint32_t complaints_ = 0;
};

}  // namespace gmm
#endif
