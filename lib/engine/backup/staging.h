// SPDX-License-Identifier: Apache-2.0
// A page-locked buffer that the device reads and writes, between device memory and host memory that is not page-locked.
//
// A transfer cuts one buffer into a slot for each in-flight batch (tiers.h). A second buffer holds the questions to the
// device about zeros. Each transfer that runs has two of its own.
#ifndef GMM_ENGINE_BACKUP_STAGING_H
#define GMM_ENGINE_BACKUP_STAGING_H

#include "engine/space/core.h"

namespace gmm {

// When the driver refuses to page-lock the memory, the buffer stays pageable and copies through it are slower.
// Not thread-safe: it belongs to one transfer.
class StagingBuffer : NoCopy {
 public:
  explicit StagingBuffer(Core &core) : core_(core) {}
  ~StagingBuffer() { close(); }

  // An open buffer stays as it is, whatever its size.
  Status open(Device device, uint64_t size);
  // Returns the bytes that went back to the system.
  uint64_t close();
  // The device may still copy to or from the buffer: its memory is never used again and never freed.
  void abandon();

  char *data() const { return data_; }
  // The device's address of the buffer; NULL when the buffer is not page-locked.
  void *device_data() const { return device_data_; }

 private:
  Core &core_;
  char *data_ = nullptr;
  uint64_t size_ = 0;
  void *device_data_ = nullptr;
  bool is_pinned_ = false;
};

// The buffers of one transfer. Between transfers it belongs to the store.
struct TransferBuffers {
  explicit TransferBuffers(Core &core) : slots(core), zero_ranges(core) {}
  uint64_t close() { return slots.close() + zero_ranges.close(); }

  StagingBuffer slots;        // a slot of kMaxChunk for each in-flight batch
  StagingBuffer zero_ranges;  // what the device is asked about zeros
  TransferBuffers *next = nullptr;
};

}  // namespace gmm
#endif
