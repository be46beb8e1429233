// SPDX-License-Identifier: Apache-2.0
// CudaBackend: the operations of backend.h over the driver API. The sections follow that header.
#include "backend/cuda/cuda_backend.h"

#include <gmm/pin.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "backend/cuda/devices.h"
#include "base/lock.h"
#include "base/os_memory.h"

namespace gmm::cuda {

// Calls an entry of the driver. A failure names the entry.
#define GMM_CUDA(entry, ...) driver_.check(driver_.entry(__VA_ARGS__), #entry)

class CudaBackend final : public Backend {
 public:
  CudaBackend(const HostAllocator &allocator, const Log &log) : Backend(allocator, log), devices_(allocator, log) {}
  Status open() { return devices_.open(); }
  void destroy() override;

  gmm_backend id() const override { return GMM_BACKEND_CUDA; }
  const char *name() const override { return "cuda"; }
  void driver_version(char *text, uint64_t size) const override;
  uint32_t device_count() const override { return devices_.count(); }
  Status device_info(Device device, gmm_device_info *out) override;
  Status device_traits(Device device, gmm_device_info *out) override;
  int32_t host_numa_node(Device device) override;

  Status allocate(Kind kind, Device device, uint64_t size, Allocation *out) override;
  Status deallocate(const Allocation &allocation) override;
  Status import_host(int32_t fd, uint64_t size, Device device, bool locked, Allocation *out) override;

  Status reserve(uint64_t size, void **out) override;
  Status unreserve(void *base, uint64_t size) override;
  Status can_create(Device location, uint64_t size) override;
  Status create(Device location, uint64_t size, PhysicalHandle *out) override;
  Status comm_traits(Device device, CommTraits *out) override;
  Status create_comm(Device device, uint64_t size, PhysicalHandle *out) override;
  Status release(PhysicalHandle handle) override;
  Status free_memory(Device device, uint64_t *out) override;
  Status device_use(Device device, DeviceUse *out) override;
  Status map(void *base, uint64_t size, PhysicalHandle handle) override;
  Status unmap(void *base, uint64_t size) override;
  Status set_access(void *base, uint64_t size, Device owner, uint32_t peers) override;
  Status export_fd(PhysicalHandle handle, int32_t *fd) override;
  Status import_fd(int32_t fd, uint64_t size, Device device, PhysicalHandle *out) override;

  bool has_fabric(Device device) const override;
  Status export_fabric(PhysicalHandle handle, uint8_t out[kFabricHandleSize]) override;
  Status import_fabric(const uint8_t handle[kFabricHandleSize], uint64_t size, Device device,
                       PhysicalHandle *out) override;

  Status legacy_export(void *driver_base, uint8_t out[kLegacyHandleSize]) override;
  Status legacy_import(const uint8_t handle[kLegacyHandleSize], Device device, void **driver_base) override;
  Status legacy_close(void *driver_base) override;
  Status export_dma_buf(const void *base, uint64_t size, int32_t *fd) override;
  Status external_import(int32_t fd, gmm_fd_type type, uint64_t size, Device device, Allocation *out) override;
  Status external_close(const Allocation &allocation) override;

  Status pin(void *base, uint64_t size, uint32_t flags, Device device, void **device_pointer) override;
  Status unpin(void *base, uint64_t size) override;

  Status advise(void *base, uint64_t size, gmm_advice advice, Device location) override;
  Status prefetch(void *base, uint64_t size, Device location, Device stream_device, gmm_stream stream) override;

  Status stream_create(Device device, int32_t priority, gmm_stream *out) override;
  Status stream_destroy(gmm_stream stream) override;
  Status stream_synchronize(Device device, gmm_stream stream) override;
  Status stream_is_capturing(Device device, gmm_stream stream, bool *out) override;
  Status stream_query(Device device, gmm_stream stream, bool *idle) override;
  Status stream_call(Device device, gmm_stream stream, void (*fn)(void *), void *user) override;
  Status copy(Device device, gmm_stream stream, void *destination, const void *source, uint64_t size) override;
  Status fill(Device device, gmm_stream stream, void *destination, uint8_t value, uint64_t size) override;
  Status find_zeros(Device device, gmm_stream stream, ZeroRange *ranges, uint64_t count) override;
  Status synchronize(Device device) override;
  bool can_capture() const override { return true; }
  bool may_be_capturing(Device device, gmm_stream stream) override;
  Status capture_of(Device device, gmm_stream stream, Capture *out) override;
  Status at_end_of_graph(Device device, void *graph, void (*fn)(void *), void *user) override;
  Status event_create(Device device, NativeEvent *out) override;
  Status event_destroy(NativeEvent event) override;
  Status event_record(NativeEvent event, Device device, gmm_stream stream) override;
  Status event_synchronize(NativeEvent event) override;
  Status event_query(NativeEvent event, bool *passed) override;
  Status stream_wait(Device device, gmm_stream stream, NativeEvent event) override;
  Status shared_event_create(Device device, NativeEvent *out) override;
  Status shared_event_export(Device device, NativeEvent event, uint8_t out[kLegacyHandleSize], int32_t *fd) override;
  Status shared_event_import(Device device, const uint8_t handle[kLegacyHandleSize], int32_t fd, const Peer &maker,
                             NativeEvent *out) override;
  Status shared_event_wait(Device device, gmm_stream stream, NativeEvent event) override;
  Status semaphore_import(gmm_semaphore_type type, int32_t fd, Device device, NativeSemaphore *out) override;
  Status semaphore_destroy(NativeSemaphore semaphore, Device device) override;
  Status semaphore_signal(NativeSemaphore semaphore, Device device, gmm_stream stream, uint64_t value) override;
  Status semaphore_wait(NativeSemaphore semaphore, Device device, gmm_stream stream, uint64_t value) override;

  void identify(const void *address, ForeignPointer *out) override;

 private:
  CUresult driver_allocate(Kind kind, uint64_t size, CUdeviceptr *out);
  Status allocate_device(Kind kind, Device device, uint64_t size, Allocation *out);
  Status allocate_host(Device device, uint64_t size, Allocation *out);
  Status register_file(int32_t fd, uint64_t size, Device device, bool there, Allocation *out);
  Status pages_on_host(void *base, bool *out);
  Status release_reference(uint64_t handle);
  bool defer_release(uint64_t handle);
  void retry_deferred_releases();
  bool is_host_memory(const void *address) const;
  Status copy_on_host(Device device, gmm_stream stream, void *destination, const void *source, uint64_t size);
  Status managed_location(const char *what, Device location, DeviceState **out);

