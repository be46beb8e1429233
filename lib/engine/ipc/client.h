// SPDX-License-Identifier: Apache-2.0
// The importer's side of sharing: asks an exporter's broker for an allocation.
#ifndef GMM_ENGINE_IPC_CLIENT_H
#define GMM_ENGINE_IPC_CLIENT_H

#include <cstdint>

#include "base/peer.h"
#include "base/status.h"
#include "engine/ipc/directory.h"
#include "engine/ipc/handle.h"
#include "engine/ipc/protocol.h"

namespace gmm {

// The open connection that makes this process count as an importer. It ends with either process, and when the exporter
// revokes the allocation.
class IpcConnection {
 public:
  IpcConnection() = default;
  // Takes both descriptors over. `process` may be -1. `allocation`: what it was granted.
  IpcConnection(int fd, int process, const IpcEndpoint &exporter, uint64_t allocation)
      : peer_{fd, process}, exporter_(exporter), allocation_(allocation) {}
  ~IpcConnection() { close(); }
  IpcConnection(IpcConnection &&other) noexcept
      : peer_(other.peer_), exporter_(other.exporter_), allocation_(other.allocation_) {
    other.peer_ = Peer();
  }
  IpcConnection &operator=(IpcConnection &&other) noexcept;

  bool open() const { return peer_.connection >= 0; }
  // Whether the exporter still lives and still grants the memory. Does not wait.
  PeerState state() const;
  bool alive() const { return open() && state() == PeerState::kAlive; }
  // For poll(): readable or hung up when the exporter is gone. Stays the connection's.
  int fd() const { return peer_.connection; }
  const Peer &peer() const { return peer_; }
  const IpcEndpoint &exporter() const { return exporter_; }
  // Tells the exporter that this importer is done with the memory; false: it could not be told, so that the connection must be closed.
  bool release();
  // Tells the same by ending the connection.
  void close();
  // Both descriptors, the caller's from now on.
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

class IpcIdleConnections;

// What the caller can do while the exporter answers: called once at most, when a request has gone out.
struct IpcMeanwhile {
  void (*call)(void *self) = nullptr;
  void *self = nullptr;
};

struct IpcImport {
  int fd = -1;                   // the caller's to close; -1 for IpcWant::kCount
  uint64_t allocation_size = 0;  // as the exporter says: at most the handle's, of which this may be one piece
  IpcConnection connection;
};

// Errors: IPC_PEER_GONE (no such process or socket, it ended, or the memory was freed or replaced since), IPC_REFUSED,
// IPC_TIMEOUT, SYSTEM (this process is out of descriptors). `out` is written only on success.
// Without `watch` the death of the process itself is not looked at: for further connections to one exporter.
// A connection of `idle` to the same exporter is used if there is one.
Status ipc_connect(const IpcHandle &handle, IpcWant want, uint32_t timeout_ms, IpcImport *out,
                   const IpcPolicy &policy = kIpcDefaultPolicy, bool watch = true, IpcIdleConnections *idle = nullptr,
                   IpcMeanwhile meanwhile = IpcMeanwhile());

}  // namespace gmm
#endif
