// SPDX-License-Identifier: Apache-2.0
// The out-of-memory handler of a context, the counters of its heaps, added up, and its budget of a device.
#ifndef GMM_ENGINE_LIMITS_LIMITS_H
#define GMM_ENGINE_LIMITS_LIMITS_H

#include <gmm/context.h>
#include <gmm/stats.h>

#include "base/list.h"
#include "base/lock.h"
#include "base/thread.h"
#include "engine/heap/heap_set.h"
#include "engine/limits/tag.h"

namespace gmm {

class Limits {
 public:
  // Returns when no thread is inside the handler from before. BUSY from inside of it, as that would wait for itself.
  Status set_handler(gmm_oom_fn fn, void *user);
  // Asks the handler, without a lock held. True: try again.
  bool ask(const gmm_oom_info &info);
  // Whether a failure is reported to the log now: at most one a second.
  bool may_report(uint64_t now_ms) {
    uint64_t last = reported_at_.load(std::memory_order_relaxed);
    return (last == 0 || now_ms - last >= 1000) && reported_at_.compare_exchange_strong(last, now_ms);
  }

 private:
  // A thread that is inside a handler. It lies on that thread's stack.
  struct Call : Link<Limits> {
    const int32_t thread = thread_number();
    uint64_t handler = 0;
  };

  Mutex mutex_{LockRank::kLimits};
  Condition returned_;
  List<Call, Limits> calls_;  // those of the oldest handler first
  uint64_t handler_ = 0;      // counts the handlers
  gmm_oom_fn fn_ = nullptr;
  void *user_ = nullptr;
  std::atomic<uint64_t> reported_at_{0};  // milliseconds
};

// Adds up the heaps of the scope; the rest of *out stays. Waits for no operation.
Status collect_statistics(HeapSet &heaps, TagTable &tags, const gmm_scope_desc &scope, gmm_stats_info *out);

// Fills the driver's facts about a device, the bytes that the context holds of it, and its budget. `held`: the
// context's usage on all devices, `held_on`: on this one.
Status describe_device(Backend &backend, const Quota &held, const Quota &held_on, Device device, gmm_device_info *out);

}  // namespace gmm
#endif
