// SPDX-License-Identifier: Apache-2.0
// The live streams of the host backend, and the stream that a handle means.
#ifndef GMM_BACKEND_HOST_HOST_STREAM_TABLE_H
#define GMM_BACKEND_HOST_HOST_STREAM_TABLE_H

#include "backend/host/host_stream.h"
#include "base/per_thread.h"
#include "base/vector.h"

namespace gmm {

inline constexpr uint32_t kMaxHostDevices = 16;

// A handle is a number that is never used again, not an address. So the handle of a destroyed stream is always
// recognised. Locks: `mutex_` guards the table; a stream's lock may be taken under it.
class HostStreamTable {
 public:
  HostStreamTable(const HostAllocator &allocator, const Log &log)
      : allocator_(allocator), log_(log), streams_(allocator), by_thread_(allocator) {}

  Status create(Device device, gmm_stream *out);
  // Returns the stream of a handle with a reference for the caller. The special values mean the default streams of
  // `device`.
  Status acquire(Device device, gmm_stream handle, HostStream **out);
  // Removes a created stream. The caller gets the table's reference.
  Status remove(gmm_stream handle, HostStream **out);
  // Returns the first open stream of the device whose id is above `after`, with a reference. NULL: there is none.
  HostStream *next(Device device, uint64_t after);
  // Ends all streams.
  void close();

 private:
  struct Entry {
    HostStream *stream;
    bool created;  // made by create(), so a handle names it
  };

  Status add(Device device, bool created, HostStream **out);
  Status acquire_default(Device device, HostStream **out);
  Status acquire_of_thread(Device device, HostStream **out);
  uint64_t find(gmm_stream handle) const;  // the index, or streams_.size() if there is none

  const HostAllocator allocator_;
  const Log log_;
  Mutex mutex_{LockRank::kHostStreamTable};
  uint64_t last_id_ = 0;
  Vector<Entry> streams_;                      // ascending by id
  PerThread<Device, HostStream *> by_thread_;  // the per-thread default streams
  HostStream *defaults_[kMaxHostDevices] = {};
};

}  // namespace gmm
#endif
