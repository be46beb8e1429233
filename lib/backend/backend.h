// SPDX-License-Identifier: Apache-2.0
// The seam between the engine and what memory really comes from.
//
// Each operation is a few lines over the driver and keeps no memory of its own: what was allocated is
// recorded by the engine. An operation either succeeds or fails without effect. Every operation may be called from any thread; the CUDA backend
// sets a context where the calling thread has none and restores what was there.
//
// The operations are not pure, so that the library needs no C++ runtime: a backend that lacks one inherits
// the answer NOT_SUPPORTED.
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

namespace gmm {

enum class Kind : uint32_t { kUnspecified = 0, kDevice = 1, kVmm = 2, kHost = 3, kManaged = 4 };
inline constexpr uint32_t kKindCount = 5;

struct Device {
  int32_t ordinal = 0;
  constexpr bool is_host() const { return ordinal < 0; }
  constexpr bool operator==(const Device &) const = default;
};
inline constexpr Device kHostLocation{GMM_DEVICE_HOST};

// Everything that a backend gives starts and ends at a multiple of this, so that one entry of the page map never speaks of
// two allocations. VMM granularity is the same or a divisor of it.
inline constexpr uint64_t kExtentAlignment = uint64_t{2} << 20;

// A plain allocation. `base` and `size` are what the engine uses; the rest is the backend's.
struct Allocation {
  void *base = nullptr;
  uint64_t size = 0;
  Kind kind = Kind::kUnspecified;
  Device device;
  void *driver_base =
      nullptr;  // where the driver's own allocation starts, when it had to be aligned; external_import(): its handle
  uint64_t driver_size = 0;
  int32_t fd = -1;  // kHost: the file behind the memory, for export; owned
};

// Physical memory without an address. CUDA: CUmemGenericAllocationHandle; host: a file.
struct PhysicalHandle {
  uint64_t value = 0;
};

// A backend's event. NULL is none.
using NativeEvent = struct NativeEventOpaque *;

struct ForeignPointer {
  gmm_usm usm = GMM_USM_UNKNOWN;
  Kind kind = Kind::kUnspecified;
  Device device = kHostLocation;
  bool known = false;  // the driver allocated or registered it
  void *base = nullptr;
  uint64_t size = 0;
};

// The graph that a stream is being captured into. Another number for each capture of the process; 0: the stream is not captured.
struct Capture {
  uint64_t id = 0;
  void *graph = nullptr;  // good until the capture ends
};

// A range of device memory, and whether any byte of it is not zero. The device's code knows this layout.
struct ZeroRange {
  uint64_t base;
  uint64_t size;
  uint32_t nonzero;  // comes in as 0
  uint32_t reserved;
};
static_assert(sizeof(ZeroRange) == 24);

inline constexpr uint64_t kLegacyHandleSize = 64;

class Backend {
 public:
  explicit Backend(const HostAllocator &allocator, const Log &log) : allocator_(allocator), log_(log) {}
  Backend(const Backend &) = delete;
  Backend &operator=(const Backend &) = delete;
  // Ends the backend's threads and frees the object. The engine has given everything back before.
  virtual void destroy();

  // --- What it is -----------------------------------------------------------------------------------
  virtual gmm_backend id() const;
  virtual const char *name() const;
  virtual void driver_version(char *text, uint64_t size) const;
  virtual uint32_t device_count() const;
  // Fills everything but struct_size. The device is valid.
  virtual Status device_info(Device device, gmm_device_info *out);
  // The NUMA node of the host's memory that is nearest to the device; -1: unknown.
  virtual int32_t host_numa_node(Device device);

  // --- Plain allocations: kDevice, kHost, kManaged ----------------------------------------------------
  // `size` is a multiple of kExtentAlignment; `base` comes back aligned to it. kHost memory is page-locked and
  // visible to every device; where the device can export (GMM_DEVICE_CAN_EXPORT_FD) it is backed by a file (memfd), and zeroed by the system.
  virtual Status allocate(Kind kind, Device device, uint64_t size, Allocation *out);
  // Does not wait for the device: the engine has.
  virtual Status deallocate(const Allocation &allocation);
  // Maps the file of another process's kHost memory; takes `fd` over on success.
  // `locked`: as kHost memory is; kDevice memory of the host backend, which has a file too, is not.
  virtual Status import_host(int32_t fd, uint64_t size, Device device, bool locked, Allocation *out);

  // --- Virtual memory management ----------------------------------------------------------------------
  // Sizes are multiples of kExtentAlignment, which every granularity divides.
  virtual Status reserve(uint64_t size, void **out);    // addresses only, aligned to kExtentAlignment
  virtual Status unreserve(void *base, uint64_t size);  // exactly one reservation, all unmapped
  virtual Status create(Device location, uint64_t size, PhysicalHandle *out);  // exportable; kHostLocation: host memory
  virtual Status release(PhysicalHandle handle);                               // pages go when the last mapping goes
  virtual Status map(void *base, uint64_t size, PhysicalHandle handle);        // the whole handle
  virtual Status unmap(void *base, uint64_t size);  // exactly what one or several map() calls mapped
  // Lets `owner` (and the host when `owner` is the host backend or the pages are on the host) and the devices of `peers` (bit d = device d) read and write.
  virtual Status set_access(void *base, uint64_t size, Device owner, uint32_t peers);
  virtual Status export_fd(PhysicalHandle handle, int32_t *fd);                             // the caller closes it
  virtual Status import_fd(int32_t fd, uint64_t size, Device device, PhysicalHandle *out);  // leaves `fd` to the caller

