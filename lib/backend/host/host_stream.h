// SPDX-License-Identifier: Apache-2.0
// A stream of the host backend: a queue and the one thread that works it off in order.
#ifndef GMM_BACKEND_HOST_HOST_STREAM_H
#define GMM_BACKEND_HOST_HOST_STREAM_H

#include <gmm/types.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "backend/backend.h"
#include "backend/host/host_shared_event.h"
#include "base/host_allocator.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/status.h"

namespace gmm {

// Work is numbered from 1 in the order it is queued; "position n has passed" means that the first n pieces are done.
// A position only ever names work that is queued already, so waits between streams cannot form a circle.
//
// Counted references: the table holds one while the stream is open, and so does each event and each wait that names it.
class HostStream {
 public:
  // Starts with one reference. NULL when there is no memory.
  static HostStream *create(const HostAllocator &allocator, const Log &log, Device device, uint64_t id);
  HostStream(const HostAllocator &allocator, const Log &log, Device device, uint64_t id)
      : device(device), id(id), allocator_(allocator), log_(log) {}
  HostStream(const HostStream &) = delete;
  HostStream &operator=(const HostStream &) = delete;
  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release();

  Status call(void (*fn)(void *), void *user);
  Status copy(void *destination, const void *source, uint64_t size);
  Status fill(void *destination, uint8_t value, uint64_t size);
  Status populate(void *base, uint64_t size);
  Status wait_for(HostStream *other, uint64_t position);
  // For events of other processes: tells that a record has passed, and waits for one.
  Status pass(HostSharedEvent *event, uint64_t number);
  Status wait_for(HostSharedEvent *event, uint64_t number);

  uint64_t position();
  bool passed(uint64_t position) const { return completed_.load(std::memory_order_acquire) >= position; }
  void synchronize(uint64_t position);
  // Whether the caller runs on this stream's thread: waiting for the stream there would never end.
  bool is_own_thread();
  // Waits for what is queued and ends the thread. Once, by the owner.
  void close();

  const Device device;
  const uint64_t id;

 private:
  friend class HostAllocator;
  enum class TaskKind { kCall, kCopy, kFill, kPopulate, kWait, kPass, kWaitShared };
  struct Task {
    TaskKind kind = TaskKind::kCall;
    uint8_t value = 0;
    Task *next = nullptr;
    void *destination = nullptr;
    const void *source = nullptr;
    uint64_t size = 0;  // kWait: the position; kPass, kWaitShared: the number of the record
    void (*fn)(void *) = nullptr;
    void *user = nullptr;
    HostStream *other = nullptr;
    HostSharedEvent *shared = nullptr;
  };
  ~HostStream() = default;

  Status enqueue(const Task &task);
  Status enqueue_shared(TaskKind kind, HostSharedEvent *event, uint64_t number);
  Status start();  // with the lock held
  static void *thread_main(void *stream);
  void work();
  void run(const Task &task);

  const HostAllocator allocator_;
  const Log log_;
  std::atomic<uint32_t> references_{1};
  std::atomic<uint64_t> completed_{0};  // written under the lock

  Mutex mutex_;
  Condition queued_;
  Condition progressed_;
  Task *first_ = nullptr;
  Task *last_ = nullptr;
  uint64_t submitted_ = 0;
  bool started_ = false;
  bool closed_ = false;
  pthread_t thread_ = {};
};

// A remembered position. May be destroyed at any time: waits carry the position itself.
class HostEvent {
 public:
  // Takes over a reference; NULL: of this process alone.
  explicit HostEvent(HostSharedEvent *shared = nullptr) : shared_(shared) {}
  // Fails for shared events only.
  Status record(HostStream *stream);
  // The stream with a reference for the caller; NULL when never recorded.
  HostStream *get(uint64_t *position);
  // Set for events that other processes see, or that they made.
  HostSharedEvent *shared() const { return shared_; }
  ~HostEvent();

 private:
  HostSharedEvent *const shared_;
  Mutex mutex_;
  HostStream *stream_ = nullptr;
  uint64_t position_ = 0;
};

}  // namespace gmm
#endif
