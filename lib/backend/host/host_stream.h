// SPDX-License-Identifier: Apache-2.0
// A stream of the host backend: a queue and one thread that runs its work in order. The table of the streams, and their
// events.
#ifndef GMM_BACKEND_HOST_HOST_STREAM_H
#define GMM_BACKEND_HOST_HOST_STREAM_H

#include <cstring>

#include "backend/host/host_shared_event.h"
#include "backend/stream_table.h"

namespace gmm {

class HostStreamTable;

// Work is numbered from 1 in the order in which it is queued. "Position n has passed" means that the first n pieces are
// done. A position always names work that is queued already, so waits between streams cannot form a circle.
//
// The thread starts with the first work and ends in close(). Locks: `mutex_` guards the queue; no other lock is taken
// under it.
class HostStream : public StreamEntry {
  using Task = StreamTask<void>;

 public:
  HostStream(const HostAllocator &allocator, const Log &log, HostStreamTable &table, Device device, uint64_t id);
  void retain();
  void release();

  // Queues a function of at most four words.
  template <typename Work>
  Status run(Work work) {
    return add(Task(work));
  }
  Status call(void (*fn)(void *), void *user) {
    return run([=] { fn(user); });
  }
  Status copy(void *destination, const void *source, uint64_t size) {
    return run([=] { std::memcpy(destination, source, size); });
  }
  Status fill(void *destination, uint8_t value, uint64_t size) {
    return run([=] { std::memset(destination, value, size); });
  }
  Status wait_for(HostStream *other, uint64_t position);
  // For events of other processes: marks a record as passed, and waits for one.
  Status pass(HostSharedEvent *event, uint64_t number);
  Status wait_for(HostSharedEvent *event, uint64_t number);

  uint64_t position();
  bool passed(uint64_t position) const { return completed_.load(std::memory_order_acquire) >= position; }
  void wait_until(uint64_t position);
  // BUSY on this stream's thread, where a wait for the stream would never end.
  Status check_other_thread();
  Status synchronize();  // waits for the work that is queued so far
  Status query(bool *idle);
  // Waits for the queued work and ends the thread. The owner calls it once.
  void close();

 private:
  friend class HostAllocator;
  ~HostStream() = default;

  // work(object) with a reference to the object.
  template <typename Object, typename Work>
  Status run_with(Object *object, Work work);
  Status add(const Task &task);
  void work();

  const HostAllocator allocator_;
  const Log log_;
  HostStreamTable &table_;
  std::atomic<uint64_t> completed_{0};  // written with the lock held

  Mutex mutex_{LockRank::kHostStream};
  Condition queued_;
  Condition progressed_;
  List<Task, Task> queue_;
  uint64_t submitted_ = 0;
  bool started_ = false;
  bool closed_ = false;
  Thread thread_;
};

// A handle is a number that is never used again, not an address. So the handle of a destroyed stream is always
// recognised.
class HostStreamTable : public StreamTable<HostStreamTable, HostStream> {
 public:
  HostStreamTable(const HostAllocator &allocator, const Log &log) : StreamTable(allocator, log) {}
  // Ends all streams.
  void close();

  Status make(Device device, uint64_t id, HostStream **out);
  Status find_unknown(gmm_stream handle, HostStream **) { return no_such_stream(handle); }
};

// The position that a stream had when the event was recorded. An event may be destroyed at any time, because waits hold
// the position themselves. Lock: `mutex_` guards the position; the table's and a stream's lock are taken under it.
class HostEvent {
 public:
  // Owns the caller's reference to `shared`. NULL: the event is of this process alone.
  explicit HostEvent(HostSharedEvent *shared = nullptr) : shared_(shared) {}
  ~HostEvent();
  // Only a shared event can fail.
  Status record(HostStream *stream);
  // Calls fn(stream, position) -> Status, if the event was ever recorded.
  template <typename Fn>
  Status with_position(Fn fn) {
    uint64_t position = 0;
    HostStream *stream = get(&position);
    if (stream == nullptr) return Status();
    const Status status = fn(*stream, position);
    stream->release();
    return status;
  }
  // Not NULL if other processes see the event or made it.
  HostSharedEvent *shared() const { return shared_; }
  // Not NULL if another process made the event.
  HostSharedEvent *imported() const { return shared_ != nullptr && shared_->imported() ? shared_ : nullptr; }

 private:
  // The stream with a reference for the caller, or NULL.
  HostStream *get(uint64_t *position);

  HostSharedEvent *const shared_;
  Mutex mutex_{LockRank::kHostEvent};
  HostStream *stream_ = nullptr;
  uint64_t position_ = 0;
};

}  // namespace gmm
#endif
