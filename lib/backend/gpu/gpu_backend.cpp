// SPDX-License-Identifier: Apache-2.0
// GpuBackend: the operations of backend.h over a driver. The sections follow that header.
#include "backend/gpu/gpu_backend.h"

#include <gmm/pin.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "backend/gpu/devices.h"
#include "base/lock.h"
#include "base/memory_files.h"
#include "base/os_memory.h"

namespace gmm::gpu {
namespace {

#define GMM_CUDA(entry, ...) GMM_CUDA_OF(driver_, entry, __VA_ARGS__)
// GMM_CUDA() for the calls that Backend::calls() counts.
#define GMM_CUDA_COUNTED(entry, ...) (count_call(), GMM_CUDA(entry, __VA_ARGS__))
// The two in a context: on(), at() or anywhere().
#define GMM_CUDA_IN(place, entry, ...) in(place, [&] { return GMM_CUDA(entry, __VA_ARGS__); })
#define GMM_CUDA_COUNTED_IN(place, entry, ...) in(place, [&] { return GMM_CUDA_COUNTED(entry, __VA_ARGS__); })
#define GMM_CUDA_ON_STREAM(device, stream, entry, ...) \
  on_stream(device, stream, [&] { return GMM_CUDA(entry, __VA_ARGS__); })

CUdeviceptr to_driver(const void *address) { return reinterpret_cast<CUdeviceptr>(address); }
void *from_driver(CUdeviceptr address) { return reinterpret_cast<void *>(address); }
CUmemGenericAllocationHandle to_driver(PhysicalHandle handle) { return handle.value; }
CUevent to_driver(NativeEvent event) { return reinterpret_cast<CUevent>(event); }
CUexternalSemaphore to_driver(NativeSemaphore semaphore) { return reinterpret_cast<CUexternalSemaphore>(semaphore); }
void *shown(gmm_stream stream) { return static_cast<void *>(stream); }

// The results of calls that name a location or a handle type that the device does not have.
bool means_not_here(CUresult result) {
  return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED ||
         result == CUDA_ERROR_INVALID_DEVICE;
}

bool is_host(const CUmemAllocationProp &properties) {
  return properties.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         properties.location.type == CU_MEM_LOCATION_TYPE_HOST;
}

// A copy from host to host, as a call on a stream.
struct HostCopy {
  HostAllocator allocator;
  void *destination;
  const void *source;
  uint64_t size;

  static void run(void *self) {
    HostCopy *copy = static_cast<HostCopy *>(self);
    std::memcpy(copy->destination, copy->source, copy->size);
    copy->allocator.destroy(copy);
  }
};

// The two APIs share these numbers and sizes.
constexpr bool same(int ours, int drivers) { return ours == drivers; }
static_assert(same(GMM_ADVISE_SET_READ_MOSTLY, CU_MEM_ADVISE_SET_READ_MOSTLY) &&
              same(GMM_ADVISE_UNSET_READ_MOSTLY, CU_MEM_ADVISE_UNSET_READ_MOSTLY) &&
              same(GMM_ADVISE_SET_PREFERRED_LOCATION, CU_MEM_ADVISE_SET_PREFERRED_LOCATION) &&
              same(GMM_ADVISE_UNSET_PREFERRED_LOCATION, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION) &&
              same(GMM_ADVISE_SET_ACCESSED_BY, CU_MEM_ADVISE_SET_ACCESSED_BY) &&
              same(GMM_ADVISE_UNSET_ACCESSED_BY, CU_MEM_ADVISE_UNSET_ACCESSED_BY));
static_assert(sizeof(CUipcMemHandle) == kLegacyHandleSize && sizeof(CUipcEventHandle) == kLegacyHandleSize &&
              sizeof(CUmemFabricHandle) == kFabricHandleSize && sizeof(CUuuid) == sizeof(gmm_device_info::uuid));
static_assert(alignof(CUipcMemHandle) == 1 && alignof(CUipcEventHandle) == 1);

}  // namespace

class GpuBackend final : public Backend {
  // --- Contexts ------------------------------------------------------------------------------------------------------

  // The device's primary context, any context for calls that name no device, and the context that owns the memory.
  auto on(Device device) {
    return [=, this](ContextGuard &guard) { return devices_.enter(guard, device); };
  }
  auto anywhere() {
    return [this](ContextGuard &guard) { return devices_.enter_any(guard); };
  }
  auto at(const void *memory) {
    return [=, this](ContextGuard &guard) { return devices_.enter_owner(guard, memory); };
  }
  // Runs fn() -> Status in such a context, for a call that allocates, frees or asks, and is no part of any capture.
  template <typename Enter, typename Fn>
  Status in(Enter enter, Fn fn) {
    ContextGuard guard(driver_, log_);
    GMM_TRY(enter(guard));
    const CaptureGuard capture(driver_);
    return fn();
  }
  // Runs it in the stream's context, for work that a capture of the stream records.
  template <typename Fn>
  Status on_stream(Device device, gmm_stream stream, Fn fn) {
    ContextGuard guard(driver_, log_);
    GMM_TRY(devices_.enter_stream(guard, device, stream));
    return fn();
  }

 public:
  GpuBackend(const HostAllocator &allocator, const Log &log, const Vendor &vendor)
      : Backend(allocator, log), devices_(vendor, log), files_(allocator) {}
  Status open() { return devices_.open(); }

  void destroy() override {
    devices_.close();
    allocator_.destroy(this);
  }

  // --- Devices and addresses -----------------------------------------------------------------------------------------

  gmm_backend id() const override { return driver_.vendor.id; }
  const char *name() const override { return driver_.vendor.backend; }

  void driver_version(char *text, uint64_t size) const override {
    std::snprintf(text, size, "%d.%d", driver_.major(), driver_.minor());
  }

  uint32_t device_count() const override { return devices_.count(); }
  int32_t host_numa_node(Device device) override { return devices_[device].host_numa_node; }

  Status device_info(Device device, gmm_device_info *out) override {
    uint64_t bytes = 0;
    GMM_TRY(free_memory(device, &bytes));
    GMM_TRY(device_traits(device, out));
    out->free_memory = bytes;
    return Status();
  }

