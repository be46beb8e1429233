// SPDX-License-Identifier: Apache-2.0
// The interface between the engine and a backend, which is the source of memory, streams and events.
//
// Owns: nothing that the engine asked for. Each operation is a few lines over the driver, and the engine
// records the allocations. A backend owns its connection to the driver, and streams and events as objects.
//
// Invariants: an operation either succeeds or fails without effect. Its Status says what was asked, what stood in the
// way and what to do.
//
// Threads: any thread may call any operation. A GPU backend sets a driver context where the calling thread has none,
// and restores the thread's state afterwards. A backend's own locks come last in the lock order.
//
// Callers: every module of the engine, through Core::backend. context/factory.cpp alone names a concrete backend.
//
// The engine passes devices below device_count(), live objects, sizes above 0 and values that api/ has checked, so a
// backend checks none of them again. A backend that lacks an operation inherits the answer NOT_SUPPORTED. The engine
// calls most of these only where a device shows the kind or the capability.
#ifndef GMM_BACKEND_BACKEND_H
#define GMM_BACKEND_BACKEND_H

#include <gmm/context.h>
#include <gmm/ipc.h>
#include <gmm/memory.h>
#include <gmm/residency.h>
#include <gmm/types.h>

#include <atomic>
#include <cstdint>

#include "base/host_allocator.h"
#include "base/log.h"
#include "base/peer.h"
#include "base/status.h"
#include "base/thread.h"

namespace gmm {

enum class Kind : uint32_t { kUnspecified = 0, kDevice = 1, kVmm = 2, kHost = 3, kManaged = 4 };
inline constexpr uint32_t kKindCount = 5;

struct Device {
  int32_t ordinal = 0;
  constexpr bool is_host() const { return ordinal < 0; }
  // Of a location GMM_DEVICE_NUMA(n): n. -1: the location names no node.
  constexpr int32_t numa_node() const { return ordinal < GMM_DEVICE_HOST ? GMM_DEVICE_NUMA(0) - ordinal : -1; }
  constexpr bool operator==(const Device &) const = default;
};
inline constexpr Device kHostLocation{GMM_DEVICE_HOST};

// Everything that a backend returns starts and ends at a multiple of this. So one entry of the page map never describes
// two allocations. The granularity of VMM memory equals it or divides it.
inline constexpr uint64_t kExtentAlignment = uint64_t{2} << 20;

// A plain allocation. The engine uses `base` and `size`; the rest is the backend's.
struct Allocation {
  void *base = nullptr;
  uint64_t size = 0;
  Kind kind = Kind::kUnspecified;
  Device device;
  // Where the driver's own allocation starts, when it had to be aligned. Of external_import(): its handle. Of a memory
  // file: its MemoryPiece.
  void *driver_base = nullptr;
  uint64_t driver_size = 0;
  int32_t fd = -1;  // the file behind the memory, for export. -1: it has none of its own
};

// Physical memory without an address: a CUmemGenericAllocationHandle on CUDA, a MemoryPiece on the host backend.
struct PhysicalHandle {
  uint64_t value = 0;
};

// A backend's event. NULL: there is none.
using NativeEvent = struct NativeEventOpaque *;
// A semaphore of another API. NULL: there is none.
using NativeSemaphore = struct NativeSemaphoreOpaque *;

// Memory for network libraries on a device.
struct CommTraits {
  uint64_t granularity = kExtentAlignment;  // of sizes and addresses: a multiple of kExtentAlignment
  uint32_t peers = 0;                       // bit d: device d reaches the memory
};

struct ForeignPointer {
  gmm_usm usm = GMM_USM_UNKNOWN;
  Kind kind = Kind::kUnspecified;
  Device device = kHostLocation;
  bool known = false;  // the driver allocated or registered it
  void *base = nullptr;
  uint64_t size = 0;
};

// The graph into which a stream is captured. Each capture of the process has another id. 0: the stream is not captured.
struct Capture {
  uint64_t id = 0;
  void *graph = nullptr;  // valid until the capture ends
};

// A range of device memory, and whether any byte of it is not zero. The kernel of the CUDA backend knows this layout.
struct ZeroRange {
  uint64_t base;  // a multiple of 16, as the size is: chunks of kept contents begin and end at granules
  uint64_t size;
  uint32_t nonzero;  // 0 before the search
  uint32_t reserved;
};
static_assert(sizeof(ZeroRange) == 24);

// The memory of a device that is in use.
struct DeviceUse {
  uint8_t uuid[sizeof(gmm_device_info::uuid)];
  uint64_t total, used;  // by all processes
  uint64_t pool;         // the driver's default pool has it for this process: cuMemAllocAsync()
  uint64_t graphs;       // the driver has it for allocations in graphs of this process
};

inline constexpr uint64_t kLegacyHandleSize = 64;
inline constexpr uint64_t kFabricHandleSize = 64;

// The default answers read no parameter.
// NOLINTBEGIN(misc-unused-parameters)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
class Backend {
 public:
  explicit Backend(const HostAllocator &allocator, const Log &log) : allocator_(allocator), log_(log) {}
  // Ends the backend's threads and destroys the object. The engine has freed everything before.
  virtual void destroy() = 0;

