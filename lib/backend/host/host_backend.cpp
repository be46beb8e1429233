// SPDX-License-Identifier: Apache-2.0
// HostBackend: the operations of backend.h over the operating system. The sections follow that header.
#include "backend/host/host_backend.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "backend/host/host_card.h"
#include "backend/host/host_stream.h"
#include "backend/host/host_views.h"
#include "base/hash_table.h"
#include "base/memory_files.h"
#include "base/os_memory.h"
#include "base/process.h"

namespace gmm {
namespace {

constexpr uint32_t kCapabilities = GMM_DEVICE_CAN_PAUSE | GMM_DEVICE_CAN_EXPORT_FD | GMM_DEVICE_CAN_CONCURRENT_MANAGED |
                                   GMM_DEVICE_CAN_PIN | GMM_DEVICE_CAN_PAGEABLE | GMM_DEVICE_IS_CPU;
constexpr gmm_kind_mask kKinds =
    1u << GMM_KIND_DEVICE | 1u << GMM_KIND_VMM | 1u << GMM_KIND_HOST | 1u << GMM_KIND_MANAGED;

// MemoryPiece::user is the device whose memory the piece counts against; imported and host memory count against none.
PhysicalHandle handle_of(MemoryPiece *piece) { return {reinterpret_cast<uintptr_t>(piece)}; }
MemoryPiece *piece_of(PhysicalHandle handle) { return reinterpret_cast<MemoryPiece *>(handle.value); }

HostEvent *event_of(NativeEvent event) { return reinterpret_cast<HostEvent *>(event); }

// A semaphore is the descriptor of a sync file, which poll() shows as readable when it has passed. It is at least 3.
int32_t file_of(NativeSemaphore semaphore) { return static_cast<int32_t>(reinterpret_cast<intptr_t>(semaphore)); }

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

}  // namespace

class HostBackend final : public StreamBackend<HostStreamTable, HostStream> {
 public:
  HostBackend(const HostAllocator &allocator, const Log &log, const HostBackendOptions &options)
      : StreamBackend(allocator, log, allocator, log), options_(options), files_(allocator), views_(allocator) {}

  Status open() {
    os::MemoryInfo info;
    GMM_TRY(os::memory_info(&info));
    if (options_.devices == 0) options_.devices = 1;
    // The memory of a device is a whole number of granules.
    memory_ = (options_.memory != 0 ? options_.memory : info.total) & ~(kExtentAlignment - 1);
    if (memory_ == 0)
      return fail(GMM_ERROR_INVALID_VALUE,
                  "A host backend with %" PRIu64 " bytes a device: a device needs at least 2 MiB; request more.",
                  options_.memory);
    return options_.card == nullptr ? Status() : card_.open(options_.card, &memory_);
  }

  void destroy() override {
    streams_.close();
    card_.close();
    const HostAllocator allocator = allocator_;
    allocator.destroy(this);
  }

  // --- Devices and addresses -----------------------------------------------------------------------------------------

  gmm_backend id() const override { return GMM_BACKEND_HOST; }
  const char *name() const override { return "host"; }

  void driver_version(char *text, uint64_t size) const override {
    utsname system = {};
    uname(&system);
    std::snprintf(text, size, "%s", system.release);
  }

  uint32_t device_count() const override { return options_.devices; }

  Status device_info(Device device, gmm_device_info *out) override {
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
    utsname system = {};
    uname(&system);
    const int length = std::snprintf(out->name, sizeof out->name, "Host memory (%s)", system.machine);
    if (options_.devices > 1)
      std::snprintf(out->name + length, sizeof out->name - static_cast<size_t>(length), ", device %" PRId32,
                    device.ordinal);
    // All processes of the machine agree on it, in any container, until its next start.
    char boot[64] = {};
    machine_boot(boot, sizeof boot);
    make_uuid(hash_of_text(boot), device, out->uuid);
    return Status();
  }

