// SPDX-License-Identifier: Apache-2.0
// The broker: one thread of the exporter, which answers importers on a local socket.
//
// The broker knows nothing of memory: an IpcResolver finds the object of an id and a token. A connection is
//   pending  from its start until its request is complete,
//   live     while it counts as an importer.
// A refusal, the reply to a check, any further message, a revocation and the end of the peer close it.
//
// The thread waits for nothing but its sockets. The resolver answers BUSY instead of waiting for a lock that a pause
// may hold, and the importer asks again.
//
// Somebody may delete the socket, for example a program that tidies /tmp. The next export makes it anew under the same
// name, so all handles work again.
//
// Bounds, so that no peer can hold up another one: at most kMaxPending pending connections, each for at most
// kHandshakeMs; at most kMaxLive live ones; 48 bytes of one request; 20 log messages a second. The oldest pending
// connection makes way for a new one.
#ifndef GMM_ENGINE_IPC_BROKER_H
#define GMM_ENGINE_IPC_BROKER_H

#include <atomic>
#include <cstdint>

#include "base/host_allocator.h"
#include "base/local_socket.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/thread.h"
#include "engine/ipc/directory.h"
#include "engine/ipc/handle.h"
#include "engine/ipc/policy.h"
#include "engine/ipc/protocol.h"

namespace gmm {

struct IpcGrant {
  // From the broker.
  bool wants_fds = false;  // false for importers that want to be counted only
  bool counts = true;      // false for a check, after which there is no importer_gone()
  // From the resolver, also before a failure. The broker closes the descriptors.
  uint32_t extents = 0;
  int32_t fds[kIpcMaxExtents];
  uint64_t sizes[kIpcMaxExtents];
  uint64_t allocation_size = 0;
  uint64_t generation = 0;
};

// The broker calls the functions on its thread, with none of its locks held. They must not wait. After each resolve()
// that succeeds and counts there is exactly one importer_gone(), at the latest in stop().
struct IpcResolver {
  // Ids are never 0. Compares the token with ipc_token_equal(). The importer gets the code of a failure: IPC_REFUSED,
  // IPC_PEER_GONE, PAUSED and so on.
  Status (*resolve)(void *user, uint64_t id, const uint8_t token[kIpcTokenSize], IpcGrant *out) = nullptr;
  void (*importer_gone)(void *user, uint64_t id) = nullptr;
  void *user = nullptr;
};

// Takes the same time for every content.
bool ipc_token_equal(const uint8_t a[kIpcTokenSize], const uint8_t b[kIpcTokenSize]);

class IpcBroker {
 public:
  static constexpr uint32_t kMaxPending = 64;
  static constexpr uint32_t kMaxLive = kIpcMaxImporters;
  static constexpr uint64_t kHandshakeMs = 2000;

  // The policy must not change after start().
  IpcBroker(const HostAllocator &allocator, const Log &log, const IpcResolver &resolver,
            const IpcPolicy &policy = kIpcDefaultPolicy)
      : allocator_(allocator), log_(log), resolver_(resolver), policy_(policy) {}
  ~IpcBroker() { stop(); }
  IpcBroker(const IpcBroker &) = delete;
  IpcBroker &operator=(const IpcBroker &) = delete;

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
  // Closes the connections of all importers of an export or event. The importers see PeerState::kRevoked.
  // importer_gone() follows for each of them. Does not wait.
  void revoke(uint64_t export_id) { end_importers(export_id, true); }
  // As revoke(), but the importers see PeerState::kGone: the exporter does not need the memory or event any more.
  void disconnect(uint64_t export_id) { end_importers(export_id, false); }

 private:
  enum class State : uint8_t { kFree, kPending, kLive };
  struct Slot {
    int32_t fd = -1;
    State state = State::kFree;
    uint32_t received = 0;
    int32_t pid = 0;
    uint64_t since = 0;       // when it became pending
    uint64_t allocation = 0;  // guarded by slot_mutex_; 0 before a request
    struct {
      IpcRequest request;
      uint8_t next = 0;  // shows a request that is too long
    } incoming;
  };
  static constexpr uint32_t kSlots = kMaxPending + kMaxLive;

  // Start and stop, with mutex_ held.
  Status start_thread();
  Status open_socket();
  Status listen_under_own_name(int *listener);
  bool has_socket() const;
  Status restore_socket();
  void remove_socket();
  void close_files();

  // From any thread.
  void end_importers(uint64_t export_id, bool is_revoked);

  // On the broker's thread: the loop.
  static void *thread_main(void *self);
  void run();
  int64_t milliseconds_to_next_deadline();
  void close_late_pending();
  void resume_listening();
  void take_over_listener();

  // A connection from accept to close.
  void accept_connections();
  void admit(int fd);
  void receive(Slot *slot);
  void receive_request(Slot *slot);
  void answer(Slot *slot);
  bool check(const IpcRequest &request, const Slot &slot);
  gmm_result grant(Slot *slot, const IpcRequest &request, IpcGrant *out);
  bool send_reply(int fd, const IpcReply &reply, const IpcGrant *grant = nullptr);
  void refuse(Slot *slot, gmm_result result);
  void drop(Slot *slot);
  Slot *free_slot();
  Slot *oldest_pending();
  // Writes to the log, at most 20 messages a second.
  [[gnu::format(printf, 2, 3)]] void complain(const char *format, ...);

  const HostAllocator allocator_;
  const Log log_;
  const IpcResolver resolver_;
  const IpcPolicy &policy_;

  Mutex mutex_{LockRank::kIpcBroker};  // of start() and stop(), before slot_mutex_
  std::atomic<bool> running_{false};   // written with mutex_ held
  IpcEndpoint endpoint_;               // constant while running_
  Thread thread_;
  int directory_ = -1;  // this and the next four with mutex_ held
  char directory_path_[kIpcPathSize] = {};
  bool has_name_ = false;  // the socket's name exists, unless somebody deleted it
  os::NameIdentity socket_;
  bool runtime_directory_failed_ = false;
  int listener_ = -1;                   // the thread's own while it runs
  std::atomic<int> next_listener_{-1};  // of a socket that was made anew; the thread takes it over
  os::SocketPoller poller_;
  std::atomic<bool> stopping_{false};

  Mutex slot_mutex_{LockRank::kIpcBrokerSlots};  // for the fields that end_importers() and the thread share
  Slot *slots_ = nullptr;

  // The thread's own.
  uint32_t pending_ = 0, live_ = 0;
  uint64_t listen_again_ = 0;  // when to listen again after accept() ran out of descriptors; 0: listening
  uint64_t complaints_since_ = 0;
  uint32_t complaints_ = 0;
};

}  // namespace gmm
#endif