  Status device_traits(Device device, gmm_device_info *out) override {
    const DeviceState &state = devices_[device];
    gmm_device_info info = {};
    size_t total_memory = 0;
    CUuuid uuid = {};
    GMM_TRY(GMM_CUDA(cuDeviceTotalMem, &total_memory, state.handle));
    GMM_TRY(GMM_CUDA(cuDeviceGetName, info.name, sizeof info.name, state.handle));
    GMM_TRY(GMM_CUDA(cuDeviceGetUuid, &uuid, state.handle));
    std::memcpy(info.uuid, uuid.bytes, sizeof info.uuid);
    info.device = device.ordinal;
    info.total_memory = total_memory;
    info.granularity = state.granularity;
#define GMM_CUDA_CAPABILITY(name, which, capability) \
  if (state.name) info.capabilities |= capability;
    GMM_CUDA_ABILITIES(GMM_CUDA_CAPABILITY)
#undef GMM_CUDA_CAPABILITY
    if (has_fabric(device)) info.capabilities |= GMM_DEVICE_CAN_FABRIC;
    info.kinds = 1u << GMM_KIND_DEVICE;
    if (state.vmm) info.kinds |= 1u << GMM_KIND_VMM;
    if (state.pin && state.pin_same_address) info.kinds |= 1u << GMM_KIND_HOST;
    if (state.managed) info.kinds |= 1u << GMM_KIND_MANAGED;
    info.struct_size = out->struct_size;
    *out = info;
    return Status();
  }

  void identify(const void *address, ForeignPointer *out) override {
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
    if (driver_.cuPointerGetAttributes(sizeof which / sizeof which[0], which, values, to_driver(address)) !=
        CUDA_SUCCESS)
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
    // Only memory of cuMemMap() has a handle.
    CUmemGenericAllocationHandle handle = 0;
    if (driver_.cuMemRetainAllocationHandle(&handle, const_cast<void *>(address)) != CUDA_SUCCESS) return;
    out->kind = Kind::kVmm;
    release_reference(handle);
  }

  // --- Plain allocations and the caller's own memory -----------------------------------------------------------------

  Status allocate(Kind kind, Device device, uint64_t size, bool exportable, Allocation *out) override {
    return kind == Kind::kHost ? allocate_host(device, size, exportable, out)
                               : allocate_device(kind, device, size, out);
  }

  Status import_host(int32_t fd, uint64_t size, Device device, bool, Allocation *out) override {
    if (!devices_[device].pin || !devices_[device].pin_same_address)
      return devices_.lacks(device, "page-locked host memory at one address",
                            "CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM");
    GMM_TRY(os::memory_file_check(fd, size));
    MemoryPiece *piece = nullptr;
    GMM_TRY(files_.adopt(fd, size, &piece));
    const Status status = register_piece(piece, device, true, out);
    if (!status.ok()) files_.forget(piece);
    return status;
  }

  Status deallocate(const Allocation &allocation) override {
    if (allocation.kind != Kind::kHost)
      return prefix(GMM_CUDA_COUNTED_IN(on(allocation.device), cuMemFree, to_driver(allocation.driver_base)),
                    "Freeing %" PRIu64 " bytes at %p: ", allocation.size, allocation.driver_base);
    GMM_TRY(prefix(GMM_CUDA_COUNTED_IN(on(allocation.device), cuMemHostUnregister, allocation.base),
                   "Freeing %" PRIu64 " bytes of host memory at %p: ", allocation.size, allocation.base));
    // The driver has released the memory. The rest cannot fail for a range and a file that this process mapped and
    // opened.
    count_call();
    Status status = os::unmap(allocation.base, allocation.size);
    keep_first(&status, [&] { return files_.release(static_cast<MemoryPiece *>(allocation.driver_base)); });
    return status;
  }

  Status pin(void *base, uint64_t size, uint32_t flags, Device device, void **device_pointer) override {
    const DeviceState &state = devices_[device];
    if (!state.pin) return devices_.lacks(device, "pinning", "CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED");
    unsigned int driver_flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    if ((flags & GMM_PIN_READ_ONLY) != 0) {
      if (!state.pin_read_only)
        return devices_.lacks(device, "read-only pinning", "CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED");
      driver_flags |= CU_MEMHOSTREGISTER_READ_ONLY;
    }
    return in(on(device), [&]() -> Status {
      count_call();
      const CUresult result = driver_.cuMemHostRegister(base, size, driver_flags);
      if (result == CUDA_ERROR_INVALID_VALUE) {
        // The driver answers this for pages that it could not lock. The arguments are valid.
        driver_.failed(result, "cuMemHostRegister").ignore();  // its message stays
        return prefix(Status(GMM_ERROR_SYSTEM),
                      "Pinning %" PRIu64
                      " bytes at %p: the range must be mapped as a whole, writable unless pinned read-only, and "
                      "within ulimit -l: ",
                      size, base);
      }
      GMM_TRY(
          prefix(of_host(driver_.check(result, "cuMemHostRegister")), "Pinning %" PRIu64 " bytes at %p: ", size, base));
      // Where the device uses the host's address there is nothing to ask, and so nothing that could fail after the
      // pages are locked.
      *device_pointer = base;
      if (state.pin_same_address) return Status();
      CUdeviceptr address = 0;
      Status status = GMM_CUDA(cuMemHostGetDevicePointer, &address, base, 0);
      *device_pointer = from_driver(address);
      if (status.ok()) return status;
      status = prefix(status, "Pinning %" PRIu64 " bytes at %p for device %d: ", size, base, device.ordinal);
      count_call();
      if (const CUresult undone = driver_.cuMemHostUnregister(base); undone != CUDA_SUCCESS)
        log_.write(LogLevel::kError, "%p stays page-locked: cuMemHostUnregister answered %d.", base,
                   static_cast<int>(undone));
      return status;
    });
  }

  Status unpin(void *base, uint64_t size) override {
    return prefix(GMM_CUDA_COUNTED_IN(anywhere(), cuMemHostUnregister, base),
                  "Unpinning %" PRIu64 " bytes at %p: ", size, base);
  }

  // --- Virtual memory management -------------------------------------------------------------------------------------

  Status reserve(uint64_t size, void **out) override { return reserve(size, nullptr, out); }
  Status reserve_at(void *base, uint64_t size) override {
    void *got = nullptr;
    GMM_TRY(reserve(size, base, &got));
    if (got == base) return Status();
    GMM_TRY(unreserve(got, size));
    return fail(GMM_ERROR_OVERLAP, "The driver does not give the %" PRIu64 " bytes of addresses from %p on.", size,
                base);
  }

  // `wish`: where the driver tries first.
  Status reserve(uint64_t size, void *wish, void **out) {
    uint64_t alignment = kExtentAlignment;
    for (uint32_t i = 0; i < devices_.count(); ++i)
      if (devices_[i].comm_granularity > alignment && size % devices_[i].comm_granularity == 0)
        alignment = devices_[i].comm_granularity;
    CUdeviceptr address = 0;
    GMM_TRY(prefix(GMM_CUDA_COUNTED_IN(anywhere(), cuMemAddressReserve, &address, size, alignment, to_driver(wish), 0),
                   "Reserving %" PRIu64 " bytes of addresses: ", size));
    *out = from_driver(address);
    return Status();
  }