  // The system does not record who allocated ordinary memory, so no address is known.
  void identify(const void *, ForeignPointer *out) override { *out = ForeignPointer{}; }
  bool is_cpu_memory() const override { return !options_.is_strict; }
  void *device_address(const void *address) const override { return views_.own(address); }

  // --- Plain allocations ---------------------------------------------------------------------------------------------

  Status allocate(Kind kind, Device device, uint64_t size, bool exportable, Allocation *out) override {
    Allocation made;
    made.kind = kind;
    made.device = device;
    made.size = made.driver_size = size;
    GMM_TRY(os::check_available(size, kind == Kind::kHost ? GMM_ERROR_OUT_OF_HOST_MEMORY : GMM_ERROR_OUT_OF_MEMORY));
    if (kind == Kind::kDevice) {
      GMM_TRY(take(device, size));
      if (Status status = map_new_piece("gmm-device", kind, exportable, &made); !status.ok()) {
        give_back(device, size);
        return status;
      }
    } else if (kind == Kind::kHost) {
      GMM_TRY(map_new_piece("gmm-host", kind, exportable, &made));
      lock_if_allowed(made.base, size);
    } else {
      GMM_TRY(os::map_anonymous(size, kExtentAlignment, &made.base));
      os::prefer_huge_pages(made.base, size);
    }
    count_call();
    *out = made;
    return Status();
  }

  Status deallocate(const Allocation &allocation) override {
    GMM_TRY(views_.has(allocation.base) ? views_.unreserve(allocation.base, allocation.size)
                                        : os::unmap(allocation.base, allocation.size));
    count_call();
    if (allocation.kind == Kind::kDevice) give_back(allocation.device, allocation.size);
    MemoryPiece *piece = static_cast<MemoryPiece *>(allocation.driver_base);
    return piece == nullptr ? Status() : files_.release(piece);
  }

  Status import_host(int32_t fd, uint64_t size, Device device, bool locked, Allocation *out) override {
    GMM_TRY(os::memory_file_check(fd, size));
    MemoryPiece *piece = nullptr;
    GMM_TRY(files_.adopt(fd, size, &piece));
    Allocation made;
    if (Status status = map_piece(piece, !locked, &made); !status.ok()) {
      files_.forget(piece);
      return status;
    }
    count_call();
    if (locked) lock_if_allowed(made.base, size);
    made.kind = Kind::kHost;
    made.device = device;
    *out = made;
    return Status();
  }

  // --- Virtual memory management -------------------------------------------------------------------------------------

  Status reserve(uint64_t size, void **out) override {
    return counted(options_.is_strict ? views_.reserve(size, kExtentAlignment, out)
                                      : os::reserve(size, kExtentAlignment, out));
  }

  Status reserve_at(void *base, uint64_t size) override {
    if (options_.is_strict) return Backend::reserve_at(base, size);
    return counted(os::reserve_free(base, size));
  }

  Status unreserve(void *base, uint64_t size) override {
    return counted(options_.is_strict ? views_.unreserve(base, size) : os::unmap(base, size));
  }

  // A shortage that the system can foresee fails here: see os_memory.h. Memory that was available at its creation may
  // still be short when it is first touched.
  Status create(Device location, uint64_t size, bool exportable, PhysicalHandle *out) override {
    const bool is_counted = !location.is_host();
    GMM_TRY(os::check_available(size, is_counted ? GMM_ERROR_OUT_OF_MEMORY : GMM_ERROR_OUT_OF_HOST_MEMORY));
    if (is_counted) GMM_TRY(take(location, size));
    MemoryPiece *piece = nullptr;
    if (Status status = files_.create("gmm-vmm", size, exportable, &piece); !status.ok()) {
      if (is_counted) give_back(location, size);
      return status;
    }
    if (is_counted) piece->user = location.ordinal;
    *out = handle_of(piece);
    return counted(Status());
  }

