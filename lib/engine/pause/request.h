// SPDX-License-Identifier: Apache-2.0
// A request to pause, resume or discard, and what its caller learns while it runs.
#ifndef GMM_ENGINE_PAUSE_REQUEST_H
#define GMM_ENGINE_PAUSE_REQUEST_H

#include <gmm/pause.h>

#include <atomic>

#include "engine/heap/heap.h"

namespace gmm {

// What a ticket and its operation share.
struct TicketState {
  std::atomic<uint32_t> cancelled{0};
  std::atomic<uint64_t> copied{0}, total{0};
};

// The say of others in a transition: a job whose ranks change as one. It is asked on the thread of the transition,
// which holds the claim of the tags and no lock of a heap, so frees go on. A failure ends the transition, and all is as
// before. A resume that lacked memory is tried again and asks again; after OK the answer stays OK.
struct TransitionVote {
  void *user = nullptr;
  // The watchers have agreed, and nothing has happened yet.
  Status (*begin)(void *user) = nullptr;
  // A pause has the contents, and everything is still mapped. A resume has the pages, and nothing is mapped. `bytes`
  // will change state. After OK the transition only goes forward. `*was_used`: the program used the memory meanwhile.
  Status (*decide)(void *user, uint64_t bytes, bool *was_used) = nullptr;
};

struct PauseRequest {
  const gmm_tag *tags = nullptr;  // checked
  uint32_t count = 0;             // 0: every tag
  uint32_t flags = 0;             // GMM_PAUSE_*
  gmm_progress_callback progress = {};
  TicketState *ticket = nullptr;
  const TransitionVote *vote = nullptr;

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
  // Tells the program and the ticket. The thread of the request alone calls it. CANCELLED: one of them ends the
  // transaction.
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

// The copies of one heap in it. One thread uses it.
class HeapProgress {
 public:
  // `tells`: the thread is that of the request.
  HeapProgress(TransitionProgress &all, bool tells) : all_(all), tells_(tells) {}
  // `bytes` of the heap are copied. CANCELLED: the transaction ends.
  Status report(uint64_t bytes);
  // All of the heap is copied.
  void end(uint64_t bytes) { all_.add(bytes - copied_); }

 private:
  TransitionProgress &all_;
  const bool tells_;
  uint64_t copied_ = 0;
};

}  // namespace gmm
#endif