  Devices devices_;
  const Driver &driver_ = devices_.driver;
  // Whether VMM memory of this backend may lie on the host. Otherwise set_access() need not look.
  std::atomic<bool> host_pages_{false};
  static constexpr uint32_t kDeferredReleases = 16;
  std::atomic<uint64_t> deferred_releases_[kDeferredReleases] = {};  // handles that the driver did not release; 0: none
};

// --- Creation, devices and addresses ---------------------------------------------------------------------------------

void CudaBackend::destroy() {
  if (devices_.is_own_process() && driver_.cuMemRelease != nullptr) retry_deferred_releases();
  devices_.close();
  const HostAllocator allocator = allocator_;
  allocator.destroy(this);
}

int32_t CudaBackend::host_numa_node(Device device) {
  MessageGuard message_guard;
  DeviceState *state = nullptr;
  return devices_.state_of(device, &state).ok() ? state->host_numa_node : -1;
}

void CudaBackend::driver_version(char *text, uint64_t size) const {
  std::snprintf(text, size, "%d.%d", driver_.version() / 1000, driver_.version() % 1000 / 10);
}

Status CudaBackend::device_info(Device device, gmm_device_info *out) {
  uint64_t bytes = 0;
  GMM_TRY(free_memory(device, &bytes));
  GMM_TRY(device_traits(device, out));
  out->free_memory = bytes;
  return Status();
}

Status CudaBackend::device_traits(Device device, gmm_device_info *out) {
  DeviceState *state = nullptr;
  GMM_TRY(devices_.state_of(device, &state));
  gmm_device_info info = {};
  size_t total_memory = 0;
  CUuuid uuid = {};
  GMM_TRY(GMM_CUDA(cuDeviceTotalMem, &total_memory, state->handle));
  GMM_TRY(GMM_CUDA(cuDeviceGetName, info.name, sizeof info.name, state->handle));
  GMM_TRY(GMM_CUDA(cuDeviceGetUuid, &uuid, state->handle));
  static_assert(sizeof uuid.bytes == sizeof info.uuid);
  std::memcpy(info.uuid, uuid.bytes, sizeof info.uuid);
  // On Linux the driver answers that it has none.
  static_assert(sizeof info.luid == 8);
  char luid[sizeof info.luid] = {};
  unsigned int node_mask = 0;
  if (driver_.cuDeviceGetLuid != nullptr && driver_.cuDeviceGetLuid(luid, &node_mask, state->handle) == CUDA_SUCCESS) {
    std::memcpy(info.luid, luid, sizeof luid);
    info.node_mask = node_mask;
  }
  info.device = device.ordinal;
  info.total_memory = total_memory;
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
      {state->pageable && state->host_page_tables, GMM_DEVICE_CAN_HOST_PAGE_TABLES},
      {state->vmm && state->host_numa_vmm, GMM_DEVICE_CAN_HOST_NUMA},
      {state->dma_buf && driver_.cuMemGetHandleForAddressRange != nullptr, GMM_DEVICE_CAN_DMA_BUF},
      {state->vmm && state->fabric.load(std::memory_order_relaxed), GMM_DEVICE_CAN_FABRIC},
      {state->vmm && state->rdma, GMM_DEVICE_CAN_RDMA},
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
  MessageGuard message_guard;  // a search that finds nothing is not a failure of the caller
  ContextGuard guard(driver_, log_);
  if (!devices_.enter_any(guard).ok()) return;
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
  if (ordinal >= 0 && static_cast<uint32_t>(ordinal) < devices_.count()) out->device = Device{ordinal};
  if (managed != 0) {
    out->usm = GMM_USM_SHARED;
    out->kind = Kind::kManaged;
    return;
  }
  const bool on_host = type == CU_MEMORYTYPE_HOST;
  out->usm = on_host ? GMM_USM_HOST : GMM_USM_DEVICE;
  out->kind = on_host ? Kind::kHost : Kind::kDevice;
  if (driver_.cuMemRetainAllocationHandle == nullptr || driver_.cuMemRelease == nullptr) return;
  // Only memory of cuMemMap() has a handle.
  CUmemGenericAllocationHandle handle = 0;
  if (driver_.cuMemRetainAllocationHandle(&handle, const_cast<void *>(address)) != CUDA_SUCCESS) return;
  out->kind = Kind::kVmm;
  release_reference(handle).ignore();  // the answer is known, and the log has the failure
}

// --- Plain allocations and the caller's own memory -------------------------------------------------------------------

namespace {

uint64_t misalignment(CUdeviceptr address) { return address & (kExtentAlignment - 1); }

}  // namespace

CUresult CudaBackend::driver_allocate(Kind kind, uint64_t size, CUdeviceptr *out) {
  count_call();
  return kind == Kind::kManaged ? driver_.cuMemAllocManaged(out, size, CU_MEM_ATTACH_GLOBAL)
                                : driver_.cuMemAlloc(out, size);
}

Status CudaBackend::allocate_device(Kind kind, Device device, uint64_t size, Allocation *out) {
  const char *entry = kind == Kind::kManaged ? "cuMemAllocManaged" : "cuMemAlloc";
  const auto refused = [&](CUresult result, const char *which) {
    return prefix(driver_.failed(result, which), "Allocating %" PRIu64 " bytes on CUDA device %d: ", size,
                  device.ordinal);
  };
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(device));
  CUdeviceptr address = 0;
  uint64_t driver_size = size;
  if (CUresult result = driver_allocate(kind, size, &address); result != CUDA_SUCCESS) return refused(result, entry);
  if (misalignment(address) != 0) {
    // No known driver does this for sizes that are multiples of 2 MiB, but the driver promises only 256 bytes.
    count_call();
    CUresult result = driver_.cuMemFree(address);
    if (result != CUDA_SUCCESS) {
      count_call();
      (void)driver_.cuMemFree(address);  // the second try may succeed; the caller gets the first answer
      return refused(result, "cuMemFree");
    }
    driver_size = size + kExtentAlignment;
    if (result = driver_allocate(kind, driver_size, &address); result != CUDA_SUCCESS) return refused(result, entry);
  }
  *out = Allocation();
  out->base = from_driver((address + kExtentAlignment - 1) & ~(kExtentAlignment - 1));
  out->size = size;
  out->kind = kind;
  out->device = device;
  out->driver_base = from_driver(address);
  out->driver_size = driver_size;
  return Status();
}

// Maps the file and page-locks it for every device. After a failure `fd` stays the caller's. `there`: the file has its
// pages, which the driver then maps as it locks them.
Status CudaBackend::register_file(int32_t fd, uint64_t size, Device device, bool there, Allocation *out) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(devices_.enter(guard, device));
  void *base = nullptr;
  GMM_TRY(os::map_file(size, kExtentAlignment, fd, os::Access::kReadWrite, &base));
  // The driver page-locks touched memory far faster than holes.
  Status status = there ? Status() : os::populate_pages(base, size);
  if (status.ok()) {
    CaptureGuard capture(driver_);
    count_call();
    status =
        driver_.check(driver_.cuMemHostRegister(base, size, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
                      "cuMemHostRegister");
  }
  if (status.code() == GMM_ERROR_OUT_OF_MEMORY) status = Status(GMM_ERROR_OUT_OF_HOST_MEMORY);
  if (!status.ok()) {
    prefix(status, "Page-locking %" PRIu64 " bytes of host memory: ", size).ignore();  // the status is returned below
    MessageGuard message_guard;
    if (!os::unmap(base, size).ok())
      log_.write(LogLevel::kError, "%" PRIu64 " bytes at %p stay mapped: %s", size, base, last_message());
    return status;
  }
  *out = Allocation();
  out->base = base;
  out->size = size;
  out->kind = Kind::kHost;
  out->device = device;
  out->driver_base = base;
  out->driver_size = size;
  out->fd = fd;
  return Status();
}

Status CudaBackend::allocate_host(Device device, uint64_t size, Allocation *out) {
  GMM_TRY(os::check_available(size, GMM_ERROR_OUT_OF_HOST_MEMORY));
  int32_t fd = -1;
  GMM_TRY(os::memory_file_create("gmm-host", size, &fd));
  count_call();
  Status status = register_file(fd, size, device, false, out);
  if (!status.ok()) {
    MessageGuard message_guard;
    os::close_file(fd).ignore();  // the caller gets the failure of register_file()
  }
  return status;
}

Status CudaBackend::allocate(Kind kind, Device device, uint64_t size, Allocation *out) {
  DeviceState *state = nullptr;
  GMM_TRY(devices_.state_of(device, &state));
  switch (kind) {
    case Kind::kDevice:
      return allocate_device(kind, device, size, out);
    case Kind::kManaged:
      if (!state->managed) return devices_.lacks(device, "managed memory", "CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY");
      return allocate_device(kind, device, size, out);
    case Kind::kHost:
      if (!state->pin)
        return devices_.lacks(device, "page-locked host memory", "CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED");
      if (!state->pin_same_address)
        return devices_.lacks(device, "page-locked host memory at one address",
                              "CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM");
      return allocate_host(device, size, out);
    default:
      return fail(GMM_ERROR_INVALID_KIND, "Kind %u has no plain allocation; use DEVICE, HOST or MANAGED.",
                  static_cast<unsigned>(kind));
  }
}

Status CudaBackend::import_host(int32_t fd, uint64_t size, Device device, bool, Allocation *out) {
  DeviceState *state = nullptr;
  GMM_TRY(devices_.state_of(device, &state));
  if (!state->pin || !state->pin_same_address)
    return devices_.lacks(device, "page-locked host memory at one address",
                          "CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM");
  GMM_TRY(os::memory_file_check(fd, size));
  return register_file(fd, size, device, true, out);
}

Status CudaBackend::deallocate(const Allocation &allocation) {
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(allocation.device));
  count_call();
  if (allocation.kind != Kind::kHost) {
    return prefix(GMM_CUDA(cuMemFree, to_driver(allocation.driver_base)),
                  "Freeing %" PRIu64 " bytes at %p: ", allocation.size, allocation.driver_base);
  }
  Status status = GMM_CUDA(cuMemHostUnregister, allocation.base);
  if (!status.ok())
    return prefix(status, "Freeing %" PRIu64 " bytes of host memory at %p: ", allocation.size, allocation.base);
  // The driver has released the memory. The rest cannot fail for a range and a file that this process mapped and
  // opened.
  count_call();
  status = os::unmap(allocation.base, allocation.size);
  if (allocation.fd >= 0) {
    Status closed = os::close_file(allocation.fd);
    if (status.ok()) status = closed;
  }
  return status;
}