  // Every network library takes the machine's memory.
  Status comm_traits(Device, CommTraits *out) override {
    *out = CommTraits();
    return Status();
  }

  Status release(PhysicalHandle handle) override {
    const MemoryPiece piece = *piece_of(handle);
    GMM_TRY(files_.release(piece_of(handle)));
    if (piece.user >= 0) give_back(Device{piece.user}, piece.size);
    return counted(Status());
  }

  bool is_held_elsewhere(PhysicalHandle handle) override {
    const MemoryPiece &piece = *piece_of(handle);
    return !piece.is_shared_file && os::is_shared(piece.fd);
  }

  Status map(void *base, uint64_t size, PhysicalHandle handle) override {
    const MemoryPiece &piece = *piece_of(handle);
    return counted(options_.is_strict ? views_.map(base, size, piece.fd, piece.offset)
                                      : os::map_file_at(base, size, piece.fd, piece.offset, os::Access::kNone));
  }

  Status unmap(void *base, uint64_t size) override {
    return counted(options_.is_strict ? views_.unmap(base, size) : os::reserve_at(base, size));
  }

  Status set_access(void *base, uint64_t size, Device owner, uint32_t) override {
    return give_access(base, size, owner, os::Access::kReadWrite);
  }
  Status set_read_only(void *base, uint64_t size, Device owner) override {
    return give_access(base, size, owner, os::Access::kRead);
  }

  Status populate(void *base, uint64_t size) override { return os::populate_pages(views_.own(base), size); }

  bool is_exportable(PhysicalHandle handle) override { return !piece_of(handle)->is_shared_file; }

  Status export_fd(PhysicalHandle handle, int32_t *fd) override { return counted(os::share(piece_of(handle)->fd, fd)); }

  Status import_fd(int32_t fd, uint64_t size, Device, PhysicalHandle *out) override {
    GMM_TRY(os::memory_file_check(fd, size));
    int32_t own = -1;
    GMM_TRY(os::duplicate(fd, &own));
    MemoryPiece *piece = nullptr;
    if (Status status = files_.adopt(own, size, &piece); !status.ok()) {
      os::close_file(own).ignore();
      return status;
    }
    *out = handle_of(piece);
    return counted(Status());
  }

  // --- The caller's own memory ---------------------------------------------------------------------------------------

  Status pin(void *base, uint64_t size, uint32_t, Device, void **device_pointer) override {
    GMM_TRY(os::lock_pages(base, size));
    *device_pointer = base;
    return counted(Status());
  }

  Status unpin(void *base, uint64_t size) override { return counted(os::unlock_pages(base, size)); }

  // --- Residency of kManaged memory: the machine's memory is every device's, so no page can move ---------------------

  Status advise(void *, uint64_t, gmm_advice, Device) override { return Status(); }

  Status prefetch(void *base, uint64_t size, Device, Device stream_device, gmm_stream stream) override {
    return with(stream_device, stream, [&](HostStream &target) {
      return target.run([this, base, size] {
        // A prefetch is a hint. It must not make the machine swap or run out of memory. Its failure is only logged.
        Status status = os::check_available(size, GMM_ERROR_OUT_OF_MEMORY);
        if (status.ok()) status = os::populate_pages(base, size);
        if (!status.ok()) log_.write(LogLevel::kDebug, "A prefetch had no effect. %s", last_message());
      });
    });
  }

  // --- Events --------------------------------------------------------------------------------------------------------

  Status event_create(Device, NativeEvent *out) override { return make_event(nullptr, out); }

  Status event_destroy(NativeEvent event) override {
    allocator_.destroy(event_of(event));
    return Status();
  }

  Status event_record(NativeEvent event, Device device, gmm_stream stream) override {
    return with(device, stream, [&](HostStream &target) { return event_of(event)->record(&target); });
  }

