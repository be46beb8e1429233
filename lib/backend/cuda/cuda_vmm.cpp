// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: addresses, physical memory, and mappings between them.
#if defined(GMM_WITH_CUDA)

#include <cinttypes>

#include "backend/cuda/cuda_backend_impl.h"

namespace gmm::cuda {
namespace {

constexpr uint32_t kMaxAccess = 64;  // 32 peers, the owner, the host, and all devices of a machine

// Answers of cuMemCreate() where a kind of location, or an exportable handle of it, is not to be had.
bool means_not_here(CUresult result) {
  return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED ||
         result == CUDA_ERROR_INVALID_DEVICE;
}

CUmemGenericAllocationHandle to_driver(PhysicalHandle handle) { return handle.value; }

// 0 is no handle, and not every driver survives being asked about one.
Status check_handle(PhysicalHandle handle, const char *what) {
  if (handle.value != 0) return Status();
  return fail(GMM_ERROR_INVALID_HANDLE, "%s VMM handle 0: that is no handle; pass one from create() or import_fd().",
              what);
}

bool is_host(const CUmemAllocationProp &properties) {
  return properties.location.type == kLocationHostNuma || properties.location.type == kLocationHost;
}

}  // namespace

Status CudaBackend::vmm_ready() const {
  const struct {
    bool there;
    const char *entry;
  } needed[] = {
      {driver_.cuMemAddressReserve != nullptr, "cuMemAddressReserve"},
      {driver_.cuMemAddressFree != nullptr, "cuMemAddressFree"},
      {driver_.cuMemCreate != nullptr, "cuMemCreate"},
      {driver_.cuMemRelease != nullptr, "cuMemRelease"},
      {driver_.cuMemMap != nullptr, "cuMemMap"},
      {driver_.cuMemUnmap != nullptr, "cuMemUnmap"},
      {driver_.cuMemSetAccess != nullptr, "cuMemSetAccess"},
      {driver_.cuMemGetAllocationGranularity != nullptr, "cuMemGetAllocationGranularity"},
  };
  for (const auto &need : needed)
    if (!need.there) return driver_.missing(need.entry);
  return Status();
}

Status CudaBackend::reserve(uint64_t size, void **out) {
  GMM_TRY(vmm_ready());
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_any(guard));
  CaptureGuard capture(driver_);
  CUdeviceptr address = 0;
  count_call();
  Status status =
      driver_.check(driver_.cuMemAddressReserve(&address, size, kExtentAlignment, 0, 0), "cuMemAddressReserve");
  if (!status.ok()) return prefix(status, "Reserving %" PRIu64 " bytes of addresses: ", size);
  *out = from_driver(address);
  return Status();
}

Status CudaBackend::unreserve(void *base, uint64_t size) {
  GMM_TRY(vmm_ready());
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_any(guard));
  CaptureGuard capture(driver_);
  count_call();
  Status status = driver_.check(driver_.cuMemAddressFree(cuda::to_driver(base), size), "cuMemAddressFree");
  return status.ok() ? status : prefix(status, "Giving back %" PRIu64 " bytes of addresses at %p: ", size, base);
}

Status CudaBackend::create(Device location, uint64_t size, PhysicalHandle *out) {
  GMM_TRY(vmm_ready());
  // Host memory is taken near the first device that can use it.
  Device device = location;
  for (device.ordinal = location.is_host() ? 0 : location.ordinal;
       location.is_host() && static_cast<uint32_t>(device.ordinal) + 1 < device_count_ &&
       !devices_[device.ordinal].vmm;)
    ++device.ordinal;
  DeviceState *state = nullptr;
  GMM_TRY(state_of(device, &state));
  if (!state->vmm)
    return device_lacks(device, "virtual memory management", "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED");
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter(guard, device));
  CaptureGuard capture(driver_);

  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = state->vmm_fd ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = state->handle;
  if (location.is_host()) {
    properties.location.type = kLocationHostNuma;
    properties.location.id = state->host_numa_node < 0 ? 0 : state->host_numa_node;  // 0 where there is no NUMA
  }
  CUmemGenericAllocationHandle handle = 0;
  count_call();
  CUresult result = driver_.cuMemCreate(&handle, size, &properties, 0);
  if (location.is_host() && means_not_here(result)) {
    // Host memory of no particular node cannot be exported: the driver refuses a handle type for it.
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    properties.location.type = kLocationHost;
    properties.location.id = 0;
    count_call();
    result = driver_.cuMemCreate(&handle, size, &properties, 0);
    if (means_not_here(result))
      return device_lacks(device, "VMM memory on the host",
                          "CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED");
  }
  if (result != CUDA_SUCCESS) {
    Status status = driver_.failed(result, "cuMemCreate");
    if (location.is_host() && status.code() == GMM_ERROR_OUT_OF_MEMORY) status = Status(GMM_ERROR_OUT_OF_HOST_MEMORY);
    if (location.is_host()) return prefix(status, "Creating %" PRIu64 " bytes of VMM memory on the host: ", size);
    return prefix(status, "Creating %" PRIu64 " bytes of VMM memory on CUDA device %d: ", size, location.ordinal);
  }
  if (location.is_host()) host_pages_.store(true, std::memory_order_release);
  out->value = handle;
  return Status();
}

