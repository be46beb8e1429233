// SPDX-License-Identifier: Apache-2.0
#include "engine/pause/request.h"

namespace gmm {

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
  return stop ? fail(GMM_ERROR_CANCELLED, "The program ended it after %llu of %llu bytes; everything is as before.",
                     static_cast<unsigned long long>(copied), static_cast<unsigned long long>(total_))
              : Status();
}

Status HeapProgress::report(uint64_t bytes) {
  all_.add(bytes - copied_);
  copied_ = bytes;
  if (all_.is_stopped()) return fail(GMM_ERROR_CANCELLED, "The copies of another device failed.");
  return tells_ ? all_.tell() : Status();
}

}  // namespace gmm