Status CudaBackend::pin(void *base, uint64_t size, uint32_t flags, Device device, void **device_pointer) {
  DeviceState *state = nullptr;
  GMM_TRY(devices_.state_of(device, &state));
  if (!state->pin) return devices_.lacks(device, "pinning", "CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED");
  unsigned int driver_flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  if ((flags & GMM_PIN_READ_ONLY) != 0) {
    if (!state->pin_read_only)
      return devices_.lacks(device, "read-only pinning", "CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED");
    driver_flags |= CU_MEMHOSTREGISTER_READ_ONLY;
  }
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(device));
  count_call();
  const CUresult result = driver_.cuMemHostRegister(base, size, driver_flags);
  if (result != CUDA_SUCCESS) {
    Status status = driver_.failed(result, "cuMemHostRegister");
    if (result == CUDA_ERROR_OUT_OF_MEMORY) status = Status(GMM_ERROR_OUT_OF_HOST_MEMORY);
    if (result == CUDA_ERROR_INVALID_VALUE) {
      // The driver answers this for pages that it could not lock. The arguments are valid.
      return prefix(Status(GMM_ERROR_SYSTEM),
                    "Pinning %" PRIu64
                    " bytes at %p: the range must be mapped as a whole, writable unless pinned read-only, and "
                    "within ulimit -l: ",
                    size, base);
    }
    return prefix(status, "Pinning %" PRIu64 " bytes at %p: ", size, base);
  }
  // Where the device uses the host's address there is nothing to ask, and so nothing that could fail after the pages
  // are locked.
  if (state->pin_same_address) {
    *device_pointer = base;
    return Status();
  }
  CUdeviceptr address = 0;
  Status status = GMM_CUDA(cuMemHostGetDevicePointer, &address, base, 0);
  if (!status.ok()) {
    prefix(status, "Pinning %" PRIu64 " bytes at %p for device %d: ", size, base, device.ordinal)
        .ignore();  // the status is returned below
    count_call();
    if (CUresult undone = driver_.cuMemHostUnregister(base); undone != CUDA_SUCCESS)
      log_.write(LogLevel::kError, "%p stays page-locked: cuMemHostUnregister answered %d.", base,
                 static_cast<int>(undone));
    return status;
  }
  *device_pointer = from_driver(address);
  return Status();
}

Status CudaBackend::unpin(void *base, uint64_t size) {
  if (driver_.cuMemHostUnregister == nullptr) return driver_.missing("cuMemHostUnregister");
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter_any());
  count_call();
  return prefix(GMM_CUDA(cuMemHostUnregister, base), "Unpinning %" PRIu64 " bytes at %p: ", size, base);
}

// --- Virtual memory management ---------------------------------------------------------------------------------------

namespace {

constexpr uint32_t kMaxAccess = 64;  // 32 peers, the owner, the host, and all devices of a machine

// cuMemCreate() answers these if the device has no such location, or no exportable handle of it.
bool means_not_here(CUresult result) {
  return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED ||
         result == CUDA_ERROR_INVALID_DEVICE;
}

CUmemGenericAllocationHandle to_driver(PhysicalHandle handle) { return handle.value; }

// 0 is no handle. Some drivers crash when they are given one that is not.
Status check_handle(PhysicalHandle handle, const char *what) {
  if (handle.value != 0) return Status();
  return fail(GMM_ERROR_INVALID_HANDLE, "%s VMM handle 0: 0 is no handle; pass one from create() or import_fd().",
              what);
}

bool is_host(const CUmemAllocationProp &properties) {
  return properties.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         properties.location.type == CU_MEM_LOCATION_TYPE_HOST;
}

}  // namespace

Status CudaBackend::reserve(uint64_t size, void **out) {
  GMM_TRY(driver_.check_vmm());
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter_any());
  CUdeviceptr address = 0;
  uint64_t alignment = kExtentAlignment;
  for (uint32_t i = 0; i < devices_.count(); ++i)
    if (devices_[i].comm_granularity > alignment && size % devices_[i].comm_granularity == 0)
      alignment = devices_[i].comm_granularity;
  count_call();
  GMM_TRY(prefix(GMM_CUDA(cuMemAddressReserve, &address, size, alignment, 0, 0),
                 "Reserving %" PRIu64 " bytes of addresses: ", size));
  *out = from_driver(address);
  return Status();
}

Status CudaBackend::unreserve(void *base, uint64_t size) {
  GMM_TRY(driver_.check_vmm());
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter_any());
  count_call();
  return prefix(GMM_CUDA(cuMemAddressFree, cuda::to_driver(base), size),
                "Returning %" PRIu64 " bytes of addresses at %p: ", size, base);
}

Status CudaBackend::can_create(Device location, uint64_t size) {
  if (location.is_host()) return Status();
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(location));
  size_t free_memory = 0, total_memory = 0;
  GMM_TRY(GMM_CUDA(cuMemGetInfo, &free_memory, &total_memory));
  if (size <= total_memory) return Status();
  return fail(GMM_ERROR_OUT_OF_MEMORY,
              "%" PRIu64 " bytes of VMM memory were asked for, but CUDA device %d has %zu in all.", size,
              location.ordinal, total_memory);
}

Status CudaBackend::create(Device location, uint64_t size, PhysicalHandle *out) {
  GMM_TRY(driver_.check_vmm());
  // Host memory is created near the first device that can use it.
  Device device = location;
  for (device.ordinal = location.is_host() ? 0 : location.ordinal;
       location.is_host() && static_cast<uint32_t>(device.ordinal) + 1 < devices_.count() &&
       !devices_[device.ordinal].vmm;)
    ++device.ordinal;
  DeviceState *state = nullptr;
  GMM_TRY(devices_.state_of(device, &state));
  if (!state->vmm)
    return devices_.lacks(device, "virtual memory management",
                          "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED");
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(device));

  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = state->vmm_fd ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = state->handle;
  if (location.is_host()) {
    properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    const int32_t node = location.numa_node() >= 0 ? location.numa_node() : state->host_numa_node;
    properties.location.id = node < 0 ? 0 : node;  // 0 where the system has no NUMA
  }
  CUmemGenericAllocationHandle handle = 0;
  count_call();
  CUresult result = driver_.cuMemCreate(&handle, size, &properties, 0);
  if (location.numa_node() >= 0 && state->host_numa_vmm && means_not_here(result)) {
    driver_.failed(result, "cuMemCreate").ignore();  // its message stays, the code says what was wrong with the call
    return prefix(Status(GMM_ERROR_INVALID_DEVICE),
                  "NUMA node %d of the host has no memory for CUDA device %d: ", location.numa_node(), device.ordinal);
  }
  if (location == kHostLocation && means_not_here(result)) {
    // The driver refuses a handle type for host memory of no particular node, so such memory cannot be exported.
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    properties.location.type = CU_MEM_LOCATION_TYPE_HOST;
    properties.location.id = 0;
    count_call();
    result = driver_.cuMemCreate(&handle, size, &properties, 0);
    if (means_not_here(result))
      return devices_.lacks(device, "VMM memory on the host",
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

Status CudaBackend::comm_traits(Device device, CommTraits *out) {
  DeviceState *state = nullptr;
  GMM_TRY(devices_.state_of(device, &state));
  if (!state->vmm)
    return devices_.lacks(device, "virtual memory management, which GMM_ALLOC_COMM needs",
                          "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED");
  *out = CommTraits{state->comm_granularity, 0};
  for (uint32_t i = 0; i < devices_.count() && i < 32 && driver_.cuDeviceCanAccessPeer != nullptr; ++i) {
    if (static_cast<int32_t>(i) == device.ordinal || !devices_[i].vmm) continue;
    int can = 0;
    GMM_TRY(GMM_CUDA(cuDeviceCanAccessPeer, &can, devices_[i].handle, state->handle));
    if (can != 0) out->peers |= 1u << i;
  }
  return Status();
}

Status CudaBackend::create_comm(Device device, uint64_t size, PhysicalHandle *out) {
  GMM_TRY(driver_.check_vmm());
  DeviceState *state = nullptr;
  GMM_TRY(devices_.state_of(device, &state));
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(device));
  const bool had_fabric = state->fabric.load(std::memory_order_relaxed);
  CUmemAllocationProp properties = devices_.comm_properties(*state);
  CUmemGenericAllocationHandle handle = 0;
  count_call();
  CUresult result = driver_.cuMemCreate(&handle, size, &properties, 0);
  if (had_fabric && (result == CUDA_ERROR_NOT_PERMITTED || means_not_here(result))) {
    // The device has fabric handles, but this machine has no IMEX channel for them. Another fault shows now.
    state->fabric.store(false, std::memory_order_relaxed);
    properties = devices_.comm_properties(*state);
    count_call();
    const CUresult again = driver_.cuMemCreate(&handle, size, &properties, 0);
    if (again == CUDA_SUCCESS)
      log_.write(LogLevel::kInfo,
                 "Memory for network libraries on CUDA device %d has no fabric handles: cuMemCreate answered %d; "
                 "another machine needs an IMEX channel (nvidia-imex).",
                 device.ordinal, static_cast<int>(result));
    else
      state->fabric.store(true, std::memory_order_relaxed);
    result = again;
  }
  GMM_TRY(prefix(driver_.check(result, "cuMemCreate"),
                 "Creating %" PRIu64 " bytes of VMM memory for network libraries on CUDA device %d: ", size,
                 device.ordinal));
  out->value = handle;
  return Status();
}

Status CudaBackend::release(PhysicalHandle handle) {
  GMM_TRY(driver_.check_vmm());
  GMM_TRY(check_handle(handle, "Releasing"));
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter_any());
  retry_deferred_releases();
  count_call();
  return prefix(GMM_CUDA(cuMemRelease, to_driver(handle)), "Releasing VMM handle %" PRIu64 ": ", handle.value);
}

