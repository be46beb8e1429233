// SPDX-License-Identifier: Apache-2.0
// A backend that refuses the n-th of chosen operations, over the host backend.
#ifndef GMM_TESTS_UNIT_ENGINE_FAILING_BACKEND_H
#define GMM_TESTS_UNIT_ENGINE_FAILING_BACKEND_H

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "backend/host/host_backend.h"

namespace gmm::test {

class FailingBackend final : public Backend {
 public:
  explicit FailingBackend(Backend *inner) : Backend(HostAllocator(), Log(nullptr, nullptr)), inner_(inner) {}
  ~FailingBackend() = default;

  // Refuses the n-th operation from now (1 is the next), of one name or of any; 0: none. `more`: those after it, too.
  void refuse(uint64_t n, const char *only = nullptr, bool more = false) {
    std::lock_guard<std::mutex> guard(mutex_);
    left_ = n;
    only_ = only == nullptr ? "" : only;
    more_ = more;
    refused_ = 0;
    also_left_ = 0;
  }
  // A second operation to refuse, the n-th of its name from now; after refuse().
  void refuse_also(uint64_t n, const char *name) {
    std::lock_guard<std::mutex> guard(mutex_);
    also_left_ = n;
    also_ = name;
  }
  uint64_t refused() const { return refused_; }
  // Where the next reservation lies: the system may choose so, too. The addresses must be free by then.
  void reserve_next_at(void *address) { next_reservation_ = address; }
  // Calls `fn` once, before the next operation of this name.
  void before(const char *name, std::function<void()> fn) {
    std::lock_guard<std::mutex> guard(mutex_);
    before_name_ = name;
    before_ = std::move(fn);
  }
  // The backend says that it is this one. It counts pages as pinned and does not lock them.
  void pose_as(gmm_backend id) { posed_id_ = id; }
  // Every stream answers that it is being captured into a graph.
  void capture(bool capturing) { capturing_ = capturing; }
  // Of those not refused.
  uint64_t count(const char *name) {
    std::lock_guard<std::mutex> guard(mutex_);
    return counts_[name];
  }

  void destroy() override { inner_->destroy(); }
  gmm_backend id() const override { return posed_id_ != GMM_BACKEND_AUTO ? posed_id_ : inner_->id(); }
  const char *name() const override { return inner_->name(); }
  void driver_version(char *text, uint64_t size) const override { inner_->driver_version(text, size); }
  uint32_t device_count() const override { return inner_->device_count(); }
  void identify(const void *address, ForeignPointer *out) override { inner_->identify(address, out); }

