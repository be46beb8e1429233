// SPDX-License-Identifier: Apache-2.0
// The importer's side: one request to an exporter's broker, and the connection that counts this process as an importer
// from then on.
#ifndef GMM_ENGINE_IPC_CLIENT_H
#define GMM_ENGINE_IPC_CLIENT_H

#include <cstdint>
#include <utility>

#include "base/peer.h"
#include "base/status.h"
#include "engine/ipc/handle.h"
#include "engine/ipc/policy.h"
#include "engine/ipc/protocol.h"

namespace gmm {

// The open connection that counts this process as an importer. It ends when either process ends, and when the exporter
// revokes the allocation.
class IpcConnection {
 public:
  IpcConnection() = default;
  // Owns both descriptors of the peer from now on.
  IpcConnection(const Peer &peer, const IpcEndpoint &exporter) : peer_(peer), exporter_(exporter) {}
  ~IpcConnection() { close(); }
  IpcConnection(IpcConnection &&other) noexcept
      : peer_(std::exchange(other.peer_, Peer())), exporter_(other.exporter_) {}
  IpcConnection &operator=(IpcConnection &&other) noexcept {
    std::swap(peer_, other.peer_);
    std::swap(exporter_, other.exporter_);
    return *this;
  }

  bool open() const { return peer_.connection >= 0; }
  // Whether the exporter lives and has revoked nothing. Does not wait.
  PeerState state() const;
  bool alive() const { return open() && state() == PeerState::kAlive; }
  // Both descriptors; the connection owns them. The first is readable or hung up when the exporter ended or revoked.
  const Peer &peer() const { return peer_; }
  // Ends the connection. The exporter counts one importer less, even if a child of this process holds the socket too.
  void close();

 private:
  Peer peer_;
  IpcEndpoint exporter_;
};

// The answer of an exporter. `reply.extents` is 0 but for IpcWant::kDescriptors; all are at most the handle's size.
struct IpcImport : IpcAnswer {
  IpcConnection connection;
};

// One request over a new connection.
// Errors: IPC_PEER_GONE (no such process or socket, the exporter ended, or the memory was freed or replaced),
// IPC_REFUSED, IPC_TIMEOUT, SYSTEM (this process is out of descriptors).
Status ipc_connect(const IpcHandle &handle, IpcWant want, uint64_t timeout_ms, IpcImport *out,
                   const IpcPolicy &policy = kIpcDefaultPolicy);

}  // namespace gmm
#endif