Status CudaBackend::free_memory(Device device, uint64_t *out) {
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(device));  // cuMemGetInfo() answers for the current context's device only
  size_t free_memory = 0, total_memory = 0;
  GMM_TRY(GMM_CUDA(cuMemGetInfo, &free_memory, &total_memory));
  *out = free_memory;
  return Status();
}

// Pool and graphs are figures for a person: a driver that does not tell them has none.
Status CudaBackend::device_use(Device device, DeviceUse *out) {
  DeviceState *state = nullptr;
  GMM_TRY(devices_.state_of(device, &state));
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(device));
  size_t free_memory = 0, total_memory = 0;
  CUuuid uuid = {};
  GMM_TRY(GMM_CUDA(cuMemGetInfo, &free_memory, &total_memory));
  GMM_TRY(GMM_CUDA(cuDeviceGetUuid, &uuid, state->handle));
  *out = DeviceUse();
  std::memcpy(out->uuid, uuid.bytes, sizeof out->uuid);
  out->total = total_memory;
  out->used = total_memory - free_memory;
  CUmemoryPool pool = nullptr;
  cuuint64_t bytes = 0;
  if (driver_.cuDeviceGetDefaultMemPool != nullptr && driver_.cuMemPoolGetAttribute != nullptr &&
      driver_.cuDeviceGetDefaultMemPool(&pool, state->handle) == CUDA_SUCCESS &&
      driver_.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) == CUDA_SUCCESS)
    out->pool = bytes;
  if (driver_.cuDeviceGetGraphMemAttribute != nullptr &&
      driver_.cuDeviceGetGraphMemAttribute(state->handle, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes) ==
          CUDA_SUCCESS)
    out->graphs = bytes;
  return Status();
}

Status CudaBackend::map(void *base, uint64_t size, PhysicalHandle handle) {
  GMM_TRY(driver_.check_vmm());
  GMM_TRY(check_handle(handle, "Mapping"));
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter_any());
  count_call();
  return prefix(GMM_CUDA(cuMemMap, cuda::to_driver(base), size, 0, to_driver(handle), 0),
                "Mapping %" PRIu64 " bytes at %p: ", size, base);
}

Status CudaBackend::unmap(void *base, uint64_t size) {
  GMM_TRY(driver_.check_vmm());
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter_any());
  count_call();
  return prefix(GMM_CUDA(cuMemUnmap, cuda::to_driver(base), size), "Unmapping %" PRIu64 " bytes at %p: ", size, base);
}

bool CudaBackend::defer_release(uint64_t handle) {
  for (std::atomic<uint64_t> &place : deferred_releases_) {
    uint64_t none = 0;
    if (place.compare_exchange_strong(none, handle, std::memory_order_relaxed)) return true;
  }
  return false;
}

void CudaBackend::retry_deferred_releases() {
  for (std::atomic<uint64_t> &place : deferred_releases_) {
    if (place.load(std::memory_order_relaxed) == 0) continue;
    const uint64_t handle = place.exchange(0, std::memory_order_relaxed);
    if (handle == 0) continue;
    const CUresult result = driver_.cuMemRelease(handle);
    if (result != CUDA_SUCCESS && !defer_release(handle))
      log_.write(LogLevel::kError, "The driver does not release VMM memory: cuMemRelease answered %d.",
                 static_cast<int>(result));
  }
}

// Releases a handle that was retained only to look at it.
Status CudaBackend::release_reference(uint64_t handle) {
  retry_deferred_releases();
  CUresult result = driver_.cuMemRelease(handle);
  if (result == CUDA_SUCCESS) return Status();
  // A reference that stays would keep the memory. The first retry is now, and the second one with the next release.
  if (driver_.cuMemRelease(handle) == CUDA_SUCCESS) return Status();
  if (defer_release(handle)) return Status();
  log_.write(LogLevel::kError, "The driver does not release VMM memory: cuMemRelease answered %d.",
             static_cast<int>(result));
  return driver_.failed(result, "cuMemRelease");
}

// Looks at the first mapping only, because the engine never mixes locations in one range.
Status CudaBackend::pages_on_host(void *base, bool *out) {
  *out = false;
  if (!host_pages_.load(std::memory_order_acquire)) return Status();
  if (driver_.cuMemRetainAllocationHandle == nullptr || driver_.cuMemGetAllocationPropertiesFromHandle == nullptr)
    return Status();
  CUmemGenericAllocationHandle handle = 0;
  GMM_TRY(GMM_CUDA(cuMemRetainAllocationHandle, &handle, base));
  CUmemAllocationProp properties = {};
  Status status = driver_.check(driver_.cuMemGetAllocationPropertiesFromHandle(&properties, handle),
                                "cuMemGetAllocationPropertiesFromHandle");
  Status dropped = release_reference(handle);
  GMM_TRY(status);
  GMM_TRY(dropped);
  *out = is_host(properties);
  return Status();
}

Status CudaBackend::set_access(void *base, uint64_t size, Device owner, uint32_t peers) {
  GMM_TRY(driver_.check_vmm());
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter_any());
  bool on_host = owner.is_host();
  if (!on_host) {
    GMM_TRY(prefix(pages_on_host(base, &on_host), "Giving access to %" PRIu64 " bytes at %p: ", size, base));
  }

  CUmemAccessDesc access[kMaxAccess] = {};
  uint32_t count = 0;
  const auto add = [&](CUmemLocationType type, int id) {
    access[count].location.type = type;
    access[count].location.id = id;
    access[count].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    ++count;
  };
  const uint32_t devices = devices_.count() < kMaxAccess - 1 ? devices_.count() : kMaxAccess - 1;
  for (uint32_t i = 0; i < devices; ++i) {
    const bool wanted =
        owner.is_host() || static_cast<int32_t>(i) == owner.ordinal || (i < 32 && (peers >> i & 1) != 0);
    if (!wanted) continue;
    // If all devices are meant, those without VMM are left out. A device without VMM that was named is an error.
    if (owner.is_host() && !devices_[i].vmm) continue;
    add(CU_MEM_LOCATION_TYPE_DEVICE, devices_[i].handle);
  }
  if (peers != 0 && devices_.count() < 32 && (peers >> devices_.count()) != 0)
    return fail(GMM_ERROR_INVALID_DEVICE, "Peers %#x: the CUDA driver shows %u devices; set bits of those only.", peers,
                devices_.count());

  const uint32_t device_locations = count;
  if (on_host) add(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);  // the driver ignores the node here
  count_call();
  CUresult result = driver_.cuMemSetAccess(cuda::to_driver(base), size, access, count);
  if (on_host && means_not_here(result)) {
    // This is host memory of no particular node.
    count = device_locations;
    add(CU_MEM_LOCATION_TYPE_HOST, 0);
    count_call();
    result = driver_.cuMemSetAccess(cuda::to_driver(base), size, access, count);
  }
  return prefix(driver_.check(result, "cuMemSetAccess"),
                "Giving device %d and peers %#x access to %" PRIu64 " bytes at %p: ", owner.ordinal, peers, size, base);
}

Status CudaBackend::export_fd(PhysicalHandle handle, int32_t *fd) {
  if (driver_.cuMemExportToShareableHandle == nullptr) return driver_.missing("cuMemExportToShareableHandle");
  GMM_TRY(check_handle(handle, "Exporting"));
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter_any());
  int exported = -1;
  count_call();
  const CUresult result =
      driver_.cuMemExportToShareableHandle(&exported, to_driver(handle), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result == CUDA_ERROR_INVALID_VALUE && driver_.cuMemGetAllocationPropertiesFromHandle != nullptr) {
    // The driver gives the same answer for memory that cannot be exported: memory that create() had to request without
    // a handle type.
    CUmemAllocationProp properties = {};
    if (driver_.cuMemGetAllocationPropertiesFromHandle(&properties, to_driver(handle)) == CUDA_SUCCESS &&
        (properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0)
      return fail(GMM_ERROR_NOT_SUPPORTED,
                  "Exporting VMM handle %" PRIu64
                  ": the memory has no file descriptor, because the device or the location "
                  "offers none; check GMM_DEVICE_CAN_EXPORT_FD by gmm_device_query().",
                  handle.value);
  }
  GMM_TRY(prefix(driver_.check(result, "cuMemExportToShareableHandle"),
                 "Exporting VMM handle %" PRIu64 " as a file descriptor: ", handle.value));
  *fd = exported;
  return Status();
}

