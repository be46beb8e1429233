// SPDX-License-Identifier: Apache-2.0
// Advice for managed memory and its prefetch.
#if defined(GMM_WITH_CUDA)

#include <cinttypes>

#include "backend/cuda/cuda_backend_impl.h"

namespace gmm::cuda {
namespace {

constexpr bool same(int ours, int drivers) { return ours == drivers; }
static_assert(same(GMM_ADVISE_SET_READ_MOSTLY, CU_MEM_ADVISE_SET_READ_MOSTLY) &&
              same(GMM_ADVISE_UNSET_READ_MOSTLY, CU_MEM_ADVISE_UNSET_READ_MOSTLY) &&
              same(GMM_ADVISE_SET_PREFERRED_LOCATION, CU_MEM_ADVISE_SET_PREFERRED_LOCATION) &&
              same(GMM_ADVISE_UNSET_PREFERRED_LOCATION, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION) &&
              same(GMM_ADVISE_SET_ACCESSED_BY, CU_MEM_ADVISE_SET_ACCESSED_BY) &&
              same(GMM_ADVISE_UNSET_ACCESSED_BY, CU_MEM_ADVISE_UNSET_ACCESSED_BY));

CUmemLocation to_location(const DeviceState *state) {
  CUmemLocation location = {};
  location.type = state == nullptr ? kLocationHost : CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = state == nullptr ? 0 : state->handle;
  return location;
}

CUdevice to_old_location(const DeviceState *state) { return state == nullptr ? CU_DEVICE_CPU : state->handle; }

bool looks_at_location(gmm_advice advice) {
  return advice == GMM_ADVISE_SET_PREFERRED_LOCATION || advice == GMM_ADVISE_SET_ACCESSED_BY ||
         advice == GMM_ADVISE_UNSET_ACCESSED_BY;
}

}  // namespace

// NULL for the host.
Status CudaBackend::managed_location(const char *what, Device location, DeviceState **out) {
  *out = nullptr;
  if (location.is_host()) return Status();
  GMM_TRY(state_of(location, out));
  if (!(*out)->concurrent_managed) return device_lacks(location, what, "CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS");
  return Status();
}

Status CudaBackend::advise(void *base, uint64_t size, gmm_advice advice, Device location) {
  if (driver_.mem_advise == nullptr && driver_.mem_advise_old == nullptr) return driver_.missing("cuMemAdvise");
  if (advice < GMM_ADVISE_SET_READ_MOSTLY || advice > GMM_ADVISE_UNSET_ACCESSED_BY)
    return fail(GMM_ERROR_INVALID_VALUE, "Advice %u is unknown; use one of GMM_ADVISE_*.", advice);
  // CUDA 13 checks the location of every advice, also where it is not looked at: then any good one will do.
  DeviceState *state = nullptr;
  if (looks_at_location(advice)) GMM_TRY(managed_location("placing of managed memory", location, &state));
  CaptureGuard capture(driver_);
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_owner(guard, base));
  const CUmem_advise wanted = static_cast<CUmem_advise>(advice);
  const CUresult result = driver_.mem_advise != nullptr
                              ? driver_.mem_advise(to_driver(base), size, wanted, to_location(state))
                              : driver_.mem_advise_old(to_driver(base), size, wanted, to_old_location(state));
  Status status = driver_.check(result, "cuMemAdvise");
  if (status.ok()) return status;
  return prefix(status, "Advice %u for %" PRIu64 " bytes at %p and location %d: ", advice, size, base,
                location.ordinal);
}

Status CudaBackend::prefetch(void *base, uint64_t size, Device location, Device stream_device, gmm_stream stream) {
  if (driver_.mem_prefetch == nullptr && driver_.mem_prefetch_old == nullptr)
    return driver_.missing("cuMemPrefetchAsync");
  DeviceState *state = nullptr;
  DeviceState *stream_state = nullptr;
  GMM_TRY(managed_location("prefetch of managed memory", location, &state));
  GMM_TRY(managed_location("prefetch of managed memory", stream_device, &stream_state));
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_stream(guard, stream_device, stream));
  const CUresult result =
      driver_.mem_prefetch != nullptr
          ? driver_.mem_prefetch(to_driver(base), size, to_location(state), 0, to_driver(stream))
          : driver_.mem_prefetch_old(to_driver(base), size, to_old_location(state), to_driver(stream));
  Status status = driver_.check(result, "cuMemPrefetchAsync");
  if (status.ok()) return status;
  return prefix(status, "Prefetching %" PRIu64 " bytes at %p to location %d: ", size, base, location.ordinal);
}

}  // namespace gmm::cuda

#endif
