// SPDX-License-Identifier: Apache-2.0
// Hints for managed memory. The machine's memory is every device's, so no page has anywhere to move to.
#include <sys/mman.h>

#include <cinttypes>

#include "backend/host/host_class.h"
#include "base/os_memory.h"

namespace gmm {

Status HostBackend::advise(void *base, uint64_t size, gmm_advice advice, Device location) {
  switch (advice) {
    case GMM_ADVISE_SET_READ_MOSTLY:
    case GMM_ADVISE_UNSET_READ_MOSTLY:
      break;
    case GMM_ADVISE_SET_PREFERRED_LOCATION:
    case GMM_ADVISE_UNSET_PREFERRED_LOCATION:
    case GMM_ADVISE_SET_ACCESSED_BY:
    case GMM_ADVISE_UNSET_ACCESSED_BY:
      GMM_TRY(check_location(location));
      break;
    default:
      return fail(GMM_ERROR_INVALID_VALUE, "Advice %" PRIu32 ": unknown; pass one of GMM_ADVISE_*.", advice);
  }
  // None has an effect on one memory; the system still says whether the range is there. It takes whole pages; cuMemAdvise rounds to them itself.
  const uintptr_t page = os::page_size();
  const uintptr_t begin = reinterpret_cast<uintptr_t>(base) & ~(page - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(base) + size + page - 1) & ~(page - 1);
  return os::advise_pages(reinterpret_cast<void *>(begin), end - begin, MADV_NORMAL);
}

Status HostBackend::prefetch(void *base, uint64_t size, Device location, Device stream_device, gmm_stream stream) {
  GMM_TRY(check_location(location));
  HostStream *target = nullptr;
  GMM_TRY(stream_of(stream_device, stream, &target));
  Status status = target->populate(base, size);
  target->release();
  return status;
}

}  // namespace gmm