  Status unreserve(void *base, uint64_t size) override {
    return prefix(GMM_CUDA_COUNTED_IN(anywhere(), cuMemAddressFree, to_driver(base), size),
                  "Returning %" PRIu64 " bytes of addresses at %p: ", size, base);
  }

  Status can_create(Device location, uint64_t size) override {
    size_t free_memory = 0, total_memory = 0;
    GMM_TRY(memory_of(location, &free_memory, &total_memory));
    if (size <= total_memory) return Status();
    return fail(GMM_ERROR_OUT_OF_MEMORY,
                "%" PRIu64 " bytes of VMM memory were asked for, but device %d has %zu in all.", size, location.ordinal,
                total_memory);
  }

  Status create(Device location, uint64_t size, bool, PhysicalHandle *out) override {
    // Host memory is created near the first device that can use it. There is one, as VMM memory moves to the host.
    Device device = location.is_host() ? Device{0} : location;
    while (!devices_[device].vmm) ++device.ordinal;
    const DeviceState &state = devices_[device];
    CUmemAllocationProp properties = device_pages(state.handle);
    if (state.vmm_fd) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (location.is_host()) {
      properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
      const int32_t node = location.numa_node() >= 0 ? location.numa_node() : state.host_numa_node;
      properties.location.id = node < 0 ? 0 : node;  // 0 where the system has no NUMA
    }
    return in(on(device), [&]() -> Status {
      CUresult result = create_pages(properties, size, out);
      if (location.numa_node() >= 0 && state.host_numa_vmm && means_not_here(result)) {
        driver_.failed(result, "cuMemCreate").ignore();  // its message stays, the code says what was wrong
        return prefix(Status(GMM_ERROR_INVALID_DEVICE),
                      "NUMA node %d of the host has no memory for device %d: ", location.numa_node(), device.ordinal);
      }
      if (location == kHostLocation && means_not_here(result)) {
        // The driver refuses a handle type for host memory of no particular node, so such memory cannot be exported.
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
        properties.location = {CU_MEM_LOCATION_TYPE_HOST, 0};
        result = create_pages(properties, size, out);
        if (means_not_here(result))
          return devices_.lacks(device, "VMM memory on the host",
                                "CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED");
      }
      const Status status = driver_.check(result, "cuMemCreate");
      if (!location.is_host())
        return prefix(status, "Creating %" PRIu64 " bytes of VMM memory on device %d: ", size, location.ordinal);
      if (status.ok()) host_pages_.store(true, std::memory_order_release);
      return prefix(of_host(status), "Creating %" PRIu64 " bytes of VMM memory on the host: ", size);
    });
  }

  Status comm_traits(Device device, CommTraits *out) override {
    *out = CommTraits{devices_[device].comm_granularity, 0};
    for (uint32_t i = 0; i < devices_.count(); ++i) {
      if (static_cast<int32_t>(i) == device.ordinal || !devices_[i].vmm) continue;
      int can = 0;
      GMM_TRY(GMM_CUDA(cuDeviceCanAccessPeer, &can, devices_[i].handle, devices_[device].handle));
      if (can != 0) out->peers |= 1u << i;
    }
    return Status();
  }

  Status create_comm(Device device, uint64_t size, PhysicalHandle *out) override {
    DeviceState &state = devices_[device];
    const bool with_fabric = has_fabric(device);
    return in(on(device), [&]() -> Status {
      CUresult result = create_pages(comm_pages(state, with_fabric), size, out);
      if (with_fabric && (result == CUDA_ERROR_NOT_PERMITTED || means_not_here(result))) {
        // The device has fabric handles, but this machine has no IMEX channel for them. Another fault shows now.
        const CUresult again = create_pages(comm_pages(state, false), size, out);
        if (again == CUDA_SUCCESS && !state.refuses_fabric.exchange(true, std::memory_order_relaxed))
          log_.write(LogLevel::kInfo,
                     "Memory for network libraries on device %d has no fabric handles: cuMemCreate answered %d; "
                     "another machine needs an IMEX channel (nvidia-imex).",
                     device.ordinal, static_cast<int>(result));
        result = again;
      }
      return prefix(driver_.check(result, "cuMemCreate"),
                    "Creating %" PRIu64 " bytes of VMM memory for network libraries on device %d: ", size,
                    device.ordinal);
    });
  }

  Status release(PhysicalHandle handle) override {
    return prefix(GMM_CUDA_COUNTED_IN(anywhere(), cuMemRelease, to_driver(handle)),
                  "Releasing VMM handle %" PRIu64 ": ", handle.value);
  }

  Status free_memory(Device device, uint64_t *out) override {
    size_t free_memory = 0, total_memory = 0;
    GMM_TRY(memory_of(device, &free_memory, &total_memory));
    *out = free_memory;
    return Status();
  }

  // Pool and graphs are figures for a person: a driver that does not tell them has none.
  Status device_use(Device device, DeviceUse *out) override {
    const CUdevice handle = devices_[device].handle;
    return in(on(device), [&]() -> Status {
      size_t free_memory = 0, total_memory = 0;
      CUuuid uuid = {};
      GMM_TRY(GMM_CUDA(cuMemGetInfo, &free_memory, &total_memory));
      GMM_TRY(GMM_CUDA(cuDeviceGetUuid, &uuid, handle));
      *out = DeviceUse();
      std::memcpy(out->uuid, uuid.bytes, sizeof out->uuid);
      out->total = total_memory;
      out->used = total_memory - free_memory;
      CUmemoryPool pool = nullptr;
      cuuint64_t bytes = 0;
      if (driver_.cuDeviceGetDefaultMemPool(&pool, handle) == CUDA_SUCCESS &&
          driver_.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) == CUDA_SUCCESS)
        out->pool = bytes;
      if (driver_.cuDeviceGetGraphMemAttribute(handle, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes) == CUDA_SUCCESS)
        out->graphs = bytes;
      return Status();
    });
  }

  Status map(void *base, uint64_t size, PhysicalHandle handle) override {
    return prefix(GMM_CUDA_COUNTED_IN(anywhere(), cuMemMap, to_driver(base), size, 0, to_driver(handle), 0),
                  "Mapping %" PRIu64 " bytes at %p: ", size, base);
  }

  bool unmaps_runs() const override { return driver_.vendor.unmaps_runs; }

  Status unmap(void *base, uint64_t size) override {
    return prefix(GMM_CUDA_COUNTED_IN(anywhere(), cuMemUnmap, to_driver(base), size),
                  "Unmapping %" PRIu64 " bytes at %p: ", size, base);
  }

