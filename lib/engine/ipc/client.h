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

// The grant of an exporter. It owns the descriptors until the caller takes them.
struct IpcImport {
  uint32_t extents = 0;  // 0 but for IpcWant::kDescriptors
  int32_t fds[kIpcMaxExtents];
  uint64_t sizes[kIpcMaxExtents];
  uint64_t allocation_size = 0;  // of all extents, as the exporter says: at most the handle's
  IpcConnection connection;

  IpcImport() = default;
  ~IpcImport() { close_fds(); }
  IpcImport(const IpcImport &) = delete;
  IpcImport &operator=(const IpcImport &) = delete;
  int32_t take_fd(uint32_t extent) {
    const int32_t fd = fds[extent];
    fds[extent] = -1;
    return fd;
  }
  void close_fds();
};

// One request over a new connection. After a failure `out` is empty.
// Errors: IPC_PEER_GONE (no such process or socket, the exporter ended, or the memory was freed or replaced),
// IPC_REFUSED, IPC_TIMEOUT, SYSTEM (this process is out of descriptors).
Status ipc_connect(const IpcHandle &handle, IpcWant want, uint64_t timeout_ms, IpcImport *out,
                   const IpcPolicy &policy = kIpcDefaultPolicy);

}  // namespace gmm
#endif
