// SPDX-License-Identifier: Apache-2.0
// The class behind sycl_backend_create(); its operations are in sycl_backend.cpp (identity), sycl_memory.cpp and sycl_queue.cpp.
#ifndef GMM_BACKEND_SYCL_SYCL_CLASS_H
#define GMM_BACKEND_SYCL_SYCL_CLASS_H

#include "backend/backend.h"
#include "backend/sycl/interface.h"
#include "backend/sycl/sycl_stream_table.h"

namespace gmm::sycl {

// All devices are of one platform and share its default SYCL context, which is dpctl's own: so every pointer is good on every queue, and
// dpctl takes gmm's memory.
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

  Status stream_create(Device device, gmm_stream *out) override;
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
    uint64_t largest = 0;  // one allocation
    uint32_t capabilities = 0;
    gmm_kind_mask kinds = 0;
    bool cpu = false;
    std::atomic<uint64_t> taken{0};
  };
  void probe(uint32_t ordinal);
  Status check_device(Device device) const;
  // With a reference, which StreamReference drops.
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

// Drops a stream's reference at the end of a block.
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

}  // namespace gmm::sycl
#endif
