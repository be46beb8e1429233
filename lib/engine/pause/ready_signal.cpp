// SPDX-License-Identifier: Apache-2.0
#include "engine/pause/ready_signal.h"

#include <cinttypes>

#include "base/process.h"

namespace gmm {

void ReadySignal::announce(Extent &extent) {
  LockGuard guard(mutex);
  extent.state.store(ExtentState::kRestored, std::memory_order_release);
  restored_.notify_all();
}

Status ReadySignal::wait(PageMap &page_map, const void *address, uint64_t size, uint64_t timeout_ms) {
  constexpr uint64_t kPollMs = 50;  // another thread may free the memory, which notifies nobody
  const uintptr_t begin = reinterpret_cast<uintptr_t>(address), end = begin + size;
  const auto for_all = [&](auto fn) {
    for (uintptr_t at = begin; at < end;) {
      Extent *extent = page_map.find_extent(reinterpret_cast<void *>(at));
      if (extent == nullptr) return false;
      at = base_of(*extent) + size_of(*extent);
      fn(*extent);
    }
    return true;
  };
  const uint64_t start = monotonic_ms();
  LockGuard guard(mutex);
  for (;;) {
    bool paused = false;
    if (!for_all([&](Extent &extent) { paused = paused || is_paused(extent); }))
      return fail(GMM_ERROR_UNKNOWN_POINTER,
                  "gmm_resume_wait(%p, %" PRIu64 "): the range is not memory of this context, or was freed.", address,
                  size);
    if (!paused) {
      for_all([](Extent &extent) {
        if (extent.state == ExtentState::kRestored) extent.state = ExtentState::kPromised;
      });
      return Status();
    }
    const uint64_t past = monotonic_ms() - start;
    if (past >= timeout_ms)
      return fail(GMM_ERROR_NOT_READY, "gmm_resume_wait(%p): the memory is still paused.", address);
    restored_.wait_for(mutex, timeout_ms - past < kPollMs ? timeout_ms - past : kPollMs);
  }
}

}  // namespace gmm