Status CudaBackend::import_fd(int32_t fd, uint64_t size, Device device, PhysicalHandle *out) {
  if (driver_.cuMemImportFromShareableHandle == nullptr) return driver_.missing("cuMemImportFromShareableHandle");
  DeviceState *state = nullptr;
  GMM_TRY(devices_.state_of(device, &state));
  if (!state->vmm_fd)
    return devices_.lacks(device, "import by file descriptor",
                          "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED");
  if (fd < 0)
    return fail(GMM_ERROR_INVALID_HANDLE,
                "Importing from file descriptor %d: the number is no descriptor; pass an open one.", fd);
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(device));
  CUmemGenericAllocationHandle handle = 0;
  count_call();
  GMM_TRY(prefix(
      driver_.check(driver_.cuMemImportFromShareableHandle(&handle, reinterpret_cast<void *>(static_cast<intptr_t>(fd)),
                                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                    "cuMemImportFromShareableHandle"),
      "Importing %" PRIu64 " bytes from file descriptor %d: ", size, fd));
  // The answer is kept, so set_access() need not ask for every range.
  CUmemAllocationProp properties = {};
  if (driver_.cuMemGetAllocationPropertiesFromHandle == nullptr ||
      driver_.cuMemGetAllocationPropertiesFromHandle(&properties, handle) != CUDA_SUCCESS || is_host(properties))
    host_pages_.store(true, std::memory_order_release);
  out->value = handle;
  return Status();
}

static_assert(sizeof(CUmemFabricHandle) == kFabricHandleSize);

bool CudaBackend::has_fabric(Device device) const { return devices_.has_fabric(device); }

Status CudaBackend::export_fabric(PhysicalHandle handle, uint8_t out[kFabricHandleSize]) {
  if (driver_.cuMemExportToShareableHandle == nullptr) return driver_.missing("cuMemExportToShareableHandle");
  if (driver_.cuMemGetAllocationPropertiesFromHandle == nullptr)
    return driver_.missing("cuMemGetAllocationPropertiesFromHandle");
  GMM_TRY(check_handle(handle, "Exporting"));
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter_any());
  CUmemAllocationProp properties = {};
  GMM_TRY(driver_.check(driver_.cuMemGetAllocationPropertiesFromHandle(&properties, to_driver(handle)),
                        "cuMemGetAllocationPropertiesFromHandle"));
  if ((properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) == 0)
    return fail(GMM_ERROR_NOT_SUPPORTED, "VMM handle %" PRIu64 " has no fabric handle; allocate with GMM_ALLOC_COMM.",
                handle.value);
  CUmemFabricHandle fabric = {};
  count_call();
  GMM_TRY(prefix(
      driver_.check(driver_.cuMemExportToShareableHandle(&fabric, to_driver(handle), CU_MEM_HANDLE_TYPE_FABRIC, 0),
                    "cuMemExportToShareableHandle"),
      "Exporting VMM handle %" PRIu64 " as a fabric handle: ", handle.value));
  std::memcpy(out, fabric.data, kFabricHandleSize);
  return Status();
}

Status CudaBackend::import_fabric(const uint8_t handle[kFabricHandleSize], uint64_t size, Device device,
                                  PhysicalHandle *out) {
  if (driver_.cuMemImportFromShareableHandle == nullptr) return driver_.missing("cuMemImportFromShareableHandle");
  DeviceState *state = nullptr;
  GMM_TRY(devices_.state_of(device, &state));
  if (!state->fabric.load(std::memory_order_relaxed))
    return devices_.lacks(device, "import of another machine's memory",
                          "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED");
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(device));
  CUmemFabricHandle fabric = {};
  std::memcpy(fabric.data, handle, kFabricHandleSize);
  CUmemGenericAllocationHandle imported = 0;
  count_call();
  GMM_TRY(prefix(driver_.check(driver_.cuMemImportFromShareableHandle(&imported, &fabric, CU_MEM_HANDLE_TYPE_FABRIC),
                               "cuMemImportFromShareableHandle"),
                 "Importing %" PRIu64 " bytes of another machine on CUDA device %d (the exporter may have freed them, "
                 "or the machines share no IMEX channel): ",
                 size, device.ordinal));
  out->value = imported;
  return Status();
}

// --- Legacy IPC: handles of 64 bytes for whole allocations and for events --------------------------------------------

static_assert(sizeof(CUipcMemHandle) == kLegacyHandleSize);

Status CudaBackend::legacy_export(void *driver_base, uint8_t out[kLegacyHandleSize]) {
  if (driver_.cuIpcGetMemHandle == nullptr) return driver_.missing("cuIpcGetMemHandle");
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter_owner(driver_base));
  CUipcMemHandle handle = {};
  count_call();
  GMM_TRY(prefix(GMM_CUDA(cuIpcGetMemHandle, &handle, to_driver(driver_base)),
                 "Exporting the allocation at %p by legacy IPC: ", driver_base));
  std::memcpy(out, handle.reserved, kLegacyHandleSize);
  return Status();
}

Status CudaBackend::legacy_import(const uint8_t handle[kLegacyHandleSize], Device device, void **driver_base) {
  DeviceState *state = nullptr;
  GMM_TRY(devices_.state_of(device, &state));
  if (!state->legacy_ipc) return devices_.lacks(device, "legacy IPC", "CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED");
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(device));
  CUipcMemHandle bytes = {};
  std::memcpy(bytes.reserved, handle, kLegacyHandleSize);
  CUdeviceptr address = 0;
  count_call();
  GMM_TRY(prefix(driver_.check(driver_.cuIpcOpenMemHandle(&address, bytes, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                               "cuIpcOpenMemHandle"),
                 "Opening a legacy IPC handle on CUDA device %d: ", device.ordinal));
  *driver_base = from_driver(address);
  return Status();
}

Status CudaBackend::legacy_close(void *driver_base) {
  if (driver_.cuIpcCloseMemHandle == nullptr) return driver_.missing("cuIpcCloseMemHandle");
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter_owner(driver_base));
  count_call();
  return prefix(GMM_CUDA(cuIpcCloseMemHandle, to_driver(driver_base)),
                "Closing the legacy IPC mapping at %p: ", driver_base);
}

static_assert(sizeof(CUipcEventHandle) == kLegacyHandleSize);

Status CudaBackend::shared_event_create(Device device, NativeEvent *out) {
  DeviceState *state = nullptr;
  GMM_TRY(devices_.state_of(device, &state));
  if (!state->legacy_ipc || driver_.cuIpcGetEventHandle == nullptr)
    return devices_.lacks(device, "events between processes", "CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED");
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(device));
  CUevent event = nullptr;
  GMM_TRY(prefix(GMM_CUDA(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS),
                 "Creating an event for other processes on CUDA device %d: ", device.ordinal));
  *out = reinterpret_cast<NativeEvent>(event);
  return Status();
}

// The driver crashes when another device's context is current (SIGSEGV; seen with driver 580 on two H200).
Status CudaBackend::shared_event_export(Device device, NativeEvent event, uint8_t out[kLegacyHandleSize], int32_t *fd) {
  if (driver_.cuIpcGetEventHandle == nullptr) return driver_.missing("cuIpcGetEventHandle");
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(device));
  CUipcEventHandle handle = {};
  GMM_TRY(prefix(GMM_CUDA(cuIpcGetEventHandle, &handle, to_driver(event)), "Exporting an event: "));
  std::memcpy(out, handle.reserved, kLegacyHandleSize);
  *fd = -1;
  return Status();
}

// The engine watches the maker's life. After the maker's death the driver alone decides how a wait ends.
Status CudaBackend::shared_event_import(Device device, const uint8_t handle[kLegacyHandleSize], int32_t, const Peer &,
                                        NativeEvent *out) {
  if (driver_.cuIpcOpenEventHandle == nullptr) return driver_.missing("cuIpcOpenEventHandle");
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(device));
  CUipcEventHandle bytes = {};
  std::memcpy(bytes.reserved, handle, kLegacyHandleSize);
  CUevent event = nullptr;
  GMM_TRY(prefix(GMM_CUDA(cuIpcOpenEventHandle, &event, bytes),
                 "Opening an event of another process on CUDA device %d: ", device.ordinal));
  *out = reinterpret_cast<NativeEvent>(event);
  return Status();
}

