// SPDX-License-Identifier: Apache-2.0
// Page-locks, of the caller's memory and of kHost memory.
#include <gmm/pin.h>

#include <cinttypes>
#include <cstdio>

#include "backend/host/host_class.h"
#include "base/os_memory.h"

namespace gmm {

Status HostBackend::pin(void *base, uint64_t size, uint32_t flags, Device device, void **device_pointer) {
  GMM_TRY(check_device(device));
  if ((flags & ~uint32_t{GMM_PIN_READ_ONLY}) != 0)
    return fail(GMM_ERROR_INVALID_FLAGS, "Pinning with flags %#" PRIx32 ": only GMM_PIN_READ_ONLY is known.", flags);
  GMM_TRY(os::lock_pages(base, size));
  count_call();
  *device_pointer = base;
  return Status();
}

Status HostBackend::unpin(void *base, uint64_t size) {
  GMM_TRY(os::unlock_pages(base, size));
  count_call();
  return Status();
}

void HostBackend::lock_if_allowed(void *base, uint64_t size) {
  char text[512];
  {
    MessageGuard guard;  // the allocation succeeds all the same
    if (os::lock_pages(base, size).ok()) return;
    std::snprintf(text, sizeof text, "%s", last_message());
  }
  if (!warned_unlocked_.exchange(true, std::memory_order_relaxed))
    log_.write(LogLevel::kWarning, "HOST memory stays pageable on the host backend. %s", text);
}

}  // namespace gmm
