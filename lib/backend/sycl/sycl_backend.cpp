// SPDX-License-Identifier: Apache-2.0
// What the SYCL backend is: its making and end, its devices, and what an address is.
#include "backend/sycl/sycl_backend.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "backend/sycl/sycl_class.h"
#include "base/os_memory.h"

namespace gmm {

Status sycl_backend_create(const HostAllocator &allocator, const Log &log, Backend **out) {
  auto *backend = allocator.create<sycl::SyclBackend>(allocator, log);
  if (backend == nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "The SYCL backend: the host allocator gave no %zu bytes; free memory.",
                sizeof(sycl::SyclBackend));
  if (Status status = backend->open(); !status.ok()) {
    MessageGuard message;
    backend->destroy();
    return status;
  }
  *out = backend;
  return Status();
}

}  // namespace gmm

namespace gmm::sycl {

namespace {

// dpctl's C interface tells no UUID: made of the name and the ordinal, which all processes of a machine agree on. RFC 9562:
// version 8 (the maker's own), variant 1.
void make_uuid(const char *name, int32_t ordinal, uint8_t out[16]) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (; *name != '\0'; ++name) hash = (hash ^ static_cast<uint8_t>(*name)) * 0x100000001b3u;
  std::memset(out, 0, 16);
  std::memcpy(out, &hash, sizeof hash);
  out[6] = static_cast<uint8_t>((out[6] & 0x0f) | 0x80);
  out[8] = 0x80;
  out[15] = static_cast<uint8_t>(ordinal);
}

}  // namespace

// The platform of the device that SYCL itself would choose, which ONEAPI_DEVICE_SELECTOR steers.
Status SyclBackend::open() {
  GMM_TRY(api_.open());
  SelectorRef selector = api_.DPCTLDefaultSelector_Create();
  DeviceRef chosen = selector == nullptr ? nullptr : api_.DPCTLDevice_CreateFromSelector(selector);
  if (selector != nullptr) api_.DPCTLDeviceSelector_Delete(selector);
  if (chosen == nullptr)
    return fail(GMM_ERROR_NO_BACKEND,
                "SYCL shows no device; see `python -m dpctl -f`. For the CPU: pip install intel-opencl-rt and name its "
                "libintelocl.so in OCL_ICD_FILENAMES; look at ONEAPI_DEVICE_SELECTOR, or use another backend.");
  PlatformRef platform = api_.DPCTLDevice_GetPlatform(chosen);
  api_.DPCTLDevice_Delete(chosen);
  if (platform == nullptr) return api_.failed("DPCTLDevice_GetPlatform");
  context_ = api_.DPCTLPlatform_GetDefaultContext(platform);
  DeviceVectorRef devices = api_.DPCTLPlatform_GetDevices(platform, kAllDevices);
  api_.DPCTLPlatform_Delete(platform);
  const uint64_t count = devices == nullptr ? 0 : api_.DPCTLDeviceVector_Size(devices);
  for (uint64_t i = 0; i < count && device_count_ < kMaxSyclDevices; ++i) {
    DeviceRef device = api_.DPCTLDeviceVector_GetAt(devices, i);
    if (device == nullptr) break;
    devices_[device_count_] = device;
    probe(device_count_++);
  }
  if (devices != nullptr) api_.DPCTLDeviceVector_Delete(devices);
  if (context_ == nullptr) return api_.failed("DPCTLPlatform_GetDefaultContext");
  if (device_count_ == 0) return api_.failed("DPCTLPlatform_GetDevices");
  streams_.set_devices(context_, devices_, device_count_);
  return Status();
}