// The driver crashes when a stream of another device waits for an event between processes, whichever context is current
// (SIGSEGV; seen with driver 580 on two H200). A plain event may cross devices. So a stream of the event's device waits
// for the event, and records a plain one behind it, for which the other stream waits.
Status CudaBackend::shared_event_wait(Device device, gmm_stream stream, NativeEvent event) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(devices_.enter_stream(guard, device, stream));
  CUcontext of_stream = nullptr, of_event = nullptr;
  GMM_TRY(guard.current(&of_stream));
  GMM_TRY(devices_.primary(device, &of_event));
  if (of_stream == of_event) return stream_wait(device, stream, event);
  bool capturing = false;
  GMM_TRY(stream_is_capturing(device, stream, &capturing));
  if (capturing)
    return fail(
        GMM_ERROR_CAPTURING,
        "Making stream %p wait for an event of device %d: a graph cannot wait for another device's event between "
        "processes; wait before the capture.",
        static_cast<void *>(stream), device.ordinal);
  GMM_TRY(guard.enter(of_event));
  CaptureGuard capture(driver_);
  CUstream between = nullptr;
  CUevent passed = nullptr;
  Status status = driver_.check(driver_.cuStreamCreateWithPriority(&between, CU_STREAM_NON_BLOCKING, 0),
                                "cuStreamCreateWithPriority");
  if (status.ok()) status = GMM_CUDA(cuEventCreate, &passed, CU_EVENT_DISABLE_TIMING);
  if (status.ok()) status = GMM_CUDA(cuStreamWaitEvent, between, to_driver(event), CU_EVENT_WAIT_DEFAULT);
  if (status.ok()) status = GMM_CUDA(cuEventRecord, passed, between);
  if (status.ok()) {
    status = guard.enter(of_stream);
    if (status.ok())
      status = driver_.check(driver_.cuStreamWaitEvent(to_driver(stream), passed, CU_EVENT_WAIT_DEFAULT),
                             "cuStreamWaitEvent");
  }
  // Both live on in the driver until the work that uses them is done. The second tries are there because nobody else
  // destroys them.
  const auto ended = [](CUresult result) { return result == CUDA_SUCCESS; };
  if ((passed != nullptr && !ended(driver_.cuEventDestroy(passed)) && !ended(driver_.cuEventDestroy(passed))) ||
      (between != nullptr && !ended(driver_.cuStreamDestroy(between)) && !ended(driver_.cuStreamDestroy(between))))
    log_.write(LogLevel::kError, "The driver keeps an event or a stream that is not used any more.");
  return status.ok() ? status
                     : prefix(status, "Making stream %p wait for an event of device %d: ", static_cast<void *>(stream),
                              device.ordinal);
}

// --- Descriptors of other libraries: Vulkan's and dma-buf ------------------------------------------------------------

Status CudaBackend::export_dma_buf(const void *base, uint64_t size, int32_t *fd) {
  if (driver_.cuMemGetHandleForAddressRange == nullptr) return driver_.missing("cuMemGetHandleForAddressRange");
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter_owner(base));
  int exported = -1;
  count_call();
  GMM_TRY(prefix(driver_.check(driver_.cuMemGetHandleForAddressRange(&exported, to_driver(base), size,
                                                                     CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
                               "cuMemGetHandleForAddressRange"),
                 "Exporting %" PRIu64 " bytes at %p as a dma-buf: ", size, base));
  *fd = exported;
  return Status();
}

Status CudaBackend::external_import(int32_t fd, gmm_fd_type type, uint64_t size, Device device, Allocation *out) {
  if (driver_.cuImportExternalMemory == nullptr || driver_.cuExternalMemoryGetMappedBuffer == nullptr ||
      driver_.cuDestroyExternalMemory == nullptr)
    return driver_.missing("cuImportExternalMemory");
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(device));
  int32_t own = -1;
  GMM_TRY(os::duplicate(fd, &own));
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC handle = {};
  handle.type =
      type == GMM_FD_DMA_BUF ? CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD : CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  handle.handle.fd = own;
  handle.size = size;
  CUexternalMemory memory = nullptr;
  count_call();
  Status status = GMM_CUDA(cuImportExternalMemory, &memory, &handle);
  if (!status.ok()) {
    // The driver owns the descriptor only after a success.
    MessageGuard message_guard;
    os::close_file(own).ignore();
  } else {
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer = {};
    buffer.size = size;
    CUdeviceptr address = 0;
    count_call();
    status = driver_.check(driver_.cuExternalMemoryGetMappedBuffer(&address, memory, &buffer),
                           "cuExternalMemoryGetMappedBuffer");
    if (status.ok()) {
      *out = Allocation();
      out->base = from_driver(address);
      out->size = out->driver_size = size;
      out->kind = Kind::kDevice;
      out->device = device;
      out->driver_base = memory;
      return Status();
    }
    MessageGuard message_guard;
    count_call();
    if (const CUresult undone = driver_.cuDestroyExternalMemory(memory); undone != CUDA_SUCCESS)
      log_.write(LogLevel::kError,
                 "The driver keeps a failed import from a descriptor: cuDestroyExternalMemory answered %d.",
                 static_cast<int>(undone));
  }
  return prefix(status, "Importing %" PRIu64 " bytes from file descriptor %d: ", size, fd);
}

Status CudaBackend::external_close(const Allocation &allocation) {
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(allocation.device));
  // The mapping must end before the memory behind it. A retry after a failure in between finds no mapping any more.
  count_call();
  const CUresult freed = driver_.cuMemFree(to_driver(allocation.base));
  if (freed != CUDA_ERROR_INVALID_VALUE) {
    GMM_TRY(prefix(driver_.check(freed, "cuMemFree"), "Closing %" PRIu64 " imported bytes at %p: ", allocation.size,
                   allocation.base));
  }
  count_call();
  return prefix(driver_.check(driver_.cuDestroyExternalMemory(static_cast<CUexternalMemory>(allocation.driver_base)),
                              "cuDestroyExternalMemory"),
                "Closing %" PRIu64 " imported bytes at %p: ", allocation.size, allocation.base);
}

// --- Semaphores of other APIs ----------------------------------------------------------------------------------------

Status CudaBackend::semaphore_import(gmm_semaphore_type type, int32_t fd, Device device, NativeSemaphore *out) {
  if (driver_.cuImportExternalSemaphore == nullptr || driver_.cuSignalExternalSemaphoresAsync == nullptr ||
      driver_.cuWaitExternalSemaphoresAsync == nullptr || driver_.cuDestroyExternalSemaphore == nullptr)
    return driver_.missing("cuImportExternalSemaphore");
  if (type != GMM_SEMAPHORE_BINARY_FD && type != GMM_SEMAPHORE_TIMELINE_FD)
    return fail(GMM_ERROR_NOT_SUPPORTED,
                "Importing semaphore descriptor %d: CUDA takes no sync file; export the semaphore as an opaque "
                "descriptor.",
                fd);
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(device));
  int32_t own = -1;
  GMM_TRY(os::duplicate(fd, &own));
  CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC handle = {};
  handle.type = type == GMM_SEMAPHORE_TIMELINE_FD ? CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD
                                                  : CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD;
  handle.handle.fd = own;
  CUexternalSemaphore semaphore = nullptr;
  Status status = GMM_CUDA(cuImportExternalSemaphore, &semaphore, &handle);
  if (!status.ok()) {
    // The driver owns the descriptor only after a success.
    MessageGuard message_guard;
    os::close_file(own).ignore();
    return prefix(status, "Importing semaphore descriptor %d: ", fd);
  }
  *out = reinterpret_cast<NativeSemaphore>(semaphore);
  return Status();
}

Status CudaBackend::semaphore_destroy(NativeSemaphore semaphore, Device device) {
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(device));
  return GMM_CUDA(cuDestroyExternalSemaphore, to_driver(semaphore));
}

Status CudaBackend::semaphore_signal(NativeSemaphore semaphore, Device device, gmm_stream stream, uint64_t value) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(devices_.enter_stream(guard, device, stream));
  CUexternalSemaphore handle = to_driver(semaphore);
  CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS parameters = {};
  parameters.params.fence.value = value;
  return prefix(driver_.check(driver_.cuSignalExternalSemaphoresAsync(&handle, &parameters, 1, to_driver(stream)),
                              "cuSignalExternalSemaphoresAsync"),
                "Signalling a semaphore on stream %p: ", static_cast<void *>(stream));
}

Status CudaBackend::semaphore_wait(NativeSemaphore semaphore, Device device, gmm_stream stream, uint64_t value) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(devices_.enter_stream(guard, device, stream));
  CUexternalSemaphore handle = to_driver(semaphore);
  CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS parameters = {};
  parameters.params.fence.value = value;
  return prefix(driver_.check(driver_.cuWaitExternalSemaphoresAsync(&handle, &parameters, 1, to_driver(stream)),
                              "cuWaitExternalSemaphoresAsync"),
                "Making stream %p wait for a semaphore: ", static_cast<void *>(stream));
}

// --- Residency of managed memory -------------------------------------------------------------------------------------

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
  location.type = state == nullptr ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = state == nullptr ? 0 : state->handle;
  return location;
}

CUdevice to_old_location(const DeviceState *state) { return state == nullptr ? CU_DEVICE_CPU : state->handle; }

bool looks_at_location(gmm_advice advice) {
  return advice == GMM_ADVISE_SET_PREFERRED_LOCATION || advice == GMM_ADVISE_SET_ACCESSED_BY ||
         advice == GMM_ADVISE_UNSET_ACCESSED_BY;
}

}  // namespace

