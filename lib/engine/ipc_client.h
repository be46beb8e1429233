// SPDX-License-Identifier: Apache-2.0
// The importer's side of sharing: asks an exporter's broker for an allocation.
#ifndef GMM_ENGINE_IPC_CLIENT_H
#define GMM_ENGINE_IPC_CLIENT_H

#include <cstdint>

#include "base/status.h"
#include "engine/ipc_handle.h"
#include "engine/ipc_protocol.h"

namespace gmm {

// The open connection that makes this process count as an importer. It ends with either process, and when the exporter
// revokes the allocation.
class IpcConnection {
 public:
  IpcConnection() = default;
  IpcConnection(int fd, const IpcEndpoint &exporter) : fd_(fd), exporter_(exporter) {}
  ~IpcConnection() { close(); }
  IpcConnection(IpcConnection &&other) noexcept : fd_(other.fd_), exporter_(other.exporter_) { other.fd_ = -1; }
  IpcConnection &operator=(IpcConnection &&other) noexcept;

  bool open() const { return fd_ >= 0; }
  // Whether the exporter still lives and still grants the memory. Does not wait.
  bool alive() const;
  // For poll(): readable or hung up when the exporter is gone. Stays the connection's.
  int fd() const { return fd_; }
  // Tells the exporter that this importer is done.
  void close();

 private:
  int fd_ = -1;
  IpcEndpoint exporter_;
};

struct IpcImport {
  int fd = -1;                   // the caller's to close; -1 for IpcWant::kCount
  uint64_t allocation_size = 0;  // as the exporter says: at most the handle's, of which this may be one piece
  IpcConnection connection;
};

// Errors: IPC_PEER_GONE (no such process or socket, it ended, or the memory was freed or replaced since), IPC_REFUSED,
// IPC_TIMEOUT, SYSTEM (this process is out of descriptors). `out` is written only on success.
Status ipc_connect(const IpcHandle &handle, IpcWant want, uint32_t timeout_ms, IpcImport *out);

}  // namespace gmm
#endif