void SyclBackend::probe(uint32_t ordinal) {
  DeviceRef device = devices_[ordinal];
  DeviceState &state = states_[ordinal];
  state.memory = api_.DPCTLDevice_GetGlobalMemSize(device);
  state.largest = api_.DPCTLDevice_GetMaxMemAllocSize(device);
  state.cpu = api_.DPCTLDevice_HasAspect(device, kAspectCpu);
  const struct {
    int aspect;
    uint32_t kind;
    uint32_t capability;
  } meanings[] = {
      {kAspectUsmDevice, 1u << GMM_KIND_DEVICE, 0},   {kAspectUsmHost, 1u << GMM_KIND_HOST, 0},
      {kAspectUsmShared, 1u << GMM_KIND_MANAGED, 0},  {kAspectUsmAtomicShared, 0, GMM_DEVICE_CAN_CONCURRENT_MANAGED},
      {kAspectUsmSystem, 0, GMM_DEVICE_CAN_PAGEABLE},
  };
  for (const auto &meaning : meanings) {
    if (!api_.DPCTLDevice_HasAspect(device, meaning.aspect)) continue;
    state.kinds |= meaning.kind;
    state.capabilities |= meaning.capability;
  }
}

void SyclBackend::destroy() {
  if (context_ != nullptr) streams_.close();
  for (uint32_t i = 0; i < device_count_; ++i) api_.DPCTLDevice_Delete(devices_[i]);
  if (context_ != nullptr) api_.DPCTLContext_Delete(context_);
  const HostAllocator allocator = allocator_;
  allocator.destroy(this);
}

Status SyclBackend::check_device(Device device) const {
  if (device.ordinal >= 0 && static_cast<uint32_t>(device.ordinal) < device_count_) return Status();
  return fail(GMM_ERROR_INVALID_DEVICE, "Device %" PRId32 ": the SYCL platform has %" PRIu32 "; ordinals start at 0.",
              device.ordinal, device_count_);
}

void SyclBackend::driver_version(char *text, uint64_t size) const {
  char *version = api_.DPCTLService_GetDPCPPVersion();
  std::snprintf(text, size, "DPC++ %s", version == nullptr ? "of unknown version" : version);
  if (version != nullptr) api_.DPCTLCString_Delete(version);
}

// SYCL's core tells no free memory: what is not taken here, and on a CPU what the system has.
Status SyclBackend::device_info(Device device, gmm_device_info *out) {
  GMM_TRY(check_device(device));
  const DeviceState &state = states_[device.ordinal];
  const uint64_t taken = state.taken.load(std::memory_order_relaxed);
  out->device = device.ordinal;
  out->capabilities = state.capabilities;
  out->kinds = state.kinds;
  out->total_memory = state.memory;
  out->free_memory = taken < state.memory ? state.memory - taken : 0;
  if (state.cpu) {
    os::MemoryInfo system;
    GMM_TRY(os::memory_info(&system));
    if (system.available < out->free_memory) out->free_memory = system.available;
  }
  out->granularity = 0;  // there is no VMM memory
  char *name = api_.DPCTLDevice_GetName(devices_[device.ordinal]);
  std::snprintf(out->name, sizeof out->name, "%s", name == nullptr ? "SYCL device" : name);
  if (name != nullptr) api_.DPCTLCString_Delete(name);
  make_uuid(out->name, device.ordinal, out->uuid);
  return Status();
}

// SYCL tells the kind and the device, not the range. The device is asked for only where the kind is known: the question about any
// other pointer throws, and dpctl lets that through.
void SyclBackend::identify(const void *address, ForeignPointer *out) {
  *out = ForeignPointer();
  switch (api_.DPCTLUSM_GetPointerType(address, context_)) {
    case kUsmDevice:
      out->kind = Kind::kDevice;
      out->usm = GMM_USM_DEVICE;
      break;
    case kUsmShared:
      out->kind = Kind::kManaged;
      out->usm = GMM_USM_SHARED;
      break;
    case kUsmHost:
      out->kind = Kind::kHost;
      out->usm = GMM_USM_HOST;
      break;
    default:
      return;
  }
  out->known = true;
  if (out->kind == Kind::kHost) return;
  DeviceRef device = api_.DPCTLUSM_GetPointerDevice(address, context_);
  if (device == nullptr) return;
  for (uint32_t i = 0; i < device_count_; ++i)
    if (api_.DPCTLDevice_AreEq(device, devices_[i])) out->device = Device{static_cast<int32_t>(i)};
  api_.DPCTLDevice_Delete(device);
}

}  // namespace gmm::sycl
