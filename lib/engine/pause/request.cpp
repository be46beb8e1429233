// SPDX-License-Identifier: Apache-2.0
#include "engine/pause/request.h"

#include <algorithm>
#include <cinttypes>

#include "base/process.h"

namespace gmm {
namespace {

constexpr uint64_t kWaitSlice = 60'000;  // ms

}  // namespace

Status TicketState::hold(uint64_t hold_ms) {
  LockGuard guard(mutex_);
  if (is_committed()) return Status();
  now_.store(GMM_TICKET_HELD, std::memory_order_release);
  changed_.notify_all();
  const uint64_t start = monotonic_ms();
  uint64_t past = 0;
  while (!is_committed() && cancelled.load(std::memory_order_relaxed) == 0 && past < hold_ms) {
    changed_.wait_for(mutex_, std::min(hold_ms - past, kWaitSlice));
    past = monotonic_ms() - start;
  }
  now_.store(GMM_TICKET_RUNNING, std::memory_order_release);
  if (is_committed()) return Status();
  if (cancelled.load(std::memory_order_relaxed) != 0)
    return fail(GMM_ERROR_CANCELLED, "The program cancelled it while it was held; everything is as before.");
  return fail(GMM_ERROR_CANCELLED,
              "It was held for %" PRIu64
              " ms and not committed; everything is as before. Commit earlier, or raise gmm_pause_desc.hold_ms.",
              hold_ms);
}

void TicketState::end() {
  LockGuard guard(mutex_);
  now_.store(GMM_TICKET_DONE, std::memory_order_release);
  changed_.notify_all();
}

bool TicketState::commit() {
  LockGuard guard(mutex_);
  if (now() == GMM_TICKET_HELD && cancelled.load(std::memory_order_relaxed) == 0)
    is_committed_.store(true, std::memory_order_relaxed);
  changed_.notify_all();
  return is_committed();
}

void TicketState::cancel() {
  LockGuard guard(mutex_);
  cancelled.store(1, std::memory_order_relaxed);
  changed_.notify_all();
}

bool TicketState::wait(uint64_t timeout_ms, bool also_held) {
  const uint64_t start = monotonic_ms();
  LockGuard guard(mutex_);
  while (now() != GMM_TICKET_DONE && !(also_held && now() == GMM_TICKET_HELD)) {
    const uint64_t past = monotonic_ms() - start;
    if (past >= timeout_ms) return false;
    changed_.wait_for(mutex_, std::min(timeout_ms - past, kWaitSlice));
  }
  return true;
}

void TransitionProgress::begin() {
  if (request_.ticket == nullptr) return;
  request_.ticket->total.store(total_, std::memory_order_relaxed);
  request_.ticket->copied.store(0, std::memory_order_relaxed);
}

Status TransitionProgress::tell() {
  const uint64_t copied = copied_.load(std::memory_order_relaxed);
  bool stop = false;
  if (request_.ticket != nullptr) {
    request_.ticket->copied.store(copied, std::memory_order_relaxed);
    stop = request_.ticket->cancelled.load(std::memory_order_relaxed) != 0;
  }
  const gmm_progress_callback &progress = request_.progress;
  if (progress.fn != nullptr) {
    check_may_call_program(ProgramCall::kProgress);
    stop = progress.fn(progress.user, copied, total_) != 0 || stop;
  }
  const bool is_late = request_.ticket != nullptr && request_.ticket->is_committed();
  return stop && !is_late
             ? fail(GMM_ERROR_CANCELLED, "The program ended it after %llu of %llu bytes; everything is as before.",
                    static_cast<unsigned long long>(copied), static_cast<unsigned long long>(total_))
             : Status();
}

}  // namespace gmm