  Status device_info(Device device, gmm_device_info *out) override {
    return refuses("device_info") ? refusal("device_info") : inner_->device_info(device, out);
  }
  Status allocate(Kind kind, Device device, uint64_t size, Allocation *out) override {
    return refuses("allocate") ? refusal("allocate") : inner_->allocate(kind, device, size, out);
  }
  Status deallocate(const Allocation &allocation) override {
    return refuses("deallocate") ? refusal("deallocate") : inner_->deallocate(allocation);
  }
  Status import_host(int32_t fd, uint64_t size, Device device, bool locked, Allocation *out) override {
    return refuses("import_host") ? refusal("import_host") : inner_->import_host(fd, size, device, locked, out);
  }
  Status reserve(uint64_t size, void **out) override {
    if (refuses("reserve")) return refusal("reserve");
    if (void *wanted = std::exchange(next_reservation_, nullptr)) {
      *out = ::mmap(wanted, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
      return *out == wanted ? Status() : refusal("reserve");
    }
    return inner_->reserve(size, out);
  }
  Status unreserve(void *base, uint64_t size) override {
    return refuses("unreserve") ? refusal("unreserve") : inner_->unreserve(base, size);
  }
  Status can_create(Device location, uint64_t size) override { return inner_->can_create(location, size); }
  Status create(Device location, uint64_t size, PhysicalHandle *out) override {
    return refuses("create") ? refusal("create") : inner_->create(location, size, out);
  }
  Status release(PhysicalHandle handle) override {
    return refuses("release") ? refusal("release") : inner_->release(handle);
  }
  Status map(void *base, uint64_t size, PhysicalHandle handle) override {
    return refuses("map") ? refusal("map") : inner_->map(base, size, handle);
  }
  Status unmap(void *base, uint64_t size) override {
    return refuses("unmap") ? refusal("unmap") : inner_->unmap(base, size);
  }
  Status populate(void *base, uint64_t size) override {
    return refuses("populate") ? refusal("populate") : inner_->populate(base, size);
  }
  Status set_access(void *base, uint64_t size, Device owner, uint32_t peers) override {
    return refuses("set_access") ? refusal("set_access") : inner_->set_access(base, size, owner, peers);
  }
  Status export_fd(PhysicalHandle handle, int32_t *fd) override {
    return refuses("export_fd") ? refusal("export_fd") : inner_->export_fd(handle, fd);
  }
  Status import_fd(int32_t fd, uint64_t size, Device device, PhysicalHandle *out) override {
    return refuses("import_fd") ? refusal("import_fd") : inner_->import_fd(fd, size, device, out);
  }
  Status legacy_export(void *driver_base, uint8_t out[kLegacyHandleSize]) override {
    return refuses("legacy_export") ? refusal("legacy_export") : inner_->legacy_export(driver_base, out);
  }
  Status legacy_import(const uint8_t handle[kLegacyHandleSize], Device device, void **driver_base) override {
    return refuses("legacy_import") ? refusal("legacy_import") : inner_->legacy_import(handle, device, driver_base);
  }
  Status legacy_close(void *driver_base) override {
    return refuses("legacy_close") ? refusal("legacy_close") : inner_->legacy_close(driver_base);
  }
  Status pin(void *base, uint64_t size, uint32_t flags, Device device, void **device_pointer) override {
    if (refuses("pin")) return refusal("pin");
    if (posed_id_ == GMM_BACKEND_AUTO) return inner_->pin(base, size, flags, device, device_pointer);
    *device_pointer = base;
    return Status();
  }
  Status unpin(void *base, uint64_t size) override {
    if (refuses("unpin")) return refusal("unpin");
    return posed_id_ == GMM_BACKEND_AUTO ? inner_->unpin(base, size) : Status();
  }
  Status advise(void *base, uint64_t size, gmm_advice advice, Device location) override {
    return refuses("advise") ? refusal("advise") : inner_->advise(base, size, advice, location);
  }
  Status prefetch(void *base, uint64_t size, Device location, Device stream_device, gmm_stream stream) override {
    return refuses("prefetch") ? refusal("prefetch") : inner_->prefetch(base, size, location, stream_device, stream);
  }
  Status stream_create(Device device, int32_t priority, gmm_stream *out) override {
    return refuses("stream_create") ? refusal("stream_create") : inner_->stream_create(device, priority, out);
  }
  Status stream_destroy(gmm_stream stream) override {
    return refuses("stream_destroy") ? refusal("stream_destroy") : inner_->stream_destroy(stream);
  }
  Status stream_synchronize(Device device, gmm_stream stream) override {
    return refuses("stream_synchronize") ? refusal("stream_synchronize") : inner_->stream_synchronize(device, stream);
  }
  Status stream_is_capturing(Device device, gmm_stream stream, bool *out) override {
    if (stream != nullptr && stream == captured.load()) {
      *out = true;
      return Status();
    }
    if (refuses("stream_is_capturing")) return refusal("stream_is_capturing");
    *out = true;
    return capturing_ ? Status() : inner_->stream_is_capturing(device, stream, out);
  }
  // A stream that says it is being captured; and one that says so from its next event_record() on, as if another thread
  // had begun.
  std::atomic<gmm_stream> captured{nullptr}, captured_by_record{nullptr};
  bool can_capture() const override { return inner_->can_capture(); }
  bool may_be_capturing(Device device, gmm_stream stream) override { return inner_->may_be_capturing(device, stream); }
  Status capture_of(Device device, gmm_stream stream, Capture *out) override {
    return refuses("capture_of") ? refusal("capture_of") : inner_->capture_of(device, stream, out);
  }
  Status at_end_of_graph(Device device, void *graph, void (*fn)(void *), void *user) override {
    return inner_->at_end_of_graph(device, graph, fn, user);
  }
  Status stream_query(Device device, gmm_stream stream, bool *idle) override {
    return refuses("stream_query") ? refusal("stream_query") : inner_->stream_query(device, stream, idle);
  }
  Status stream_call(Device device, gmm_stream stream, void (*fn)(void *), void *user) override {
    return refuses("stream_call") ? refusal("stream_call") : inner_->stream_call(device, stream, fn, user);
  }
  Status copy(Device device, gmm_stream stream, void *destination, const void *source, uint64_t size) override {
    return refuses("copy") ? refusal("copy") : inner_->copy(device, stream, destination, source, size);
  }
  Status fill(Device device, gmm_stream stream, void *destination, uint8_t value, uint64_t size) override {
    return refuses("fill") ? refusal("fill") : inner_->fill(device, stream, destination, value, size);
  }
  Status find_zeros(Device device, gmm_stream stream, ZeroRange *ranges, uint64_t count) override {
    return refuses("find_zeros") ? refusal("find_zeros") : inner_->find_zeros(device, stream, ranges, count);
  }
  int32_t host_numa_node(Device device) override { return inner_->host_numa_node(device); }
  Status synchronize(Device device) override {
    return refuses("synchronize") ? refusal("synchronize") : inner_->synchronize(device);
  }
  Status event_create(Device device, NativeEvent *out) override {
    return refuses("event_create") ? refusal("event_create") : inner_->event_create(device, out);
  }
  Status event_destroy(NativeEvent event) override {
    return refuses("event_destroy") ? refusal("event_destroy") : inner_->event_destroy(event);
  }
  Status event_record(NativeEvent event, Device device, gmm_stream stream) override {
    if (stream != nullptr && stream == captured_by_record.load()) {
      captured_by_record = nullptr;
      captured = stream;
    }
    return refuses("event_record") ? refusal("event_record") : inner_->event_record(event, device, stream);
  }
  Status event_synchronize(NativeEvent event) override {
    return refuses("event_synchronize") ? refusal("event_synchronize") : inner_->event_synchronize(event);
  }
  Status event_query(NativeEvent event, bool *passed) override {
    return refuses("event_query") ? refusal("event_query") : inner_->event_query(event, passed);
  }
  Status stream_wait(Device device, gmm_stream stream, NativeEvent event) override {
    return refuses("stream_wait") ? refusal("stream_wait") : inner_->stream_wait(device, stream, event);
  }
  void *device_address(const void *address) const override { return inner_->device_address(address); }
  bool calls_may_wait() const override { return inner_->calls_may_wait(); }
  Status comm_traits(Device device, CommTraits *out) override { return inner_->comm_traits(device, out); }
  Status create_comm(Device device, uint64_t size, PhysicalHandle *out) override {
    return refuses("create_comm") ? refusal("create_comm") : inner_->create_comm(device, size, out);
  }
  Status device_traits(Device device, gmm_device_info *out) override { return inner_->device_traits(device, out); }
  Status device_use(Device device, DeviceUse *out) override { return inner_->device_use(device, out); }
  Status export_dma_buf(const void *base, uint64_t size, int32_t *fd) override {
    return inner_->export_dma_buf(base, size, fd);
  }
  Status export_fabric(PhysicalHandle handle, uint8_t out[kFabricHandleSize]) override {
    return inner_->export_fabric(handle, out);
  }
  Status external_close(const Allocation &allocation) override { return inner_->external_close(allocation); }
  Status external_import(int32_t fd, gmm_fd_type type, uint64_t size, Device device, Allocation *out) override {
    return inner_->external_import(fd, type, size, device, out);
  }
  Status free_memory(Device device, uint64_t *out) override { return inner_->free_memory(device, out); }
  bool has_fabric(Device device) const override { return inner_->has_fabric(device); }
  Status import_fabric(const uint8_t handle[kFabricHandleSize], uint64_t size, Device device,
                       PhysicalHandle *out) override {
    return inner_->import_fabric(handle, size, device, out);
  }
  bool is_cpu_memory() const override { return inner_->is_cpu_memory(); }
  bool is_held_elsewhere(PhysicalHandle handle) override { return inner_->is_held_elsewhere(handle); }
  Status semaphore_destroy(NativeSemaphore semaphore, Device device) override {
    return inner_->semaphore_destroy(semaphore, device);
  }
  Status semaphore_import(gmm_semaphore_type type, int32_t fd, Device device, NativeSemaphore *out) override {
    return inner_->semaphore_import(type, fd, device, out);
  }
  Status semaphore_signal(NativeSemaphore semaphore, Device device, gmm_stream stream, uint64_t value) override {
    return inner_->semaphore_signal(semaphore, device, stream, value);
  }
  Status semaphore_wait(NativeSemaphore semaphore, Device device, gmm_stream stream, uint64_t value) override {
    return inner_->semaphore_wait(semaphore, device, stream, value);
  }
  Status shared_event_create(Device device, NativeEvent *out) override {
    return refuses("shared_event_create") ? refusal("shared_event_create") : inner_->shared_event_create(device, out);
  }
  Status shared_event_export(Device device, NativeEvent event, uint8_t out[kLegacyHandleSize], int32_t *fd) override {
    return inner_->shared_event_export(device, event, out, fd);
  }
  Status shared_event_import(Device device, const uint8_t handle[kLegacyHandleSize], int32_t fd, const Peer &maker,
                             NativeEvent *out) override {
    return inner_->shared_event_import(device, handle, fd, maker, out);
  }
  Status shared_event_wait(Device device, gmm_stream stream, NativeEvent event) override {
    return inner_->shared_event_wait(device, stream, event);
  }

 private:
  bool refuses(const char *name) {
    std::function<void()> first;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      if (before_ != nullptr && before_name_ == name) first.swap(before_);
    }
    if (first != nullptr) first();
    std::lock_guard<std::mutex> guard(mutex_);
    if (also_left_ != 0 && also_ == name && --also_left_ == 0) return true;
    if (left_ != 0 && (only_.empty() || only_ == name) && left_-- == 1) {
      if (more_) left_ = 1;
      ++refused_;
      return true;
    }
    ++counts_[name];
    return false;
  }
  Status refusal(const char *name) {
    const bool grows = std::strcmp(name, "create") == 0 || std::strcmp(name, "allocate") == 0;
    return fail(grows ? GMM_ERROR_OUT_OF_MEMORY : GMM_ERROR_DRIVER, "%s was refused by the test.", name);
  }

  Backend *inner_;
  gmm_backend posed_id_ = GMM_BACKEND_AUTO;
  std::mutex mutex_;
  std::map<std::string, uint64_t> counts_;
  std::string only_;
  uint64_t left_ = 0;
  std::string also_;
  uint64_t also_left_ = 0;
  bool more_ = false;
  std::atomic<uint64_t> refused_{0};
  std::atomic<bool> capturing_{false};
  std::string before_name_;
  std::function<void()> before_;
  void *next_reservation_ = nullptr;
};

}  // namespace gmm::test
#endif
