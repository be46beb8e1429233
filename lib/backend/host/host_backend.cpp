// SPDX-License-Identifier: Apache-2.0
// HostBackend: the operations of backend.h over the operating system. The sections follow that header.
#include "backend/host/host_backend.h"

#include <gmm/pin.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "backend/host/host_card.h"
#include "backend/host/host_event.h"
#include "backend/host/host_handle.h"
#include "backend/host/host_stream_table.h"
#include "backend/host/host_views.h"
#include "base/hash_table.h"
#include "base/lock.h"
#include "base/os_memory.h"

namespace gmm {

class HostBackend final : public Backend {
 public:
  HostBackend(const HostAllocator &allocator, const Log &log, const HostBackendOptions &options);
  void destroy() override;

  gmm_backend id() const override { return GMM_BACKEND_HOST; }
  const char *name() const override { return "host"; }
  void driver_version(char *text, uint64_t size) const override;
  uint32_t device_count() const override { return devices_; }
  Status device_info(Device device, gmm_device_info *out) override;
  void identify(const void *address, ForeignPointer *out) override;
  bool is_cpu_memory() const override { return !is_strict_; }
  void *device_address(const void *address) const override { return views_.own(address); }

  Status allocate(Kind kind, Device device, uint64_t size, Allocation *out) override;
  Status deallocate(const Allocation &allocation) override;
  Status import_host(int32_t fd, uint64_t size, Device device, bool locked, Allocation *out) override;

  Status reserve(uint64_t size, void **out) override;
  Status unreserve(void *base, uint64_t size) override;
  Status create(Device location, uint64_t size, PhysicalHandle *out) override;
  Status comm_traits(Device device, CommTraits *out) override;
  Status release(PhysicalHandle handle) override;
  bool is_held_elsewhere(PhysicalHandle handle) override;
  Status map(void *base, uint64_t size, PhysicalHandle handle) override;
  Status unmap(void *base, uint64_t size) override;
  Status set_access(void *base, uint64_t size, Device owner, uint32_t peers) override;
  Status populate(void *base, uint64_t size) override;
  Status export_fd(PhysicalHandle handle, int32_t *fd) override;
  Status import_fd(int32_t fd, uint64_t size, Device device, PhysicalHandle *out) override;

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
  Status semaphore_import(gmm_semaphore_type type, int32_t fd, Device device, NativeSemaphore *out) override;
  Status semaphore_destroy(NativeSemaphore semaphore, Device device) override;
  Status semaphore_signal(NativeSemaphore semaphore, Device device, gmm_stream stream, uint64_t value) override;
  Status semaphore_wait(NativeSemaphore semaphore, Device device, gmm_stream stream, uint64_t value) override;
  bool calls_may_wait() const override { return true; }  // each stream has a thread of its own

 private:
  friend class HostAllocator;
  friend Status host_backend_create(const HostAllocator &, const Log &, const HostBackendOptions &, Backend **);
  ~HostBackend() = default;

  bool has(Device device) const { return device.ordinal >= 0 && static_cast<uint32_t>(device.ordinal) < devices_; }
  Status check_device(Device device) const;
  Status check_location(Device location) const;  // a device or the host
  // Accounts kDevice and VMM memory against the size that a device shows. kHost and kManaged memory lie outside of a
  // device, as on a GPU, and the machine's memory bounds them.
  Status take(Device device, uint64_t size);
  void give_back(Device device, uint64_t size);
  Status stream_of(Device device, gmm_stream stream, HostStream **out);
  Status make_event(HostSharedEvent *shared, NativeEvent *out);  // owns the caller's reference to `shared` from now on
  // Page-locks kHost memory. If the system forbids it, the memory stays pageable, with one warning.
  void lock_if_allowed(void *base, uint64_t size);
  // Maps the file of kDevice memory at addresses of its own.
  Status map_device_memory(uint64_t size, int32_t fd, void **out);
  Status map_new_file(Kind kind, uint64_t size, Allocation *out);