Status CudaBackend::release(PhysicalHandle handle) {
  GMM_TRY(vmm_ready());
  GMM_TRY(check_handle(handle, "Releasing"));
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_any(guard));
  CaptureGuard capture(driver_);
  drop_kept_references();
  count_call();
  Status status = driver_.check(driver_.cuMemRelease(to_driver(handle)), "cuMemRelease");
  return status.ok() ? status : prefix(status, "Releasing VMM handle %" PRIu64 ": ", handle.value);
}

Status CudaBackend::map(void *base, uint64_t size, PhysicalHandle handle) {
  GMM_TRY(vmm_ready());
  GMM_TRY(check_handle(handle, "Mapping"));
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_any(guard));
  CaptureGuard capture(driver_);
  count_call();
  Status status = driver_.check(driver_.cuMemMap(cuda::to_driver(base), size, 0, to_driver(handle), 0), "cuMemMap");
  return status.ok() ? status : prefix(status, "Mapping %" PRIu64 " bytes at %p: ", size, base);
}

Status CudaBackend::unmap(void *base, uint64_t size) {
  GMM_TRY(vmm_ready());
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_any(guard));
  CaptureGuard capture(driver_);
  count_call();
  Status status = driver_.check(driver_.cuMemUnmap(cuda::to_driver(base), size), "cuMemUnmap");
  return status.ok() ? status : prefix(status, "Unmapping %" PRIu64 " bytes at %p: ", size, base);
}

bool CudaBackend::keep_reference(uint64_t handle) {
  for (std::atomic<uint64_t> &place : kept_references_) {
    uint64_t none = 0;
    if (place.compare_exchange_strong(none, handle, std::memory_order_relaxed)) return true;
  }
  return false;
}

void CudaBackend::drop_kept_references() {
  for (std::atomic<uint64_t> &place : kept_references_) {
    if (place.load(std::memory_order_relaxed) == 0) continue;
    const uint64_t handle = place.exchange(0, std::memory_order_relaxed);
    if (handle == 0) continue;
    const CUresult result = driver_.cuMemRelease(handle);
    if (result != CUDA_SUCCESS && !keep_reference(handle))
      log_.write(LogLevel::kError, "VMM memory stays taken: cuMemRelease answered %d.", static_cast<int>(result));
  }
}

// Of a handle that was retained to look at it.
Status CudaBackend::drop_reference(uint64_t handle) {
  drop_kept_references();
  CUresult result = driver_.cuMemRelease(handle);
  if (result == CUDA_SUCCESS) return Status();
  // A reference that stays keeps the memory: once more now, and with the next one.
  if (driver_.cuMemRelease(handle) == CUDA_SUCCESS) return Status();
  if (keep_reference(handle)) return Status();
  log_.write(LogLevel::kError, "VMM memory stays taken: cuMemRelease answered %d.", static_cast<int>(result));
  return driver_.failed(result, "cuMemRelease");
}

// Looks at what is mapped first: the engine never mixes locations in one range.
Status CudaBackend::pages_on_host(void *base, bool *out) {
  *out = false;
  if (!host_pages_.load(std::memory_order_acquire)) return Status();
  if (driver_.cuMemRetainAllocationHandle == nullptr || driver_.cuMemGetAllocationPropertiesFromHandle == nullptr)
    return Status();
  CUmemGenericAllocationHandle handle = 0;
  GMM_TRY(driver_.check(driver_.cuMemRetainAllocationHandle(&handle, base), "cuMemRetainAllocationHandle"));
  CUmemAllocationProp properties = {};
  Status status = driver_.check(driver_.cuMemGetAllocationPropertiesFromHandle(&properties, handle),
                                "cuMemGetAllocationPropertiesFromHandle");
  Status dropped = drop_reference(handle);
  GMM_TRY(status);
  GMM_TRY(dropped);
  *out = is_host(properties);
  return Status();
}