  // The event is one of this process: the engine asks again and again about one of another process.
  Status event_synchronize(NativeEvent event) override {
    check_may_wait("an event");
    return event_of(event)->with_position([](HostStream &source, uint64_t position) {
      const Status status = source.passed(position) ? Status() : source.check_other_thread();
      if (status.ok()) source.wait_until(position);
      return status;
    });
  }

  Status event_query(NativeEvent event, bool *passed) override {
    const HostSharedEvent *imported = event_of(event)->imported();
    *passed = imported == nullptr || imported->passed(imported->recorded());
    return event_of(event)->with_position([passed](HostStream &source, uint64_t position) {
      *passed = source.passed(position);
      return Status();
    });
  }

  Status stream_wait(Device device, gmm_stream stream, NativeEvent event) override {
    return with(device, stream, [&](HostStream &target) {
      if (HostSharedEvent *imported = event_of(event)->imported())
        return target.wait_for(imported, imported->recorded());
      return event_of(event)->with_position(
          [&](HostStream &source, uint64_t position) { return target.wait_for(&source, position); });
    });
  }

  Status shared_event_create(Device, NativeEvent *out) override {
    HostSharedEvent *shared = nullptr;
    GMM_TRY(HostSharedEvent::create(allocator_, &shared));
    return make_event(shared, out);
  }

  Status shared_event_export(Device, NativeEvent event, uint8_t[kLegacyHandleSize], int32_t *fd) override {
    return event_of(event)->shared()->export_fd(fd);
  }

  Status shared_event_import(Device, const uint8_t[kLegacyHandleSize], int32_t fd, const Peer &maker,
                             NativeEvent *out) override {
    HostSharedEvent *shared = nullptr;
    GMM_TRY(HostSharedEvent::open(allocator_, fd, maker, &shared));
    return make_event(shared, out);
  }

  // --- Semaphores of other APIs --------------------------------------------------------------------------------------

  Status semaphore_import(gmm_semaphore_type type, int32_t fd, Device, NativeSemaphore *out) override {
    if (type != GMM_SEMAPHORE_SYNC_FD)
      return fail(GMM_ERROR_NOT_SUPPORTED,
                  "Importing semaphore descriptor %d: the host backend has no GPU that could wait for it; use "
                  "GMM_SEMAPHORE_CALLS.",
                  fd);
    struct stat status;
    if (::fstat(fd, &status) == 0 && (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)))
      return fail(
          GMM_ERROR_INVALID_VALUE,
          "Importing semaphore descriptor %d: it is a file of a disk, on which nothing waits; give a sync file.", fd);
    int32_t own = -1;
    GMM_TRY(prefix(os::duplicate(fd, &own), "Importing semaphore descriptor %d: ", fd));
    *out = reinterpret_cast<NativeSemaphore>(static_cast<intptr_t>(own));
    return Status();
  }

  Status semaphore_destroy(NativeSemaphore semaphore, Device) override {
    os::close_file(file_of(semaphore)).ignore();
    return Status();
  }

  Status semaphore_signal(NativeSemaphore, Device, gmm_stream, uint64_t) override {
    return fail(GMM_ERROR_NOT_SUPPORTED, "Signalling a sync file: only its maker signals it; wait for it.");
  }

  Status semaphore_wait(NativeSemaphore semaphore, Device device, gmm_stream stream, uint64_t) override {
    // The wait has a descriptor of its own: it outlives the semaphore where a stream of another device waits.
    int32_t own = -1;
    GMM_TRY(os::duplicate(file_of(semaphore), &own));
    const Status status = with(device, stream, [own](HostStream &target) {
      return target.run([own] {
        pollfd wanted = {own, POLLIN, 0};
        while (::poll(&wanted, 1, -1) < 0 && errno == EINTR) {
        }
        os::close_file(own).ignore();
      });
    });
    if (!status.ok()) os::close_file(own).ignore();
    return status;
  }

  bool calls_may_wait() const override { return true; }  // each stream has a thread of its own

  // --- The search for zeros ------------------------------------------------------------------------------------------