  // --- What it is -----------------------------------------------------------------------------------
  virtual gmm_backend id() const = 0;
  virtual const char *name() const = 0;
  virtual void driver_version(char *text, uint64_t size) const = 0;
  virtual uint32_t device_count() const = 0;
  // Fills every field but struct_size. The device is valid.
  virtual Status device_info(Device device, gmm_device_info *out) = 0;
  // device_info() without free_memory. It does not start the device, which would take memory on it.
  virtual Status device_traits(Device device, gmm_device_info *out) { return device_info(device, out); }
  // The NUMA node of host memory that is nearest to the device. -1: it is unknown.
  virtual int32_t host_numa_node(Device device) { return -1; }

  // --- Plain allocations: kDevice, kHost, kManaged ----------------------------------------------------
  // `size` is a multiple of kExtentAlignment, and `base` is aligned to it. kHost memory is page-locked and visible to
  // every device. If the device can export (GMM_DEVICE_CAN_EXPORT_FD), a memory file is behind it, which the system has
  // zeroed.
  // `exportable`: as for create().
  virtual Status allocate(Kind kind, Device device, uint64_t size, bool exportable, Allocation *out) = 0;
  // Does not wait for the device, because the engine has.
  virtual Status deallocate(const Allocation &allocation) = 0;
  // Maps the file of another process's kHost memory, and owns `fd` on success. `locked`: the memory is page-locked, as
  // kHost memory is. kDevice memory of the host backend has a file too and is not locked.
  virtual Status import_host(int32_t fd, uint64_t size, Device device, bool locked, Allocation *out) {
    return lacks("shared host memory");
  }

  // --- Virtual memory management ----------------------------------------------------------------------
  // Sizes are multiples of kExtentAlignment, which every granularity divides.

  // Addresses only, aligned to kExtentAlignment.
  virtual Status reserve(uint64_t size, void **out) { return lacks("virtual memory management"); }
  // These addresses. OVERLAP: something lies there.
  virtual Status reserve_at(void *base, uint64_t size) { return lacks("memory at an address of the caller"); }
  // Takes exactly one reservation, with nothing mapped.
  virtual Status unreserve(void *base, uint64_t size) { return lacks(); }
  // OUT_OF_MEMORY when the location has less memory in all: create() would take handle after handle in vain and leave
  // nothing for others until it failed. Free memory is not asked for, as the driver evicts managed memory for a handle.
  virtual Status can_create(Device location, uint64_t size) { return Status(); }
  // is_host(): host memory. `exportable`: a descriptor of it can be exported. Other memory may have one, too: the host
  // backend has files for some of it, and CUDA's is all exportable.
  virtual Status create(Device location, uint64_t size, bool exportable, PhysicalHandle *out) { return lacks(); }
  // create() on a device, for network libraries: capable of RDMA, and with a descriptor and a fabric handle, as the
  // device has them. A backend whose ordinary memory serves them inherits create(). NOT_SUPPORTED from comm_traits():
  // the device has no such memory.
  virtual Status comm_traits(Device device, CommTraits *out) { return lacks(); }
  virtual Status create_comm(Device device, uint64_t size, PhysicalHandle *out) {
    return create(device, size, true, out);
  }
  // The pages end with the last mapping.
  virtual Status release(PhysicalHandle handle) { return lacks(); }
  // Whether others hold the pages, by a descriptor of export_fd() or a mapping of it: a release returns nothing
  // then. A backend that cannot tell inherits the answer false. Its free_memory() shows the effect of a release.
  virtual bool is_held_elsewhere(PhysicalHandle handle) { return false; }
  // The bytes of the device that nobody holds. NOT_SUPPORTED: is_held_elsewhere() tells.
  virtual Status free_memory(Device device, uint64_t *out) { return lacks("a count of free memory"); }
  // A backend whose driver has neither pool nor graphs inherits the figures of device_info().
  virtual Status device_use(Device device, DeviceUse *out);
  // Maps the whole handle.
  virtual Status map(void *base, uint64_t size, PhysicalHandle handle) { return lacks(); }
  // Takes exactly the range of one map() call, or of several where unmaps_runs().
  virtual bool unmaps_runs() const { return true; }
  virtual Status unmap(void *base, uint64_t size) { return lacks(); }
  // Lets `owner` and the devices of `peers` (bit d: device d) read and write. The host may, too, if `owner` is the host
  // backend's or the pages lie on the host.
  virtual Status set_access(void *base, uint64_t size, Device owner, uint32_t peers) { return lacks(); }
  // Lets `owner` read, and the host as set_access() does.
  virtual Status set_read_only(void *base, uint64_t size, Device owner) { return lacks(); }
  // Takes the pages of memory that allocate() or map() gave, so that their first use takes none. A backend whose driver
  // has the pages from the start inherits the answer OK.
  virtual Status populate(void *base, uint64_t size) { return Status(); }
  // Whether export_fd() gives a descriptor of the memory. True of memory that was created to be exportable.
  virtual bool is_exportable(PhysicalHandle handle) { return true; }
  // The caller closes the descriptor.
  virtual Status export_fd(PhysicalHandle handle, int32_t *fd) { return lacks(); }
  // `fd` stays the caller's.
  virtual Status import_fd(int32_t fd, uint64_t size, Device device, PhysicalHandle *out) {
    return lacks("file descriptors");
  }
  // Fabric handles, which other machines of an NVLink domain open: of memory of create_comm(), as long as has_fabric().
  // A handle keeps nothing alive. NOT_SUPPORTED: the memory has none.
  virtual bool has_fabric(Device device) const { return false; }
  virtual Status export_fabric(PhysicalHandle handle, uint8_t out[kFabricHandleSize]) { return lacks(); }
  virtual Status import_fabric(const uint8_t handle[kFabricHandleSize], uint64_t size, Device device,
                               PhysicalHandle *out) {
    return lacks("fabric handles");
  }