Status CudaBackend::set_access(void *base, uint64_t size, Device owner, uint32_t peers) {
  GMM_TRY(vmm_ready());
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_any(guard));
  CaptureGuard capture(driver_);
  bool on_host = owner.is_host();
  if (!on_host) {
    Status status = pages_on_host(base, &on_host);
    if (!status.ok()) return prefix(status, "Giving access to %" PRIu64 " bytes at %p: ", size, base);
  }

  CUmemAccessDesc access[kMaxAccess] = {};
  uint32_t count = 0;
  const auto add = [&](CUmemLocationType type, int id) {
    access[count].location.type = type;
    access[count].location.id = id;
    access[count].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    ++count;
  };
  const uint32_t devices = device_count_ < kMaxAccess - 1 ? device_count_ : kMaxAccess - 1;
  for (uint32_t i = 0; i < devices; ++i) {
    const bool wanted =
        owner.is_host() || static_cast<int32_t>(i) == owner.ordinal || (i < 32 && (peers >> i & 1) != 0);
    if (!wanted) continue;
    // Without VMM a device is left out where all are meant; one that was named is a mistake to be told.
    if (owner.is_host() && !devices_[i].vmm) continue;
    add(CU_MEM_LOCATION_TYPE_DEVICE, devices_[i].handle);
  }
  if (peers != 0 && device_count_ < 32 && (peers >> device_count_) != 0)
    return fail(GMM_ERROR_INVALID_DEVICE, "Peers %#x: the CUDA driver shows %u devices; set bits of those only.", peers,
                device_count_);

  const uint32_t device_locations = count;
  if (on_host) add(kLocationHostNuma, 0);  // the node is not looked at
  count_call();
  CUresult result = driver_.cuMemSetAccess(cuda::to_driver(base), size, access, count);
  if (on_host && means_not_here(result)) {
    // Host memory of no particular node.
    count = device_locations;
    add(kLocationHost, 0);
    count_call();
    result = driver_.cuMemSetAccess(cuda::to_driver(base), size, access, count);
  }
  Status status = driver_.check(result, "cuMemSetAccess");
  if (status.ok()) return status;
  return prefix(status, "Giving device %d and peers %#x access to %" PRIu64 " bytes at %p: ", owner.ordinal, peers,
                size, base);
}

Status CudaBackend::export_fd(PhysicalHandle handle, int32_t *fd) {
  if (driver_.cuMemExportToShareableHandle == nullptr) return driver_.missing("cuMemExportToShareableHandle");
  GMM_TRY(check_handle(handle, "Exporting"));
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_any(guard));
  CaptureGuard capture(driver_);
  int exported = -1;
  count_call();
  const CUresult result =
      driver_.cuMemExportToShareableHandle(&exported, to_driver(handle), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result == CUDA_ERROR_INVALID_VALUE && driver_.cuMemGetAllocationPropertiesFromHandle != nullptr) {
    // The driver's word also for memory that cannot be exported: where create() had to ask for it without.
    CUmemAllocationProp properties = {};
    if (driver_.cuMemGetAllocationPropertiesFromHandle(&properties, to_driver(handle)) == CUDA_SUCCESS &&
        (properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0)
      return fail(GMM_ERROR_NOT_SUPPORTED,
                  "Exporting VMM handle %" PRIu64
                  ": this memory has no file descriptor, because the device or the location "
                  "offers none; ask gmm_device_get_info() for GMM_DEVICE_CAN_EXPORT_FD.",
                  handle.value);
  }
  Status status = driver_.check(result, "cuMemExportToShareableHandle");
  if (!status.ok()) return prefix(status, "Exporting VMM handle %" PRIu64 " as a file descriptor: ", handle.value);
  *fd = exported;
  return Status();
}

Status CudaBackend::import_fd(int32_t fd, uint64_t size, Device device, PhysicalHandle *out) {
  if (driver_.cuMemImportFromShareableHandle == nullptr) return driver_.missing("cuMemImportFromShareableHandle");
  DeviceState *state = nullptr;
  GMM_TRY(state_of(device, &state));
  if (!state->vmm_fd)
    return device_lacks(device, "import by file descriptor",
                        "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED");
  if (fd < 0)
    return fail(GMM_ERROR_INVALID_HANDLE, "Importing from file descriptor %d: that is none; pass an open one.", fd);
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter(guard, device));
  CaptureGuard capture(driver_);
  CUmemGenericAllocationHandle handle = 0;
  count_call();
  Status status =
      driver_.check(driver_.cuMemImportFromShareableHandle(&handle, reinterpret_cast<void *>(static_cast<intptr_t>(fd)),
                                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                    "cuMemImportFromShareableHandle");
  if (!status.ok()) return prefix(status, "Importing %" PRIu64 " bytes from file descriptor %d: ", size, fd);
  // Asked once here, and not of every range whose access is set afterwards.
  CUmemAllocationProp properties = {};
  if (driver_.cuMemGetAllocationPropertiesFromHandle == nullptr ||
      driver_.cuMemGetAllocationPropertiesFromHandle(&properties, handle) != CUDA_SUCCESS || is_host(properties))
    host_pages_.store(true, std::memory_order_release);
  out->value = handle;
  return Status();
}

}  // namespace gmm::cuda

#endif