  Status find_zeros(Device device, gmm_stream stream, ZeroRange *ranges, uint64_t count) override {
    return with(device, stream, [&](HostStream &target) {
      return target.run([this, ranges, count] {
        for (ZeroRange *range = ranges; range != ranges + count; ++range) {
          const void *begin = views_.own(reinterpret_cast<const void *>(range->base));
          if (!is_zero(static_cast<const char *>(begin), range->size)) range->nonzero = 1;
        }
      });
    });
  }

 private:
  friend class HostAllocator;
  ~HostBackend() = default;

  Status give_access(void *base, uint64_t size, Device owner, os::Access access) {
    const bool is_programs = !options_.is_strict || owner.is_host();
    return counted(is_programs ? os::set_access(base, size, access) : Status());
  }
  Status counted(Status status) {
    if (status.ok()) count_call();
    return status;
  }

  // Accounts kDevice and VMM memory against the size that a device shows. kHost and kManaged memory lie outside of a
  // device, as on a GPU, and the machine's memory bounds them.
  Status take(Device device, uint64_t size) {
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

  void give_back(Device device, uint64_t size) {
    taken_[device.ordinal].fetch_sub(size, std::memory_order_relaxed);
    if (card_.is_open()) card_.give_back(static_cast<uint32_t>(device.ordinal), size);
  }

  // Maps a piece at addresses of its own. `of_device`: the CPU faults there where the backend is strict.
  Status map_piece(MemoryPiece *piece, bool of_device, Allocation *out) {
    const uint64_t size = piece->size;
    if (options_.is_strict && of_device) {
      GMM_TRY(views_.reserve(size, kExtentAlignment, &out->base));
      Status status = views_.map(out->base, size, piece->fd, piece->offset);
      if (!status.ok()) keep_first(&status, [&] { return views_.unreserve(out->base, size); });
      GMM_TRY(status);
    } else {
      GMM_TRY(os::map_file(size, kExtentAlignment, piece->fd, piece->offset, os::Access::kReadWrite, &out->base));
    }
    out->size = out->driver_size = size;
    out->driver_base = piece;
    if (!piece->is_shared_file) out->fd = piece->fd;
    return Status();
  }

  Status map_new_piece(const char *name, Kind kind, bool exportable, Allocation *out) {
    MemoryPiece *piece = nullptr;
    GMM_TRY(files_.create(name, out->size, exportable, &piece));
    Status status = map_piece(piece, kind == Kind::kDevice, out);
    if (!status.ok()) keep_first(&status, [&] { return files_.release(piece); });
    return status;
  }

  // Page-locks kHost memory. If the system forbids it, the memory stays pageable, with one warning.
  void lock_if_allowed(void *base, uint64_t size) {
    MessageGuard message_guard;  // the allocation succeeds even if the lock fails
    if (!os::lock_pages(base, size).ok() && !warned_unlocked_.exchange(true, std::memory_order_relaxed))
      log_.write(LogLevel::kWarning, "HOST memory stays pageable on the host backend. %s", last_message());
  }

  // Owns the caller's reference to `shared` from now on.
  Status make_event(HostSharedEvent *shared, NativeEvent *out) {
    HostEvent *event = allocator_.create<HostEvent>(shared);
    *out = reinterpret_cast<NativeEvent>(event);
    if (event != nullptr) return Status();
    if (shared != nullptr) shared->release();
    return no_memory_for("Creating an event");
  }

  HostBackendOptions options_;
  uint64_t memory_ = 0;  // of each device
  std::atomic<uint64_t> taken_[HostCard::kDevices] = {};
  HostCard card_;
  std::atomic<bool> warned_unlocked_{false};
  MemoryFiles files_;
  HostViews views_;  // empty unless strict
};

Status host_backend_create(const HostAllocator &allocator, const Log &log, const HostBackendOptions &options,
                           Backend **out) {
  return open_backend_as<HostBackend>(allocator, log, out, options);
}

}  // namespace gmm