  uint64_t memory_;  // that of a card is known after the constructor
  const uint32_t devices_;
  const bool is_strict_;
  uint8_t machine_[16] = {};
  std::atomic<uint64_t> taken_[kMaxHostDevices] = {};
  HostCard card_;
  std::atomic<bool> warned_unlocked_{false};
  HostViews views_;  // empty unless strict
  HostStreamTable streams_;
};

// --- Creation, devices and addresses ---------------------------------------------------------------------------------

namespace {

constexpr uint32_t kCapabilities = GMM_DEVICE_CAN_PAUSE | GMM_DEVICE_CAN_EXPORT_FD | GMM_DEVICE_CAN_CONCURRENT_MANAGED |
                                   GMM_DEVICE_CAN_PIN | GMM_DEVICE_CAN_PAGEABLE | GMM_DEVICE_IS_CPU;
constexpr gmm_kind_mask kKinds =
    1u << GMM_KIND_DEVICE | 1u << GMM_KIND_VMM | 1u << GMM_KIND_HOST | 1u << GMM_KIND_MANAGED;

// With a finishing mix. A machine's id must not be shown as it is (machine-id(5)), so the hash is shown.
uint64_t hash_text(const char *text, uint64_t seed) {
  uint64_t hash = hash_of_text(text, kHashStart ^ seed);
  hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccdu;
  hash = (hash ^ (hash >> 33)) * 0xc4ceb9fe1a85ec53u;
  return hash ^ (hash >> 33);
}

void machine_hash(uint8_t out[16]) {
  char text[64] = {};
  // Small containers have no machine-id. All processes of this boot agree on the boot id.
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
                "A host backend with %" PRIu32 " devices: it shows at most %" PRIu32 "; request fewer.",
                options.devices, kMaxHostDevices);
  os::MemoryInfo info;
  GMM_TRY(os::memory_info(&info));
  // The memory of a device is a whole number of granules.
  uint64_t memory = (options.memory != 0 ? options.memory : info.total) & ~(kExtentAlignment - 1);
  if (memory == 0)
    return fail(GMM_ERROR_INVALID_VALUE,
                "A host backend with %" PRIu64 " bytes a device: a device needs at least 2 MiB; request more.",
                options.memory);
  const HostBackendOptions chosen{memory, options.devices == 0 ? 1 : options.devices, options.is_strict, nullptr};
  HostBackend *backend = allocator.create<HostBackend>(allocator, log, chosen);
  if (backend == nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY,
                "Opening the host backend: the host has no memory for its bookkeeping; free memory.");
  if (options.card != nullptr) {
    const Status status = backend->card_.open(options.card, &backend->memory_);
    if (!status.ok()) {
      allocator.destroy(backend);
      return status;
    }
  }
  *out = backend;
  return Status();
}

HostBackend::HostBackend(const HostAllocator &allocator, const Log &log, const HostBackendOptions &options)
    : Backend(allocator, log),
      memory_(options.memory),
      devices_(options.devices),
      is_strict_(options.is_strict),
      views_(allocator),
      streams_(allocator, log) {
  machine_hash(machine_);
}

void HostBackend::destroy() {
  streams_.close();
  card_.close();
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
  const uint64_t taken = card_.is_open() ? card_.taken(static_cast<uint32_t>(device.ordinal))
                                         : taken_[device.ordinal].load(std::memory_order_relaxed);
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
  // RFC 9562: version 8 (vendor-defined), variant 1. The last byte holds the ordinal.
  out->uuid[6] = static_cast<uint8_t>((out->uuid[6] & 0x0f) | 0x80);
  out->uuid[8] = static_cast<uint8_t>((out->uuid[8] & 0x3f) | 0x80);
  out->uuid[15] = static_cast<uint8_t>(out->uuid[15] ^ device.ordinal);
  return Status();
}

// The system does not record who allocated ordinary memory, so no address is known.
void HostBackend::identify(const void *, ForeignPointer *out) { *out = ForeignPointer{}; }

Status HostBackend::check_device(Device device) const {
  if (has(device)) return Status();
  return fail(GMM_ERROR_INVALID_DEVICE,
              "Device %" PRId32 ": the host backend has %" PRIu32 " devices; ordinals start at 0.", device.ordinal,
              devices_);
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
  const uint32_t ordinal = static_cast<uint32_t>(device.ordinal);
  if (!card_.is_open() || card_.take(ordinal, size, memory_)) return Status();
  taken.fetch_sub(size, std::memory_order_relaxed);
  return fail(GMM_ERROR_OUT_OF_MEMORY,
              "%" PRIu64 " bytes on host device %" PRId32 ": the processes of its card have taken %" PRIu64
              " of its %" PRIu64 " bytes; free memory in one of them.",
              size, device.ordinal, card_.taken(ordinal), memory_);
}

void HostBackend::give_back(Device device, uint64_t size) {
  taken_[device.ordinal].fetch_sub(size, std::memory_order_relaxed);
  if (card_.is_open()) card_.give_back(static_cast<uint32_t>(device.ordinal), size);
}

// --- Plain allocations -----------------------------------------------------------------------------------------------

namespace {

constexpr const char *kFileNames[kKindCount] = {"", "gmm-device", "gmm-vmm", "gmm-host", "gmm-managed"};

Status check_extent_size(uint64_t size) {
  if (size != 0 && size % kExtentAlignment == 0) return Status();
  return fail(GMM_ERROR_INVALID_SIZE,
              "%" PRIu64 " bytes of host memory: the size is not a multiple of 2 MiB; round it up.", size);
}

}  // namespace

Status HostBackend::map_device_memory(uint64_t size, int32_t fd, void **out) {
  if (!is_strict_) return os::map_file(size, kExtentAlignment, fd, os::Access::kReadWrite, out);
  GMM_TRY(views_.reserve(size, kExtentAlignment, out));
  const Status status = views_.map(*out, size, fd);
  if (!status.ok()) {
    MessageGuard message_guard;
    views_.unreserve(*out, size).ignore();  // the caller gets the failure to map
  }
  return status;
}

// Each allocation has a file of its own, so another process can map it.
Status HostBackend::map_new_file(Kind kind, uint64_t size, Allocation *out) {
  int32_t fd = -1;
  GMM_TRY(os::memory_file_create(kFileNames[static_cast<uint32_t>(kind)], size, &fd));
  void *base = nullptr;
  const Status status = kind == Kind::kDevice ? map_device_memory(size, fd, &base)
                                              : os::map_file(size, kExtentAlignment, fd, os::Access::kReadWrite, &base);
  if (!status.ok()) {
    MessageGuard message_guard;
    os::close_file(fd).ignore();  // the caller gets the failure to map
    return status;
  }
  out->base = base;
  out->fd = fd;
  return Status();
}

Status HostBackend::allocate(Kind kind, Device device, uint64_t size, Allocation *out) {
  GMM_TRY(check_device(device));
  GMM_TRY(check_extent_size(size));
  Allocation made;
  made.kind = kind;
  made.device = device;
  made.size = size;
  switch (kind) {
    case Kind::kDevice: {
      GMM_TRY(take(device, size));
      Status status = os::check_available(size, GMM_ERROR_OUT_OF_MEMORY);
      if (status.ok()) status = map_new_file(kind, size, &made);
      if (!status.ok()) {
        give_back(device, size);
        return status;
      }
      break;
    }
    case Kind::kHost:
      GMM_TRY(os::check_available(size, GMM_ERROR_OUT_OF_HOST_MEMORY));
      GMM_TRY(map_new_file(kind, size, &made));
      lock_if_allowed(made.base, size);
      break;
    case Kind::kManaged: {
      GMM_TRY(os::check_available(size, GMM_ERROR_OUT_OF_MEMORY));
      GMM_TRY(os::map_anonymous(size, kExtentAlignment, &made.base));
      MessageGuard message_guard;
      os::advise_pages(made.base, size, MADV_HUGEPAGE).ignore();  // a hint; a kernel without huge pages refuses it
      break;
    }
    default:
      return fail(GMM_ERROR_INVALID_KIND,
                  "A plain host allocation of kind %" PRIu32 ": the kind has none; use DEVICE, HOST or MANAGED.",
                  static_cast<uint32_t>(kind));
  }
  count_call();
  made.driver_base = made.base;
  made.driver_size = size;
  *out = made;
  return Status();
}

Status HostBackend::deallocate(const Allocation &allocation) {
  GMM_TRY(views_.has(allocation.base) ? views_.unreserve(allocation.base, allocation.size)
                                      : os::unmap(allocation.base, allocation.size));
  count_call();
  if (allocation.kind == Kind::kDevice && has(allocation.device)) give_back(allocation.device, allocation.size);
  return allocation.fd < 0 ? Status() : os::close_file(allocation.fd);
}

Status HostBackend::import_host(int32_t fd, uint64_t size, Device device, bool locked, Allocation *out) {
  GMM_TRY(check_device(device));
  if (size == 0 || size % os::page_size() != 0)
    return fail(GMM_ERROR_INVALID_SIZE,
                "%" PRIu64
                " bytes of another process's memory: the size is not a multiple of the page; pass the exported size.",
                size);
  GMM_TRY(os::memory_file_check(fd, size));
  Allocation made;
  GMM_TRY(locked ? os::map_file(size, kExtentAlignment, fd, os::Access::kReadWrite, &made.base)
                 : map_device_memory(size, fd, &made.base));
  count_call();
  if (locked) lock_if_allowed(made.base, size);
  made.kind = Kind::kHost;
  made.device = device;
  made.size = made.driver_size = size;
  made.driver_base = made.base;
  made.fd = fd;
  *out = made;
  return Status();
}

// --- Virtual memory management ---------------------------------------------------------------------------------------

namespace {

Status check_range(const char *what, const void *base, uint64_t size) {
  if (size == 0 || size % kExtentAlignment != 0)
    return fail(GMM_ERROR_INVALID_SIZE, "%s %" PRIu64 " bytes: the size is not a multiple of 2 MiB; round it up.", what,
                size);
  if (reinterpret_cast<uintptr_t>(base) % kExtentAlignment != 0)
    return fail(GMM_ERROR_INVALID_ALIGNMENT,
                "%s memory at %p: the address is not aligned to 2 MiB; pass an address inside a reservation.", what,
                base);
  return Status();
}

// Unpacks a handle and checks that its file is still the one for which it was made.
Status resolve(PhysicalHandle handle, HostHandle *out, uint64_t *size) {
  const HostHandle parts = HostHandle::unpack(handle);
  struct stat state;
  if (handle.value == 0 || fstat(parts.fd, &state) != 0 || static_cast<uint32_t>(state.st_ino) != parts.file_number)
    return fail(GMM_ERROR_INVALID_HANDLE,
                "Physical memory %#" PRIx64 ": it was never created, or was released; pass a live one.", handle.value);
  *out = parts;
  *size = static_cast<uint64_t>(state.st_size);
  return Status();
}

Status make_handle(int32_t fd, uint32_t counted_device, PhysicalHandle *out) {
  struct stat state;
  if (fstat(fd, &state) != 0)
    return fail_native(GMM_ERROR_SYSTEM, errno, "Creating physical memory: the system refused to describe its file.");
  if (fd > HostHandle::kMaxFd)
    return fail(GMM_ERROR_NOT_SUPPORTED,
                "Physical memory behind file descriptor %" PRId32 ": the number is above %" PRId32
                "; open fewer files.",
                fd, HostHandle::kMaxFd);
  *out = HostHandle{fd, counted_device, static_cast<uint32_t>(state.st_ino)}.pack();
  return Status();
}

}  // namespace

Status HostBackend::reserve(uint64_t size, void **out) {
  GMM_TRY(check_range("Reserving", nullptr, size));
  GMM_TRY(is_strict_ ? views_.reserve(size, kExtentAlignment, out) : os::reserve(size, kExtentAlignment, out));
  count_call();
  return Status();
}

Status HostBackend::unreserve(void *base, uint64_t size) {
  GMM_TRY(check_range("Unreserving", base, size));
  GMM_TRY(is_strict_ ? views_.unreserve(base, size) : os::unmap(base, size));
  count_call();
  return Status();
}

// A shortage that the system can foresee fails here: see os_memory.h. Memory that was available at its creation may
// still be short when it is first touched.
Status HostBackend::create(Device location, uint64_t size, PhysicalHandle *out) {
  GMM_TRY(check_location(location));
  GMM_TRY(check_range("Creating", nullptr, size));
  const bool counted = !location.is_host();
  if (counted) GMM_TRY(take(location, size));
  int32_t fd = -1;
  Status status = os::check_available(size, counted ? GMM_ERROR_OUT_OF_MEMORY : GMM_ERROR_OUT_OF_HOST_MEMORY);
  if (status.ok()) status = os::memory_file_create("gmm-vmm", size, &fd);
  if (status.ok())
    status = make_handle(fd, counted ? static_cast<uint32_t>(location.ordinal) : HostHandle::kNotCounted, out);
  if (!status.ok()) {
    MessageGuard message_guard;
    if (fd >= 0) os::close_file(fd).ignore();  // the caller gets the first failure
    if (counted) give_back(location, size);
    return status;
  }
  count_call();
  return Status();
}

// Every network library takes the machine's memory.
Status HostBackend::comm_traits(Device device, CommTraits *out) {
  *out = CommTraits();
  return check_device(device);
}

Status HostBackend::release(PhysicalHandle handle) {
  HostHandle parts;
  uint64_t size = 0;
  GMM_TRY(resolve(handle, &parts, &size));
  GMM_TRY(os::close_file(parts.fd));
  if (parts.counted_device < devices_) give_back(Device{static_cast<int32_t>(parts.counted_device)}, size);
  count_call();
  return Status();
}

Status HostBackend::map(void *base, uint64_t size, PhysicalHandle handle) {
  GMM_TRY(check_range("Mapping", base, size));
  HostHandle parts;
  uint64_t actual = 0;
  GMM_TRY(resolve(handle, &parts, &actual));
  if (size > actual)
    return fail(GMM_ERROR_INVALID_SIZE,
                "Mapping %" PRIu64 " bytes: the physical memory has %" PRIu64 "; map no more than was created.", size,
                actual);
  GMM_TRY(is_strict_ ? views_.map(base, size, parts.fd) : os::map_file_at(base, size, parts.fd, os::Access::kNone));
  count_call();
  return Status();
}

Status HostBackend::unmap(void *base, uint64_t size) {
  GMM_TRY(check_range("Unmapping", base, size));
  GMM_TRY(is_strict_ ? views_.unmap(base, size) : os::reserve_at(base, size));
  count_call();
  return Status();
}

Status HostBackend::set_access(void *base, uint64_t size, Device owner, uint32_t) {
  GMM_TRY(check_location(owner));
  GMM_TRY(check_range("Access to", base, size));
  if (!is_strict_ || owner.is_host()) GMM_TRY(os::set_access(base, size, os::Access::kReadWrite));
  count_call();
  return Status();
}

Status HostBackend::populate(void *base, uint64_t size) {
  return os::populate_pages(is_strict_ ? views_.own(base) : base, size);
}

Status HostBackend::export_fd(PhysicalHandle handle, int32_t *fd) {
  HostHandle parts;
  uint64_t size = 0;
  GMM_TRY(resolve(handle, &parts, &size));
  GMM_TRY(os::share(parts.fd, fd));
  count_call();
  return Status();
}

bool HostBackend::is_held_elsewhere(PhysicalHandle handle) {
  return handle.value != 0 && os::is_shared(HostHandle::unpack(handle).fd);
}

Status HostBackend::import_fd(int32_t fd, uint64_t size, Device device, PhysicalHandle *out) {
  GMM_TRY(check_device(device));
  GMM_TRY(check_range("Importing", nullptr, size));
  GMM_TRY(os::memory_file_check(fd, size));
  int32_t own = -1;
  GMM_TRY(os::duplicate(fd, &own));
  if (Status status = make_handle(own, HostHandle::kNotCounted, out); !status.ok()) {
    MessageGuard message_guard;
    os::close_file(own).ignore();  // the caller gets the first failure
    return status;
  }
  count_call();
  return Status();
}

// --- Page-locks, of the caller's memory and of kHost memory ----------------------------------------------------------

Status HostBackend::pin(void *base, uint64_t size, uint32_t flags, Device device, void **device_pointer) {
  GMM_TRY(check_device(device));
  if ((flags & ~uint32_t{GMM_PIN_READ_ONLY}) != 0)
    return fail(GMM_ERROR_INVALID_FLAGS,
                "Pinning with flags %#" PRIx32 ": only GMM_PIN_READ_ONLY exists; clear the other bits.", flags);
  GMM_TRY(os::lock_pages(base, size));
  count_call();
  *device_pointer = base;
  return Status();
}

Status HostBackend::unpin(void *base, uint64_t size) {
  GMM_TRY(os::unlock_pages(base, size));
  count_call();
  return Status();
}

void HostBackend::lock_if_allowed(void *base, uint64_t size) {
  char text[512];
  {
    MessageGuard message_guard;  // the allocation succeeds even if the lock fails
    if (os::lock_pages(base, size).ok()) return;
    std::snprintf(text, sizeof text, "%s", last_message());
  }
  if (!warned_unlocked_.exchange(true, std::memory_order_relaxed))
    log_.write(LogLevel::kWarning, "HOST memory stays pageable on the host backend. %s", text);
}

// --- Residency of kManaged memory: the machine's memory is every device's, so no page can move -----------------------

Status HostBackend::advise(void *base, uint64_t size, gmm_advice advice, Device location) {
  switch (advice) {
    case GMM_ADVISE_SET_READ_MOSTLY:
    case GMM_ADVISE_UNSET_READ_MOSTLY:
      break;
    case GMM_ADVISE_SET_PREFERRED_LOCATION:
    case GMM_ADVISE_UNSET_PREFERRED_LOCATION:
    case GMM_ADVISE_SET_ACCESSED_BY:
    case GMM_ADVISE_UNSET_ACCESSED_BY:
      GMM_TRY(check_location(location));
      break;
    default:
      return fail(GMM_ERROR_INVALID_VALUE, "Advice %" PRIu32 " is unknown; pass one of GMM_ADVISE_*.", advice);
  }
  // No advice has an effect on one memory, but the system checks whether the range is mapped. It takes whole pages, as
  // cuMemAdvise() rounds to them.
  const uintptr_t page = os::page_size();
  const uintptr_t begin = reinterpret_cast<uintptr_t>(base) & ~(page - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(base) + size + page - 1) & ~(page - 1);
  return os::advise_pages(reinterpret_cast<void *>(begin), end - begin, MADV_NORMAL);
}

Status HostBackend::prefetch(void *base, uint64_t size, Device location, Device stream_device, gmm_stream stream) {
  GMM_TRY(check_location(location));
  HostStream *target = nullptr;
  GMM_TRY(stream_of(stream_device, stream, &target));
  Status status = target->populate(base, size);
  target->release();
  return status;
}

// --- Streams and events ----------------------------------------------------------------------------------------------

namespace {

HostEvent *event_of(NativeEvent event) { return reinterpret_cast<HostEvent *>(event); }

Status no_event() { return fail(GMM_ERROR_INVALID_HANDLE, "The event is NULL; pass one of event_create()."); }

// Returns NULL for an event that this process made.
HostSharedEvent *imported_of(NativeEvent event) {
  HostSharedEvent *shared = event_of(event)->shared();
  return shared != nullptr && shared->imported() ? shared : nullptr;
}

Status maker_gone() {
  return fail(GMM_ERROR_IPC_PEER_GONE,
              "Waiting for an event: the process that made it ended before it recorded the event; import a new one.");
}

Status own_thread() {
  return fail(GMM_ERROR_BUSY,
              "Waiting for a stream in a call that runs on it: the wait would never end; wait on another thread.");
}

// Drops a reference to a stream at the end of a block.
class StreamReference {
 public:
  StreamReference() = default;
  ~StreamReference() {
    if (stream != nullptr) stream->release();
  }
  StreamReference(const StreamReference &) = delete;
  StreamReference &operator=(const StreamReference &) = delete;
  HostStream *operator->() const { return stream; }
  HostStream *stream = nullptr;
};

}  // namespace

Status HostBackend::stream_of(Device device, gmm_stream stream, HostStream **out) {
  // `device` matters for the special values only.
  if (stream == GMM_STREAM_DEFAULT || stream == GMM_STREAM_LEGACY || stream == GMM_STREAM_PER_THREAD)
    GMM_TRY(check_device(device));
  return streams_.acquire(device, stream, out);
}

Status HostBackend::stream_create(Device device, int32_t, gmm_stream *out) {
  GMM_TRY(check_device(device));
  return streams_.create(device, out);
}

Status HostBackend::stream_destroy(gmm_stream stream) {
  StreamReference target;
  GMM_TRY(streams_.remove(stream, &target.stream));
  target->close();
  return Status();
}

Status HostBackend::stream_synchronize(Device device, gmm_stream stream) {
  check_may_wait("a stream");
  StreamReference target;
  GMM_TRY(stream_of(device, stream, &target.stream));
  if (target->is_own_thread()) return own_thread();
  target->synchronize(target->position());
  return Status();
}

Status HostBackend::stream_is_capturing(Device device, gmm_stream stream, bool *out) {
  StreamReference target;
  GMM_TRY(stream_of(device, stream, &target.stream));
  *out = false;
  return Status();
}

Status HostBackend::stream_query(Device device, gmm_stream stream, bool *idle) {
  StreamReference target;
  GMM_TRY(stream_of(device, stream, &target.stream));
  *idle = target->passed(target->position());
  return Status();
}

Status HostBackend::stream_call(Device device, gmm_stream stream, void (*fn)(void *), void *user) {
  if (fn == nullptr) return fail(GMM_ERROR_NULL_ARGUMENT, "Queueing a call: the function is NULL; pass one.");
  StreamReference target;
  GMM_TRY(stream_of(device, stream, &target.stream));
  return target->call(fn, user);
}

Status HostBackend::copy(Device device, gmm_stream stream, void *destination, const void *source, uint64_t size) {
  StreamReference target;
  GMM_TRY(stream_of(device, stream, &target.stream));
  return size == 0 ? Status() : target->copy(views_.own(destination), views_.own(source), size);
}

Status HostBackend::fill(Device device, gmm_stream stream, void *destination, uint8_t value, uint64_t size) {
  StreamReference target;
  GMM_TRY(stream_of(device, stream, &target.stream));
  return size == 0 ? Status() : target->fill(views_.own(destination), value, size);
}

Status HostBackend::synchronize(Device device) {
  check_may_wait("a device");
  GMM_TRY(check_device(device));
  uint64_t last = 0;
  for (;;) {
    StreamReference target;
    target.stream = streams_.next(device, last);
    if (target.stream == nullptr) return Status();
    if (target->is_own_thread()) return own_thread();
    target->synchronize(target->position());
    last = target->id;
  }
}

Status HostBackend::event_create(Device device, NativeEvent *out) {
  GMM_TRY(check_device(device));
  HostEvent *event = allocator_.create<HostEvent>();
  if (event == nullptr) return no_memory_for("Creating an event");
  *out = reinterpret_cast<NativeEvent>(event);
  return Status();
}

Status HostBackend::event_destroy(NativeEvent event) {
  if (event == nullptr) return no_event();
  allocator_.destroy(event_of(event));
  return Status();
}

Status HostBackend::event_record(NativeEvent event, Device device, gmm_stream stream) {
  if (event == nullptr) return no_event();
  StreamReference target;
  GMM_TRY(stream_of(device, stream, &target.stream));
  return event_of(event)->record(target.stream);
}

Status HostBackend::event_synchronize(NativeEvent event) {
  check_may_wait("an event");
  if (event == nullptr) return no_event();
  if (const HostSharedEvent *shared = imported_of(event))
    return shared->wait(shared->recorded()) ? Status() : maker_gone();
  StreamReference target;
  uint64_t position = 0;
  target.stream = event_of(event)->get(&position);
  if (target.stream == nullptr || target->passed(position)) return Status();
  if (target->is_own_thread()) return own_thread();
  target->synchronize(position);
  return Status();
}

Status HostBackend::event_query(NativeEvent event, bool *passed) {
  if (event == nullptr) return no_event();
  if (const HostSharedEvent *shared = imported_of(event)) {
    *passed = shared->passed(shared->recorded());
    return Status();
  }
  StreamReference target;
  uint64_t position = 0;
  target.stream = event_of(event)->get(&position);
  *passed = target.stream == nullptr || target->passed(position);
  return Status();
}

Status HostBackend::stream_wait(Device device, gmm_stream stream, NativeEvent event) {
  if (event == nullptr) return no_event();
  StreamReference target;
  GMM_TRY(stream_of(device, stream, &target.stream));
  if (HostSharedEvent *shared = imported_of(event)) return target->wait_for(shared, shared->recorded());
  StreamReference source;
  uint64_t position = 0;
  source.stream = event_of(event)->get(&position);
  return source.stream == nullptr ? Status() : target->wait_for(source.stream, position);
}

Status HostBackend::make_event(HostSharedEvent *shared, NativeEvent *out) {
  HostEvent *event = allocator_.create<HostEvent>(shared);
  if (event == nullptr) {
    shared->release();
    return no_memory_for("Creating an event");
  }
  *out = reinterpret_cast<NativeEvent>(event);
  return Status();
}

Status HostBackend::shared_event_create(Device device, NativeEvent *out) {
  GMM_TRY(check_device(device));
  HostSharedEvent *shared = nullptr;
  GMM_TRY(HostSharedEvent::create(allocator_, &shared));
  return make_event(shared, out);
}

Status HostBackend::shared_event_export(Device, NativeEvent event, uint8_t[kLegacyHandleSize], int32_t *fd) {
  if (event == nullptr || event_of(event)->shared() == nullptr) return no_event();
  return event_of(event)->shared()->export_fd(fd);
}

Status HostBackend::shared_event_import(Device device, const uint8_t[kLegacyHandleSize], int32_t fd, const Peer &maker,
                                        NativeEvent *out) {
  GMM_TRY(check_device(device));
  HostSharedEvent *shared = nullptr;
  GMM_TRY(HostSharedEvent::open(allocator_, fd, maker, &shared));
  return make_event(shared, out);
}

// --- Semaphores of other APIs: sync files, which poll() shows as readable when they have passed ----------------------

namespace {

// Of a semaphore, or of one queued wait for it, which outlives the semaphore where a stream of another device waits.
struct SyncFile {
  const HostAllocator allocator;
  const int32_t fd;