  // --- Legacy IPC of kDevice memory --------------------------------------------------------------------
  virtual Status legacy_export(void *driver_base, uint8_t out[kLegacyHandleSize]);
  virtual Status legacy_import(const uint8_t handle[kLegacyHandleSize], Device device, void **driver_base);
  virtual Status legacy_close(void *driver_base);

  // --- Descriptors of other libraries --------------------------------------------------------------------
  virtual Status export_dma_buf(const void *base, uint64_t size, int32_t *fd);  // the caller closes it
  // VULKAN or DMA_BUF, as kDevice memory for external_close(). Leaves `fd` to the caller.
  virtual Status external_import(int32_t fd, gmm_fd_type type, uint64_t size, Device device, Allocation *out);
  virtual Status external_close(const Allocation &allocation);

  // --- The caller's own memory. Whole pages; the engine has checked for overlaps. -----------------------
  virtual Status pin(void *base, uint64_t size, uint32_t flags, Device device, void **device_pointer);
  virtual Status unpin(void *base, uint64_t size);

  // --- Residency of kManaged memory ----------------------------------------------------------------------
  virtual Status advise(void *base, uint64_t size, gmm_advice advice, Device location);
  virtual Status prefetch(void *base, uint64_t size, Device location, Device stream_device, gmm_stream stream);

  // --- Streams. `device` says whose default stream is meant by the three special values. ------------------
  virtual Status stream_create(Device device, gmm_stream *out);
  virtual Status stream_destroy(gmm_stream stream);  // waits for its work
  virtual Status stream_synchronize(Device device, gmm_stream stream);
  virtual Status stream_is_capturing(Device device, gmm_stream stream, bool *out);
  virtual Status stream_query(Device device, gmm_stream stream, bool *idle);  // not of a stream in capture
  virtual Status stream_call(Device device, gmm_stream stream, void (*fn)(void *), void *user);
  virtual Status copy(Device device, gmm_stream stream, void *destination, const void *source, uint64_t size);
  virtual Status fill(Device device, gmm_stream stream, void *destination, uint8_t value, uint64_t size);
  // Fills in `nonzero` of each range, in the stream's order. `ranges` is where the device sees page-locked memory: pin() told. At most 65,535.
  virtual Status find_zeros(Device device, gmm_stream stream, ZeroRange *ranges, uint64_t count);
  virtual Status synchronize(Device device);  // everything queued on the device, on any stream
  virtual bool can_capture() const;           // false: no stream is ever captured
  // Asked at every allocation on a stream: false must be cheap. True: capture_of() knows more.
  virtual bool may_be_capturing(Device device, gmm_stream stream);
  // CAPTURING when the capture has failed and only its end is left.
  virtual Status capture_of(Device device, gmm_stream stream, Capture *out);
  // Has fn(user) called when the graph and whatever was made from it are gone, on a thread that may call neither gmm nor the driver. Once
  // in any case: after a failure of this function at any moment from then on.
  virtual Status at_end_of_graph(Device device, void *graph, void (*fn)(void *), void *user);
  virtual Status event_create(Device device, NativeEvent *out);
  virtual Status event_destroy(NativeEvent event);
  virtual Status event_record(NativeEvent event, Device device, gmm_stream stream);
  virtual Status event_synchronize(NativeEvent event);
  virtual Status event_query(NativeEvent event, bool *passed);  // never recorded: passed
  virtual Status stream_wait(Device device, gmm_stream stream, NativeEvent event);
  // An event that another process can open: it is recorded where it was made only. Either the driver's handle or a descriptor stands for it.
  virtual Status shared_event_create(Device device, NativeEvent *out);
  // *fd: the caller closes it; -1 when the 64 bytes say all.
  virtual Status shared_event_export(NativeEvent event, uint8_t out[kLegacyHandleSize], int32_t *fd);
  // Leaves `fd` and the descriptors of `maker` to the caller. Waits that are queued end when the maker is gone.
  virtual Status shared_event_import(Device device, const uint8_t handle[kLegacyHandleSize], int32_t fd,
                                     const Peer &maker, NativeEvent *out);

  // --- Questions ------------------------------------------------------------------------------------------
  // About an address that the engine does not know. Never fails: `known` stays false.
  virtual void identify(const void *address, ForeignPointer *out);

  // Calls that allocate, free, map, unmap, pin or export so far.
  uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

 protected:
  ~Backend() = default;
  void count_call() { calls_.fetch_add(1, std::memory_order_relaxed); }

  const HostAllocator allocator_;
  const Log log_;

 private:
  Status lacks(const char *operation) const;
  std::atomic<uint64_t> calls_{0};
};

}  // namespace gmm
#endif
