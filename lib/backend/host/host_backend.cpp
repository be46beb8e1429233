// SPDX-License-Identifier: Apache-2.0
#include "backend/host/host_backend.h"

#include <sys/utsname.h>

#include <cinttypes>
#include <cstdio>

#include "backend/host/host_class.h"
#include "base/os_memory.h"

namespace gmm {
namespace {

constexpr uint32_t kCapabilities = GMM_DEVICE_CAN_PAUSE | GMM_DEVICE_CAN_EXPORT_FD | GMM_DEVICE_CAN_CONCURRENT_MANAGED |
                                   GMM_DEVICE_CAN_PIN | GMM_DEVICE_CAN_PAGEABLE | GMM_DEVICE_IS_HOST;
constexpr gmm_kind_mask kKinds =
    1u << GMM_KIND_DEVICE | 1u << GMM_KIND_VMM | 1u << GMM_KIND_HOST | 1u << GMM_KIND_MANAGED;

// FNV-1a and a finishing mix. A machine's id is not to be shown as it is (machine-id(5)), so only this is.
uint64_t hash_text(const char *text, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325u ^ seed;
  for (; *text != '\0'; ++text) hash = (hash ^ static_cast<uint8_t>(*text)) * 0x100000001b3u;
  hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccdu;
  hash = (hash ^ (hash >> 33)) * 0xc4ceb9fe1a85ec53u;
  return hash ^ (hash >> 33);
}

void machine_hash(uint8_t out[16]) {
  char text[64] = {};
  // Without a machine-id (small containers): what at least all processes of this boot agree on.
  for (const char *path : {"/etc/machine-id", "/var/lib/dbus/machine-id", "/proc/sys/kernel/random/boot_id"}) {
    std::FILE *file = std::fopen(path, "re");
    if (file == nullptr) continue;
    const bool read = std::fscanf(file, "%63s", text) == 1;
    std::fclose(file);
    if (read) break;
  }
  for (uint32_t half = 0; half < 2; ++half) {
    const uint64_t hash = hash_text(text, half);
    for (uint32_t byte = 0; byte < 8; ++byte) out[half * 8 + byte] = static_cast<uint8_t>(hash >> (8 * byte));
  }
}

}  // namespace

Status host_backend_create(const HostAllocator &allocator, const Log &log, const HostBackendOptions &options,
                           Backend **out) {
  if (options.devices > kMaxHostDevices)
    return fail(GMM_ERROR_INVALID_VALUE,
                "A host backend with %" PRIu32 " devices: it shows at most %" PRIu32 "; ask for fewer.",
                options.devices, kMaxHostDevices);
  os::MemoryInfo info;
  GMM_TRY(os::memory_info(&info));
  // Half a granule of pretended memory is none.
  uint64_t memory = (options.memory != 0 ? options.memory : info.total) & ~(kExtentAlignment - 1);
  if (memory == 0)
    return fail(GMM_ERROR_INVALID_VALUE,
                "A host backend with %" PRIu64 " bytes a device: less than one page of 2 MiB; give more.",
                options.memory);
  HostBackend *backend =
      allocator.create<HostBackend>(allocator, log, memory, options.devices == 0 ? 1 : options.devices);
  if (backend == nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "Opening the host backend: no memory for its bookkeeping; free memory.");
  *out = backend;
  return Status();
}

HostBackend::HostBackend(const HostAllocator &allocator, const Log &log, uint64_t memory, uint32_t devices)
    : Backend(allocator, log), memory_(memory), devices_(devices), streams_(allocator, log) {
  machine_hash(machine_);
}

void HostBackend::destroy() {
  streams_.close();
  const HostAllocator allocator = allocator_;
  allocator.destroy(this);
}

void HostBackend::driver_version(char *text, uint64_t size) const {
  if (size == 0) return;
  utsname system;
  std::snprintf(text, size, "%s", uname(&system) == 0 ? system.release : "unknown");
}

Status HostBackend::device_info(Device device, gmm_device_info *out) {
  GMM_TRY(check_device(device));
  os::MemoryInfo info;
  GMM_TRY(os::memory_info(&info));
  const uint64_t taken = taken_[device.ordinal].load(std::memory_order_relaxed);
  const uint64_t left = taken < memory_ ? memory_ - taken : 0;
  out->device = device.ordinal;
  out->capabilities = kCapabilities;
  out->kinds = kKinds;
  out->total_memory = memory_;
  out->free_memory = left < info.available ? left : info.available;
  out->granularity = kExtentAlignment;
  utsname system;
  const char *machine = uname(&system) == 0 ? system.machine : "unknown machine";
  if (devices_ == 1)
    std::snprintf(out->name, sizeof out->name, "Host memory (%s)", machine);
  else
    std::snprintf(out->name, sizeof out->name, "Host memory (%s), device %" PRId32, machine, device.ordinal);
  for (uint32_t byte = 0; byte < 16; ++byte) out->uuid[byte] = machine_[byte];
  // RFC 9562: version 8 (the maker's own), variant 1; the ordinal in the last byte.
  out->uuid[6] = static_cast<uint8_t>((out->uuid[6] & 0x0f) | 0x80);
  out->uuid[8] = static_cast<uint8_t>((out->uuid[8] & 0x3f) | 0x80);
  out->uuid[15] = static_cast<uint8_t>(out->uuid[15] ^ device.ordinal);
  return Status();
}

// The system keeps no record of who asked for ordinary memory, so there is nothing to tell.
void HostBackend::identify(const void *, ForeignPointer *out) { *out = ForeignPointer{}; }

Status HostBackend::check_device(Device device) const {
  if (has(device)) return Status();
  return fail(GMM_ERROR_INVALID_DEVICE, "Device %" PRId32 ": the host backend has %" PRIu32 "; ordinals start at 0.",
              device.ordinal, devices_);
}

Status HostBackend::check_location(Device location) const {
  return location.is_host() && location == kHostLocation ? Status() : check_device(location);
}

Status HostBackend::take(Device device, uint64_t size) {
  std::atomic<uint64_t> &taken = taken_[device.ordinal];
  uint64_t before = taken.load(std::memory_order_relaxed);
  do {
    if (size > memory_ || before > memory_ - size)
      return fail(GMM_ERROR_OUT_OF_MEMORY,
                  "%" PRIu64 " bytes on host device %" PRId32 ": %" PRIu64 " of its %" PRIu64
                  " bytes are taken; free memory, or open the context with more host_memory.",
                  size, device.ordinal, before, memory_);
  } while (!taken.compare_exchange_weak(before, before + size, std::memory_order_relaxed));
  return Status();
}

void HostBackend::give_back(Device device, uint64_t size) {
  taken_[device.ordinal].fetch_sub(size, std::memory_order_relaxed);
}

}  // namespace gmm