  Status set_access(void *base, uint64_t size, Device owner, uint32_t peers) override {
    return prefix(in(anywhere(), [&] { return give_access(base, size, owner, peers); }),
                  "Giving device %d and peers %#x access to %" PRIu64 " bytes at %p: ", owner.ordinal, peers, size,
                  base);
  }

  Status set_read_only(void *base, uint64_t size, Device owner) override {
    return prefix(in(anywhere(), [&] { return give_access(base, size, owner, 0, CU_MEM_ACCESS_FLAGS_PROT_READ); }),
                  "Letting device %d read %" PRIu64 " bytes at %p: ", owner.ordinal, size, base);
  }

  Status export_fd(PhysicalHandle handle, int32_t *fd) override {
    return in(anywhere(), [&]() -> Status {
      count_call();
      const CUresult result =
          driver_.cuMemExportToShareableHandle(fd, to_driver(handle), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
      CUmemAllocationProp properties = {};
      // The driver gives the same answer for memory that cannot be exported: memory that create() had to request
      // without a handle type.
      if (result == CUDA_ERROR_INVALID_VALUE &&
          driver_.cuMemGetAllocationPropertiesFromHandle(&properties, to_driver(handle)) == CUDA_SUCCESS &&
          (properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0)
        return fail(GMM_ERROR_NOT_SUPPORTED,
                    "Exporting VMM handle %" PRIu64
                    ": the memory has no file descriptor, because the device or the location offers none; check "
                    "GMM_DEVICE_CAN_EXPORT_FD by gmm_device_query().",
                    handle.value);
      return prefix(driver_.check(result, "cuMemExportToShareableHandle"),
                    "Exporting VMM handle %" PRIu64 " as a file descriptor: ", handle.value);
    });
  }

  Status import_fd(int32_t fd, uint64_t size, Device device, PhysicalHandle *out) override {
    if (!devices_[device].vmm_fd)
      return devices_.lacks(device, "import by file descriptor",
                            "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED");
    return in(on(device), [&]() -> Status {
      CUmemGenericAllocationHandle handle = 0;
      GMM_TRY(prefix(
          GMM_CUDA_COUNTED(cuMemImportFromShareableHandle, &handle, reinterpret_cast<void *>(static_cast<intptr_t>(fd)),
                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          "Importing %" PRIu64 " bytes from file descriptor %d: ", size, fd));
      // The answer is kept, so set_access() need not ask for every range.
      CUmemAllocationProp properties = {};
      if (driver_.cuMemGetAllocationPropertiesFromHandle(&properties, handle) != CUDA_SUCCESS || is_host(properties))
        host_pages_.store(true, std::memory_order_release);
      out->value = handle;
      return Status();
    });
  }

  bool has_fabric(Device device) const override {
    return devices_[device].fabric && !devices_[device].refuses_fabric.load(std::memory_order_relaxed);
  }

  Status export_fabric(PhysicalHandle handle, uint8_t out[kFabricHandleSize]) override {
    return prefix(GMM_CUDA_COUNTED_IN(anywhere(), cuMemExportToShareableHandle, out, to_driver(handle),
                                      CU_MEM_HANDLE_TYPE_FABRIC, 0),
                  "Exporting VMM handle %" PRIu64 " as a fabric handle: ", handle.value);
  }

  Status import_fabric(const uint8_t handle[kFabricHandleSize], uint64_t size, Device device,
                       PhysicalHandle *out) override {
    if (!has_fabric(device))
      return devices_.lacks(device, "import of another machine's memory",
                            "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED");
    CUmemGenericAllocationHandle imported = 0;
    GMM_TRY(prefix(GMM_CUDA_COUNTED_IN(on(device), cuMemImportFromShareableHandle, &imported,
                                       const_cast<uint8_t *>(handle), CU_MEM_HANDLE_TYPE_FABRIC),
                   "Importing %" PRIu64
                   " bytes of another machine on device %d (the exporter may have freed them, or the machines "
                   "share no IMEX channel): ",
                   size, device.ordinal));
    out->value = imported;
    return Status();
  }

  // --- Legacy IPC: handles of 64 bytes for whole allocations and for events ------------------------------------------

  Status legacy_export(void *driver_base, uint8_t out[kLegacyHandleSize]) override {
    auto *handle = reinterpret_cast<CUipcMemHandle *>(out);
    return prefix(GMM_CUDA_COUNTED_IN(at(driver_base), cuIpcGetMemHandle, handle, to_driver(driver_base)),
                  "Exporting the allocation at %p by legacy IPC: ", driver_base);
  }

  Status legacy_import(const uint8_t handle[kLegacyHandleSize], Device device, void **driver_base) override {
    if (!devices_[device].legacy_ipc)
      return devices_.lacks(device, "legacy IPC", "CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED");
    const CUipcMemHandle &bytes = *reinterpret_cast<const CUipcMemHandle *>(handle);
    CUdeviceptr address = 0;
    GMM_TRY(
        prefix(GMM_CUDA_COUNTED_IN(on(device), cuIpcOpenMemHandle, &address, bytes, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
               "Opening a legacy IPC handle on device %d: ", device.ordinal));
    *driver_base = from_driver(address);
    return Status();
  }

  Status legacy_close(void *driver_base) override {
    return prefix(GMM_CUDA_COUNTED_IN(at(driver_base), cuIpcCloseMemHandle, to_driver(driver_base)),
                  "Closing the legacy IPC mapping at %p: ", driver_base);
  }

  Status shared_event_create(Device device, NativeEvent *out) override {
    if (!devices_[device].legacy_ipc)
      return devices_.lacks(device, "events between processes", "CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED");
    return make_event(device, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS, out);
  }

  // The driver crashes when another device's context is current (SIGSEGV; seen with driver 580 on two H200).
  Status shared_event_export(Device device, NativeEvent event, uint8_t out[kLegacyHandleSize], int32_t *fd) override {
    *fd = -1;
    auto *handle = reinterpret_cast<CUipcEventHandle *>(out);
    return prefix(GMM_CUDA_IN(on(device), cuIpcGetEventHandle, handle, to_driver(event)), "Exporting an event: ");
  }

  // The engine watches the maker's life. After the maker's death the driver alone decides how a wait ends.
  Status shared_event_import(Device device, const uint8_t handle[kLegacyHandleSize], int32_t, const Peer &,
                             NativeEvent *out) override {
    const CUipcEventHandle &bytes = *reinterpret_cast<const CUipcEventHandle *>(handle);
    CUevent event = nullptr;
    GMM_TRY(prefix(GMM_CUDA_IN(on(device), cuIpcOpenEventHandle, &event, bytes),
                   "Opening an event of another process on device %d: ", device.ordinal));
    *out = reinterpret_cast<NativeEvent>(event);
    return Status();
  }

  // The driver crashes when a stream of another device waits for an event between processes, whichever context is
  // current (SIGSEGV; seen with driver 580 on two H200). A plain event may cross devices. So a stream of the event's
  // device waits for the event, and records a plain one behind it, for which the other stream waits.
  Status shared_event_wait(Device device, gmm_stream stream, NativeEvent event) override {
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
          shown(stream), device.ordinal);
    GMM_TRY(guard.enter(of_event));
    const CaptureGuard capture(driver_);
    CUstream between = nullptr;
    CUevent passed = nullptr;
    const Status status = [&]() -> Status {
      GMM_TRY(GMM_CUDA(cuStreamCreateWithPriority, &between, CU_STREAM_NON_BLOCKING, 0));
      GMM_TRY(GMM_CUDA(cuEventCreate, &passed, CU_EVENT_DISABLE_TIMING));
      GMM_TRY(GMM_CUDA(cuStreamWaitEvent, between, to_driver(event), CU_EVENT_WAIT_DEFAULT));
      GMM_TRY(GMM_CUDA(cuEventRecord, passed, between));
      GMM_TRY(guard.enter(of_stream));
      return GMM_CUDA(cuStreamWaitEvent, to_driver(stream), passed, CU_EVENT_WAIT_DEFAULT);
    }();
    // Both live on in the driver until the work that uses them is done. The second tries are there because nobody else
    // destroys them.
    if ((passed != nullptr && !twice([&] { return driver_.cuEventDestroy(passed); })) ||
        (between != nullptr && !twice([&] { return driver_.cuStreamDestroy(between); })))
      log_.write(LogLevel::kError, "The driver keeps an event or a stream that is not used any more.");
    return prefix(status, "Making stream %p wait for an event of device %d: ", shown(stream), device.ordinal);
  }

  // --- Descriptors of other libraries: Vulkan's and dma-buf ----------------------------------------------------------

  Status export_dma_buf(const void *base, uint64_t size, int32_t *fd) override {
    return prefix(GMM_CUDA_COUNTED_IN(at(base), cuMemGetHandleForAddressRange, fd, to_driver(base), size,
                                      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
                  "Exporting %" PRIu64 " bytes at %p as a dma-buf: ", size, base);
  }

  Status external_import(int32_t fd, gmm_fd_type type, uint64_t size, Device device, Allocation *out) override {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC handle = {};
    handle.type =
        type == GMM_FD_DMA_BUF ? CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD : CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    handle.size = size;
    CUexternalMemory memory = nullptr;
    CUdeviceptr address = 0;
    GMM_TRY(prefix(
        in(on(device),
           [&]() -> Status {
             GMM_TRY(give_descriptor(fd, [&](int32_t own) {
               handle.handle.fd = own;
               return GMM_CUDA_COUNTED(cuImportExternalMemory, &memory, &handle);
             }));
             CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer = {};
             buffer.size = size;
             const Status status = GMM_CUDA_COUNTED(cuExternalMemoryGetMappedBuffer, &address, memory, &buffer);
             if (status.ok()) return status;
             count_call();
             if (const CUresult undone = driver_.cuDestroyExternalMemory(memory); undone != CUDA_SUCCESS)
               log_.write(LogLevel::kError,
                          "The driver keeps a failed import from a descriptor: cuDestroyExternalMemory answered %d.",
                          static_cast<int>(undone));
             return status;
           }),
        "Importing %" PRIu64 " bytes from file descriptor %d: ", size, fd));
    *out = Allocation{from_driver(address), size, Kind::kDevice, device, memory, size, -1};
    return Status();
  }

  Status external_close(const Allocation &allocation) override {
    return prefix(in(on(allocation.device),
                     [&]() -> Status {
                       // The mapping must end before the memory behind it. A retry after a failure in between finds no
                       // mapping any more.
                       count_call();
                       const CUresult freed = driver_.cuMemFree(to_driver(allocation.base));
                       if (freed != CUDA_ERROR_INVALID_VALUE) GMM_TRY(driver_.check(freed, "cuMemFree"));
                       return GMM_CUDA_COUNTED(cuDestroyExternalMemory,
                                               static_cast<CUexternalMemory>(allocation.driver_base));
                     }),
                  "Closing %" PRIu64 " imported bytes at %p: ", allocation.size, allocation.base);
  }

  // --- Semaphores of other APIs --------------------------------------------------------------------------------------

  Status semaphore_import(gmm_semaphore_type type, int32_t fd, Device device, NativeSemaphore *out) override {
    if (type != GMM_SEMAPHORE_BINARY_FD && type != GMM_SEMAPHORE_TIMELINE_FD)
      return fail(GMM_ERROR_NOT_SUPPORTED,
                  "Importing semaphore descriptor %d: the driver takes no sync file; export the semaphore as an opaque "
                  "descriptor.",
                  fd);
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC handle = {};
    handle.type = type == GMM_SEMAPHORE_TIMELINE_FD ? CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD
                                                    : CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD;
    CUexternalSemaphore semaphore = nullptr;
    const auto import = [&](int32_t own) {
      handle.handle.fd = own;
      return GMM_CUDA(cuImportExternalSemaphore, &semaphore, &handle);
    };
    GMM_TRY(
        prefix(in(on(device), [&] { return give_descriptor(fd, import); }), "Importing semaphore descriptor %d: ", fd));
    *out = reinterpret_cast<NativeSemaphore>(semaphore);
    return Status();
  }

  Status semaphore_destroy(NativeSemaphore semaphore, Device device) override {
    return GMM_CUDA_IN(on(device), cuDestroyExternalSemaphore, to_driver(semaphore));
  }

  Status semaphore_signal(NativeSemaphore semaphore, Device device, gmm_stream stream, uint64_t value) override {
    CUexternalSemaphore handle = to_driver(semaphore);
    CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS parameters = {};
    parameters.params.fence.value = value;
    return prefix(
        GMM_CUDA_ON_STREAM(device, stream, cuSignalExternalSemaphoresAsync, &handle, &parameters, 1, to_driver(stream)),
        "Signalling a semaphore on stream %p: ", shown(stream));
  }

  Status semaphore_wait(NativeSemaphore semaphore, Device device, gmm_stream stream, uint64_t value) override {
    CUexternalSemaphore handle = to_driver(semaphore);
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS parameters = {};
    parameters.params.fence.value = value;
    return prefix(
        GMM_CUDA_ON_STREAM(device, stream, cuWaitExternalSemaphoresAsync, &handle, &parameters, 1, to_driver(stream)),
        "Making stream %p wait for a semaphore: ", shown(stream));
  }

  // --- Residency of managed memory -----------------------------------------------------------------------------------

  Status advise(void *base, uint64_t size, gmm_advice advice, Device location) override {
    const bool looks_at_location = advice == GMM_ADVISE_SET_PREFERRED_LOCATION ||
                                   advice == GMM_ADVISE_SET_ACCESSED_BY || advice == GMM_ADVISE_UNSET_ACCESSED_BY;
    // CUDA 13 checks the location of every advice, even if the advice ignores it. Any valid location serves then.
    CUdevice place = CU_DEVICE_CPU;
    if (looks_at_location) GMM_TRY(managed_location("placing of managed memory", location, &place));
    return prefix(GMM_CUDA_IN(at(base), cuMemAdvise, to_driver(base), size, static_cast<CUmem_advise>(advice), place),
                  "Advice %u for %" PRIu64 " bytes at %p and location %d: ", advice, size, base, location.ordinal);
  }

  Status prefetch(void *base, uint64_t size, Device location, Device stream_device, gmm_stream stream) override {
    CUdevice place = CU_DEVICE_CPU, of_stream = CU_DEVICE_CPU;
    GMM_TRY(managed_location("prefetch of managed memory", location, &place));
    GMM_TRY(managed_location("prefetch of managed memory", stream_device, &of_stream));
    return prefix(
        GMM_CUDA_ON_STREAM(stream_device, stream, cuMemPrefetchAsync, to_driver(base), size, place, to_driver(stream)),
        "Prefetching %" PRIu64 " bytes at %p to location %d: ", size, base, location.ordinal);
  }

  // --- Streams, events, and the work that is queued on them ----------------------------------------------------------

  Status stream_create(Device device, int32_t priority, gmm_stream *out) override {
    CUstream stream = nullptr;
    GMM_TRY(prefix(GMM_CUDA_IN(on(device), cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, priority),
                   "Creating a stream on device %d: ", device.ordinal));
    *out = reinterpret_cast<gmm_stream>(stream);
    return Status();
  }

  Status stream_destroy(gmm_stream stream) override {
    const auto destroy = [&]() -> Status {
      ContextGuard guard(driver_, log_);
      CUcontext own = nullptr;
      GMM_TRY(devices_.enter_any(guard));
      GMM_TRY(GMM_CUDA(cuStreamGetCtx, to_driver(stream), &own));
      GMM_TRY(guard.enter(own));
      GMM_TRY(stream_synchronize(Device{0}, stream));
      const CaptureGuard capture(driver_);
      return GMM_CUDA(cuStreamDestroy, to_driver(stream));
    };
    return prefix(destroy(), "Destroying stream %p: ", shown(stream));
  }

  Status stream_query(Device device, gmm_stream stream, bool *idle) override {
    return on_stream(device, stream, [&]() -> Status {
      const CaptureGuard capture(driver_);
      const CUresult result = driver_.cuStreamQuery(to_driver(stream));
      *idle = result == CUDA_SUCCESS;
      if (result == CUDA_ERROR_NOT_READY) return Status();
      return prefix(driver_.check(result, "cuStreamQuery"), "Reading whether stream %p is idle: ", shown(stream));
    });
  }

  Status stream_synchronize(Device device, gmm_stream stream) override {
    check_may_wait("a stream");
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
      return fail(GMM_ERROR_CAPTURING,
                  "Waiting for stream %p: the stream is captured into a graph, so its work does not run; end the "
                  "capture first.",
                  shown(stream));
    const CaptureGuard capture(driver_);
    return prefix(GMM_CUDA(cuStreamSynchronize, to_driver(stream)), "Waiting for stream %p: ", shown(stream));
  }

  Status stream_call(Device device, gmm_stream stream, void (*fn)(void *), void *user) override {
    return prefix(GMM_CUDA_ON_STREAM(device, stream, cuLaunchHostFunc, to_driver(stream), fn, user),
                  "Queueing a call on stream %p: ", shown(stream));
  }

  Status copy(Device device, gmm_stream stream, void *destination, const void *source, uint64_t size) override {
    return on_stream(device, stream, [&]() -> Status {
      if (is_host_memory(destination) && is_host_memory(source)) {
        bool capturing = false;
        GMM_TRY(stream_is_capturing(device, stream, &capturing));
        // A graph may run its copy many times, and the driver does not block to capture it.
        if (!capturing) return copy_on_host(device, stream, destination, source, size);
      }
      return prefix(GMM_CUDA(cuMemcpyAsync, to_driver(destination), to_driver(source), size, to_driver(stream)),
                    "Copying %" PRIu64 " bytes from %p to %p on stream %p: ", size, source, destination, shown(stream));
    });
  }

  Status fill(Device device, gmm_stream stream, void *destination, uint8_t value, uint64_t size) override {
    return prefix(
        GMM_CUDA_ON_STREAM(device, stream, cuMemsetD8Async, to_driver(destination), value, size, to_driver(stream)),
        "Filling %" PRIu64 " bytes at %p on stream %p: ", size, destination, shown(stream));
  }

  Status find_zeros(Device device, gmm_stream stream, ZeroRange *ranges, uint64_t count) override {
    constexpr unsigned kBlocks = 8, kThreads = 256;  // blocks of a range, threads of a block
    return prefix(in(on(device),
                     [&]() -> Status {
                       CUfunction function = nullptr;
                       GMM_TRY(devices_.zeros_function(device, &function));
                       void *arguments[] = {&ranges};
                       return GMM_CUDA(cuLaunchKernel, function, kBlocks, static_cast<unsigned>(count), 1, kThreads, 1,
                                       1, 0, to_driver(stream), arguments, nullptr);
                     }),
                  "Searching for zeros on device %d: ", device.ordinal);
  }

  Status synchronize(Device device) override {
    check_may_wait("a device");
    if (!devices_.is_started(device)) return Status();
    return prefix(GMM_CUDA_IN(on(device), cuCtxSynchronize), "Waiting for device %d: ", device.ordinal);
  }

  Status event_create(Device device, NativeEvent *out) override {
    return make_event(device, CU_EVENT_DISABLE_TIMING, out);
  }

  Status event_destroy(NativeEvent event) override { return GMM_CUDA_IN(anywhere(), cuEventDestroy, to_driver(event)); }

  // The driver requires a stream and an event of one context. Events are made in the primary context, so the driver
  // refuses a stream of another context instead of ordering it wrongly.
  Status event_record(NativeEvent event, Device device, gmm_stream stream) override {
    return prefix(GMM_CUDA_ON_STREAM(device, stream, cuEventRecord, to_driver(event), to_driver(stream)),
                  "Recording an event of device %d on stream %p: ", device.ordinal, shown(stream));
  }

  Status event_synchronize(NativeEvent event) override {
    check_may_wait("an event");
    return GMM_CUDA_IN(anywhere(), cuEventSynchronize, to_driver(event));
  }

  Status event_query(NativeEvent event, bool *passed) override {
    return in(anywhere(), [&]() -> Status {
      const CUresult result = driver_.cuEventQuery(to_driver(event));
      *passed = result == CUDA_SUCCESS;
      return result == CUDA_ERROR_NOT_READY ? Status() : driver_.check(result, "cuEventQuery");
    });
  }

  Status stream_wait(Device device, gmm_stream stream, NativeEvent event) override {
    return prefix(GMM_CUDA_ON_STREAM(device, stream, cuStreamWaitEvent, to_driver(stream), to_driver(event),
                                     CU_EVENT_WAIT_DEFAULT),
                  "Making stream %p wait for an event: ", shown(stream));
  }

  // --- Streams that are captured into a graph ------------------------------------------------------------------------

  bool can_capture() const override { return true; }

  // The driver needs no context to look at a stream that a program created. A per-thread default stream is that of the
  // current context.
  bool may_be_capturing(Device device, gmm_stream stream) override {
    if (is_special(stream)) {
      if (stream != GMM_STREAM_PER_THREAD) return false;  // the legacy stream is never captured
      CUcontext now = nullptr;
      if (driver_.cuCtxGetCurrent(&now) != CUDA_SUCCESS || now == nullptr ||
          now != devices_[device].primary.load(std::memory_order_acquire))
        return true;
    }
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    return driver_.cuStreamIsCapturing(to_driver(stream), &state) != CUDA_SUCCESS ||
           state != CU_STREAM_CAPTURE_STATUS_NONE;
  }

  Status stream_is_capturing(Device device, gmm_stream stream, bool *out) override {
    return on_stream(device, stream, [&]() -> Status {
      CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
      const CUresult result = driver_.cuStreamIsCapturing(to_driver(stream), &state);
      // The legacy stream answers this while a stream that waits for it is captured. Work on it would end that capture.
      *out = result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || state != CU_STREAM_CAPTURE_STATUS_NONE;
      if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return Status();
      return prefix(driver_.check(result, "cuStreamIsCapturing"),
                    "Asking whether stream %p is captured: ", shown(stream));
    });
  }

  Status capture_of(Device device, gmm_stream stream, Capture *out) override {
    *out = Capture();
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    CUgraph graph = nullptr;
    GMM_TRY(prefix(GMM_CUDA_ON_STREAM(device, stream, cuStreamGetCaptureInfo, to_driver(stream), &state, &id, &graph,
                                      nullptr, nullptr),
                   "Asking which graph stream %p is captured into: ", shown(stream)));
    if (state == CU_STREAM_CAPTURE_STATUS_NONE) return Status();
    if (state != CU_STREAM_CAPTURE_STATUS_ACTIVE)
      return fail(GMM_ERROR_CAPTURING,
                  "The capture of stream %p has failed and will yield no graph; end it with cuStreamEndCapture, and "
                  "look for the call that was not allowed in it.",
                  shown(stream));
    out->id = id;
    out->graph = graph;
    return Status();
  }

  Status at_end_of_graph(Device device, void *graph, void (*fn)(void *), void *user) override {
    CUuserObject object = nullptr;
    Status status = in(on(device), [&]() -> Status {
      GMM_TRY(GMM_CUDA(cuUserObjectCreate, &object, user, fn, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
      // Objects may be added to the graph during its capture (CUDA driver API, cuStreamGetCaptureInfo).
      return GMM_CUDA(cuGraphRetainUserObject, static_cast<CUgraph>(graph), object, 1, CU_GRAPH_USER_OBJECT_MOVE);
    });
    if (status.ok()) return status;
    status = prefix(status, "Tying memory to the graph that is being captured: ");
    // The end of the object calls the function. The second try is there because nobody else releases it.
    if (object == nullptr || !twice([&] { return driver_.cuUserObjectRelease(object, 1); })) fn(user);
    return status;
  }

 private:
  // The driver tells a lack of any memory by one number.
  static Status of_host(Status status) {
    return status.code() == GMM_ERROR_OUT_OF_MEMORY ? Status(GMM_ERROR_OUT_OF_HOST_MEMORY) : status;
  }

  // --- Memory --------------------------------------------------------------------------------------------------------

  // cuMemGetInfo() answers for the current context's device only.
  Status memory_of(Device device, size_t *free_memory, size_t *total_memory) {
    return GMM_CUDA_IN(on(device), cuMemGetInfo, free_memory, total_memory);
  }

  Status driver_allocate(Kind kind, uint64_t size, CUdeviceptr *out) {
    return kind == Kind::kManaged ? GMM_CUDA_COUNTED(cuMemAllocManaged, out, size, CU_MEM_ATTACH_GLOBAL)
                                  : GMM_CUDA_COUNTED(cuMemAlloc, out, size);
  }

  Status allocate_device(Kind kind, Device device, uint64_t size, Allocation *out) {
    CUdeviceptr address = 0;
    uint64_t driver_size = size;
    GMM_TRY(prefix(in(on(device),
                      [&]() -> Status {
                        GMM_TRY(driver_allocate(kind, size, &address));
                        if (address % kExtentAlignment == 0) return Status();
                        // No known driver does this for sizes that are multiples of 2 MiB, but the driver promises only
                        // 256 bytes.
                        GMM_TRY(GMM_CUDA_COUNTED(cuMemFree, address));
                        driver_size += kExtentAlignment;
                        return driver_allocate(kind, driver_size, &address);
                      }),
                   "Allocating %" PRIu64 " bytes on device %d: ", size, device.ordinal));
    const CUdeviceptr aligned = (address + kExtentAlignment - 1) & ~(kExtentAlignment - 1);
    *out = Allocation{from_driver(aligned), size, kind, device, from_driver(address), driver_size, -1};
    return Status();
  }

  // Maps the piece and page-locks it for every device. After a failure it stays the caller's. `there`: the piece has
  // its pages, which the driver then maps as it locks them.
  Status register_piece(MemoryPiece *piece, Device device, bool there, Allocation *out) {
    const uint64_t size = piece->size;
    void *base = nullptr;
    GMM_TRY(os::map_file(size, kExtentAlignment, piece->fd, piece->offset, os::Access::kReadWrite, &base));
    const auto lock = [&] {
      return GMM_CUDA_COUNTED(cuMemHostRegister, base, size,
                              CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    };
    // The driver page-locks touched memory far faster than holes.
    Status status = there ? Status() : os::populate_pages(base, size);
    if (status.ok()) status = in(on(device), lock);
    if (!status.ok()) {
      status = prefix(of_host(status), "Page-locking %" PRIu64 " bytes of host memory: ", size);
      os::discard(base, size);
      return status;
    }
    *out = Allocation{base, size, Kind::kHost, device, piece, size, piece->is_shared_file ? -1 : piece->fd};
    return Status();
  }

  Status allocate_host(Device device, uint64_t size, bool exportable, Allocation *out) {
    GMM_TRY(os::check_available(size, GMM_ERROR_OUT_OF_HOST_MEMORY));
    MemoryPiece *piece = nullptr;
    GMM_TRY(files_.create("gmm-host", size, exportable, &piece));
    count_call();
    Status status = register_piece(piece, device, false, out);
    if (!status.ok()) keep_first(&status, [&] { return files_.release(piece); });
    return status;
  }

  CUresult create_pages(const CUmemAllocationProp &properties, uint64_t size, PhysicalHandle *out) {
    CUmemGenericAllocationHandle handle = 0;
    count_call();
    const CUresult result = driver_.cuMemCreate(&handle, size, &properties, 0);
    if (result == CUDA_SUCCESS) out->value = handle;
    return result;
  }

  // Releases a handle that was retained only to look at it. A reference that stays would keep the memory.
  void release_reference(CUmemGenericAllocationHandle handle) {
    if (!twice([&] { return driver_.cuMemRelease(handle); }))
      log_.write(LogLevel::kError, "The driver keeps a reference to VMM memory, so the memory stays taken.");
  }

  // Looks at the first mapping only, because the engine never mixes locations in one range.
  Status pages_on_host(void *base, bool *out) {
    CUmemGenericAllocationHandle handle = 0;
    GMM_TRY(GMM_CUDA(cuMemRetainAllocationHandle, &handle, base));
    CUmemAllocationProp properties = {};
    const Status status = GMM_CUDA(cuMemGetAllocationPropertiesFromHandle, &properties, handle);
    release_reference(handle);
    *out = is_host(properties);
    return status;
  }

  Status give_access(void *base, uint64_t size, Device owner, uint32_t peers,
                     CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    bool on_host = owner.is_host();
    if (!on_host && host_pages_.load(std::memory_order_acquire)) GMM_TRY(pages_on_host(base, &on_host));
    CUmemAccessDesc access[Devices::kMost + 1] = {};
    uint32_t count = 0;
    const auto add = [&](CUmemLocationType type, int id) { access[count++] = {{type, id}, flags}; };
    for (uint32_t i = 0; i < devices_.count(); ++i) {
      // If all devices are meant, those without VMM are left out. A device without VMM that was named is an error.
      const bool is_wanted =
          owner.is_host() ? devices_[i].vmm : static_cast<int32_t>(i) == owner.ordinal || (peers >> i & 1) != 0;
      if (is_wanted) add(CU_MEM_LOCATION_TYPE_DEVICE, devices_[i].handle);
    }
    if (on_host) add(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);  // the driver ignores the node here
    count_call();
    CUresult result = driver_.cuMemSetAccess(to_driver(base), size, access, count);
    if (on_host && means_not_here(result)) {
      // This is host memory of no particular node.
      access[count - 1].location = {CU_MEM_LOCATION_TYPE_HOST, 0};
      count_call();
      result = driver_.cuMemSetAccess(to_driver(base), size, access, count);
    }
    return driver_.check(result, "cuMemSetAccess");
  }

  // Calls fn(own), whose driver owns the duplicate `own` of a descriptor after a success only.
  template <typename Fn>
  static Status give_descriptor(int32_t fd, Fn fn) {
    int32_t own = -1;
    GMM_TRY(os::duplicate(fd, &own));
    Status status = fn(own);
    if (!status.ok()) keep_first(&status, [&] { return os::close_file(own); });
    return status;
  }

  // The driver's number of a location.
  Status managed_location(const char *what, Device location, CUdevice *out) {
    *out = location.is_host() ? CU_DEVICE_CPU : devices_[location].handle;
    if (location.is_host() || devices_[location].concurrent_managed) return Status();
    return devices_.lacks(location, what, "CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS");
  }

  // --- Streams -------------------------------------------------------------------------------------------------------

  Status make_event(Device device, unsigned flags, NativeEvent *out) {
    CUevent event = nullptr;
    GMM_TRY(prefix(GMM_CUDA_IN(on(device), cuEventCreate, &event, flags),
                   "Creating an event on device %d: ", device.ordinal));
    *out = reinterpret_cast<NativeEvent>(event);
    return Status();
  }

  // Whether memory is neither the driver's device memory nor managed memory: it is page-locked or ordinary host memory.
  bool is_host_memory(const void *address) const {
    CUmemorytype type = static_cast<CUmemorytype>(0);
    unsigned int managed = 0;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED};
    void *values[] = {&type, &managed};
    return driver_.cuPointerGetAttributes(2, which, values, to_driver(address)) == CUDA_SUCCESS &&
           type != CU_MEMORYTYPE_DEVICE && managed == 0;
  }

  // The driver's copy from host to host blocks the caller until the stream has come that far ("API synchronization
  // behavior" in its manual). That would hold up a caller that has not yet let the stream go on. So the copy is a call
  // on the stream, which the driver queues as promised. Between a device and ordinary host memory the driver may block
  // in the same way.
  Status copy_on_host(Device device, gmm_stream stream, void *destination, const void *source, uint64_t size) {
    HostCopy *copy = allocator_.create<HostCopy>(HostCopy{allocator_, destination, source, size});
    if (copy == nullptr) return no_memory_for("Copying from host to host");
    const Status status = stream_call(device, stream, &HostCopy::run, copy);
    if (!status.ok()) allocator_.destroy(copy);
    return status;
  }

  Devices devices_;
  const Driver &driver_ = devices_.driver;
  MemoryFiles files_;  // of kHost memory
  // Whether VMM memory of this backend may lie on the host. Otherwise set_access() need not look.
  std::atomic<bool> host_pages_{false};
};

}  // namespace gmm::gpu

namespace gmm {
namespace {

bool is_expected(const char *visible, const char *device_file) {
  const bool hidden = visible != nullptr && (*visible == '\0' || std::strncmp(visible, "-1", 2) == 0);
  return !hidden && ::access(device_file, F_OK) == 0;
}

}  // namespace

Status cuda_backend_create(const HostAllocator &allocator, const Log &log, Backend **out) {
  return open_backend_as<gpu::GpuBackend>(allocator, log, out, gpu::kCuda);
}
Status hip_backend_create(const HostAllocator &allocator, const Log &log, Backend **out) {
  return open_backend_as<gpu::GpuBackend>(allocator, log, out, gpu::kHip);
}

bool cuda_is_expected() { return is_expected(std::getenv("CUDA_VISIBLE_DEVICES"), "/dev/nvidiactl"); }
bool hip_is_expected() { return is_expected(std::getenv("HIP_VISIBLE_DEVICES"), "/dev/kfd"); }

}  // namespace gmm
