// SPDX-License-Identifier: Apache-2.0
// The class behind host_backend_create().
#ifndef GMM_BACKEND_HOST_HOST_CLASS_H
#define GMM_BACKEND_HOST_HOST_CLASS_H

#include "backend/backend.h"
#include "backend/host/host_backend.h"
#include "backend/host/host_stream_table.h"

namespace gmm {

class HostBackend final : public Backend {
 public:
  HostBackend(const HostAllocator &allocator, const Log &log, uint64_t memory, uint32_t devices);
  void destroy() override;

  // host_backend.cpp
  gmm_backend id() const override { return GMM_BACKEND_HOST; }
  const char *name() const override { return "host"; }
  void driver_version(char *text, uint64_t size) const override;
  uint32_t device_count() const override { return devices_; }
  Status device_info(Device device, gmm_device_info *out) override;
  void identify(const void *address, ForeignPointer *out) override;

  // host_memory.cpp
  Status allocate(Kind kind, Device device, uint64_t size, Allocation *out) override;
  Status deallocate(const Allocation &allocation) override;
  Status import_host(int32_t fd, uint64_t size, Device device, bool locked, Allocation *out) override;

  // host_vmm.cpp
  Status reserve(uint64_t size, void **out) override;
  Status unreserve(void *base, uint64_t size) override;
  Status create(Device location, uint64_t size, PhysicalHandle *out) override;
  Status release(PhysicalHandle handle) override;
  Status map(void *base, uint64_t size, PhysicalHandle handle) override;
  Status unmap(void *base, uint64_t size) override;
  Status set_access(void *base, uint64_t size, Device owner, uint32_t peers) override;
  Status export_fd(PhysicalHandle handle, int32_t *fd) override;
  Status import_fd(int32_t fd, uint64_t size, Device device, PhysicalHandle *out) override;

  // host_pin.cpp
  Status pin(void *base, uint64_t size, uint32_t flags, Device device, void **device_pointer) override;
  Status unpin(void *base, uint64_t size) override;

  // host_residency.cpp
  Status advise(void *base, uint64_t size, gmm_advice advice, Device location) override;
  Status prefetch(void *base, uint64_t size, Device location, Device stream_device, gmm_stream stream) override;

  // host_queue.cpp
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

 private:
  friend class HostAllocator;
  ~HostBackend() = default;

  bool has(Device device) const { return device.ordinal >= 0 && static_cast<uint32_t>(device.ordinal) < devices_; }
  Status check_device(Device device) const;
  Status check_location(Device location) const;  // a device or the host
  // What a device pretends to have: kDevice and VMM memory are taken from it. kHost and kManaged memory lies outside of
  // a device, as on a GPU, and has the machine's memory for its bound.
  Status take(Device device, uint64_t size);
  void give_back(Device device, uint64_t size);
  Status stream_of(Device device, gmm_stream stream, HostStream **out);
  Status make_event(HostSharedEvent *shared, NativeEvent *out);  // takes the reference over
  // Page-locks what ought to be; where the system forbids it the memory is used as it is, with one warning.
  void lock_if_allowed(void *base, uint64_t size);

  const uint64_t memory_;
  const uint32_t devices_;
  uint8_t machine_[16] = {};
  std::atomic<uint64_t> taken_[kMaxHostDevices] = {};
  std::atomic<bool> warned_unlocked_{false};
  HostStreamTable streams_;
};

}  // namespace gmm
#endif
