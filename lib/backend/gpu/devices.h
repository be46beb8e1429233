// SPDX-License-Identifier: Apache-2.0
// The devices of a GPU backend and the driver contexts in which its operations run.
//
// Owns: the driver, the state of each device, its primary context and its module.
//
// Invariants: memory belongs to the primary context of its device, even if the calling thread uses another context of
// the device, because the program may destroy that one. Work on a stream runs in the stream's own context. A context is
// retained at its first use and released by close().
//
// Lock: `mutex_` serialises the retaining of contexts and the loading of modules. No other lock is taken under it.
//
// Callers: GpuBackend, at the beginning of every operation.
#ifndef GMM_BACKEND_GPU_DEVICES_H
#define GMM_BACKEND_GPU_DEVICES_H

#include <atomic>

#include "backend/backend.h"
#include "backend/gpu/context_guard.h"
#include "backend/gpu/driver.h"
#include "base/lock.h"

namespace gmm::gpu {

// The abilities of a device: the field of DeviceState, the driver's attribute, and the capability that it gives.
#define GMM_CUDA_ABILITIES(ABILITY)                                                                            \
  ABILITY(vmm, VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, GMM_DEVICE_CAN_PAUSE)                                      \
  ABILITY(vmm_fd, HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, GMM_DEVICE_CAN_EXPORT_FD)                       \
  ABILITY(fabric, HANDLE_TYPE_FABRIC_SUPPORTED, 0) /* has_fabric() knows more */                               \
  ABILITY(rdma, GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, GMM_DEVICE_CAN_RDMA)                                  \
  ABILITY(host_numa_vmm, HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, GMM_DEVICE_CAN_HOST_NUMA)              \
  ABILITY(managed, MANAGED_MEMORY, 0)                                                                          \
  ABILITY(concurrent_managed, CONCURRENT_MANAGED_ACCESS, GMM_DEVICE_CAN_CONCURRENT_MANAGED)                    \
  ABILITY(pin, HOST_REGISTER_SUPPORTED, GMM_DEVICE_CAN_PIN)                                                    \
  ABILITY(pin_read_only, READ_ONLY_HOST_REGISTER_SUPPORTED, 0)                                                 \
  ABILITY(pin_same_address, CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 0)                                        \
  ABILITY(pageable, PAGEABLE_MEMORY_ACCESS, GMM_DEVICE_CAN_PAGEABLE)                                           \
  ABILITY(host_page_tables, PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, GMM_DEVICE_CAN_HOST_PAGE_TABLES)     \
  ABILITY(legacy_ipc, IPC_EVENT_SUPPORTED, GMM_DEVICE_CAN_LEGACY_IPC) /* as cuIpcGetMemHandle()'s page says */ \
  ABILITY(dma_buf, DMA_BUF_SUPPORTED, GMM_DEVICE_CAN_DMA_BUF)

// A device: the driver's answers about it when the backend was opened, and the objects that were made on it since.
struct DeviceState {
  CUdevice handle = 0;
#define GMM_CUDA_FIELD(name, which, capability) bool name = false;
  GMM_CUDA_ABILITIES(GMM_CUDA_FIELD)
#undef GMM_CUDA_FIELD
  uint64_t granularity = 0;       // 0: the device has no VMM
  uint64_t comm_granularity = 0;  // of memory for network libraries; 0 without VMM
  int32_t host_numa_node = -1;
  std::atomic<bool> refuses_fabric{false};      // the driver has refused such memory, in spite of `fabric`
  std::atomic<CUcontext> primary{nullptr};      // retained at its first use, released by close()
  std::atomic<CUfunction> find_zeros{nullptr};  // of `module`, which is loaded at its first use
  CUmodule module = nullptr;
};

class Devices {
 public:
  // The mask of peers in backend.h has so many.
  static constexpr uint32_t kMost = 32;

  Devices(const Vendor &vendor, const Log &log) : driver(vendor), log_(log) {}

  // Opens the driver and reads what each device can do.
  Status open();
  // Unloads modules and releases contexts, if this process opened the driver.
  void close();

  uint32_t count() const { return count_; }
  DeviceState &operator[](uint32_t ordinal) { return states_[ordinal]; }
  const DeviceState &operator[](uint32_t ordinal) const { return states_[ordinal]; }
  DeviceState &operator[](Device device) { return states_[device.ordinal]; }
  const DeviceState &operator[](Device device) const { return states_[device.ordinal]; }
  // The failure of an operation that the device lacks. `attribute` is the driver's name of the missing ability.
  Status lacks(Device device, const char *operation, const char *attribute) const;

  // --- Contexts: one that fits is current for the life of the guard ----------------------------------------------
  // Whether anybody in the process has started it: else its primary context has no work that one could wait for.
  bool is_started(Device device) const;
  // Whether the caller's context is one of the device: the primary one, or one that the program made.
  Status is_current(ContextGuard &guard, Device device, bool *out);
  Status enter(ContextGuard &guard, Device device);              // the device's primary context
  Status enter_any(ContextGuard &guard);                         // any context, for calls that name no device
  Status enter_owner(ContextGuard &guard, const void *address);  // the context that owns the memory
  Status enter_stream(ContextGuard &guard, Device device, gmm_stream stream);  // the stream's own context

  // The device's primary context, started at its first use.
  Status primary(Device device, CUcontext *out);

  // The kernel that searches for zeros, loaded at its first use. The device's context is current.
  Status zeros_function(Device device, CUfunction *out);

  Driver driver;

 private:
  Status attribute(CUdevice device, CUdevice_attribute which, int32_t *out) const;
  Status probe(DeviceState *state, int ordinal);

  const Log log_;
  DeviceState states_[kMost];
  uint32_t count_ = 0;
  int32_t process_ = 0;
  Mutex mutex_{LockRank::kCudaDevices};
};

// Physical memory of a device; without a handle for other processes.
CUmemAllocationProp device_pages(CUdevice device);
// Physical memory for network libraries.
CUmemAllocationProp comm_pages(const DeviceState &state, bool with_fabric);

inline CUstream to_driver(gmm_stream stream) { return reinterpret_cast<CUstream>(stream); }

// The three special values are small numbers, and the same as the driver's.
inline bool is_special(gmm_stream stream) {
  return reinterpret_cast<uintptr_t>(stream) <= reinterpret_cast<uintptr_t>(GMM_STREAM_PER_THREAD);
}

}  // namespace gmm::gpu
#endif
