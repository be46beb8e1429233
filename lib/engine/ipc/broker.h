// SPDX-License-Identifier: Apache-2.0
// The exporter's side of sharing: one thread that answers importers on a Unix socket.
//
// It knows nothing of spans: a resolver says which allocation an id and a token mean. Everything is bounded: the
// connections, the handshakes under way, their time, their bytes, the log. A peer that is slow, silent or wrong is
// dropped and holds up nobody else.
#ifndef GMM_ENGINE_IPC_BROKER_H
#define GMM_ENGINE_IPC_BROKER_H

#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "base/host_allocator.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/status.h"
#include "engine/ipc/directory.h"
#include "engine/ipc/handle.h"
#include "engine/ipc/protocol.h"

namespace gmm {

struct IpcGrant {
  bool wants_fd = false;         // from the broker: false for importers that want to be counted only
  int32_t fd = -1;               // from the resolver; the broker closes it after sending, or after failing to
  uint64_t allocation_size = 0;  // from the resolver
  uint64_t generation = 0;       // from the resolver
};

// Both are called on the broker's thread, with no lock of the broker held. After each resolve() that succeeds there is
// exactly one importer_gone(), at the latest in stop().
struct IpcResolver {
  // Compares the token with ipc_token_equal(). The code of a failure goes to the importer: IPC_REFUSED, IPC_PEER_GONE,
  // PAUSED and so on.
  Status (*resolve)(void *user, uint64_t id, const uint8_t token[kIpcTokenSize], IpcGrant *out) = nullptr;
  void (*importer_gone)(void *user, uint64_t id) = nullptr;
  void *user = nullptr;
};

bool ipc_token_equal(const uint8_t a[kIpcTokenSize], const uint8_t b[kIpcTokenSize]);

class IpcBroker {
 public:
  static constexpr uint32_t kMaxPending = 64;
  static constexpr uint32_t kMaxLive = kIpcMaxImporters;
  static constexpr uint64_t kHandshakeMs = 2000;

  // The policy stays as it is from start() on. Peers may take `handshake_ms` to say what they want.
  IpcBroker(const HostAllocator &allocator, const Log &log, const IpcResolver &resolver,
            const IpcPolicy &policy = kIpcDefaultPolicy, uint64_t handshake_ms = kHandshakeMs)
      : allocator_(allocator), log_(log), resolver_(resolver), policy_(policy), handshake_ms_(handshake_ms) {}
  ~IpcBroker() { stop(); }
  IpcBroker(const IpcBroker &) = delete;
  IpcBroker &operator=(const IpcBroker &) = delete;

  // Starts the thread unless it runs; gives where it answers. After stop() it may be started again.
  Status start(IpcEndpoint *out);
  // Removes the socket, ends all connections and the thread. The caller holds no lock that the resolver takes, and does not run on the broker's thread.
  // In a child after fork() it does nothing: thread, socket and connections are the parent's.
  void stop();
  // Ends the connections of all importers of an allocation, under its id with all other bits than those of `mask`. They see why
  // when `tell` is set, else that the exporter is done with it; importer_gone() follows for each of them. Does not wait.
  void revoke(uint64_t allocation, uint64_t mask = ~uint64_t{0}, bool tell = true);
  // Importers that have been granted memory and not gone.
  uint32_t live() const { return live_.load(std::memory_order_relaxed); }

 private:
  enum class State : uint8_t { kFree, kPending, kLive, kIdle };
  struct Slot {
    int32_t fd = -1;
    State state = State::kFree;
    bool granted = false;  // importer_gone() is owed
    bool revoked = false;  // guarded by slot_mutex_
    bool tell = false;     // guarded by slot_mutex_
    uint32_t received = 0;
    int32_t pid = 0;
    uint64_t since = 0;
    uint64_t allocation = 0;               // guarded by slot_mutex_; 0 before the request
    bool has_allocation = false;           // guarded by slot_mutex_
    uint8_t request[kIpcRequestSize + 1];  // one more, to see what is too long
  };
  static constexpr uint32_t kSlots = kMaxPending + kMaxLive;

  Status open_socket();
  Status start_locked();
  void close_files();
  bool forked() const;
  void wake();
  static void *thread_main(void *self);
  void run();
  int wait_ms();
  void accept_clients();
  void admit(int fd);
  void receive(Slot *slot);
  void receive_more(Slot *slot);
  bool is_release(const IpcRequest &request, const Slot &slot) const;
  void release(Slot *slot);
  void answer(Slot *slot);
  bool check(const IpcRequest &request, const Slot &slot);
  bool grant(Slot *slot, const IpcRequest &request);
  bool send_reply(int fd, const IpcReply &reply, int descriptor);
  void refuse(Slot *slot, gmm_result result);
  void drop(Slot *slot);
  void drop_late();
  void drop_revoked();
  void drop_oldest_idle();
  Slot *oldest_pending();
  void forget_pending(const Slot *slot);
  [[gnu::format(printf, 2, 3)]] void complain(const char *format, ...);

  const HostAllocator allocator_;
  const Log log_;
  const IpcResolver resolver_;
  const IpcPolicy &policy_;
  const uint64_t handshake_ms_;

  Mutex mutex_;  // start and stop
  bool running_ = false;
  std::atomic<int32_t> owner_pid_{0};  // the process whose thread, socket and connections these are
  IpcEndpoint endpoint_;
  pthread_t thread_ = {};
  int directory_ = -1;
  bool fell_through_ = false;
  int listener_ = -1;
  int epoll_ = -1;
  int wake_ = -1;
  std::atomic<bool> stopping_{false};
  std::atomic<uint32_t> live_{0};
  std::atomic<bool> any_revoked_{false};

  Mutex slot_mutex_;  // what revoke() shares with the thread; never held over a call out
  Slot *slots_ = nullptr;

  // The thread's own.
  // Which slots are free, and which pending ones came first: a list of 1,088 is not searched for each importer.
  Slot **free_ = nullptr;
  uint32_t free_count_ = 0;
  Slot *pending_list_[kMaxPending] = {};  // oldest first
  uint32_t pending_ = 0;
  uint32_t idle_ = 0;          // connections that released what they were granted: with the live ones at most kMaxLive
  uint64_t listen_again_ = 0;  // when to listen again after running out of descriptors; 0: listening
  uint64_t complaints_since_ = 0;
  uint32_t complaints_ = 0;
};

}  // namespace gmm
#endif
