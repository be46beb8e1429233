// SPDX-License-Identifier: Apache-2.0
// The importer's connections: one request to an exporter's broker, and the connection that counts this process as an
// importer from then on.
#ifndef GMM_ENGINE_IPC_CLIENT_H
#define GMM_ENGINE_IPC_CLIENT_H

#include <cstdint>

#include "base/lock.h"
#include "base/peer.h"
#include "base/status.h"
#include "engine/ipc/handle.h"
#include "engine/ipc/peer_user.h"
#include "engine/ipc/protocol.h"

namespace gmm {

// The open connection that counts this process as an importer. It ends when either process ends, and when the exporter
// revokes the allocation.
class IpcConnection {
 public:
  IpcConnection() = default;
  // Owns both descriptors from now on. `process` may be -1. `allocation`: the id that the connection was granted first.
  IpcConnection(int fd, int process, const IpcEndpoint &exporter, uint64_t allocation)
      : peer_{fd, process}, exporter_(exporter), allocation_(allocation) {}
  ~IpcConnection() { close(); }
  IpcConnection(IpcConnection &&other) noexcept
      : peer_(other.peer_), exporter_(other.exporter_), allocation_(other.allocation_) {
    other.peer_ = Peer();
  }
  IpcConnection &operator=(IpcConnection &&other) noexcept;

  bool open() const { return peer_.connection >= 0; }
  uint64_t allocation() const { return allocation_; }
  // Whether the exporter lives and has revoked nothing. Does not wait.
  PeerState state() const;
  bool alive() const { return open() && state() == PeerState::kAlive; }
  // Readable or hung up when the exporter ended or revoked. The connection owns it.
  int fd() const { return peer_.connection; }
  const Peer &peer() const { return peer_; }
  const IpcEndpoint &exporter() const { return exporter_; }
  // Sends a release; the connection is idle after it. False: the exporter did not get it, and the caller must close the
  // connection.
  bool release();
  // Ends the connection, which releases too.
  void close();
  // Both descriptors; the caller owns them.
  Peer take() {
    const Peer old = peer_;
    peer_ = Peer();
    return old;
  }

 private:
  Peer peer_;
  IpcEndpoint exporter_;
  uint64_t allocation_ = 0;
};

// Work that the caller can do while the exporter prepares its answer. It runs at most once, after the request was sent.
struct IpcMeanwhile {
  void (*call)(void *self) = nullptr;
  void *self = nullptr;
};

struct IpcImport {
  int fd = -1;                   // the caller closes it; -1 for IpcWant::kCount
  uint64_t allocation_size = 0;  // of the piece, as the exporter says: at most the handle's
  IpcConnection connection;
};

// One request over a new connection. `out` is written only on success.
// `watch`: also opens a descriptor of the exporter's process, which shows its end even while a child of it holds the
// socket. Further connections to the same exporter do without.
// Errors: IPC_PEER_GONE (no such process or socket, the exporter ended, or the memory was freed or replaced),
// IPC_REFUSED, IPC_TIMEOUT, SYSTEM (this process is out of descriptors).
Status ipc_connect(const IpcHandle &handle, IpcWant want, uint64_t timeout_ms, IpcImport *out,
                   const IpcPolicy &policy = kIpcDefaultPolicy, bool watch = true,
                   IpcMeanwhile meanwhile = IpcMeanwhile());

// ipc_connect() with a cache of idle connections. A cached connection saves the search for the socket, the connect()
// and the check of the peer.
class IpcClient {
 public:
  static constexpr uint32_t kMaxIdle = 4;  // each is two descriptors here and one in the exporter

  // The policy must not change after the first connect().
  explicit IpcClient(const IpcPolicy &policy = kIpcDefaultPolicy) : policy_(policy) {}
  IpcClient(const IpcClient &) = delete;
  IpcClient &operator=(const IpcClient &) = delete;

  // As ipc_connect(), over an idle connection to the same exporter where there is one.
  Status connect(const IpcHandle &handle, IpcWant want, uint64_t timeout_ms, IpcImport *out, bool watch = true,
                 IpcMeanwhile meanwhile = IpcMeanwhile());
  // The next piece, `handle`, over the connection that was granted those before; out->connection stays empty. After an
  // error the connection is closed, which gives up all pieces.
  Status next_piece(const IpcHandle &handle, uint64_t timeout_ms, IpcConnection *connection, IpcImport *out);
  // Asks the exporter whether the handle's block lives. Errors: as ipc_connect().
  Status check(const IpcHandle &handle, uint64_t timeout_ms);
  // Releases what the connection was granted and caches the connection. The oldest idle connection is closed when there
  // are more than kMaxIdle. A connection that cannot be released is closed.
  void release(IpcConnection &&connection);
  void close_idle();

 private:
  void keep(IpcConnection &&idle);
  bool take_idle(const IpcEndpoint &exporter, IpcConnection *out);

  const IpcPolicy &policy_;
  Mutex mutex_{LockRank::kIpcClient};  // no other lock is taken while it is held
  IpcConnection idle_[kMaxIdle];       // oldest first
  uint32_t idle_count_ = 0;
};

}  // namespace gmm
#endif