// Returns NULL for the host.
Status CudaBackend::managed_location(const char *what, Device location, DeviceState **out) {
  *out = nullptr;
  if (location.is_host()) return Status();
  GMM_TRY(devices_.state_of(location, out));
  if (!(*out)->concurrent_managed)
    return devices_.lacks(location, what, "CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS");
  return Status();
}

Status CudaBackend::advise(void *base, uint64_t size, gmm_advice advice, Device location) {
  if (driver_.mem_advise == nullptr && driver_.mem_advise_old == nullptr) return driver_.missing("cuMemAdvise");
  if (advice < GMM_ADVISE_SET_READ_MOSTLY || advice > GMM_ADVISE_UNSET_ACCESSED_BY)
    return fail(GMM_ERROR_INVALID_VALUE, "Advice %u is unknown; use one of GMM_ADVISE_*.", advice);
  // CUDA 13 checks the location of every advice, even if the advice ignores it. Any valid location serves then.
  DeviceState *state = nullptr;
  if (looks_at_location(advice)) GMM_TRY(managed_location("placing of managed memory", location, &state));
  CaptureGuard capture(driver_);
  ContextGuard guard(driver_, log_);
  GMM_TRY(devices_.enter_owner(guard, base));
  const CUmem_advise wanted = static_cast<CUmem_advise>(advice);
  const CUresult result = driver_.mem_advise != nullptr
                              ? driver_.mem_advise(to_driver(base), size, wanted, to_location(state))
                              : driver_.mem_advise_old(to_driver(base), size, wanted, to_old_location(state));
  return prefix(driver_.check(result, "cuMemAdvise"), "Advice %u for %" PRIu64 " bytes at %p and location %d: ", advice,
                size, base, location.ordinal);
}

Status CudaBackend::prefetch(void *base, uint64_t size, Device location, Device stream_device, gmm_stream stream) {
  if (driver_.mem_prefetch == nullptr && driver_.mem_prefetch_old == nullptr)
    return driver_.missing("cuMemPrefetchAsync");
  DeviceState *state = nullptr;
  DeviceState *stream_state = nullptr;
  GMM_TRY(managed_location("prefetch of managed memory", location, &state));
  GMM_TRY(managed_location("prefetch of managed memory", stream_device, &stream_state));
  ContextGuard guard(driver_, log_);
  GMM_TRY(devices_.enter_stream(guard, stream_device, stream));
  const CUresult result =
      driver_.mem_prefetch != nullptr
          ? driver_.mem_prefetch(to_driver(base), size, to_location(state), 0, to_driver(stream))
          : driver_.mem_prefetch_old(to_driver(base), size, to_old_location(state), to_driver(stream));
  return prefix(driver_.check(result, "cuMemPrefetchAsync"),
                "Prefetching %" PRIu64 " bytes at %p to location %d: ", size, base, location.ordinal);
}

// --- Streams, events, and the work that is queued on them ------------------------------------------------------------

namespace {

void *shown(gmm_stream stream) { return static_cast<void *>(stream); }

struct HostCopy {
  HostAllocator allocator;
  void *destination;
  const void *source;
  uint64_t size;

  static void run(void *self) {
    HostCopy *copy = static_cast<HostCopy *>(self);
    std::memcpy(copy->destination, copy->source, copy->size);
    const HostAllocator allocator = copy->allocator;
    allocator.destroy(copy);
  }
};

}  // namespace

Status CudaBackend::stream_create(Device device, int32_t priority, gmm_stream *out) {
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(device));
  CUstream stream = nullptr;
  GMM_TRY(prefix(driver_.check(driver_.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, priority),
                               "cuStreamCreateWithPriority"),
                 "Creating a stream on CUDA device %d: ", device.ordinal));
  *out = reinterpret_cast<gmm_stream>(stream);
  return Status();
}

Status CudaBackend::stream_destroy(gmm_stream stream) {
  if (is_special(stream))
    return fail(GMM_ERROR_INVALID_HANDLE,
                "Destroying stream %p: a default stream cannot be destroyed; pass one that was created.",
                shown(stream));
  ContextGuard guard(driver_, log_);
  GMM_TRY(devices_.enter_any(guard));
  CUcontext own = nullptr;
  Status status = GMM_CUDA(cuStreamGetCtx, to_driver(stream), &own);
  if (status.ok()) status = guard.enter(own);
  if (status.ok()) status = stream_synchronize(Device{0}, stream);
  if (status.ok()) {
    CaptureGuard capture(driver_);
    status = GMM_CUDA(cuStreamDestroy, to_driver(stream));
  }
  return status.ok() ? status : prefix(status, "Destroying stream %p: ", shown(stream));
}

Status CudaBackend::stream_query(Device device, gmm_stream stream, bool *idle) {
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter_stream(device, stream));
  const CUresult result = driver_.cuStreamQuery(to_driver(stream));
  *idle = result == CUDA_SUCCESS;
  if (result == CUDA_ERROR_NOT_READY) return Status();
  return prefix(driver_.check(result, "cuStreamQuery"), "Reading whether stream %p is idle: ", shown(stream));
}

Status CudaBackend::stream_synchronize(Device device, gmm_stream stream) {
  check_may_wait("a stream");
  DeviceState *state = nullptr;
  GMM_TRY(devices_.state_of(device, &state));
  ContextGuard guard(driver_, log_);
  if (is_special(stream) && !devices_.is_started(device)) {
    bool is_callers = false;
    GMM_TRY(devices_.is_current(guard, device, &is_callers));
    if (!is_callers) return Status();
  }
  GMM_TRY(devices_.enter_stream(guard, device, stream));
  // This comes before the wait, because a wait for a captured stream ends its capture.
  bool capturing = false;
  GMM_TRY(stream_is_capturing(device, stream, &capturing));
  if (capturing)
    return fail(
        GMM_ERROR_CAPTURING,
        "Waiting for stream %p: the stream is captured into a graph, so its work does not run; end the capture first.",
        shown(stream));
  CaptureGuard capture(driver_);
  return prefix(GMM_CUDA(cuStreamSynchronize, to_driver(stream)), "Waiting for stream %p: ", shown(stream));
}

Status CudaBackend::stream_call(Device device, gmm_stream stream, void (*fn)(void *), void *user) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(devices_.enter_stream(guard, device, stream));
  return prefix(GMM_CUDA(cuLaunchHostFunc, to_driver(stream), fn, user),
                "Queueing a call on stream %p: ", shown(stream));
}

// Whether memory is neither the driver's device memory nor managed memory: it is page-locked or ordinary host memory.
bool CudaBackend::is_host_memory(const void *address) const {
  CUmemorytype type = static_cast<CUmemorytype>(0);
  unsigned int managed = 0;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void *values[] = {&type, &managed};
  if (driver_.cuPointerGetAttributes(2, which, values, to_driver(address)) != CUDA_SUCCESS) return false;
  return type != CU_MEMORYTYPE_DEVICE && managed == 0;
}

// The driver's copy from host to host blocks the caller until the stream has come that far ("API synchronization
// behavior" in its manual). That would hold up a caller that has not yet let the stream go on. So the copy is a call on
// the stream, which the driver queues as promised. Between a device and ordinary host memory the driver may block in
// the same way.
Status CudaBackend::copy_on_host(Device device, gmm_stream stream, void *destination, const void *source,
                                 uint64_t size) {
  HostCopy *copy = allocator_.create<HostCopy>(HostCopy{allocator_, destination, source, size});
  if (copy == nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY,
                "Copying %" PRIu64 " bytes from %p to %p: the host allocator refused %zu bytes; free memory.", size,
                source, destination, sizeof(HostCopy));
  Status status = stream_call(device, stream, &HostCopy::run, copy);
  if (!status.ok()) allocator_.destroy(copy);
  return status;
}

Status CudaBackend::copy(Device device, gmm_stream stream, void *destination, const void *source, uint64_t size) {
  if (size == 0) return Status();
  ContextGuard guard(driver_, log_);
  GMM_TRY(devices_.enter_stream(guard, device, stream));
  if (is_host_memory(destination) && is_host_memory(source)) {
    bool capturing = false;
    GMM_TRY(stream_is_capturing(device, stream, &capturing));
    // A graph may run its copy many times, and the driver does not block to capture it.
    if (!capturing) return copy_on_host(device, stream, destination, source, size);
  }
  return prefix(GMM_CUDA(cuMemcpyAsync, to_driver(destination), to_driver(source), size, to_driver(stream)),
                "Copying %" PRIu64 " bytes from %p to %p on stream %p: ", size, source, destination, shown(stream));
}

Status CudaBackend::fill(Device device, gmm_stream stream, void *destination, uint8_t value, uint64_t size) {
  if (size == 0) return Status();
  ContextGuard guard(driver_, log_);
  GMM_TRY(devices_.enter_stream(guard, device, stream));
  return prefix(GMM_CUDA(cuMemsetD8Async, to_driver(destination), value, size, to_driver(stream)),
                "Filling %" PRIu64 " bytes at %p on stream %p: ", size, destination, shown(stream));
}

