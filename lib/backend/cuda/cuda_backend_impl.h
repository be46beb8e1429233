// SPDX-License-Identifier: Apache-2.0
// The CUDA backend's class; its operations are in cuda_backend.cpp (identity), cuda_context.cpp, cuda_memory.cpp,
// cuda_vmm.cpp, cuda_ipc.cpp, cuda_external.cpp, cuda_residency.cpp, cuda_stream.cpp, cuda_zeros.cpp and cuda_capture.cpp.
#ifndef GMM_BACKEND_CUDA_CUDA_BACKEND_IMPL_H
#define GMM_BACKEND_CUDA_CUDA_BACKEND_IMPL_H

#include <atomic>

#include "backend/backend.h"
#include "backend/cuda/context_guard.h"
#include "backend/cuda/driver.h"
#include "base/lock.h"

namespace gmm::cuda {

// What the driver said about a device when the backend was made.
struct DeviceState {
  CUdevice handle = 0;
  uint64_t granularity = 0;  // 0: no VMM
  bool vmm = false;
  bool vmm_fd = false;
  bool fabric = false;
  int32_t host_numa_node = -1;
  bool managed = false;
  bool concurrent_managed = false;
  bool pin = false;
  bool pin_read_only = false;
  bool pin_same_address = false;
  bool pageable = false;
  bool legacy_ipc = false;
  bool dma_buf = false;
  std::atomic<CUcontext> primary{nullptr};      // retained when first needed, released by destroy()
  std::atomic<CUfunction> find_zeros{nullptr};  // of `module`, which was loaded when first needed
  CUmodule module = nullptr;
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(const HostAllocator &allocator, const Log &log) : Backend(allocator, log) {}
  Status open();
  void destroy() override;

  gmm_backend id() const override { return GMM_BACKEND_CUDA; }
  const char *name() const override { return "cuda"; }
  void driver_version(char *text, uint64_t size) const override;
  uint32_t device_count() const override { return device_count_; }
  Status device_info(Device device, gmm_device_info *out) override;
  int32_t host_numa_node(Device device) override;

  Status allocate(Kind kind, Device device, uint64_t size, Allocation *out) override;
  Status deallocate(const Allocation &allocation) override;
  Status import_host(int32_t fd, uint64_t size, Device device, bool locked, Allocation *out) override;

  Status reserve(uint64_t size, void **out) override;
  Status unreserve(void *base, uint64_t size) override;
  Status create(Device location, uint64_t size, PhysicalHandle *out) override;
  Status release(PhysicalHandle handle) override;
  Status map(void *base, uint64_t size, PhysicalHandle handle) override;
  Status unmap(void *base, uint64_t size) override;
  Status set_access(void *base, uint64_t size, Device owner, uint32_t peers) override;
  Status export_fd(PhysicalHandle handle, int32_t *fd) override;
  Status import_fd(int32_t fd, uint64_t size, Device device, PhysicalHandle *out) override;

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

  Status stream_create(Device device, gmm_stream *out) override;
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
  Status shared_event_export(NativeEvent event, uint8_t out[kLegacyHandleSize], int32_t *fd) override;
  Status shared_event_import(Device device, const uint8_t handle[kLegacyHandleSize], int32_t fd, const Peer &maker,
                             NativeEvent *out) override;

  void identify(const void *address, ForeignPointer *out) override;

 private:
  // cuda_backend.cpp
  Status probe(DeviceState *state, int ordinal);
  Status attribute(CUdevice device, CUdevice_attribute which, int32_t *out) const;
  Status state_of(Device device, DeviceState **out);
  // Why an operation cannot be done: `what` names it, `attribute` is the driver's word for what is missing.
  Status device_lacks(Device device, const char *what, const char *attribute) const;

  // cuda_context.cpp: for the life of the guard, a fitting context is current.
  Status primary(Device device, CUcontext *out);                 // retains it
  Status enter(ContextGuard &guard, Device device);              // the device's primary one
  Status enter_any(ContextGuard &guard);                         // whichever, for calls that name no device
  Status enter_owner(ContextGuard &guard, const void *address);  // the one that the memory belongs to
  Status enter_stream(ContextGuard &guard, Device device, gmm_stream stream);  // the stream's own

  // cuda_memory.cpp
  CUresult driver_allocate(Kind kind, uint64_t size, CUdeviceptr *out);
  Status allocate_device(Kind kind, Device device, uint64_t size, Allocation *out);
  Status allocate_host(Device device, uint64_t size, Allocation *out);
  Status register_file(int32_t fd, uint64_t size, Device device, bool there, Allocation *out);

  // cuda_vmm.cpp
  Status vmm_ready() const;
  Status pages_on_host(void *base, bool *out);
  Status drop_reference(uint64_t handle);
  bool keep_reference(uint64_t handle);
  void drop_kept_references();

  // cuda_stream.cpp
  bool is_host_memory(const void *address) const;
  Status copy_on_host(Device device, gmm_stream stream, void *destination, const void *source, uint64_t size);

  // cuda_zeros.cpp
  Status zeros_function(Device device, CUfunction *out);

  // cuda_residency.cpp
  Status managed_location(const char *what, Device location, DeviceState **out);

  Driver driver_;
  DeviceState *devices_ = nullptr;
  uint32_t device_count_ = 0;
  int32_t process_ = 0;
  Mutex mutex_;  // guards the retaining of primary contexts and the loading of modules; no other lock is taken under it
  // Whether VMM memory of this backend may lie on the host: only then set_access() has to look.
  std::atomic<bool> host_pages_{false};
  static constexpr uint32_t kKeptReferences = 16;
  std::atomic<uint64_t> kept_references_[kKeptReferences] = {};  // that the driver would not take back; 0: none
};

inline CUdeviceptr to_driver(const void *address) { return reinterpret_cast<CUdeviceptr>(address); }
inline void *from_driver(CUdeviceptr address) { return reinterpret_cast<void *>(address); }
inline CUstream to_driver(gmm_stream stream) { return reinterpret_cast<CUstream>(stream); }
inline CUevent to_driver(NativeEvent event) { return reinterpret_cast<CUevent>(event); }

// The three special values are small numbers, and the same as the driver's.
inline bool is_special(gmm_stream stream) {
  return reinterpret_cast<uintptr_t>(stream) <= reinterpret_cast<uintptr_t>(GMM_STREAM_PER_THREAD);
}

}  // namespace gmm::cuda
#endif
