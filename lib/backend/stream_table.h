// SPDX-License-Identifier: Apache-2.0
// Backends whose streams are objects of their own: the table of the live streams, the stream that a handle means, and
// the operations of backend.h that need no more than a stream.
//
// Lifetime: reference counts, which the table's lock guards. The table holds a reference while a stream is open, and so
// does each event and each piece of work that names the stream.
#ifndef GMM_BACKEND_STREAM_TABLE_H
#define GMM_BACKEND_STREAM_TABLE_H

#include <atomic>
#include <new>
#include <type_traits>
#include <utility>

#include "backend/backend.h"
#include "base/list.h"
#include "base/lock.h"
#include "base/thread.h"
#include "base/vector.h"

namespace gmm {

// A function of at most four words and the words themselves, in a list of work that waits for its turn.
template <typename Result>
struct StreamTask : Link<StreamTask<Result>> {
  template <typename Work>
  explicit StreamTask(Work of) : run([](void *own) -> Result { return (*static_cast<Work *>(own))(); }) {
    static_assert(std::is_trivially_copyable_v<Work> && sizeof(Work) <= sizeof work);
    ::new (work) Work(of);
  }
  Result (*run)(void *work);
  alignas(8) unsigned char work[32] = {};
};

// The base of a stream.
struct StreamEntry {
  const Device device;
  const uint64_t id;  // never used again in the process: a handle of another context means no stream of this one
  // The table changes these with its lock held.
  gmm_stream handle = nullptr;  // NULL: the stream is a default one, or was destroyed
  uint32_t references = 1;
  const bool is_created = true;  // by gmm; otherwise the program did
};

// `Own`, which derives from this, has two functions, which run with the lock held:
//   Status make(Device device, uint64_t id, Stream **out)       a new stream, with the handle that create() gives it
//   Status find_unknown(gmm_stream handle, Stream **out)        the stream of a handle that the table does not know
template <typename Own, typename Stream>
class StreamTable {
 public:
  static constexpr uint32_t kMostDevices = 32;

  StreamTable(const HostAllocator &allocator, const Log &log)
      : allocator_(allocator), log_(log), streams_(allocator), by_thread_(allocator) {}

  Status create(Device device, gmm_stream *out) {
    LockGuard lock(mutex_);
    Stream *stream = nullptr;
    GMM_TRY(add_new(device, &stream));
    *out = stream->handle;
    return Status();
  }
  // Returns the stream of a handle with a reference for the caller. The special values mean the default streams of
  // `device`.
  Status acquire(Device device, gmm_stream handle, Stream **out) {
    LockGuard lock(mutex_);
    if (handle == GMM_STREAM_PER_THREAD) {
      Stream *stream = find_of_thread(device);
      if (stream == nullptr) {
        if (!by_thread_.reserve(by_thread_.size() + 1)) return no_memory_for("Creating a stream");
        GMM_TRY(add_default(device, &stream));
        by_thread_.push_back_reserved(OfThread{thread_number(), stream});
      }
      *out = stream;
    } else if (handle == GMM_STREAM_DEFAULT || handle == GMM_STREAM_LEGACY) {
      Stream *&stream = defaults_[device.ordinal];
      if (stream == nullptr) GMM_TRY(add_default(device, &stream));
      *out = stream;
    } else if (Stream *known = find(handle); known != nullptr) {
      *out = known;
    } else {
      return own().find_unknown(handle, out);
    }
    ++(*out)->references;
    return Status();
  }
  void retain(Stream *stream) {
    LockGuard lock(mutex_);
    ++stream->references;
  }
  void release(Stream *stream) {
    LockGuard lock(mutex_);
    drop(stream);
  }
  // The handle of a created stream means it no more. The caller gets the table's reference.
  Status remove(gmm_stream handle, Stream **out) {
    LockGuard lock(mutex_);
    Stream *stream = find(handle);
    if (stream == nullptr || !stream->is_created) return no_such_stream(handle);
    stream->handle = nullptr;
    *out = stream;
    return Status();
  }
  // Undoes remove(), with the reference that it gave.
  void put_back(gmm_stream handle, Stream *stream) {
    LockGuard lock(mutex_);
    stream->handle = handle;
  }
  // Calls fn(Stream &) -> Status for each stream of the device up to a failure, without the lock. kHostLocation: of all
  // devices.
  template <typename Fn>
  Status for_each(Device device, Fn fn) {
    Status status;
    uint64_t last = 0;
    while (Stream *stream = status.ok() ? next(device, last) : nullptr) {
      last = stream->id;
      status = fn(*stream);
      release(stream);
    }
    return status;
  }

 protected:
  static Status no_such_stream(gmm_stream handle) {
    return fail(GMM_ERROR_INVALID_HANDLE,
                "Stream %p is not a stream of this context, or was destroyed; pass a live one, or a special value.",
                static_cast<void *>(handle));
  }

