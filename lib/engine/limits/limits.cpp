// SPDX-License-Identifier: Apache-2.0
#include "engine/limits/limits.h"

#include <algorithm>
#include <utility>

namespace gmm {

Status Limits::set_handler(gmm_oom_fn fn, void *user) {
  const int32_t self = thread_number();
  LockGuard guard(mutex_);
  for (Call *call = calls_.front(); call != nullptr; call = calls_.next(call))
    if (call->thread == self)
      return fail(GMM_ERROR_BUSY,
                  "gmm_context_set_oom_handler: this thread is inside the context's handler, whose end the call would "
                  "wait for; call it after the handler has returned.");
  fn_ = fn;
  user_ = user;
  const uint64_t mine = ++handler_;
  while (!calls_.empty() && calls_.front()->handler < mine) returned_.wait(mutex_);
  return Status();
}

bool Limits::ask(const gmm_oom_info &info) {
  gmm_oom_fn fn = nullptr;
  void *user = nullptr;
  Call call;
  {
    LockGuard guard(mutex_);
    fn = fn_;
    user = user_;
    if (fn == nullptr) return false;
    call.handler = handler_;
    calls_.push_back(&call);
  }
  check_may_call_program(ProgramCall::kOutOfMemory);
  bool again = false;
  {
    MessageGuard message_guard;  // the program may call gmm
    again = fn(user, &info) == 1;
  }
  LockGuard guard(mutex_);
  List<Call, Limits>::remove(&call);
  returned_.notify_all();
  return again;
}

Status collect_statistics(HeapSet &heaps, TagTable &tags, const gmm_scope_desc &scope, gmm_stats_info *out) {
  LockGuard guard(tags.count_mutex);
  const uint64_t count = ++tags.counts;
  const auto add = [&](Heap &heap) -> Status {
    const HeapTotals totals = heap.totals();
    out->live_bytes += totals.live_bytes;
    out->live_blocks += totals.live_blocks;
    out->peak_live_bytes += totals.peak_live;
    out->reserved_bytes += totals.held;
    out->peak_reserved_bytes += totals.peak_held;
    out->paused_bytes += totals.paused;
    out->foreign_bytes += totals.foreign;
    out->cached_bytes += totals.free_bytes;
    out->allocations += totals.allocations;
    out->frees += totals.frees;
    out->failures += totals.failures;
    out->extents += totals.extents;
    Tag &tag = *tags.get(heap.options().tag);
    if (totals.held + totals.paused != 0 && tag.counted != count) {
      tag.counted = count;
      ++out->live_tags;
    }
    return Status();
  };
  return heaps.for_each(scope, add, false);
}

Status describe_device(Backend &backend, const Quota &held, const Quota &held_on, Device device, gmm_device_info *out) {
  GMM_TRY(backend.device_info(device, out));
  out->device = device.ordinal;
  out->numa_node = backend.host_numa_node(device);
  out->held_bytes = held_on.held();
  out->budget_bytes = std::min({held.limit(), held_on.limit(), out->held_bytes + out->free_memory});
  return Status();
}

}  // namespace gmm
