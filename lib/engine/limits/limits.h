// SPDX-License-Identifier: Apache-2.0
// Limits, and what happens when memory is short.
#ifndef GMM_ENGINE_LIMITS_LIMITS_H
#define GMM_ENGINE_LIMITS_LIMITS_H

#include <gmm/stats.h>

#include "base/lock.h"
#include "engine/heap/heap_set.h"
#include "engine/limits/tag.h"

namespace gmm {

class Limits {
 public:
  // The scope is checked. device_quota: of the scope's device.
  static void set(Tag *tag, Quota *device_quota, const gmm_scope_desc &scope, uint64_t bytes);

  void set_handler(gmm_oom_fn fn, void *user);
  // Asks the handler, without a lock held. True: try again.
  bool ask(const gmm_oom_info &info);
  // Adds to the thread's message who holds the most memory on the device.
  static Status explain(Status status, const Heap &heap, uint64_t size, const TagTable &tags);

 private:
  Mutex mutex_;
  gmm_oom_fn fn_ = nullptr;
  void *user_ = nullptr;
};

}  // namespace gmm
#endif
