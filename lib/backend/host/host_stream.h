// SPDX-License-Identifier: Apache-2.0
// A stream of the host backend: a queue and one thread that runs its work in order.
#ifndef GMM_BACKEND_HOST_HOST_STREAM_H
#define GMM_BACKEND_HOST_HOST_STREAM_H

#include <gmm/types.h>

#include <atomic>
#include <cstdint>

#include "backend/backend.h"
#include "backend/host/host_shared_event.h"
#include "base/host_allocator.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/thread.h"

namespace gmm {

// Work is numbered from 1 in the order in which it is queued. "Position n has passed" means that the first n pieces are
// done. A position always names work that is queued already, so waits between streams cannot form a circle.
//
// Lifetime: reference counts. The table holds a reference while the stream is open, and so does each event and each
// wait that names it. The thread starts with the first work and ends in close(). Locks: `mutex_` guards the queue; no
// other lock is taken under it.
class HostStream {
 public:
  // Returns a stream with one reference. NULL: there is no memory.
  static HostStream *create(const HostAllocator &allocator, const Log &log, Device device, uint64_t id);
  HostStream(const HostAllocator &allocator, const Log &log, Device device, uint64_t id)
      : device(device), id(id), allocator_(allocator), log_(log) {}
  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release();

  Status call(void (*fn)(void *), void *user);
  Status copy(void *destination, const void *source, uint64_t size);
  Status fill(void *destination, uint8_t value, uint64_t size);
  Status populate(void *base, uint64_t size);
  Status wait_for(HostStream *other, uint64_t position);
  // For events of other processes: marks a record as passed, and waits for one.
  Status pass(HostSharedEvent *event, uint64_t number);
  Status wait_for(HostSharedEvent *event, uint64_t number);

  uint64_t position();
  bool passed(uint64_t position) const { return completed_.load(std::memory_order_acquire) >= position; }
  void synchronize(uint64_t position);
  // Whether the caller runs on this stream's thread. There a wait for the stream would never end.
  bool is_own_thread();
  // Waits for the queued work and ends the thread. The owner calls it once.
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
    uint64_t size = 0;  // kWait: the position; kPass and kWaitShared: the number of the record
    void (*fn)(void *) = nullptr;
    void *user = nullptr;
    HostStream *other = nullptr;
    HostSharedEvent *shared = nullptr;
  };
  ~HostStream() = default;

  Status enqueue(const Task &task);
  Status enqueue_shared(TaskKind kind, HostSharedEvent *event, uint64_t number);
  Status start();  // the caller holds the lock
  static void *thread_main(void *stream);
  void work();
  void run(const Task &task);

  const HostAllocator allocator_;
  const Log log_;
  std::atomic<uint32_t> references_{1};
  std::atomic<uint64_t> completed_{0};  // written with the lock held

  Mutex mutex_{LockRank::kHostStream};
  Condition queued_;
  Condition progressed_;
  Task *first_ = nullptr;
  Task *last_ = nullptr;
  uint64_t submitted_ = 0;
  bool started_ = false;
  bool closed_ = false;
  Thread thread_;
};

}  // namespace gmm
#endif