  // --- Legacy IPC of kDevice memory --------------------------------------------------------------------
  virtual Status legacy_export(void *driver_base, uint8_t out[kLegacyHandleSize]) { return lacks(); }
  virtual Status legacy_import(const uint8_t handle[kLegacyHandleSize], Device device, void **driver_base) {
    return lacks("legacy IPC");
  }
  virtual Status legacy_close(void *driver_base) { return lacks(); }

  // --- Descriptors of other libraries --------------------------------------------------------------------
  // The caller closes the descriptor.
  virtual Status export_dma_buf(const void *base, uint64_t size, int32_t *fd) { return lacks(); }
  // Imports a VULKAN or DMA_BUF descriptor as kDevice memory, which external_close() closes. `fd` stays the caller's.
  virtual Status external_import(int32_t fd, gmm_fd_type type, uint64_t size, Device device, Allocation *out) {
    return lacks("descriptors of Vulkan and dma-buf");
  }
  virtual Status external_close(const Allocation &allocation) { return lacks(); }

  // --- The caller's own memory. Whole pages; the engine has checked for overlaps. -----------------------
  virtual Status pin(void *base, uint64_t size, uint32_t flags, Device device, void **device_pointer) {
    return lacks("pinning");
  }
  virtual Status unpin(void *base, uint64_t size) { return lacks(); }

  // --- Residency of kManaged memory ----------------------------------------------------------------------
  virtual Status advise(void *base, uint64_t size, gmm_advice advice, Device location) = 0;
  virtual Status prefetch(void *base, uint64_t size, Device location, Device stream_device, gmm_stream stream) = 0;