  // The rest with the lock held.
  Status add_new(Device device, Stream **out) {
    if (!streams_.reserve(streams_.size() + 1)) return no_memory_for("Creating a stream");
    GMM_TRY(own().make(device, new_id(), out));
    streams_.push_back_reserved(*out);
    return Status();
  }
  static uint64_t new_id() { return last_id_.fetch_add(1, std::memory_order_relaxed) + 1; }
  void destroy_all() {
    for (Stream *each : streams_) allocator_.destroy(each);
    streams_.clear();
    by_thread_.clear();
  }
  void drop(Stream *stream) {
    if (--stream->references != 0) return;
    for (uint64_t i = 0; i < streams_.size(); ++i)
      if (streams_[i] == stream) {
        streams_.erase(i);
        break;
      }
    allocator_.destroy(stream);
  }

  const HostAllocator allocator_;
  const Log log_;
  Mutex mutex_{LockRank::kStreamTable};
  static constinit inline std::atomic<uint64_t> last_id_{0};
  Vector<Stream *> streams_;  // ascending by id

 private:
  Own &own() { return static_cast<Own &>(*this); }
  Status add_default(Device device, Stream **out) {
    GMM_TRY(add_new(device, out));
    (*out)->handle = nullptr;
    return Status();
  }
  Stream *find(gmm_stream handle) {
    for (Stream *each : streams_)
      if (each->handle == handle) return each;
    return nullptr;
  }
  Stream *next(Device device, uint64_t after) {
    LockGuard lock(mutex_);
    for (Stream *each : streams_)
      if (each->id > after && (device == kHostLocation || each->device == device)) {
        ++each->references;
        return each;
      }
    return nullptr;
  }

  // A thread that has ended leaves its stream to the next thread that needs one. The kernel's thread number tells
  // whether the owner still runs. So no exit handler of a thread is needed, which could outlive the library.
  Stream *find_of_thread(Device device) {
    const int32_t self = thread_number();
    for (const OfThread &each : by_thread_)
      if (each.thread == self && each.stream->device == device) return each.stream;
    for (OfThread &each : by_thread_) {
      if (!(each.stream->device == device) || thread_runs(each.thread)) continue;
      each.thread = self;
      return each.stream;
    }
    return nullptr;
  }

  struct OfThread {
    int32_t thread;
    Stream *stream;
  };
  Vector<OfThread> by_thread_;  // the per-thread default streams
  Stream *defaults_[kMostDevices] = {};
};

// A stream's functions are those of backend.h, without device and stream. close() ends a created one.
template <typename Table, typename Stream>
class StreamBackend : public Backend {
 public:
  template <typename... Arguments>
  StreamBackend(const HostAllocator &allocator, const Log &log, Arguments &&...arguments)
      : Backend(allocator, log), streams_(std::forward<Arguments>(arguments)...) {}

  Status stream_create(Device device, int32_t, gmm_stream *out) override { return streams_.create(device, out); }
  Status stream_destroy(gmm_stream stream) override {
    Stream *target = nullptr;
    GMM_TRY(streams_.remove(stream, &target));
    const Status status = target->synchronize();
    if (!status.ok()) {
      streams_.put_back(stream, target);
      return status;
    }
    target->close();
    streams_.release(target);
    return status;
  }
  Status stream_synchronize(Device device, gmm_stream stream) override {
    check_may_wait("a stream");
    return with(device, stream, [](Stream &target) { return target.synchronize(); });
  }
  Status stream_is_capturing(Device device, gmm_stream stream, bool *out) override {
    *out = false;
    return with(device, stream, [](Stream &) { return Status(); });
  }
  Status stream_query(Device device, gmm_stream stream, bool *idle) override {
    return with(device, stream, [&](Stream &target) { return target.query(idle); });
  }
  Status stream_call(Device device, gmm_stream stream, void (*fn)(void *), void *user) override {
    return with(device, stream, [&](Stream &target) { return target.call(fn, user); });
  }
  Status copy(Device device, gmm_stream stream, void *destination, const void *source, uint64_t size) override {
    return with(device, stream,
                [&](Stream &target) { return target.copy(device_address(destination), device_address(source), size); });
  }
  Status fill(Device device, gmm_stream stream, void *destination, uint8_t value, uint64_t size) override {
    return with(device, stream, [&](Stream &target) { return target.fill(device_address(destination), value, size); });
  }
  Status synchronize(Device device) override {
    check_may_wait("a device");
    return streams_.for_each(device, [](Stream &target) { return target.synchronize(); });
  }

 protected:
  ~StreamBackend() = default;
  // Calls fn(stream) -> Status with the stream that the handle means.
  template <typename Fn>
  Status with(Device device, gmm_stream handle, Fn fn) {
    Stream *stream = nullptr;
    GMM_TRY(streams_.acquire(device, handle, &stream));
    const Status status = fn(*stream);
    streams_.release(stream);
    return status;
  }

  Table streams_;
};

}  // namespace gmm
#endif
