// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/decommit.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "base/environment.h"
#include "base/process.h"

namespace gmm {
namespace {

constexpr size_t kDecommitStack = size_t{512} << 10;  // the program's log callback and the driver run on it

}  // namespace

Status Decommit::init() {
  static_assert(GMM_DECOMMIT_NEVER == UINT64_MAX);  // as environment_number() says it
  if (environment_number(Variable::kDecommitAfterMs, &default_age_) != Reading::kBad) return Status();
  return fail(GMM_ERROR_INVALID_VALUE,
              "GMM_DECOMMIT_AFTER_MS=%.64s is no time; set it to milliseconds from 1, or to never.",
              environment_text(Variable::kDecommitAfterMs));
}

Status Decommit::set(uint64_t age) {
  if (age == GMM_DECOMMIT_DEFAULT) age = default_age_;
  if (age == GMM_DECOMMIT_NEVER && job_ == nullptr) {
    stop();
    return Status();
  }
  if (age != GMM_DECOMMIT_NEVER && age > INT64_MAX)
    return fail(GMM_ERROR_INVALID_VALUE,
                "Idle memory shall go after %" PRIu64 " milliseconds; pass 1 to %" PRId64
                ", GMM_DECOMMIT_DEFAULT or GMM_DECOMMIT_NEVER.",
                age, INT64_MAX);
  LockGuard guard(set_mutex_);
  if (!running_) {
    // The thread reads the age first thing.
    const uint64_t before = age_.exchange(age, std::memory_order_relaxed);
    changed_ = false;
    stopping_.store(false, std::memory_order_relaxed);
    const int error =
        start_thread(&thread_, ThreadSignals::kNone, thread_entry<Decommit, &Decommit::run>, this, kDecommitStack);
    running_ = error == 0;
    if (running_) return Status();
    age_.store(before, std::memory_order_relaxed);
    return fail_native(GMM_ERROR_SYSTEM, error,
                       "The thread that gives idle memory back could not be started: %s; raise the limit of threads, "
                       "or set GMM_DECOMMIT_NEVER and no GMM_METRICS.",
                       ErrorText(error).text);
  }
  age_.store(age, std::memory_order_relaxed);
  LockGuard wake_guard(wake_mutex_);
  changed_ = true;
  wake_.notify_one();
  return Status();
}

void Decommit::stop() {
  LockGuard guard(set_mutex_);
  age_.store(GMM_DECOMMIT_NEVER, std::memory_order_relaxed);
  if (!running_) return;
  {
    LockGuard wake_guard(wake_mutex_);
    stopping_.store(true, std::memory_order_relaxed);
    wake_.notify_one();
  }
  join_thread(thread_);
  running_ = false;
}

void Decommit::run() {
  name_thread("gmm decommit");
  for (uint64_t due = monotonic_ms() + kJobMs;;) {
    {
      LockGuard guard(wake_mutex_);
      if (!is_stopping() && !changed_)
        wake_.wait_for(wake_mutex_,
                       job_ == nullptr ? LowWater::phase(age()) : std::min(LowWater::phase(age()), kJobMs));
      if (is_stopping()) return;
      changed_ = false;
    }
    if (const uint64_t after = age(); after != GMM_DECOMMIT_NEVER) round(monotonic_ms(), after);
    if (job_ == nullptr || monotonic_ms() < due) continue;
    job_(job_user_);
    due = monotonic_ms() + kJobMs;
  }
}

// Memory stays: something began that must not meet a driver call of this thread, or the thread shall end.
bool Decommit::disturbed() const { return core_.defer_depth.load(std::memory_order_acquire) != 0 || is_stopping(); }

void Decommit::round(uint64_t now, uint64_t age) {
  MessageGuard message_guard;
  bool refused = false;
  {
    LockGuard guard(round_mutex_);
    if (disturbed()) return;
    core_.deferred_release.retry(*core_.backend);
    const auto visit = [&](Heap &heap) {
      if (!disturbed()) round_of(heap, now, age, &refused);
      return Status();
    };
    heaps_.for_each(visit, false).ignore();
  }
  // One line a context, as the driver may refuse the same memory every round. Without the lock: the callback is the
  // program's.
  if (refused && !complained_.exchange(true, std::memory_order_relaxed))
    core_.log.write(LogLevel::kWarning, "Idle memory could not be given back, and is offered again later: %s",
                    last_message());
}

// In slices, between which the heap's lock is free.
void Decommit::round_of(Heap &heap, uint64_t now, uint64_t age, bool *refused) {
  if (heap.mutex.has_operation()) return;
  heap.free_held_for_importers();
  uint64_t may_go = heap.reclaim().look_for_idle(now, age);
  for (uint64_t released = kSlice; released >= kSlice && !disturbed(); yield_thread()) {
    released = 0;
    if (!heap.reclaim().release_idle_spares(now, age, kSlice, &released).ok()) *refused = true;
  }
  for (; !disturbed(); yield_thread()) {
    uint64_t released = 0;
    const Status status = heap.reclaim().release_idle(now, age, may_go, kSlice, &released);
    if (!status.ok()) *refused = true;
    if (!status.ok() || released == 0 || released >= may_go) return;
    may_go -= released;
  }
}

}  // namespace gmm
