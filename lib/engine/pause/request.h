// SPDX-License-Identifier: Apache-2.0
// A request to pause, resume or discard, and what its caller learns while it runs.
#ifndef GMM_ENGINE_PAUSE_REQUEST_H
#define GMM_ENGINE_PAUSE_REQUEST_H

#include <gmm/pause.h>

#include <atomic>

#include "base/lock.h"
#include "engine/heap/heap.h"

namespace gmm {

// A ticket's operation as its two sides see it: the thread that carries it out, and those that ask, wait, commit and
// cancel. Thread-safe.
class TicketState {
 public:
  std::atomic<uint32_t> cancelled{0};
  std::atomic<uint64_t> copied{0}, total{0};

  // --- The thread of the operation ---
  // Nothing can fail any more and nothing has changed: waits for the decision, without a lock of a heap. CANCELLED: it
  // was cancelled, or not committed in time. After a commit a further call returns at once, as an operation that lacked
  // memory is tried again.
  Status hold(uint64_t hold_ms);
  // The result is written.
  void end();

  // --- The others ---
  gmm_ticket_state now() const { return now_.load(std::memory_order_acquire); }
  // From now on a cancellation comes too late.
  bool is_committed() const { return is_committed_.load(std::memory_order_relaxed); }
  // False: the operation is not held. A second commit is as good as the first.
  bool commit();
  void cancel();
  // Waits for the end; with `also_held` for a hold, too. False when the time ran out.
  bool wait(uint64_t timeout_ms, bool also_held);

 private:
  std::atomic<gmm_ticket_state> now_{GMM_TICKET_RUNNING};
  std::atomic<bool> is_committed_{false};
  Mutex mutex_{LockRank::kTicket};
  Condition changed_;
};

struct PauseRequest {
  const gmm_tag *tags = nullptr;  // checked
  uint32_t count = 0;             // 0: every tag
  uint32_t flags = 0;             // GMM_PAUSE_*
  gmm_progress_callback progress = {};
  TicketState *ticket = nullptr;
  uint64_t hold_ms = 0;  // with GMM_PAUSE_HOLD, which only an operation with a ticket has
  uint64_t caller = 0;   // Core::caller(); 0: the thread that carries it out
  // Only these parts of the tags' memory, by address, which do not overlap. No hold.
  const ByteRange *ranges = nullptr;
  uint32_t range_count = 0;     // 0: all of it
  gmm_stream stream = nullptr;  // with GMM_PAUSE_ORDERED

  bool has_ranges() const { return range_count != 0; }
  bool is_ordered() const { return (flags & GMM_PAUSE_ORDERED) != 0; }
  bool prepares() const { return (flags & GMM_RESUME_PREPARE) != 0; }
  bool holds() const { return (flags & GMM_PAUSE_HOLD) != 0; }
  bool names(const Heap &heap) const {
    if (heap.options().kind != Kind::kVmm) return false;
    for (uint32_t i = 0; i < count; ++i)
      if (tags[i] == heap.options().tag) return true;
    return count == 0;
  }
};

// How far the copies of a transaction are. It reports that to the program and the ticket, and learns from them whether
// the transaction is cancelled. Threads that copy to and from several devices share one.
class TransitionProgress {
 public:
  explicit TransitionProgress(const PauseRequest &request) : request_(request) {}
  void add_total(uint64_t bytes) { total_ += bytes; }
  // All totals are added.
  void begin();
  void add(uint64_t bytes) { copied_.fetch_add(bytes, std::memory_order_relaxed); }
  // Reports to the program and the ticket. The thread of the request alone calls it. CANCELLED: one of them ends the
  // transaction, which is not committed.
  Status tell();
  // The copies end: each report from now on is a failure. True for the first call.
  bool stop() { return !is_stopped_.exchange(true, std::memory_order_relaxed); }
  bool is_stopped() const { return is_stopped_.load(std::memory_order_relaxed); }

 private:
  const PauseRequest &request_;
  uint64_t total_ = 0;  // bytes of all heaps
  std::atomic<uint64_t> copied_{0};
  std::atomic<bool> is_stopped_{false};
};

}  // namespace gmm
#endif
