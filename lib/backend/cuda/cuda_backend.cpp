// SPDX-License-Identifier: Apache-2.0
// What the CUDA backend is: its making and end, its devices, and what an address is.
#if defined(GMM_WITH_CUDA)

#include "backend/cuda/cuda_backend.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "backend/cuda/cuda_backend_impl.h"

namespace gmm::cuda {
namespace {

CUmemAllocationProp device_pages(CUdevice device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

}  // namespace

Status CudaBackend::attribute(CUdevice device, CUdevice_attribute which, int32_t *out) const {
  int value = 0;
  const CUresult result = driver_.cuDeviceGetAttribute(&value, which, device);
  // An attribute that is newer than the driver.
  if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED) {
    *out = -1;
    return Status();
  }
  Status status = driver_.check(result, "cuDeviceGetAttribute");
  if (!status.ok()) return prefix(status, "Asking device %d for attribute %d: ", device, static_cast<int>(which));
  *out = value;
  return Status();
}

Status CudaBackend::probe(DeviceState *state, int ordinal) {
  Status status = driver_.check(driver_.cuDeviceGet(&state->handle, ordinal), "cuDeviceGet");
  if (!status.ok()) return prefix(status, "Opening device %d: ", ordinal);

  int32_t vmm = 0, fd = 0, legacy_ipc = 0, unified = 0, integrated = 0;
  const struct {
    CUdevice_attribute which;
    bool *flag;
    int32_t *number;
  } wanted[] = {
      {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, nullptr, &vmm},
      {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, nullptr, &fd},
      {kAttributeFabric, &state->fabric, nullptr},
      {kAttributeHostNumaId, nullptr, &state->host_numa_node},
      {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, &state->managed, nullptr},
      {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, &state->concurrent_managed, nullptr},
      {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, &state->pin, nullptr},
      {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, &state->pin_read_only, nullptr},
      {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, &state->pin_same_address, nullptr},
      {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, &state->pageable, nullptr},
      {kAttributeIpc, nullptr, &legacy_ipc},
      {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, nullptr, &unified},
      {kAttributeDmaBuf, &state->dma_buf, nullptr},
      {CU_DEVICE_ATTRIBUTE_INTEGRATED, nullptr, &integrated},
  };
  for (const auto &want : wanted) {
    int32_t value = 0;
    GMM_TRY(attribute(state->handle, want.which, &value));
    if (want.flag != nullptr)
      *want.flag = value > 0;
    else
      *want.number = value;
  }

  // cuIpcGetMemHandle's documentation names the attribute for IPC events; a driver that does not know it has legacy
  // IPC on discrete devices.
  state->legacy_ipc = legacy_ipc >= 0 ? legacy_ipc > 0 : unified > 0 && integrated == 0;
  state->legacy_ipc = state->legacy_ipc && driver_.cuIpcGetMemHandle != nullptr &&
                      driver_.cuIpcOpenMemHandle != nullptr && driver_.cuIpcCloseMemHandle != nullptr;
  state->managed = state->managed && driver_.cuMemAllocManaged != nullptr;
  state->pin = state->pin && driver_.cuMemHostRegister != nullptr && driver_.cuMemHostUnregister != nullptr &&
               driver_.cuMemHostGetDevicePointer != nullptr;
  if (vmm <= 0 || !vmm_ready().ok()) return Status();

  const CUmemAllocationProp properties = device_pages(state->handle);
  size_t granularity = 0;
  status =
      driver_.check(driver_.cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                    "cuMemGetAllocationGranularity");
  if (!status.ok()) return prefix(status, "Asking device %d for the granularity of VMM memory: ", ordinal);
  if (granularity == 0 || kExtentAlignment % granularity != 0) {
    log_.write(LogLevel::kWarning,
               "Device %d has VMM memory in pieces of %llu bytes, which do not divide 2 MiB: kind VMM is left out.",
               ordinal, static_cast<unsigned long long>(granularity));
    return Status();
  }
  state->vmm = true;
  state->granularity = granularity;
  state->vmm_fd =
      fd > 0 && driver_.cuMemExportToShareableHandle != nullptr && driver_.cuMemImportFromShareableHandle != nullptr;
  return Status();
}

Status CudaBackend::open() {
  process_ = getpid();
  GMM_TRY(driver_.open());
  int count = 0;
  Status status = driver_.check(driver_.cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (!status.ok()) return prefix(status, "Counting the CUDA devices: ");
  if (count <= 0)
    return fail(GMM_ERROR_NO_BACKEND,
                "The CUDA driver shows no device; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use the host backend.");
  const uint64_t bytes = static_cast<uint64_t>(count) * sizeof(DeviceState);
  void *memory = allocator_.allocate(bytes, alignof(DeviceState));
  if (memory == nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY,
                "The state of %d devices: the host allocator gave no %llu bytes; free memory.", count,
                static_cast<unsigned long long>(bytes));
  devices_ = static_cast<DeviceState *>(memory);
  device_count_ = static_cast<uint32_t>(count);
  for (uint32_t i = 0; i < device_count_; ++i) ::new (&devices_[i]) DeviceState();
  for (uint32_t i = 0; i < device_count_; ++i) GMM_TRY(probe(&devices_[i], static_cast<int>(i)));
  return Status();
}

void CudaBackend::destroy() {
  // In a child after fork() the driver's state is the parent's: only the bookkeeping goes.
  const bool own = process_ == getpid();
  if (own && driver_.cuMemRelease != nullptr) drop_kept_references();
  for (uint32_t i = 0; i < device_count_; ++i) {
    CUcontext primary = own ? devices_[i].primary.load(std::memory_order_acquire) : nullptr;
    if (primary == nullptr) continue;
    if (devices_[i].module != nullptr) {
      // What the driver does not unload goes with the context.
      ContextGuard guard(driver_, log_);
      if (guard.enter(primary).ok()) (void)driver_.cuModuleUnload(devices_[i].module);
    }
    const CUresult result = driver_.cuDevicePrimaryCtxRelease(devices_[i].handle);
    // At process exit the driver may be gone before us, and the context with it.
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_DEINITIALIZED && result != CUDA_ERROR_NOT_INITIALIZED)
      log_.write(LogLevel::kWarning,
                 "The primary context of device %u was not released: cuDevicePrimaryCtxRelease answered %d.", i,
                 static_cast<int>(result));
  }
  allocator_.deallocate(devices_, device_count_ * sizeof(DeviceState));
  const HostAllocator allocator = allocator_;
  allocator.destroy(this);
}

Status CudaBackend::state_of(Device device, DeviceState **out) {
  if (device.ordinal < 0 || static_cast<uint32_t>(device.ordinal) >= device_count_)
    return fail(GMM_ERROR_INVALID_DEVICE, "Device %d: the CUDA driver shows %u devices; use 0 to %u.", device.ordinal,
                device_count_, device_count_ - 1);
  *out = &devices_[device.ordinal];
  return Status();
}

Status CudaBackend::device_lacks(Device device, const char *what, const char *attribute) const {
  char name[128] = "";
  if (driver_.cuDeviceGetName(name, sizeof name, devices_[device.ordinal].handle) != CUDA_SUCCESS) name[0] = '\0';
  return fail(GMM_ERROR_NOT_SUPPORTED,
              "CUDA device %d (%s) has no %s (%s is not there); ask gmm_device_get_info() for what it can do.",
              device.ordinal, name, what, attribute);
}

void CudaBackend::driver_version(char *text, uint64_t size) const {
  std::snprintf(text, size, "%d.%d", driver_.version() / 1000, driver_.version() % 1000 / 10);
}

Status CudaBackend::device_info(Device device, gmm_device_info *out) {
  DeviceState *state = nullptr;
  GMM_TRY(state_of(device, &state));
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter(guard, device));  // free memory is told for the current context's device only
  gmm_device_info info = {};
  size_t free_memory = 0, total_memory = 0;
  CUuuid uuid = {};
  GMM_TRY(driver_.check(driver_.cuMemGetInfo(&free_memory, &total_memory), "cuMemGetInfo"));
  GMM_TRY(driver_.check(driver_.cuDeviceGetName(info.name, sizeof info.name, state->handle), "cuDeviceGetName"));
  GMM_TRY(driver_.check(driver_.cuDeviceGetUuid(&uuid, state->handle), "cuDeviceGetUuid"));
  static_assert(sizeof uuid.bytes == sizeof info.uuid);
  std::memcpy(info.uuid, uuid.bytes, sizeof info.uuid);
  info.device = device.ordinal;
  info.total_memory = total_memory;
  info.free_memory = free_memory;
  info.granularity = state->granularity;
  const struct {
    bool has;
    uint32_t bit;
  } abilities[] = {
      {state->vmm, GMM_DEVICE_CAN_PAUSE},
      {state->vmm_fd, GMM_DEVICE_CAN_EXPORT_FD},
      {state->legacy_ipc, GMM_DEVICE_CAN_LEGACY_IPC},
      {state->managed && state->concurrent_managed, GMM_DEVICE_CAN_CONCURRENT_MANAGED},
      {state->pin, GMM_DEVICE_CAN_PIN},
      {state->pageable, GMM_DEVICE_CAN_PAGEABLE},
      {state->fabric, GMM_DEVICE_CAN_FABRIC},
      {state->dma_buf && driver_.cuMemGetHandleForAddressRange != nullptr, GMM_DEVICE_CAN_DMA_BUF},
  };
  for (const auto &ability : abilities)
    if (ability.has) info.capabilities |= ability.bit;
  info.kinds = 1u << GMM_KIND_DEVICE;
  if (state->vmm) info.kinds |= 1u << GMM_KIND_VMM;
  if (state->pin && state->pin_same_address) info.kinds |= 1u << GMM_KIND_HOST;
  if (state->managed) info.kinds |= 1u << GMM_KIND_MANAGED;
  info.struct_size = out->struct_size;
  *out = info;
  return Status();
}

