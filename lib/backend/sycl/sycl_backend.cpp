// SPDX-License-Identifier: Apache-2.0
// SyclBackend: the operations of backend.h over dpctl's C interface. README.md has the reasons.
#include "backend/sycl/sycl_backend.h"

#include <cinttypes>
#include <cstdio>

#include "backend/sycl/interface.h"
#include "backend/sycl/sycl_stream.h"
#include "base/hash_table.h"
#include "base/os_memory.h"

namespace gmm::sycl {
namespace {

// The bits that DPCTLQueue_MemAdvise passes on to Unified Runtime (ur_usm_advice_flag_t of ur_api.h), for a location on
// a device and on the host. The index is gmm_advice - 1.
constexpr struct {
  int device, host;
} kAdvice[] = {
    {1 << 1, 1 << 1},    // SET_READ_MOSTLY
    {1 << 2, 1 << 2},    // CLEAR_READ_MOSTLY
    {1 << 3, 1 << 13},   // SET_PREFERRED_LOCATION, SET_PREFERRED_LOCATION_HOST
    {1 << 4, 1 << 14},   // CLEAR_PREFERRED_LOCATION, CLEAR_PREFERRED_LOCATION_HOST
    {1 << 9, 1 << 11},   // SET_ACCESSED_BY_DEVICE, SET_ACCESSED_BY_HOST
    {1 << 10, 1 << 12},  // CLEAR_ACCESSED_BY_DEVICE, CLEAR_ACCESSED_BY_HOST
};

// The position of a stream when the event was last recorded. An event may be destroyed at any time, because waits hold
// the mark themselves.
struct SyclEvent {
  Mutex mutex{LockRank::kSyclEvent};
  Mark *mark = nullptr;
};

SyclEvent *event_of(NativeEvent event) { return reinterpret_cast<SyclEvent *>(event); }

// Calls fn(mark) -> Status, if the event was ever recorded.
template <typename Fn>
Status with_mark(NativeEvent event, Fn fn) {
  Mark *mark = nullptr;
  {
    LockGuard lock(event_of(event)->mutex);
    mark = event_of(event)->mark;
    if (mark == nullptr) return Status();
    mark->retain();
  }
  const Status status = fn(mark);
  mark->release();
  return status;
}

}  // namespace

class SyclBackend final : public StreamBackend<SyclStreamTable, SyclStream> {
 public:
  SyclBackend(const HostAllocator &allocator, const Log &log)
      : StreamBackend(allocator, log, platform_, allocator, log) {}

  Status open() {
    GMM_TRY(api_.open());
    SelectorRef selector = api_.DPCTLDefaultSelector_Create();
    DeviceRef chosen = selector == nullptr ? nullptr : api_.DPCTLDevice_CreateFromSelector(selector);
    if (selector != nullptr) api_.DPCTLDeviceSelector_Delete(selector);
    if (chosen == nullptr)
      return fail(
          GMM_ERROR_NO_BACKEND,
          "SYCL shows no device; see `python -m dpctl -f`. For the CPU: pip install intel-opencl-rt and name its "
          "libintelocl.so in OCL_ICD_FILENAMES. Check ONEAPI_DEVICE_SELECTOR, or use another backend.");
    PlatformRef platform = api_.DPCTLDevice_GetPlatform(chosen);
    api_.DPCTLDevice_Delete(chosen);
    if (platform == nullptr) return api_.failed("DPCTLDevice_GetPlatform");
    platform_.context = api_.DPCTLPlatform_GetDefaultContext(platform);
    DeviceVectorRef devices = api_.DPCTLPlatform_GetDevices(platform, kAllDevices);
    api_.DPCTLPlatform_Delete(platform);
    const uint64_t count = devices == nullptr ? 0 : api_.DPCTLDeviceVector_Size(devices);
    for (uint64_t i = 0; i < count && platform_.device_count < SyclStreamTable::kMostDevices; ++i) {
      DeviceRef device = api_.DPCTLDeviceVector_GetAt(devices, i);
      if (device == nullptr) break;
      platform_.devices[platform_.device_count] = device;
      probe(platform_.device_count++);
    }
    if (devices != nullptr) api_.DPCTLDeviceVector_Delete(devices);
    if (platform_.context == nullptr) return api_.failed("DPCTLPlatform_GetDefaultContext");
    if (platform_.device_count == 0) return api_.failed("DPCTLPlatform_GetDevices");
    return Status();
  }