  // --- Streams. `device` says whose default stream is meant by the three special values. ------------------
  // priority: as in CUDA; a backend without priorities takes any.
  virtual Status stream_create(Device device, int32_t priority, gmm_stream *out) = 0;
  virtual Status stream_destroy(gmm_stream stream) = 0;  // waits for its work
  virtual Status stream_synchronize(Device device, gmm_stream stream) = 0;
  virtual Status stream_is_capturing(Device device, gmm_stream stream, bool *out) = 0;
  virtual Status stream_query(Device device, gmm_stream stream, bool *idle) = 0;  // not for a stream that is captured
  virtual Status stream_call(Device device, gmm_stream stream, void (*fn)(void *), void *user) = 0;
  virtual Status copy(Device device, gmm_stream stream, void *destination, const void *source, uint64_t size) = 0;
  virtual Status fill(Device device, gmm_stream stream, void *destination, uint8_t value, uint64_t size) = 0;
  // Sets `nonzero` of each range in the stream's order. `ranges` is the device's address of page-locked memory, from
  // pin(). `count` is at most 65,535.
  virtual Status find_zeros(Device device, gmm_stream stream, ZeroRange *ranges, uint64_t count) { return lacks(); }
  virtual Status synchronize(Device device) = 0;      // waits for everything queued on the device, on any stream
  virtual bool can_capture() const { return false; }  // false: no stream is ever captured
  // Called at every allocation on a stream, so false must be cheap. If the answer is true, capture_of() knows more.
  virtual bool may_be_capturing(Device device, gmm_stream stream) { return false; }
  // Fails with CAPTURING if the capture has failed and only its end is left.
  virtual Status capture_of(Device device, gmm_stream stream, Capture *out) { return lacks(); }
  // Calls fn(user) when the graph and everything made from it are destroyed. The call runs on a thread that may call
  // neither gmm nor the driver. It happens once in any case: if this function fails, it happens at any moment from then
  // on.
  virtual Status at_end_of_graph(Device device, void *graph, void (*fn)(void *), void *user) { return lacks(); }
  virtual Status event_create(Device device, NativeEvent *out) = 0;
  virtual Status event_destroy(NativeEvent event) = 0;
  virtual Status event_record(NativeEvent event, Device device, gmm_stream stream) = 0;
  virtual Status event_synchronize(NativeEvent event) = 0;
  virtual Status event_query(NativeEvent event, bool *passed) = 0;  // an event that was never recorded has passed
  virtual Status stream_wait(Device device, gmm_stream stream, NativeEvent event) = 0;
  // Creates an event that other processes can open. Only its maker records it. Either the driver's handle or a
  // descriptor names it.
  virtual Status shared_event_create(Device device, NativeEvent *out) { return lacks("events between processes"); }
  // `device` is the event's. *fd belongs to the caller. It is -1 if the 64 bytes name the event completely.
  virtual Status shared_event_export(Device device, NativeEvent event, uint8_t out[kLegacyHandleSize], int32_t *fd) {
    return lacks();
  }
  // `fd` and the descriptors of `maker` stay the caller's. Queued waits end when the maker has ended.
  virtual Status shared_event_import(Device device, const uint8_t handle[kLegacyHandleSize], int32_t fd,
                                     const Peer &maker, NativeEvent *out) {
    return lacks("events between processes");
  }
  // stream_wait() for such an event, made or imported. `device` is the event's; the stream may be another one's.
  virtual Status shared_event_wait(Device device, gmm_stream stream, NativeEvent event) {
    return stream_wait(device, stream, event);
  }

  // Semaphores of other APIs. `fd` stays the caller's.
  virtual Status semaphore_import(gmm_semaphore_type type, int32_t fd, Device device, NativeSemaphore *out) {
    return lacks("semaphores");
  }
  // No queued work uses it.
  virtual Status semaphore_destroy(NativeSemaphore semaphore, Device device) { return lacks(); }
  virtual Status semaphore_signal(NativeSemaphore semaphore, Device device, gmm_stream stream, uint64_t value) {
    return lacks();
  }
  virtual Status semaphore_wait(NativeSemaphore semaphore, Device device, gmm_stream stream, uint64_t value) {
    return lacks();
  }
  // Whether a function of stream_call() may wait for one of another stream.
  virtual bool calls_may_wait() const { return false; }

  // --- Questions ------------------------------------------------------------------------------------------
  // Describes an address that the engine does not know. It never fails: for memory that the driver does not know,
  // `known` stays false.
  virtual void identify(const void *address, ForeignPointer *out) = 0;

  // Whether the CPU may use kDevice and VMM memory of a device, at the same address.
  virtual bool is_cpu_memory() const { return false; }
  // Where the functions of stream_call() find a byte of kDevice or VMM memory.
  virtual void *device_address(const void *address) const { return const_cast<void *>(address); }

  // The number of calls that allocated, freed, mapped, unmapped, pinned or exported so far.
  uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

 protected:
  ~Backend() = default;
  void count_call() { calls_.fetch_add(1, std::memory_order_relaxed); }

  const HostAllocator allocator_;
  const Log log_;

 private:
  Status lacks(const char *operation = "such operation") const;
  std::atomic<uint64_t> calls_{0};
};
#pragma GCC diagnostic pop
// NOLINTEND(misc-unused-parameters)

// The failure of an action, e.g. "Creating a stream".
Status no_memory_for(const char *action);
// NO_BACKEND in a child by fork of the process that opened the driver. 0: none has.
Status check_opener(const char *name, int32_t process);
// Starts the thread that does a stream's work.
Status start_stream_thread(Thread *out, void *(*fn)(void *), void *stream);

// Makes the id of a device whose driver has none, by RFC 9562: version 8 (vendor-defined), variant 1. The last byte has
// the ordinal.
void make_uuid(uint64_t hash, Device device, uint8_t out[16]);

// Makes a backend of the type T and opens it by its open().
template <typename T, typename... Options>
Status open_backend_as(const HostAllocator &allocator, const Log &log, Backend **out, const Options &...options) {
  T *backend = allocator.create<T>(allocator, log, options...);
  if (backend == nullptr) return no_memory_for("Opening a backend");
  if (Status status = backend->open(); !status.ok()) {
    MessageGuard message_guard;
    backend->destroy();
    return status;
  }
  *out = backend;
  return Status();
}

}  // namespace gmm
#endif