Status CudaBackend::synchronize(Device device) {
  check_may_wait("a device");
  DeviceState *state = nullptr;
  GMM_TRY(devices_.state_of(device, &state));
  if (!devices_.is_started(device)) return Status();
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(device));
  return prefix(GMM_CUDA(cuCtxSynchronize), "Waiting for CUDA device %d: ", device.ordinal);
}

Status CudaBackend::event_create(Device device, NativeEvent *out) {
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter(device));
  CUevent event = nullptr;
  GMM_TRY(prefix(GMM_CUDA(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING),
                 "Creating an event on CUDA device %d: ", device.ordinal));
  *out = reinterpret_cast<NativeEvent>(event);
  return Status();
}

Status CudaBackend::event_destroy(NativeEvent event) {
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter_any());
  return GMM_CUDA(cuEventDestroy, to_driver(event));
}

// The driver requires a stream and an event of one context. Events are made in the primary context, so the driver
// refuses a stream of another context instead of ordering it wrongly.
Status CudaBackend::event_record(NativeEvent event, Device device, gmm_stream stream) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(devices_.enter_stream(guard, device, stream));
  return prefix(GMM_CUDA(cuEventRecord, to_driver(event), to_driver(stream)),
                "Recording an event of CUDA device %d on stream %p: ", device.ordinal, shown(stream));
}

Status CudaBackend::event_synchronize(NativeEvent event) {
  check_may_wait("an event");
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter_any());
  return GMM_CUDA(cuEventSynchronize, to_driver(event));
}

Status CudaBackend::event_query(NativeEvent event, bool *passed) {
  CallGuard guard(devices_, log_);
  GMM_TRY(guard.enter_any());
  const CUresult result = driver_.cuEventQuery(to_driver(event));
  if (result == CUDA_ERROR_NOT_READY) {
    *passed = false;
    return Status();
  }
  GMM_TRY(driver_.check(result, "cuEventQuery"));
  *passed = true;
  return Status();
}

Status CudaBackend::stream_wait(Device device, gmm_stream stream, NativeEvent event) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(devices_.enter_stream(guard, device, stream));
  return prefix(driver_.check(driver_.cuStreamWaitEvent(to_driver(stream), to_driver(event), CU_EVENT_WAIT_DEFAULT),
                              "cuStreamWaitEvent"),
                "Making stream %p wait for an event: ", shown(stream));
}

// --- Streams that are captured into a graph --------------------------------------------------------------------------

// The driver needs no context to look at a stream that a program created. A per-thread default stream is that of the
// current context.
bool CudaBackend::may_be_capturing(Device device, gmm_stream stream) {
  if (is_special(stream)) {
    if (stream != GMM_STREAM_PER_THREAD) return false;  // the legacy stream is never captured
    CUcontext now = nullptr;
    if (device.ordinal < 0 || static_cast<uint32_t>(device.ordinal) >= devices_.count() ||
        driver_.cuCtxGetCurrent(&now) != CUDA_SUCCESS || now == nullptr ||
        now != devices_[device.ordinal].primary.load(std::memory_order_acquire))
      return true;
  }
  CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
  return driver_.cuStreamIsCapturing(to_driver(stream), &state) != CUDA_SUCCESS ||
         state != CU_STREAM_CAPTURE_STATUS_NONE;
}

Status CudaBackend::stream_is_capturing(Device device, gmm_stream stream, bool *out) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(devices_.enter_stream(guard, device, stream));
  CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver_.cuStreamIsCapturing(to_driver(stream), &state);
  // The legacy stream answers this while a stream that waits for it is captured. Work on it would end that capture.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
    *out = true;
    return Status();
  }
  GMM_TRY(prefix(driver_.check(result, "cuStreamIsCapturing"),
                 "Asking whether stream %p is captured: ", static_cast<void *>(stream)));
  *out = state != CU_STREAM_CAPTURE_STATUS_NONE;
  return Status();
}

Status CudaBackend::capture_of(Device device, gmm_stream stream, Capture *out) {
  *out = Capture();
  if (driver_.capture_info == nullptr) return driver_.missing("cuStreamGetCaptureInfo");
  ContextGuard guard(driver_, log_);
  GMM_TRY(devices_.enter_stream(guard, device, stream));
  CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  GMM_TRY(prefix(driver_.check(driver_.capture_info(to_driver(stream), &state, &id, &graph, nullptr, nullptr),
                               "cuStreamGetCaptureInfo"),
                 "Asking which graph stream %p is captured into: ", static_cast<void *>(stream)));
  if (state == CU_STREAM_CAPTURE_STATUS_NONE) return Status();
  if (state != CU_STREAM_CAPTURE_STATUS_ACTIVE)
    return fail(GMM_ERROR_CAPTURING,
                "The capture of stream %p has failed and will yield no graph; end it with cuStreamEndCapture, and look "
                "for the call that was not allowed in it.",
                static_cast<void *>(stream));
  out->id = id;
  out->graph = graph;
  return Status();
}

Status CudaBackend::at_end_of_graph(Device device, void *graph, void (*fn)(void *), void *user) {
  Status status;
  if (driver_.cuUserObjectCreate == nullptr || driver_.cuUserObjectRelease == nullptr ||
      driver_.cuGraphRetainUserObject == nullptr)
    status = driver_.missing("cuUserObjectCreate");
  ContextGuard guard(driver_, log_);
  if (status.ok()) status = devices_.enter(guard, device);
  if (!status.ok()) {
    fn(user);
    return status;
  }
  CaptureGuard capture(driver_);
  CUuserObject object = nullptr;
  status = driver_.check(driver_.cuUserObjectCreate(&object, user, fn, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
                         "cuUserObjectCreate");
  if (!status.ok()) {
    fn(user);
    return prefix(status, "Tying memory to the graph that is being captured: ");
  }
  // Objects may be added to the graph during its capture (CUDA driver API, cuStreamGetCaptureInfo).
  status =
      driver_.check(driver_.cuGraphRetainUserObject(static_cast<CUgraph>(graph), object, 1, CU_GRAPH_USER_OBJECT_MOVE),
                    "cuGraphRetainUserObject");
  if (status.ok()) return status;
  prefix(status, "Tying memory to the graph that is being captured: ").ignore();  // the status is returned below
  // The second try is there because nobody else releases the object.
  if (driver_.cuUserObjectRelease(object, 1) != CUDA_SUCCESS && driver_.cuUserObjectRelease(object, 1) != CUDA_SUCCESS)
    fn(user);
  return status;
}

// --- The search for zeros --------------------------------------------------------------------------------------------

constexpr unsigned kZeroBlocks = 8, kZeroThreads = 256;  // blocks of a range, threads of a block
constexpr uint64_t kMostRanges = 65535;                  // blocks in y

Status CudaBackend::find_zeros(Device device, gmm_stream stream, ZeroRange *ranges, uint64_t count) {
  if (count == 0) return Status();
  if (count > kMostRanges)
    return fail(GMM_ERROR_INVALID_SIZE,
                "Searching %" PRIu64 " ranges for zeros: at most %" PRIu64 " fit one call; split them.", count,
                kMostRanges);
  if (driver_.cuLaunchKernel == nullptr) return driver_.missing("cuLaunchKernel");
  ContextGuard guard(driver_, log_);
  GMM_TRY(devices_.enter(guard, device));
  CUfunction function = nullptr;
  Status status = devices_.zeros_function(device, &function);
  if (status.ok()) {
    void *arguments[] = {&ranges};
    status = driver_.check(driver_.cuLaunchKernel(function, kZeroBlocks, static_cast<unsigned>(count), 1, kZeroThreads,
                                                  1, 1, 0, to_driver(stream), arguments, nullptr),
                           "cuLaunchKernel");
  }
  return status.ok() ? status : prefix(status, "Searching for zeros on CUDA device %d: ", device.ordinal);
}

}  // namespace gmm::cuda

namespace gmm {

Status cuda_backend_create(const HostAllocator &allocator, const Log &log, Backend **out) {
  auto *backend = allocator.create<cuda::CudaBackend>(allocator, log);
  if (backend == nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "The CUDA backend: the host allocator refused %zu bytes; free memory.",
                sizeof(cuda::CudaBackend));
  if (Status status = backend->open(); !status.ok()) {
    MessageGuard message_guard;
    backend->destroy();
    return status;
  }
  *out = backend;
  return Status();
}

bool cuda_is_expected() {
  const char *visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const bool hidden = visible != nullptr && (*visible == '\0' || std::strncmp(visible, "-1", 2) == 0);
  return !hidden && ::access("/dev/nvidiactl", F_OK) == 0;
}

}  // namespace gmm
