// SPDX-License-Identifier: Apache-2.0
// SyclBackend: the operations of backend.h over dpctl's C interface. The sections follow that header.
#include "backend/sycl/sycl_backend.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

#include "backend/sycl/interface.h"
#include "backend/sycl/sycl_stream_table.h"
#include "base/hash_table.h"
#include "base/lock.h"
#include "base/os_memory.h"

namespace gmm::sycl {

// All devices belong to one platform and share its default SYCL context, which is dpctl's too. So every pointer is
// valid on every queue, and dpctl accepts gmm's memory.
class SyclBackend final : public Backend {
 public:
  SyclBackend(const HostAllocator &allocator, const Log &log)
      : Backend(allocator, log), streams_(api_, allocator, log) {}
  Status open();
  void destroy() override;

  gmm_backend id() const override { return GMM_BACKEND_SYCL; }
  const char *name() const override { return "sycl"; }
  void driver_version(char *text, uint64_t size) const override;
  uint32_t device_count() const override { return device_count_; }
  Status device_info(Device device, gmm_device_info *out) override;
  void identify(const void *address, ForeignPointer *out) override;

  Status allocate(Kind kind, Device device, uint64_t size, Allocation *out) override;
  Status deallocate(const Allocation &allocation) override;
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
  Status synchronize(Device device) override;
  Status event_create(Device device, NativeEvent *out) override;
  Status event_destroy(NativeEvent event) override;
  Status event_record(NativeEvent event, Device device, gmm_stream stream) override;
  Status event_synchronize(NativeEvent event) override;
  Status event_query(NativeEvent event, bool *passed) override;
  Status stream_wait(Device device, gmm_stream stream, NativeEvent event) override;

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
  void probe(uint32_t ordinal);
  Status check_device(Device device) const;
  // Returns the stream with a reference, which StreamReference drops.
  Status stream_of(Device device, gmm_stream stream, SyclStream **out);
  Status take(Device device, uint64_t size);
  friend class StreamReference;

  Interface api_;
  ContextRef context_ = nullptr;
  DeviceRef devices_[kMaxSyclDevices] = {};
  DeviceState states_[kMaxSyclDevices];
  uint32_t device_count_ = 0;
  SyclStreamTable streams_;
};

// Drops a reference to a stream at the end of a block.
class StreamReference {
 public:
  explicit StreamReference(SyclBackend &backend) : table_(backend.streams_) {}
  ~StreamReference() {
    if (stream != nullptr) table_.release(stream);
  }
  StreamReference(const StreamReference &) = delete;
  StreamReference &operator=(const StreamReference &) = delete;
  SyclStream *operator->() const { return stream; }
  SyclStream *stream = nullptr;

 private:
  SyclStreamTable &table_;
};

// --- Creation, devices and addresses ---------------------------------------------------------------------------------

namespace {

// dpctl's C interface has no UUID. The name and the ordinal, on which all processes of a machine agree, form one by RFC
// 9562: version 8 (vendor-defined), variant 1.
void make_uuid(const char *name, int32_t ordinal, uint8_t out[16]) {
  const uint64_t hash = hash_of_text(name);
  std::memset(out, 0, 16);
  std::memcpy(out, &hash, sizeof hash);
  out[6] = static_cast<uint8_t>((out[6] & 0x0f) | 0x80);
  out[8] = 0x80;
  out[15] = static_cast<uint8_t>(ordinal);
}

}  // namespace

// Opens the platform of the device that SYCL itself would choose. ONEAPI_DEVICE_SELECTOR selects that device.
Status SyclBackend::open() {
  GMM_TRY(api_.open());
  SelectorRef selector = api_.DPCTLDefaultSelector_Create();
  DeviceRef chosen = selector == nullptr ? nullptr : api_.DPCTLDevice_CreateFromSelector(selector);
  if (selector != nullptr) api_.DPCTLDeviceSelector_Delete(selector);
  if (chosen == nullptr)
    return fail(GMM_ERROR_NO_BACKEND,
                "SYCL shows no device; see `python -m dpctl -f`. For the CPU: pip install intel-opencl-rt and name its "
                "libintelocl.so in OCL_ICD_FILENAMES. Check ONEAPI_DEVICE_SELECTOR, or use another backend.");
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
  return fail(GMM_ERROR_INVALID_DEVICE,
              "Device %" PRId32 ": the SYCL platform has %" PRIu32 " devices; ordinals start at 0.", device.ordinal,
              device_count_);
}

void SyclBackend::driver_version(char *text, uint64_t size) const {
  char *version = api_.DPCTLService_GetDPCPPVersion();
  std::snprintf(text, size, "DPC++ %s", version == nullptr ? "of unknown version" : version);
  if (version != nullptr) api_.DPCTLCString_Delete(version);
}

// SYCL's core does not report free memory. So it is the memory that this context did not take, and on a CPU at most
// what the system has available.
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
  out->granularity = 0;  // the backend has no VMM memory
  char *name = api_.DPCTLDevice_GetName(devices_[device.ordinal]);
  std::snprintf(out->name, sizeof out->name, "%s", name == nullptr ? "SYCL device" : name);
  if (name != nullptr) api_.DPCTLCString_Delete(name);
  make_uuid(out->name, device.ordinal, out->uuid);
  return Status();
}

