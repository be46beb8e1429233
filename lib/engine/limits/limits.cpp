// SPDX-License-Identifier: Apache-2.0
#include "engine/limits/limits.h"

#include <cinttypes>
#include <cstdio>

namespace gmm {

void Limits::set(Tag *tag, Quota *device_quota, const gmm_scope_desc &scope, uint64_t bytes) {
  if ((scope.flags & GMM_SCOPE_TAG) == 0)
    device_quota->set_limit(bytes);
  else if ((scope.flags & GMM_SCOPE_DEVICE) == 0)
    tag->held.set_limit(bytes);
  else
    tag->held_on[scope.device].set_limit(bytes);
}

void Limits::set_handler(gmm_oom_fn fn, void *user) {
  LockGuard guard(mutex_);
  fn_ = fn;
  user_ = user;
}

bool Limits::ask(const gmm_oom_info &info) {
  gmm_oom_fn fn = nullptr;
  void *user = nullptr;
  {
    LockGuard guard(mutex_);
    fn = fn_;
    user = user_;
  }
  return fn != nullptr && fn(user, &info) == 1;
}

Status Limits::explain(Status status, const Heap &heap, uint64_t size, const TagTable &tags) {
  constexpr uint32_t kShown = 3;
  const int32_t device = heap.options().device.ordinal;
  gmm_tag largest[kShown] = {};
  uint64_t held[kShown] = {};
  for (gmm_tag tag = 1; tag <= tags.count(); ++tag) {
    uint64_t bytes = tags.get(tag)->held_on[device].held();
    gmm_tag name = tag;
    for (uint32_t i = 0; i < kShown && bytes != 0; ++i)
      if (bytes > held[i]) {
        const uint64_t other_bytes = held[i];
        const gmm_tag other = largest[i];
        held[i] = bytes;
        largest[i] = name;
        bytes = other_bytes;
        name = other;
      }
  }
  char text[320];
  int used = std::snprintf(text, sizeof text, "Device %d, largest holders:", device);
  for (uint32_t i = 0; i < kShown && held[i] != 0 && used > 0 && static_cast<size_t>(used) < sizeof text; ++i)
    used += std::snprintf(text + used, sizeof text - static_cast<size_t>(used), "%s tag \"%s\" %" PRIu64 " bytes",
                          i == 0 ? "" : ",", tags.get(largest[i])->name, held[i]);
  return prefix(status, "gmm_alloc of %" PRIu64 " bytes failed. %s%s. ", size, text, held[0] == 0 ? " none" : "");
}

}  // namespace gmm
