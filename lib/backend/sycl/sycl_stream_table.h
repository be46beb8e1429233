// SPDX-License-Identifier: Apache-2.0
// The live streams of the SYCL backend, and the stream that a handle means.
#ifndef GMM_BACKEND_SYCL_SYCL_STREAM_TABLE_H
#define GMM_BACKEND_SYCL_SYCL_STREAM_TABLE_H

#include "backend/sycl/sycl_stream.h"

namespace gmm::sycl {

// A handle is a DPCTLSyclQueueRef, which points to a sycl::queue. So dpctl can use gmm's streams, and gmm the program's
// queues. A queue of the program is in the table while gmm uses it.
class SyclStreamTable : public StreamTable<SyclStreamTable, SyclStream> {
 public:
  SyclStreamTable(const Interface &api, const HostAllocator &allocator, const Log &log)
      : StreamTable(allocator, log), api_(api) {}
  // The devices stay the caller's and outlive the table.
  void set_devices(ContextRef context, const DeviceRef *devices, uint32_t count);
  // Waits for all work and ends all streams.
  void close();

  Status make(Device device, uint64_t id, SyclStream **out);
  // Adopts a queue of the program. The stream's reference keeps the queue alive, whatever the program does.
  Status find_unknown(gmm_stream handle, SyclStream **out);

  // A stream's thread calls these. It holds a reference, and close() waits for it.
  void worker_begins(SyclStream *stream);
  void worker_ends(SyclStream *stream);

 private:
  const Interface &api_;
  ContextRef context_ = nullptr;
  const DeviceRef *devices_ = nullptr;
  uint32_t device_count_ = 0;
  Condition worker_ended_;
  uint32_t workers_ = 0;
};

}  // namespace gmm::sycl
#endif