  static Status open(const HostAllocator &allocator, int32_t from, SyncFile **out) {
    int32_t own = -1;
    GMM_TRY(os::duplicate(from, &own));
    *out = allocator.create<SyncFile>(SyncFile{allocator, own});
    if (*out != nullptr) return Status();
    os::close_file(own).ignore();
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "The host has no memory for a sync file; free memory.");
  }
  void close() {
    os::close_file(fd).ignore();
    const HostAllocator from = allocator;
    from.destroy(this);
  }
  static void wait(void *file) {
    SyncFile *own = static_cast<SyncFile *>(file);
    pollfd wanted = {own->fd, POLLIN, 0};
    while (::poll(&wanted, 1, -1) < 0 && errno == EINTR) {
    }
    own->close();
  }
};
SyncFile *file_of(NativeSemaphore semaphore) { return reinterpret_cast<SyncFile *>(semaphore); }

}  // namespace

Status HostBackend::semaphore_import(gmm_semaphore_type type, int32_t fd, Device device, NativeSemaphore *out) {
  GMM_TRY(check_device(device));
  if (type != GMM_SEMAPHORE_SYNC_FD)
    return fail(GMM_ERROR_NOT_SUPPORTED,
                "Importing semaphore descriptor %d: the host backend has no GPU that could wait for it; use "
                "GMM_SEMAPHORE_CALLS.",
                fd);
  SyncFile *file = nullptr;
  if (Status status = SyncFile::open(allocator_, fd, &file); !status.ok())
    return prefix(status, "Importing semaphore descriptor %d: ", fd);
  *out = reinterpret_cast<NativeSemaphore>(file);
  return Status();
}

