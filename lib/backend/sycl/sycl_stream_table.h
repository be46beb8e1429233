// SPDX-License-Identifier: Apache-2.0
// The live streams of the SYCL backend, and the stream that a handle means.
#ifndef GMM_BACKEND_SYCL_SYCL_STREAM_TABLE_H
#define GMM_BACKEND_SYCL_SYCL_STREAM_TABLE_H

#include "backend/sycl/sycl_stream.h"

namespace gmm::sycl {

struct Platform;

// A handle is a DPCTLSyclQueueRef, which points to a sycl::queue. So dpctl can use gmm's streams, and gmm the program's
// queues. A queue of the program is in the table while gmm uses it.
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

// All devices of a platform share its default SYCL context, which is dpctl's too. So every pointer is valid on every
// queue, and dpctl accepts gmm's memory.
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
