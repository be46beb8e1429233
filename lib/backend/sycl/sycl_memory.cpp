// SPDX-License-Identifier: Apache-2.0
// USM allocations, and where shared ones had better be.
#include <cinttypes>

#include "backend/sycl/sycl_class.h"
#include "base/os_memory.h"

namespace gmm::sycl {
namespace {

// What DPCTLQueue_MemAdvise hands through to Unified Runtime: its bits (ur_usm_advice_flags_t of ur_api.h).
constexpr int kSetReadMostly = 1 << 1;
constexpr int kClearReadMostly = 1 << 2;
constexpr int kSetPreferredLocation = 1 << 3;
constexpr int kClearPreferredLocation = 1 << 4;
constexpr int kSetAccessedByDevice = 1 << 9;
constexpr int kClearAccessedByDevice = 1 << 10;
constexpr int kSetAccessedByHost = 1 << 11;
constexpr int kClearAccessedByHost = 1 << 12;
constexpr int kSetPreferredLocationHost = 1 << 13;
constexpr int kClearPreferredLocationHost = 1 << 14;

struct Meaning {
  int device, host;
};
// By gmm_advice - 1.
constexpr Meaning kMeanings[] = {
    {kSetReadMostly, kSetReadMostly},
    {kClearReadMostly, kClearReadMostly},
    {kSetPreferredLocation, kSetPreferredLocationHost},
    {kClearPreferredLocation, kClearPreferredLocationHost},
    {kSetAccessedByDevice, kSetAccessedByHost},
    {kClearAccessedByDevice, kClearAccessedByHost},
};

}  // namespace

Status SyclBackend::take(Device device, uint64_t size) {
  DeviceState &state = states_[device.ordinal];
  if (size > state.largest)
    return fail(GMM_ERROR_OUT_OF_MEMORY,
                "%" PRIu64 " bytes on SYCL device %" PRId32 ": its largest allocation is %" PRIu64
                " bytes; ask for less.",
                size, device.ordinal, state.largest);
  uint64_t before = state.taken.load(std::memory_order_relaxed);
  do {
    if (before > state.memory || size > state.memory - before)
      return fail(GMM_ERROR_OUT_OF_MEMORY,
                  "%" PRIu64 " bytes on SYCL device %" PRId32 ": %" PRIu64 " of its %" PRIu64
                  " bytes are taken; free memory, or ask for less.",
                  size, device.ordinal, before, state.memory);
  } while (!state.taken.compare_exchange_weak(before, before + size, std::memory_order_relaxed));
  return Status();
}

Status SyclBackend::allocate(Kind kind, Device device, uint64_t size, Allocation *out) {
  GMM_TRY(check_device(device));
  DeviceState &state = states_[device.ordinal];
  if ((state.kinds >> static_cast<uint32_t>(kind) & 1) == 0)
    return fail(GMM_ERROR_NOT_SUPPORTED,
                "SYCL device %" PRId32 " has no memory of kind %" PRIu32
                " (USM has device, host and shared memory); ask "
                "gmm_device_get_info() for its kinds.",
                device.ordinal, static_cast<uint32_t>(kind));
  auto *allocate = kind == Kind::kDevice ? api_.DPCTLaligned_alloc_device
                   : kind == Kind::kHost ? api_.DPCTLaligned_alloc_host
                                         : api_.DPCTLaligned_alloc_shared;
  const gmm_result shortage = kind == Kind::kHost ? GMM_ERROR_OUT_OF_HOST_MEMORY : GMM_ERROR_OUT_OF_MEMORY;
  // A CPU gives more than the machine has, and the kernel ends the process that uses it.
  if (kind == Kind::kHost || state.cpu) GMM_TRY(os::check_available(size, shortage));
  StreamReference stream(*this);
  GMM_TRY(stream_of(device, GMM_STREAM_DEFAULT, &stream.stream));
  if (kind == Kind::kDevice) GMM_TRY(take(device, size));
  count_call();
  void *base = allocate(kExtentAlignment, size, stream->queue);
  if (base == nullptr) {
    if (kind == Kind::kDevice) state.taken.fetch_sub(size, std::memory_order_relaxed);
    return fail(shortage,
                "%" PRIu64 " bytes of USM memory on SYCL device %" PRId32
                ": the runtime gave none; free memory, or ask for less.",
                size, device.ordinal);
  }
  *out = Allocation();
  out->base = out->driver_base = base;
  out->size = out->driver_size = size;
  out->kind = kind;
  out->device = device;
  return Status();
}

Status SyclBackend::deallocate(const Allocation &allocation) {
  count_call();
  api_.DPCTLfree_with_context(allocation.driver_base, context_);
  if (allocation.kind == Kind::kDevice && check_device(allocation.device).ok())
    states_[allocation.device.ordinal].taken.fetch_sub(allocation.size, std::memory_order_relaxed);
  return Status();
}

Status SyclBackend::advise(void *base, uint64_t size, gmm_advice advice, Device location) {
  if (advice < GMM_ADVISE_SET_READ_MOSTLY || advice > GMM_ADVISE_UNSET_ACCESSED_BY)
    return fail(GMM_ERROR_INVALID_VALUE, "Advice %u is unknown; use one of GMM_ADVISE_*.", advice);
  const Device device = location.is_host() ? Device{0} : location;
  GMM_TRY(check_device(device));
  StreamReference stream(*this);
  GMM_TRY(stream_of(device, GMM_STREAM_DEFAULT, &stream.stream));
  const Meaning &meaning = kMeanings[advice - GMM_ADVISE_SET_READ_MOSTLY];
  return stream->advise(base, size, location.is_host() ? meaning.host : meaning.device);
}

Status SyclBackend::prefetch(void *base, uint64_t size, Device location, Device stream_device, gmm_stream stream) {
  StreamReference target(*this);
  GMM_TRY(stream_of(stream_device, stream, &target.stream));
  // SYCL knows no prefetch to the host: pages come when they are read there.
  if (location.is_host()) return target->touch(base, size);
  GMM_TRY(check_device(location));
  if (location == target->device) return target->prefetch(base, size);
  return fail(GMM_ERROR_NOT_SUPPORTED,
              "Prefetching %" PRIu64 " bytes at %p to SYCL device %" PRId32 " on a stream of device %" PRId32
              ": a SYCL queue brings memory to its own device only; pass a stream of device %" PRId32 ".",
              size, base, location.ordinal, target->device.ordinal, location.ordinal);
}

}  // namespace gmm::sycl