Status HostBackend::semaphore_destroy(NativeSemaphore semaphore, Device) {
  file_of(semaphore)->close();
  return Status();
}

Status HostBackend::semaphore_signal(NativeSemaphore, Device, gmm_stream, uint64_t) {
  return fail(GMM_ERROR_NOT_SUPPORTED, "Signalling a sync file: only its maker signals it; wait for it.");
}

Status HostBackend::semaphore_wait(NativeSemaphore semaphore, Device device, gmm_stream stream, uint64_t) {
  SyncFile *waiting = nullptr;
  GMM_TRY(SyncFile::open(allocator_, file_of(semaphore)->fd, &waiting));
  const Status status = stream_call(device, stream, &SyncFile::wait, waiting);
  if (!status.ok()) waiting->close();
  return status;
}

// --- The search for zeros --------------------------------------------------------------------------------------------

namespace {

bool is_zero(const char *bytes, uint64_t size) {
  // Bytes that begin with a zero and equal themselves shifted by one are all zero. memcmp() is fast.
  constexpr uint64_t kPart = uint64_t{64} << 10;
  if (size == 0) return true;
  if (bytes[0] != 0) return false;
  for (uint64_t at = 0; at + 1 < size; at += kPart) {
    const uint64_t left = size - 1 - at;
    if (std::memcmp(bytes + at, bytes + at + 1, left < kPart ? left : kPart) != 0) return false;
  }
  return true;
}

struct Search {
  HostAllocator allocator;
  const HostViews &views;
  ZeroRange *ranges;
  uint64_t count;

  static void run(void *self) {
    Search *search = static_cast<Search *>(self);
    for (uint64_t i = 0; i < search->count; ++i) {
      ZeroRange &range = search->ranges[i];
      const void *begin = search->views.own(reinterpret_cast<const void *>(range.base));
      if (!is_zero(static_cast<const char *>(begin), range.size)) range.nonzero = 1;
    }
    const HostAllocator allocator = search->allocator;
    allocator.destroy(search);
  }
};

}  // namespace

Status HostBackend::find_zeros(Device device, gmm_stream stream, ZeroRange *ranges, uint64_t count) {
  Search *search = allocator_.create<Search>(Search{allocator_, views_, ranges, count});
  if (search == nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY,
                "Searching for zeros: the host has no memory for the search; free memory.");
  const Status status = stream_call(device, stream, &Search::run, search);
  if (!status.ok()) allocator_.destroy(search);
  return status;
}

}  // namespace gmm
