// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/devices.h"

#include <unistd.h>

#ifdef GMM_NVCC
#include "find_zeros_ptx.h"  // the build's
#else
#include "backend/gpu/find_zeros_ptx.h"
#endif

namespace gmm::gpu {

CUmemAllocationProp device_pages(CUdevice device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

CUmemAllocationProp comm_pages(const DeviceState &state, bool with_fabric) {
  CUmemAllocationProp properties = device_pages(state.handle);
  const unsigned types = (state.vmm_fd ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE) |
                         (with_fabric ? CU_MEM_HANDLE_TYPE_FABRIC : CU_MEM_HANDLE_TYPE_NONE);
  properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
  properties.allocFlags.gpuDirectRDMACapable = state.rdma ? 1 : 0;
  return properties;
}

// --- Opening and closing ---------------------------------------------------------------------------------------------

Status Devices::attribute(CUdevice device, CUdevice_attribute which, int32_t *out) const {
  const CUresult result = driver.cuDeviceGetAttribute(out, which, device);
  // The attribute is newer than the driver.
  const bool is_unknown = result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED;
  if (is_unknown) *out = -1;
  return is_unknown ? Status()
                    : prefix(driver.check(result, "cuDeviceGetAttribute"),
                             "Reading attribute %d of device %d: ", static_cast<int>(which), device);
}

Status Devices::probe(DeviceState *state, int ordinal) {
  GMM_TRY(prefix(GMM_CUDA_OF(driver, cuDeviceGet, &state->handle, ordinal), "Opening device %d: ", ordinal));
  int32_t value = 0;
#define GMM_CUDA_READ(name, which, capability)                            \
  GMM_TRY(attribute(state->handle, CU_DEVICE_ATTRIBUTE_##which, &value)); \
  state->name = value > 0;
  GMM_CUDA_ABILITIES(GMM_CUDA_READ)
#undef GMM_CUDA_READ
  GMM_TRY(attribute(state->handle, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, &state->host_numa_node));
  state->concurrent_managed = state->concurrent_managed && state->managed;
  state->host_page_tables = state->host_page_tables && state->pageable;
  const auto without_vmm = [&] {
    state->vmm = state->vmm_fd = state->fabric = state->rdma = state->host_numa_vmm = false;
    return Status();
  };
  if (!state->vmm) return without_vmm();
  const CUmemAllocationProp properties = device_pages(state->handle);
  size_t granularity = 0;
  GMM_TRY(prefix(
      GMM_CUDA_OF(driver, cuMemGetAllocationGranularity, &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
      "Reading the granularity of VMM memory of device %d: ", ordinal));
  if (granularity == 0 || kExtentAlignment % granularity != 0) {
    log_.write(
        LogLevel::kWarning,
        "Device %d has VMM memory in granules of %llu bytes, which do not divide 2 MiB; gmm leaves out its kind VMM.",
        ordinal, static_cast<unsigned long long>(granularity));
    return without_vmm();
  }
  state->granularity = granularity;
  // The recommended granularity makes larger pages. One that gmm cannot serve is left for the least one.
  const CUmemAllocationProp comm = comm_pages(*state, state->fabric);
  state->comm_granularity = kExtentAlignment;
  if (driver.cuMemGetAllocationGranularity(&granularity, &comm, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) == CUDA_SUCCESS &&
      granularity > kExtentAlignment && granularity % kExtentAlignment == 0 && (granularity & (granularity - 1)) == 0)
    state->comm_granularity = granularity;
  return Status();
}

Status Devices::open() {
  process_ = getpid();
  GMM_TRY(driver.open());
  int count = 0;
  GMM_TRY(prefix(GMM_CUDA_OF(driver, cuDeviceGetCount, &count), "Counting the %s devices: ", driver.vendor.name));
  if (count <= 0)
    return fail(GMM_ERROR_NO_BACKEND, "The %s driver shows no device; %s, or use the host backend.", driver.vendor.name,
                driver.vendor.to_check);
  count_ = static_cast<uint32_t>(count) < kMost ? static_cast<uint32_t>(count) : kMost;
  for (uint32_t i = 0; i < count_; ++i) GMM_TRY(probe(&states_[i], static_cast<int>(i)));
  return Status();
}

void Devices::close() {
  if (process_ != getpid()) return;  // in a child after fork() the driver's state belongs to the parent
  for (uint32_t i = 0; i < count_; ++i) {
    CUcontext primary = states_[i].primary.load(std::memory_order_acquire);
    if (primary == nullptr) continue;
    if (states_[i].module != nullptr) {
      // A module that the driver does not unload ends with the context.
      ContextGuard guard(driver, log_);
      if (guard.enter(primary).ok()) (void)driver.cuModuleUnload(states_[i].module);
    }
    const CUresult result = driver.cuDevicePrimaryCtxRelease(states_[i].handle);
    // At process exit the driver may have shut down before this call, and the context with it.
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_DEINITIALIZED && result != CUDA_ERROR_NOT_INITIALIZED)
      log_.write(LogLevel::kWarning,
                 "The driver did not release the primary context of device %u: cuDevicePrimaryCtxRelease answered %d.",
                 i, static_cast<int>(result));
  }
}

Status Devices::lacks(Device device, const char *operation, const char *attribute) const {
  char name[128] = "";
  if (driver.cuDeviceGetName(name, sizeof name, states_[device.ordinal].handle) != CUDA_SUCCESS) name[0] = '\0';
  return fail(GMM_ERROR_NOT_SUPPORTED,
              "%s device %d (%s) has no %s (it lacks %s); gmm_device_query() says what it can do.", driver.vendor.name,
              device.ordinal, name, operation, attribute);
}

// --- Contexts --------------------------------------------------------------------------------------------------------

Status Devices::primary(Device device, CUcontext *out) {
  DeviceState &state = states_[device.ordinal];
  *out = state.primary.load(std::memory_order_acquire);
  if (*out != nullptr) [[likely]]
    return Status();
  LockGuard lock(mutex_);
  *out = state.primary.load(std::memory_order_relaxed);
  if (*out != nullptr) return Status();
  CaptureGuard capture(driver);
  GMM_TRY(
      prefix(GMM_CUDA_OF(driver, cuDevicePrimaryCtxRetain, out, state.handle), "Starting device %d: ", device.ordinal));
  state.primary.store(*out, std::memory_order_release);
  return Status();
}

bool Devices::is_started(Device device) const {
  const DeviceState &state = states_[device.ordinal];
  unsigned int flags = 0;
  int active = 1;
  return state.primary.load(std::memory_order_acquire) != nullptr ||
         driver.cuDevicePrimaryCtxGetState(state.handle, &flags, &active) != CUDA_SUCCESS || active != 0;
}

Status Devices::enter(ContextGuard &guard, Device device) {
  CUcontext context = nullptr;
  GMM_TRY(primary(device, &context));
  return guard.enter(context);
}

Status Devices::enter_any(ContextGuard &guard) {
  CUcontext now = nullptr;
  GMM_TRY(guard.current(&now));
  if (now != nullptr) return Status();
  for (uint32_t i = 0; i < count_; ++i) {
    CUcontext retained = states_[i].primary.load(std::memory_order_acquire);
    if (retained != nullptr) return guard.enter(retained);
  }
  // No device was started here. If another part of the process has started one, sharing it costs nothing.
  for (uint32_t i = 0; i < count_; ++i) {
    unsigned int flags = 0;
    int active = 0;
    GMM_TRY(GMM_CUDA_OF(driver, cuDevicePrimaryCtxGetState, states_[i].handle, &flags, &active));
    if (active != 0) return enter(guard, Device{static_cast<int32_t>(i)});
  }
  // Calls that name no device (reserving addresses) need no context. Starting a device would take memory on it.
  return Status();
}

Status Devices::enter_owner(ContextGuard &guard, const void *address) {
  GMM_TRY(enter_any(guard));
  CUcontext owner = nullptr;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_CONTEXT};
  void *values[] = {&owner};
  if (driver.cuPointerGetAttributes(1, which, values, reinterpret_cast<CUdeviceptr>(address)) != CUDA_SUCCESS ||
      owner == nullptr)
    return Status();  // the operation itself reports what is wrong with the address
  return guard.enter(owner);
}

Status Devices::is_current(ContextGuard &guard, Device device, bool *out) {
  CUcontext now = nullptr;
  const DeviceState &state = states_[device.ordinal];
  GMM_TRY(guard.current(&now));
  *out = now != nullptr && now == state.primary.load(std::memory_order_acquire);
  if (now == nullptr || *out) return Status();
  CUdevice current_device = 0;
  GMM_TRY(GMM_CUDA_OF(driver, cuCtxGetDevice, &current_device));
  *out = current_device == state.handle;
  return Status();
}

Status Devices::enter_stream(ContextGuard &guard, Device device, gmm_stream stream) {
  if (is_special(stream)) {
    // A default stream of the caller's current context is meant if that context is one of this device.
    bool is_callers = false;
    GMM_TRY(is_current(guard, device, &is_callers));
    return is_callers ? Status() : enter(guard, device);
  }
  CUcontext now = nullptr;
  GMM_TRY(guard.current(&now));
  if (now == nullptr) GMM_TRY(enter(guard, device));
  CUcontext own = nullptr;
  GMM_TRY(prefix(GMM_CUDA_OF(driver, cuStreamGetCtx, to_driver(stream), &own),
                 "Looking up stream %p: ", static_cast<void *>(stream)));
  return guard.enter(own);
}

// --- The kernel that searches for zeros ------------------------------------------------------------------------------

Status Devices::zeros_function(Device device, CUfunction *out) {
  if (!driver.vendor.has_kernels)
    return fail(GMM_ERROR_NOT_SUPPORTED, "gmm has no kernels for %s.", driver.vendor.name);
  DeviceState &state = states_[device.ordinal];
  *out = state.find_zeros.load(std::memory_order_acquire);
  if (*out != nullptr) return Status();
  LockGuard lock(mutex_);
  *out = state.find_zeros.load(std::memory_order_relaxed);
  if (*out != nullptr) return Status();
  if (state.module == nullptr) GMM_TRY(GMM_CUDA_OF(driver, cuModuleLoadData, &state.module, kFindZeros));
  GMM_TRY(GMM_CUDA_OF(driver, cuModuleGetFunction, out, state.module, "gmm_find_zeros"));
  state.find_zeros.store(*out, std::memory_order_release);
  return Status();
}

}  // namespace gmm::gpu
