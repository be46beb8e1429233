// SPDX-License-Identifier: Apache-2.0
// A stream of the SYCL backend: a SYCL queue, and a thread for what the queue cannot do.
#ifndef GMM_BACKEND_SYCL_SYCL_STREAM_H
#define GMM_BACKEND_SYCL_SYCL_STREAM_H

#include <gmm/types.h>
#include <pthread.h>

#include <atomic>

#include "backend/backend.h"
#include "backend/sycl/interface.h"
#include "base/host_allocator.h"
#include "base/lock.h"
#include "base/log.h"

namespace gmm::sycl {

// A point in a stream's order: a SYCL event, once it is there. Counted references.
class Mark {
 public:
  Mark(const Interface &api, const HostAllocator &allocator) : api_(api), allocator_(allocator) {}
  Mark(const Mark &) = delete;
  Mark &operator=(const Mark &) = delete;
  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release();

  void reached(EventRef event);  // takes it over; NULL: the queue refused, and nothing will be waited for
  bool is_reached();
  EventRef wait_reached();  // the mark's; may be NULL
  bool passed();
  Status wait();

 private:
  friend class gmm::HostAllocator;
  ~Mark() = default;

  const Interface &api_;
  const HostAllocator allocator_;
  std::atomic<uint32_t> references_{1};
  Mutex mutex_;
  Condition changed_;
  EventRef event_ = nullptr;
  bool reached_ = false;
};

struct Task {
  enum class Kind { kCall, kTouch, kCopy, kFill, kPrefetch, kWait, kMark };
  Kind kind = Kind::kCopy;
  uint8_t value = 0;
  void *destination = nullptr;
  const void *source = nullptr;
  uint64_t size = 0;
  void (*fn)(void *) = nullptr;
  void *user = nullptr;
  Mark *mark = nullptr;  // one reference
  Task *next = nullptr;
};

class SyclStreamTable;

// Work goes straight to the queue. SYCL runs functions of the host in command groups, which need a C++ compiler of its own and are not
// in dpctl's C interface. So a call goes to a list that a thread works off: it waits for the queue, calls, and hands over what
// came after the call meanwhile. The thread ends with the list.
class SyclStream {
 public:
  SyclStream(const Interface &api, const HostAllocator &allocator, const Log &log, SyclStreamTable &table,
             QueueRef queue, Device device, uint64_t id, bool owned);
  SyclStream(const SyclStream &) = delete;
  SyclStream &operator=(const SyclStream &) = delete;

  Status call(void (*fn)(void *), void *user);
  Status touch(void *base, uint64_t size);  // brings pages to the host by reading them
  Status copy(void *destination, const void *source, uint64_t size);
  Status fill(void *destination, uint8_t value, uint64_t size);
  Status prefetch(void *base, uint64_t size);  // to the queue's device
  Status advise(void *base, uint64_t size, int advice);
  Status wait_for(Mark *mark);
  // A new mark with one reference, behind what is queued so far.
  Status record(Mark **out);
  Status synchronize();
  Status query(bool *idle);

  OpaqueQueue *const queue;  // a reference of this object
  const Device device;
  const uint64_t id;
  const bool owned;  // made here; else the program's
  // The table's, under its lock.
  gmm_stream handle = nullptr;
  uint32_t references = 1;

 private:
  friend class gmm::HostAllocator;
  ~SyclStream();

  Status enqueue(const Task &task);
  Status start();  // with the lock held
  static void *thread_main(void *stream);
  void work();
  // Puts the task on the queue; kCall and kTouch are done by the calling thread.
  Status submit(const Task &task);
  Status submit_command(const Task &task);
  bool is_own_thread();

  const Interface &api_;
  const HostAllocator allocator_;
  const Log log_;
  SyclStreamTable &table_;
  const bool in_order_;
  Mutex mutex_;
  Task *first_ = nullptr;
  Task *last_ = nullptr;
  bool working_ = false;      // a thread works the list off: everything goes there
  uint64_t submissions_ = 0;  // but marks
  bool settled_ = false;      // all that gmm put on the queue was waited for
  pthread_t thread_ = {};
};

}  // namespace gmm::sycl
#endif
