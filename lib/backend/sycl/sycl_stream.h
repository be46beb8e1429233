// SPDX-License-Identifier: Apache-2.0
// A stream of the SYCL backend: a SYCL queue, and a thread for the work that the queue cannot do. The table of the live
// streams, and the platform that they are of.
#ifndef GMM_BACKEND_SYCL_SYCL_STREAM_H
#define GMM_BACKEND_SYCL_SYCL_STREAM_H

#include "backend/stream_table.h"
#include "backend/sycl/interface.h"

namespace gmm::sycl {

// A point in a stream's order: a SYCL event, once the stream has come that far. Its lifetime is by reference counts.
class Mark {
 public:
  Mark(const Interface &api, const HostAllocator &allocator) : api_(api), allocator_(allocator) {}
  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release();

  void reached(EventRef event);  // owns `event` from now on; NULL: the queue refused, and nothing will be waited for
  bool is_reached();
  EventRef wait_reached();  // the event stays the mark's and may be NULL
  bool passed();
  Status wait();

 private:
  friend class gmm::HostAllocator;
  ~Mark() = default;

  const Interface &api_;
  const HostAllocator allocator_;
  std::atomic<uint32_t> references_{1};
  Mutex mutex_{LockRank::kSyclMark};
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
struct Platform;

// Work goes straight to the queue, with one exception. SYCL runs functions of the host in command groups, which need a
// SYCL compiler and are not in dpctl's C interface. So a call goes to a list, and a thread works through that list: it
// waits for the queue, makes the call, and queues the work that came after it. The thread ends when the list is empty.
//
// Locks: `mutex_` guards the list. The table's lock may be taken under it.
class SyclStream : public StreamEntry {
 public:
  SyclStream(const Interface &api, const HostAllocator &allocator, const Log &log, SyclStreamTable &table,
             QueueRef queue, Device device, uint64_t id, bool is_created);

  Status call(void (*fn)(void *), void *user) { return enqueue({.kind = Task::Kind::kCall, .fn = fn, .user = user}); }
  // Brings pages to the host by reading them.
  Status touch(void *base, uint64_t size) {
    return enqueue({.kind = Task::Kind::kTouch, .source = base, .size = size});
  }
  Status copy(void *destination, const void *source, uint64_t size) {
    return enqueue({.kind = Task::Kind::kCopy, .destination = destination, .source = source, .size = size});
  }
  Status fill(void *destination, uint8_t value, uint64_t size) {
    return enqueue({.kind = Task::Kind::kFill, .value = value, .destination = destination, .size = size});
  }
  // Moves pages to the queue's device.
  Status prefetch(void *base, uint64_t size) {
    return enqueue({.kind = Task::Kind::kPrefetch, .source = base, .size = size});
  }
  Status advise(void *base, uint64_t size, int advice);
  Status wait_for(Mark *mark);
  // Returns a new mark with one reference, behind the work that is queued so far.
  Status record(Mark **out);
  Status synchronize();
  Status query(bool *idle);

  void close() {}  // the thread ends by itself

  OpaqueQueue *const queue;  // the object holds a reference

 private:
  friend class gmm::HostAllocator;
  ~SyclStream();

  Status enqueue(const Task &task);
  void work();
  // Puts a task on the queue. The calling thread itself does kCall and kTouch.
  Status submit(const Task &task);
  Status submit_command(const Task &task);

  const Interface &api_;
  const HostAllocator allocator_;
  const Log log_;
  SyclStreamTable &table_;
  const bool in_order_;
  Mutex mutex_{LockRank::kSyclStream};
  Task *first_ = nullptr;
  Task *last_ = nullptr;
  bool working_ = false;      // a thread works through the list, so all work goes there
  uint64_t submissions_ = 0;  // number of submissions other than marks
  bool is_drained_ = false;   // gmm has waited for all that it put on the queue
  Thread thread_;
};

// The live streams by their handles. A handle is a DPCTLSyclQueueRef, which points to a sycl::queue. So dpctl can use
// gmm's streams, and gmm the program's queues. A queue of the program is in the table while gmm uses it.
class SyclStreamTable : public StreamTable<SyclStreamTable, SyclStream> {
 public:
  // The platform is opened before the first stream, and lives until close().
  SyclStreamTable(const Platform &platform, const HostAllocator &allocator, const Log &log)
      : StreamTable(allocator, log), platform_(platform) {}
  // Waits for all work and ends all streams.
  void close();

  Status make(Device device, uint64_t id, SyclStream **out);
  // Adopts a queue of the program. The stream's reference keeps the queue alive, whatever the program does.
  Status find_unknown(gmm_stream handle, SyclStream **out);

  // A stream's thread calls these. It holds a reference, and close() waits for it.
  void worker_begins(SyclStream *stream);
  void worker_ends(SyclStream *stream);

 private:
  const Platform &platform_;
  Condition worker_ended_;
  uint32_t workers_ = 0;
};

struct Platform {
  Interface api;
  ContextRef context = nullptr;
  DeviceRef devices[SyclStreamTable::kMostDevices] = {};
  uint32_t device_count = 0;

  // -1: the device is of another platform.
  int32_t ordinal_of(DeviceRef device) const {
    for (uint32_t i = 0; i < device_count; ++i)
      if (api.DPCTLDevice_AreEq(device, devices[i])) return static_cast<int32_t>(i);
    return -1;
  }
};

}  // namespace gmm::sycl
#endif
