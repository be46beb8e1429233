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

struct Task : StreamTask<Status> {
  enum class Kind { kCommand, kCall, kWait, kMark };  // of the queue; of the host; for a mark; a new mark
  template <typename Work>
  Task(Kind of, Work work, Mark *with = nullptr) : StreamTask(work), kind(of), mark(with) {}
  Kind kind;
  Mark *mark;  // one reference
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

  Status call(void (*fn)(void *), void *user) {
    return call_host([=] { fn(user); });
  }
  // Brings pages to the host by reading them.
  Status touch(const void *base, uint64_t size);
  Status copy(void *destination, const void *source, uint64_t size) {
    return command([=, this] {
      return api_.check(api_.DPCTLQueue_Memcpy(queue, destination, source, size), "DPCTLQueue_Memcpy");
    });
  }
  Status fill(void *destination, uint8_t value, uint64_t size) {
    return command(
        [=, this] { return api_.check(api_.DPCTLQueue_Memset(queue, destination, value, size), "DPCTLQueue_Memset"); });
  }
  // Moves pages to the queue's device.
  Status prefetch(const void *base, uint64_t size) {
    return command(
        [=, this] { return api_.check(api_.DPCTLQueue_Prefetch(queue, base, size), "DPCTLQueue_Prefetch"); });
  }
  // Advice concerns the memory and not the stream's work, so it takes effect at once.
  Status advise(void *base, uint64_t size, int advice) {
    return api_.check_done(api_.DPCTLQueue_MemAdvise(queue, base, size, advice), "DPCTLQueue_MemAdvise");
  }
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

  template <typename Work>
  Status command(Work work) {
    return enqueue({Task::Kind::kCommand, work});
  }
  // Calls work() on the stream's thread, when the queue has done all before it. It is called in any case, because its
  // caller waits for it.
  template <typename Work>
  Status call_host(Work work) {
    return enqueue({Task::Kind::kCall, [=, this] {
                      const Status status =
                          api_.check_done(api_.DPCTLQueue_SubmitBarrier(queue), "DPCTLQueue_SubmitBarrier");
                      work();
                      return status;
                    }});
  }
  Status barrier() { return api_.check(api_.DPCTLQueue_SubmitBarrier(queue), "DPCTLQueue_SubmitBarrier"); }
  Status enqueue(Task task);
  void work();
  Status submit(Task &task);

  const Interface &api_;
  const HostAllocator allocator_;
  const Log log_;
  SyclStreamTable &table_;
  const bool in_order_;
  Mutex mutex_{LockRank::kSyclStream};
  List<Task, StreamTask<Status>> list_;
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