  void destroy() override {
    if (platform_.context != nullptr) streams_.close();
    for (uint32_t i = 0; i < platform_.device_count; ++i) api_.DPCTLDevice_Delete(platform_.devices[i]);
    if (platform_.context != nullptr) api_.DPCTLContext_Delete(platform_.context);
    allocator_.destroy(this);
  }

  // --- Devices and addresses -----------------------------------------------------------------------------------------

  gmm_backend id() const override { return GMM_BACKEND_SYCL; }
  const char *name() const override { return "sycl"; }
  uint32_t device_count() const override { return platform_.device_count; }

  void driver_version(char *text, uint64_t size) const override {
    char *version = api_.DPCTLService_GetDPCPPVersion();
    std::snprintf(text, size, "DPC++ %s", version == nullptr ? "of unknown version" : version);
    if (version != nullptr) api_.DPCTLCString_Delete(version);
  }

  Status device_info(Device device, gmm_device_info *out) override {
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
    out->granularity = 0;  // the backend has no VMM memory
    char *name = api_.DPCTLDevice_GetName(platform_.devices[device.ordinal]);
    std::snprintf(out->name, sizeof out->name, "%s", name == nullptr ? "SYCL device" : name);
    if (name != nullptr) api_.DPCTLCString_Delete(name);
    // dpctl's C interface has no UUID. All processes of a machine agree on the name.
    make_uuid(hash_of_text(out->name), device, out->uuid);
    return Status();
  }

  // SYCL reports the kind and the device of a pointer, but not its range. The device is read only if the kind is known:
  // for any other pointer the function throws, and dpctl does not catch that.
  void identify(const void *address, ForeignPointer *out) override {
    *out = ForeignPointer();
    const int type = api_.DPCTLUSM_GetPointerType(address, platform_.context);
    if (type != kUsmDevice && type != kUsmShared && type != kUsmHost) return;
    out->kind = type == kUsmDevice ? Kind::kDevice : type == kUsmShared ? Kind::kManaged : Kind::kHost;
    out->usm = type == kUsmDevice ? GMM_USM_DEVICE : type == kUsmShared ? GMM_USM_SHARED : GMM_USM_HOST;
    out->known = true;
    if (out->kind == Kind::kHost) return;
    DeviceRef device = api_.DPCTLUSM_GetPointerDevice(address, platform_.context);
    if (device == nullptr) return;
    if (const int32_t ordinal = platform_.ordinal_of(device); ordinal >= 0) out->device = Device{ordinal};
    api_.DPCTLDevice_Delete(device);
  }

  // --- USM allocations and the residency of shared ones --------------------------------------------------------------

  Status allocate(Kind kind, Device device, uint64_t size, bool, Allocation *out) override {
    DeviceState &state = states_[device.ordinal];
    auto *allocate = kind == Kind::kDevice ? api_.DPCTLaligned_alloc_device
                     : kind == Kind::kHost ? api_.DPCTLaligned_alloc_host
                                           : api_.DPCTLaligned_alloc_shared;
    const gmm_result shortage = kind == Kind::kHost ? GMM_ERROR_OUT_OF_HOST_MEMORY : GMM_ERROR_OUT_OF_MEMORY;
    // A CPU device gives more than the machine has, and then the kernel ends the process that uses it.
    if (kind == Kind::kHost || state.cpu) GMM_TRY(os::check_available(size, shortage));
    if (kind == Kind::kDevice) GMM_TRY(take(device, size));
    count_call();
    void *base = nullptr;
    Status status = with(device, GMM_STREAM_DEFAULT, [&](SyclStream &stream) {
      base = allocate(kExtentAlignment, size, stream.queue);
      if (base != nullptr) return Status();
      return fail(shortage,
                  "%" PRIu64 " bytes of USM memory on SYCL device %" PRId32
                  ": the runtime refused; free memory, or request less.",
                  size, device.ordinal);
    });
    if (!status.ok()) {
      if (kind == Kind::kDevice) state.taken.fetch_sub(size, std::memory_order_relaxed);
      return status;
    }
    *out = Allocation{base, size, kind, device, base, size, -1};
    return status;
  }

  Status deallocate(const Allocation &allocation) override {
    count_call();
    api_.DPCTLfree_with_context(allocation.driver_base, platform_.context);
    if (allocation.kind == Kind::kDevice)
      states_[allocation.device.ordinal].taken.fetch_sub(allocation.size, std::memory_order_relaxed);
    return Status();
  }

