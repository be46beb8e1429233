// SPDX-License-Identifier: Apache-2.0
// The broker: one thread of the exporter, which answers importers on a local socket.
//
// The broker knows nothing of memory: an IpcResolver finds the object of an id and a token. A connection is pending
// until its request is complete, and live while it counts as an importer. A refusal, the reply to a check, any further
// message, a revocation and the end of the peer close it.
//
// The resolver answers BUSY instead of waiting for a lock that a pause may hold, and the importer asks again.
//
// Somebody may delete the socket, for example a program that tidies /tmp. The next export makes it anew under the same
// name, so all handles work again.
// SECURITY.md has the bounds.
#ifndef GMM_ENGINE_IPC_BROKER_H
#define GMM_ENGINE_IPC_BROKER_H

#include <atomic>
#include <cstdint>

#include "base/log.h"
#include "base/thread.h"
#include "engine/ipc/control_messages.h"
#include "engine/ipc/directory.h"
#include "engine/ipc/handle.h"
#include "engine/ipc/peer_server.h"

namespace gmm {

// The answer to a request. The resolver fills it, but for its result.
struct IpcGrant : IpcAnswer {
  bool wants_fds = false;  // false for importers that want to be counted only
  bool counts = true;      // false for a check, after which there is no importer_gone()

  void add_extent(int32_t fd, uint64_t size) {
    reply.sizes[reply.extents++] = size;
    fds.each[fds.count++] = fd;
  }
};

// The broker calls the functions on its thread, with none of its locks held. They must not wait. After each resolve()
// that succeeds and counts there is exactly one importer_gone(), at the latest in stop().
struct IpcResolver {
  // Ids are never 0. Compares the token with ipc_token_equal(). The importer gets the code of a failure: IPC_REFUSED,
  // IPC_PEER_GONE, PAUSED and so on.
  Status (*resolve)(void *user, uint64_t id, const uint8_t token[kIpcTokenSize], IpcGrant *out) = nullptr;
  void (*importer_gone)(void *user, uint64_t id) = nullptr;
  void *user = nullptr;
  ControlTaker control;
};

// Takes the same time for every content.
bool ipc_token_equal(const uint8_t a[kIpcTokenSize], const uint8_t b[kIpcTokenSize]);

class IpcBroker final : private PeerServer {
 public:
  using PeerServer::kHandshakeMs;
  static constexpr uint32_t kMaxLive = kIpcMaxImporters;

  // The policy must not change after start().
  IpcBroker(const HostAllocator &allocator, const Log &log, const IpcResolver &resolver,
            const IpcPolicy &policy = kIpcDefaultPolicy)
      : PeerServer(allocator, policy), log_(log), resolver_(resolver) {}
  ~IpcBroker() { stop(); }

  // Returns the address at which the broker answers. Starts the thread unless it runs, and makes the socket anew if it
  // was deleted; otherwise it costs one system call. The broker may start again after stop().
  Status start(IpcEndpoint *out);
  // Removes the socket, closes all connections and ends the thread. The caller holds no lock that the resolver takes,
  // and does not run on the broker's thread.
  void stop();
  // Whether this broker runs and answers at that address. No lock.
  bool answers_at(const IpcEndpoint &endpoint) const {
    return running_.load(std::memory_order_acquire) && endpoint_ == endpoint;
  }
  bool is_running() const { return running_.load(std::memory_order_acquire); }
  // Closes the connections of all importers of an export or event. The importers see PeerState::kRevoked.
  // importer_gone() follows for each of them. Does not wait.
  void revoke(uint64_t export_id) { end_importers(export_id, true); }
  // As revoke(), but the importers see PeerState::kGone: the exporter does not need the memory or event any more.
  void disconnect(uint64_t export_id) { end_importers(export_id, false); }

 private:
  struct Importer : Connection {
    uint64_t allocation = 0;  // guarded by connections_mutex_; 0 before a request
  };

  // Start and stop, with mutex_ held.
  Status start_thread();
  Status open_socket();
  Status restore_socket();
  void close_files();

  // From any thread.
  void end_importers(uint64_t export_id, bool is_revoked);

  // On the broker's thread.
  void run();
  Connection *make(int32_t pid) override;
  void receive(Connection *connection) override;
  void ended(Connection *connection) override;
  void turn_away(int32_t socket, gmm_result reason) override;
  void log(const char *text) override { log_.write(LogLevel::kWarning, "ipc: %s", text); }
  void answer(Importer *importer, const IpcRequest &request);
  void pass_on(Importer *importer, ControlRequest *request);
  bool check(const IpcRequest &request, const Importer &importer, bool is_control);
  gmm_result grant(Importer *importer, const IpcRequest &request, IpcGrant *out);
  bool send(int32_t socket, const IpcAnswer &answer);
  void refuse(Importer *importer, gmm_result result);

  const Log log_;
  const IpcResolver resolver_;

  Mutex mutex_{LockRank::kIpcBroker};  // of start() and stop(), before connections_mutex_
  std::atomic<bool> running_{false};   // written with mutex_ held
  IpcEndpoint endpoint_;               // constant while running_
  Thread thread_;
  // These and the folder with mutex_ held.
  char directory_path_[kIpcPathSize] = {};
  bool is_named_ = false;  // the socket's name exists, unless somebody deleted it
  bool runtime_directory_failed_ = false;
};

}  // namespace gmm
#endif