// SYCL reports the kind and the device of a pointer, but not its range. The device is read only if the kind is known:
// for any other pointer the function throws, and dpctl does not catch that.
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

// --- USM allocations and the residency of shared ones ----------------------------------------------------------------

namespace {

// The bits that DPCTLQueue_MemAdvise passes on to Unified Runtime (ur_usm_advice_flags_t of ur_api.h).
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
// The index is gmm_advice - 1.
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

Status SyclBackend::allocate(Kind kind, Device device, uint64_t size, Allocation *out) {
  GMM_TRY(check_device(device));
  DeviceState &state = states_[device.ordinal];
  if ((state.kinds >> static_cast<uint32_t>(kind) & 1) == 0)
    return fail(GMM_ERROR_NOT_SUPPORTED,
                "SYCL device %" PRId32 " has no memory of kind %" PRIu32
                " (USM has device, host and shared memory); ask "
                "gmm_device_query() for its kinds.",
                device.ordinal, static_cast<uint32_t>(kind));
  auto *allocate = kind == Kind::kDevice ? api_.DPCTLaligned_alloc_device
                   : kind == Kind::kHost ? api_.DPCTLaligned_alloc_host
                                         : api_.DPCTLaligned_alloc_shared;
  const gmm_result shortage = kind == Kind::kHost ? GMM_ERROR_OUT_OF_HOST_MEMORY : GMM_ERROR_OUT_OF_MEMORY;
  // A CPU device gives more than the machine has, and then the kernel ends the process that uses it.
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
                ": the runtime refused; free memory, or request less.",
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
  // SYCL has no prefetch to the host. Pages move when the host reads them.
  if (location.is_host()) return target->touch(base, size);
  GMM_TRY(check_device(location));
  if (location == target->device) return target->prefetch(base, size);
  return fail(GMM_ERROR_NOT_SUPPORTED,
              "Prefetching %" PRIu64 " bytes at %p to SYCL device %" PRId32 " on a stream of device %" PRId32
              ": a SYCL queue brings memory to its own device only; pass a stream of device %" PRId32 ".",
              size, base, location.ordinal, target->device.ordinal, location.ordinal);
}

// --- Streams and events ----------------------------------------------------------------------------------------------

namespace {

// The position of a stream when the event was last recorded. An event may be destroyed at any time, because waits hold
// the mark themselves.
struct SyclEvent {
  Mutex mutex{LockRank::kSyclEvent};
  Mark *mark = nullptr;
};

SyclEvent *event_of(NativeEvent event) { return reinterpret_cast<SyclEvent *>(event); }

// Returns the mark with a reference for the caller. NULL: the event was never recorded.
Mark *mark_of(NativeEvent event) {
  LockGuard lock(event_of(event)->mutex);
  Mark *mark = event_of(event)->mark;
  if (mark != nullptr) mark->retain();
  return mark;
}

Status no_event() { return fail(GMM_ERROR_INVALID_HANDLE, "The event is NULL; pass one of event_create()."); }

}  // namespace

Status SyclBackend::stream_of(Device device, gmm_stream stream, SyclStream **out) {
  // `device` matters for the special values only.
  if (stream == GMM_STREAM_DEFAULT || stream == GMM_STREAM_LEGACY || stream == GMM_STREAM_PER_THREAD)
    GMM_TRY(check_device(device));
  return streams_.acquire(device, stream, out);
}

Status SyclBackend::stream_create(Device device, int32_t, gmm_stream *out) {
  GMM_TRY(check_device(device));
  return streams_.create(device, out);
}

Status SyclBackend::stream_destroy(gmm_stream stream) {
  StreamReference own(*this);
  GMM_TRY(streams_.remove(stream, &own.stream));
  const Status status = own->synchronize();
  if (!status.ok()) streams_.put_back(stream, std::exchange(own.stream, nullptr));
  return status;
}

Status SyclBackend::stream_synchronize(Device device, gmm_stream stream) {
  check_may_wait("a stream");
  StreamReference target(*this);
  GMM_TRY(stream_of(device, stream, &target.stream));
  return target->synchronize();
}

Status SyclBackend::stream_is_capturing(Device device, gmm_stream stream, bool *out) {
  StreamReference target(*this);
  GMM_TRY(stream_of(device, stream, &target.stream));
  *out = false;
  return Status();
}

Status SyclBackend::stream_query(Device device, gmm_stream stream, bool *idle) {
  StreamReference target(*this);
  GMM_TRY(stream_of(device, stream, &target.stream));
  return target->query(idle);
}

Status SyclBackend::stream_call(Device device, gmm_stream stream, void (*fn)(void *), void *user) {
  if (fn == nullptr) return fail(GMM_ERROR_NULL_ARGUMENT, "Queueing a call: the function is NULL; pass one.");
  StreamReference target(*this);
  GMM_TRY(stream_of(device, stream, &target.stream));
  return target->call(fn, user);
}

Status SyclBackend::copy(Device device, gmm_stream stream, void *destination, const void *source, uint64_t size) {
  StreamReference target(*this);
  GMM_TRY(stream_of(device, stream, &target.stream));
  return size == 0 ? Status() : target->copy(destination, source, size);
}

Status SyclBackend::fill(Device device, gmm_stream stream, void *destination, uint8_t value, uint64_t size) {
  StreamReference target(*this);
  GMM_TRY(stream_of(device, stream, &target.stream));
  return size == 0 ? Status() : target->fill(destination, value, size);
}

Status SyclBackend::synchronize(Device device) {
  check_may_wait("a device");
  GMM_TRY(check_device(device));
  uint64_t last = 0;
  for (;;) {
    StreamReference target(*this);
    target.stream = streams_.next(device, last);
    if (target.stream == nullptr) return Status();
    GMM_TRY(target->synchronize());
    last = target->id;
  }
}

Status SyclBackend::event_create(Device device, NativeEvent *out) {
  GMM_TRY(check_device(device));
  SyclEvent *event = allocator_.create<SyclEvent>();
  if (event == nullptr) return no_memory_for("Creating an event");
  *out = reinterpret_cast<NativeEvent>(event);
  return Status();
}

Status SyclBackend::event_destroy(NativeEvent event) {
  if (event == nullptr) return no_event();
  if (event_of(event)->mark != nullptr) event_of(event)->mark->release();
  allocator_.destroy(event_of(event));
  return Status();
}

Status SyclBackend::event_record(NativeEvent event, Device device, gmm_stream stream) {
  if (event == nullptr) return no_event();
  StreamReference target(*this);
  GMM_TRY(stream_of(device, stream, &target.stream));
  Mark *mark = nullptr;
  GMM_TRY(target->record(&mark));
  Mark *before = nullptr;
  {
    LockGuard lock(event_of(event)->mutex);
    before = event_of(event)->mark;
    event_of(event)->mark = mark;
  }
  if (before != nullptr) before->release();
  return Status();
}

Status SyclBackend::event_synchronize(NativeEvent event) {
  check_may_wait("an event");
  if (event == nullptr) return no_event();
  Mark *mark = mark_of(event);
  if (mark == nullptr) return Status();
  const Status status = mark->wait();
  mark->release();
  return status;
}

Status SyclBackend::event_query(NativeEvent event, bool *passed) {
  if (event == nullptr) return no_event();
  Mark *mark = mark_of(event);
  *passed = mark == nullptr || mark->passed();
  if (mark != nullptr) mark->release();
  return Status();
}

Status SyclBackend::stream_wait(Device device, gmm_stream stream, NativeEvent event) {
  if (event == nullptr) return no_event();
  StreamReference target(*this);
  GMM_TRY(stream_of(device, stream, &target.stream));
  Mark *mark = mark_of(event);
  if (mark == nullptr) return Status();
  const Status status = target->wait_for(mark);
  mark->release();
  return status;
}

}  // namespace gmm::sycl

namespace gmm {

Status sycl_backend_create(const HostAllocator &allocator, const Log &log, Backend **out) {
  auto *backend = allocator.create<sycl::SyclBackend>(allocator, log);
  if (backend == nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "The SYCL backend: the host allocator refused %zu bytes; free memory.",
                sizeof(sycl::SyclBackend));
  if (Status status = backend->open(); !status.ok()) {
    MessageGuard message_guard;
    backend->destroy();
    return status;
  }
  *out = backend;
  return Status();
}

}  // namespace gmm
