// SPDX-License-Identifier: Apache-2.0
// The lease of a context (engine/lease/README.md has the protocol).
//
// Owns: the member's states, the connection to the server, and the offers. A thread of the lease keeps the connection,
// starts a server where there is none, measures, pauses offered tags for others, and calls `asked`. The thread that
// requests resumes.
//
// Invariants.
// - No lock is held while the thread measures, sends, pauses, resumes or calls the program.
// - A pause for others runs only while the member is idle or waiting, and a grant is taken only while none runs.
//
// Lock: `mutex_` is brief. It guards the member, the offers and the counters.
// Callers: api/lease.cpp, context/ticket.cpp.
#ifndef GMM_ENGINE_CONTEXT_LEASE_H
#define GMM_ENGINE_CONTEXT_LEASE_H

#include <gmm/lease.h>

#include "base/local_socket.h"
#include "base/process.h"
#include "base/thread.h"
#include "engine/context/context.h"
#include "engine/ipc/serve_link.h"
#include "engine/lease/member.h"

namespace gmm {

// Bytes beyond the offered tags, by device.
struct LeaseAmounts {
  uint64_t bytes[kMaxDevices] = {};
};

}  // namespace gmm

struct gmm_lease {
  static constexpr uint64_t kMagic = 0x676d6d2d6c656173;
  static constexpr char kHandleName[] = "lease";
  static constexpr uint64_t kDefaultTimeout = 60'000, kMaxTimeout = 86'400'000, kMaxResidency = 3'600'000;
  static constexpr uint64_t kLeastResidency = 100;
  gmm_lease(gmm::Context &of, const gmm_lease_desc &checked, uint64_t identity);
  ~gmm_lease();

  // A lease keeps its context.
  static gmm::Status create(gmm::Context &context, const gmm_lease_desc &desc, gmm_lease **out);
  static gmm::Status destroy(gmm_lease *lease);
  // BUSY in a call of `asked`.
  static gmm::Status check_other_thread(const char *function);
  // UNCHANGED: there is no such entry.
  static gmm::Status list(gmm::Context &context, uint64_t index, uint64_t timeout_ms, gmm_lease_entry_info *out);

  gmm::Status offer(gmm_tag tag, uint32_t cost);
  gmm::Status request(const gmm::LeaseAmounts &amounts, uint64_t timeout_ms, gmm::TicketState *ticket, uint64_t *bytes);
  gmm::Status return_all();
  void query(gmm_lease_info *out);

  uint64_t magic = kMagic;
  gmm::Context &context;
  std::atomic<uint32_t> tickets{0};  // they end before the lease

 private:
  struct Offer {
    gmm_tag tag;
    uint32_t cost;
  };
  struct Bytes {
    uint64_t active[gmm::kMaxDevices] = {}, paused[gmm::kMaxDevices] = {};
  };
  // How long a request waits, and the ticket that may cancel it; NULL: none.
  struct Patience {
    uint64_t deadline, timeout_ms;
    gmm::TicketState *ticket;
    bool is_cancelled() const { return ticket != nullptr && ticket->cancelled.load(std::memory_order_relaxed) != 0; }
    bool is_over() const { return is_cancelled() || gmm::milliseconds_until(deadline) == 0; }
  };
  template <typename Fn>
  bool wait_until(const Patience &patience, Fn fn);
  gmm::Status take_grant(const Patience &patience, uint64_t *bytes);
  gmm::Status no_grant(const Patience &patience);
  gmm::Status resume_offers(gmm::TicketState *ticket, uint64_t *bytes);

  gmm::Status begin();
  void run();
  bool connect();
  void disconnect();
  void retry_later();
  void receive();
  void send_report();
  void give(const gmm::LeaseCommand &command);
  void ask();
  void wake() { poller_.wake(); }
  // VMM memory of the tags, or of one of them.
  Bytes bytes_of(const gmm_tag *tags, uint64_t count);
  // By device. False: a device does not say which one it is, or there is no host memory.
  bool measure(gmm::LeaseMeasure out[gmm::kLeaseDevices]);
  bool copy_tags(gmm::Vector<gmm_tag> *out);
  void end_offer(const Offer &offer);

  const gmm_lease_desc desc_;  // its name is this one
  const uint64_t identity_;
  char name_[gmm::kLeaseNameSize] = {};

  // The thread's own.
  gmm::os::SocketPoller poller_;
  gmm::ServeLink link_;
  int32_t socket_ = -1;
  uint64_t retry_at_ = 0, retry_ms_ = 1;
  bool has_command_ = false;  // one came on this connection
  gmm::Thread thread_;
  bool is_used_[gmm::kMaxDevices] = {};     // devices on which the context held or wanted memory
  gmm::LeaseUuid uuids_[gmm::kMaxDevices];  // zero: not known yet
  uint64_t totals_[gmm::kMaxDevices] = {};  // bytes of the devices
  std::atomic<bool> stopping_{false};

  gmm::Mutex mutex_{gmm::LockRank::kLease};
  gmm::Condition changed_;
  // Guarded by mutex_.
  gmm::LeaseMember member_;
  gmm::Vector<Offer> offers_;
  bool is_requesting_ = false;
  int start_error_ = 0;  // of the last try to start a server
  gmm_lease_info counts_ = {};
};

#endif
