// SPDX-License-Identifier: Apache-2.0
// The live streams of the SYCL backend, and the stream that a handle means.
#ifndef GMM_BACKEND_SYCL_SYCL_STREAM_TABLE_H
#define GMM_BACKEND_SYCL_SYCL_STREAM_TABLE_H

#include "backend/sycl/sycl_stream.h"
#include "base/per_thread.h"
#include "base/vector.h"

namespace gmm::sycl {

inline constexpr uint32_t kMaxSyclDevices = 32;

// A handle is a DPCTLSyclQueueRef, which points to a sycl::queue. So dpctl can use gmm's streams, and gmm the program's
// queues. A queue of the program is in the table while gmm uses it.
class SyclStreamTable {
 public:
  SyclStreamTable(const Interface &api, const HostAllocator &allocator, const Log &log)
      : api_(api), allocator_(allocator), log_(log), streams_(allocator), by_thread_(allocator) {}
  // The devices stay the caller's and outlive the table.
  void set_devices(ContextRef context, const DeviceRef *devices, uint32_t count);

  Status create(Device device, gmm_stream *out);
  // Returns the stream of a handle with a reference for the caller. The special values mean the default streams of
  // `device`.
  Status acquire(Device device, gmm_stream handle, SyclStream **out);
  void release(SyclStream *stream);
  // Removes a created stream. The caller gets the table's reference.
  Status remove(gmm_stream handle, SyclStream **out);
  // Undoes remove(), with the reference that it gave.
  void put_back(gmm_stream handle, SyclStream *stream);
  // Returns the stream of the device with the lowest number above `after`, with a reference. NULL: there is none.
  SyclStream *next(Device device, uint64_t after);
  // Waits for all work and ends all streams.
  void close();

  // A stream's thread calls these. It holds a reference, and close() waits for it.
  void worker_begins(SyclStream *stream);
  void worker_failed(SyclStream *stream) { worker_ends(stream); }
  void worker_ends(SyclStream *stream);

 private:
  // The caller holds the lock.
  Status add(QueueRef queue, Device device, bool owned, SyclStream **out);  // owns the queue after a success
  Status add_new(Device device, SyclStream **out);
  Status adopt(gmm_stream handle, SyclStream **out);
  Status acquire_of_thread(Device device, SyclStream **out);
  void drop(SyclStream *stream);

  const Interface &api_;
  const HostAllocator allocator_;
  const Log log_;
  ContextRef context_ = nullptr;
  const DeviceRef *devices_ = nullptr;
  uint32_t device_count_ = 0;
  Mutex mutex_{LockRank::kSyclStreamTable};
  Condition worker_ended_;
  uint32_t workers_ = 0;
  uint64_t last_id_ = 0;
  Vector<SyclStream *> streams_;               // sorted by number
  PerThread<Device, SyclStream *> by_thread_;  // the per-thread default streams
  SyclStream *defaults_[kMaxSyclDevices] = {};
};

}  // namespace gmm::sycl
#endif