  Status advise(void *base, uint64_t size, gmm_advice advice, Device location) override {
    const auto &meaning = kAdvice[advice - GMM_ADVISE_SET_READ_MOSTLY];
    const int bits = location.is_host() ? meaning.host : meaning.device;
    return with(location.is_host() ? Device{0} : location, GMM_STREAM_DEFAULT,
                [&](SyclStream &stream) { return stream.advise(base, size, bits); });
  }

  Status prefetch(void *base, uint64_t size, Device location, Device stream_device, gmm_stream stream) override {
    return with(stream_device, stream, [&](SyclStream &target) {
      // SYCL has no prefetch to the host. Pages move when the host reads them.
      if (location.is_host()) return target.touch(base, size);
      if (location == target.device) return target.prefetch(base, size);
      return fail(GMM_ERROR_NOT_SUPPORTED,
                  "Prefetching %" PRIu64 " bytes at %p to SYCL device %" PRId32 " on a stream of device %" PRId32
                  ": a SYCL queue brings memory to its own device only; pass a stream of device %" PRId32 ".",
                  size, base, location.ordinal, target.device.ordinal, location.ordinal);
    });
  }

  // --- Events --------------------------------------------------------------------------------------------------------

  Status event_create(Device, NativeEvent *out) override {
    SyclEvent *event = allocator_.create<SyclEvent>();
    if (event == nullptr) return no_memory_for("Creating an event");
    *out = reinterpret_cast<NativeEvent>(event);
    return Status();
  }

  Status event_destroy(NativeEvent event) override {
    if (event_of(event)->mark != nullptr) event_of(event)->mark->release();
    allocator_.destroy(event_of(event));
    return Status();
  }

  Status event_record(NativeEvent event, Device device, gmm_stream stream) override {
    Mark *mark = nullptr;
    GMM_TRY(with(device, stream, [&](SyclStream &target) { return target.record(&mark); }));
    {
      LockGuard lock(event_of(event)->mutex);
      std::swap(event_of(event)->mark, mark);
    }
    if (mark != nullptr) mark->release();
    return Status();
  }

  Status event_synchronize(NativeEvent event) override {
    check_may_wait("an event");
    return with_mark(event, [](Mark *mark) { return mark->wait(); });
  }

  Status event_query(NativeEvent event, bool *passed) override {
    *passed = true;
    return with_mark(event, [&](Mark *mark) {
      *passed = mark->passed();
      return Status();
    });
  }

  Status stream_wait(Device device, gmm_stream stream, NativeEvent event) override {
    return with(device, stream, [&](SyclStream &target) {
      return with_mark(event, [&](Mark *mark) { return target.wait_for(mark); });
    });
  }

 private:
  friend class gmm::HostAllocator;
  ~SyclBackend() = default;

  struct DeviceState {
    uint64_t memory = 0;
    uint64_t largest = 0;  // bytes of the largest allocation
    uint32_t capabilities = 0;
    gmm_kind_mask kinds = 0;
    bool cpu = false;
    std::atomic<uint64_t> taken{0};
  };

  void probe(uint32_t ordinal) {
    DeviceRef device = platform_.devices[ordinal];
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

  Status take(Device device, uint64_t size) {
    DeviceState &state = states_[device.ordinal];
    if (size > state.largest)
      return fail(GMM_ERROR_OUT_OF_MEMORY,
                  "%" PRIu64 " bytes on SYCL device %" PRId32 ": its largest allocation is %" PRIu64
                  " bytes; request less.",
                  size, device.ordinal, state.largest);
    uint64_t before = state.taken.load(std::memory_order_relaxed);
    do {
      if (before > state.memory || size > state.memory - before)
        return fail(GMM_ERROR_OUT_OF_MEMORY,
                    "%" PRIu64 " bytes on SYCL device %" PRId32 ": %" PRIu64 " of its %" PRIu64
                    " bytes are taken; free memory, or request less.",
                    size, device.ordinal, before, state.memory);
    } while (!state.taken.compare_exchange_weak(before, before + size, std::memory_order_relaxed));
    return Status();
  }

  Platform platform_;
  Interface &api_ = platform_.api;
  DeviceState states_[SyclStreamTable::kMostDevices];
};

}  // namespace gmm::sycl

namespace gmm {

Status sycl_backend_create(const HostAllocator &allocator, const Log &log, Backend **out) {
  return open_backend_as<sycl::SyclBackend>(allocator, log, out);
}

}  // namespace gmm
