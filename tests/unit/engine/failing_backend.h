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
  // Of those not refused.
  uint64_t count(const char *name) {
    std::lock_guard<std::mutex> guard(mutex_);
    return counts_[name];
  }

  // Operations that a test may refuse, and those that are only passed on. Of the others the tests need none.
#define MAY_REFUSE(name, parameters, ...) \
  Status name parameters override { return refuses(#name) ? refusal(#name) : inner_->name(__VA_ARGS__); }
#define PASS_ON(type, name, parameters, qualifiers, ...) \
  type name parameters qualifiers { return inner_->name(__VA_ARGS__); }

  MAY_REFUSE(device_info, (Device device, gmm_device_info *out), device, out)
  MAY_REFUSE(allocate, (Kind kind, Device device, uint64_t size, bool exportable, Allocation *out), kind, device, size,
             exportable, out)
  MAY_REFUSE(deallocate, (const Allocation &allocation), allocation)
  MAY_REFUSE(pin, (void *base, uint64_t size, uint32_t flags, Device device, void **device_pointer), base, size, flags,
             device, device_pointer)
  MAY_REFUSE(unpin, (void *base, uint64_t size), base, size)
  MAY_REFUSE(unreserve, (void *base, uint64_t size), base, size)
  MAY_REFUSE(create, (Device location, uint64_t size, bool exportable, PhysicalHandle *out), location, size, exportable,
             out)
  bool is_exportable(PhysicalHandle handle) override { return inner_->is_exportable(handle); }
  MAY_REFUSE(release, (PhysicalHandle handle), handle)
  MAY_REFUSE(map, (void *base, uint64_t size, PhysicalHandle handle), base, size, handle)
  MAY_REFUSE(unmap, (void *base, uint64_t size), base, size)
  MAY_REFUSE(set_access, (void *base, uint64_t size, Device owner, uint32_t peers), base, size, owner, peers)
  MAY_REFUSE(advise, (void *base, uint64_t size, gmm_advice advice, Device location), base, size, advice, location)
  MAY_REFUSE(prefetch, (void *base, uint64_t size, Device location, Device stream_device, gmm_stream stream), base,
             size, location, stream_device, stream)
  MAY_REFUSE(stream_create, (Device device, int32_t priority, gmm_stream *out), device, priority, out)
  MAY_REFUSE(stream_destroy, (gmm_stream stream), stream)
  MAY_REFUSE(stream_synchronize, (Device device, gmm_stream stream), device, stream)
  MAY_REFUSE(stream_query, (Device device, gmm_stream stream, bool *idle), device, stream, idle)
  MAY_REFUSE(stream_call, (Device device, gmm_stream stream, void (*fn)(void *), void *user), device, stream, fn, user)
  MAY_REFUSE(copy, (Device device, gmm_stream stream, void *destination, const void *source, uint64_t size), device,
             stream, destination, source, size)
  MAY_REFUSE(fill, (Device device, gmm_stream stream, void *destination, uint8_t value, uint64_t size), device, stream,
             destination, value, size)
  MAY_REFUSE(find_zeros, (Device device, gmm_stream stream, ZeroRange *ranges, uint64_t count), device, stream, ranges,
             count)
  MAY_REFUSE(synchronize, (Device device), device)
  MAY_REFUSE(event_create, (Device device, NativeEvent *out), device, out)
  MAY_REFUSE(event_destroy, (NativeEvent event), event)
  MAY_REFUSE(event_record, (NativeEvent event, Device device, gmm_stream stream), event, device, stream)
  MAY_REFUSE(event_synchronize, (NativeEvent event), event)
  MAY_REFUSE(event_query, (NativeEvent event, bool *passed), event, passed)
  MAY_REFUSE(stream_wait, (Device device, gmm_stream stream, NativeEvent event), device, stream, event)
  PASS_ON(void, destroy, (), override)
  PASS_ON(gmm_backend, id, (), const override)
  PASS_ON(const char *, name, (), const override)
  PASS_ON(void, driver_version, (char *text, uint64_t size), const override, text, size)
  PASS_ON(uint32_t, device_count, (), const override)
  PASS_ON(void, identify, (const void *address, ForeignPointer *out), override, address, out)
  PASS_ON(bool, calls_may_wait, (), const override)
  PASS_ON(bool, is_cpu_memory, (), const override)
#undef MAY_REFUSE
#undef PASS_ON

  Status reserve(uint64_t size, void **out) override {
    if (refuses("reserve")) return refusal("reserve");
    if (void *wanted = std::exchange(next_reservation_, nullptr)) {
      *out = ::mmap(wanted, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
      return *out == wanted ? Status() : refusal("reserve");
    }
    return inner_->reserve(size, out);
  }

  Status stream_is_capturing(Device device, gmm_stream stream, bool *out) override {
    *out = true;
    if (stream != nullptr && stream == captured.load()) return Status();
    if (refuses("stream_is_capturing")) return refusal("stream_is_capturing");
    return inner_->stream_is_capturing(device, stream, out);
  }
  std::atomic<gmm_stream> captured{nullptr};  // a stream that says it is being captured

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
  std::mutex mutex_;
  std::map<std::string, uint64_t> counts_;
  std::string only_;
  uint64_t left_ = 0;
  std::string also_;
  uint64_t also_left_ = 0;
  bool more_ = false;
  std::atomic<uint64_t> refused_{0};
  std::string before_name_;
  std::function<void()> before_;
  void *next_reservation_ = nullptr;
};

}  // namespace gmm::test
#endif