void CudaBackend::identify(const void *address, ForeignPointer *out) {
  *out = ForeignPointer();
  MessageGuard message;  // a question that finds nothing is no failure of the caller's
  ContextGuard guard(driver_, log_);
  if (!enter_any(guard).ok()) return;
  CUmemorytype type = static_cast<CUmemorytype>(0);
  unsigned int managed = 0;
  int ordinal = -1;
  void *start = nullptr;
  size_t size = 0;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                 CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  void *values[] = {&type, &managed, &ordinal, &start, &size};
  static_assert(sizeof which / sizeof which[0] == sizeof values / sizeof values[0]);
  if (driver_.cuPointerGetAttributes(sizeof which / sizeof which[0], which, values, to_driver(address)) != CUDA_SUCCESS)
    return;
  if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED && managed == 0)
    return;

  out->known = true;
  out->base = start;
  out->size = size;
  if (ordinal >= 0 && static_cast<uint32_t>(ordinal) < device_count_) out->device = Device{ordinal};
  if (managed != 0) {
    out->usm = GMM_USM_SHARED;
    out->kind = Kind::kManaged;
    return;
  }
  const bool on_host = type == CU_MEMORYTYPE_HOST;
  out->usm = on_host ? GMM_USM_HOST : GMM_USM_DEVICE;
  out->kind = on_host ? Kind::kHost : Kind::kDevice;
  if (driver_.cuMemRetainAllocationHandle == nullptr || driver_.cuMemRelease == nullptr) return;
  // Only memory that cuMemMap() mapped has a handle.
  CUmemGenericAllocationHandle handle = 0;
  if (driver_.cuMemRetainAllocationHandle(&handle, const_cast<void *>(address)) != CUDA_SUCCESS) return;
  out->kind = Kind::kVmm;
  drop_reference(handle).ignore();  // the question is answered; a failure is in the log
}

}  // namespace gmm::cuda

namespace gmm {

Status cuda_backend_create(const HostAllocator &allocator, const Log &log, Backend **out) {
  auto *backend = allocator.create<cuda::CudaBackend>(allocator, log);
  if (backend == nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "The CUDA backend: the host allocator gave no %zu bytes; free memory.",
                sizeof(cuda::CudaBackend));
  if (Status status = backend->open(); !status.ok()) {
    MessageGuard message;
    backend->destroy();
    return status;
  }
  *out = backend;
  return Status();
}

}  // namespace gmm

#endif
