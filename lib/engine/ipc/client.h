// SPDX-License-Identifier: Apache-2.0
// The importer's side: one request to an exporter's broker, and the connection that counts this process as an importer
// from then on.
#ifndef GMM_ENGINE_IPC_CLIENT_H
#define GMM_ENGINE_IPC_CLIENT_H

#include <cstdint>

#include "base/no_copy.h"
#include "base/peer.h"
#include "base/status.h"
#include "engine/ipc/handle.h"
#include "engine/ipc/policy.h"
#include "engine/ipc/protocol.h"

namespace gmm {

// The open connection that counts this process as an importer. It ends when either process ends, and when the exporter
// revokes the allocation.
struct IpcConnection : NoCopy {
  ~IpcConnection() { close(); }
  bool open() const { return peer.connection >= 0; }
  // Whether the exporter lives and has revoked nothing. Does not wait.
  PeerState state() const;
  bool alive() const { return open() && state() == PeerState::kAlive; }
  // Ends the connection. The exporter counts one importer less, even if a child of this process holds the socket too.
  void close();

  Peer peer;  // it owns both descriptors; the first is readable or hung up when the exporter ended or revoked
  IpcEndpoint exporter;
};

// One request over a new connection, which a failure leaves closed. `reply.extents` is 0 but for IpcWant::kDescriptors;
// all are at most the handle's size.
// Errors: IPC_PEER_GONE (no such process or socket, the exporter ended, or the memory was freed or replaced),
// IPC_REFUSED, IPC_TIMEOUT, SYSTEM (this process is out of descriptors).
Status ipc_connect(const IpcHandle &handle, IpcWant want, uint64_t timeout_ms, IpcConnection *connection,
                   IpcAnswer *out, const IpcPolicy &policy = kIpcDefaultPolicy);

}  // namespace gmm
#endif
